"""What a figure rests on: labels of engine, content and acceptance, and what was pinned.

Here: the labels, the checklist of things to pin, and what follows from them. Not here: how a
label is found out. A simulated engine, synthetic content or synthetic acceptance are never
evidence: every output carries the labels, and the decision refuses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from .errors import InputError


class EngineKind(StrEnum):
    """Which engine answered."""

    REAL = "real"
    SIMULATED = "simulated"


class ContentKind(StrEnum):
    """Where prompts came from: the service's own, a public stand-in, or made up."""

    REAL = "real"
    PUBLIC_PROXY = "public-proxy"
    SYNTHETIC = "synthetic"


class AcceptanceKind(StrEnum):
    """Whether the target really judged the drafts."""

    MEASURED = "measured"
    SYNTHETIC = "synthetic"


class Evidence(StrEnum):
    """What a result may be used for."""

    EVIDENCE = "evidence"
    METHOD_CHECK = "method_check"


SIMULATED_VERSION_MARK = "+breakeven.sim"
"""`/version` of the simulated engine ends in this; a result with it is labelled simulated."""


@dataclass(frozen=True, slots=True)
class Labels:
    """The three labels that every output carries."""

    engine: EngineKind
    content: ContentKind
    acceptance: AcceptanceKind

    @property
    def evidence(self) -> Evidence:
        """Evidence only when nothing was simulated or synthetic."""
        return Evidence.METHOD_CHECK if self.why_not_evidence else Evidence.EVIDENCE

    @property
    def why_not_evidence(self) -> tuple[str, ...]:
        """One clause per label that stands in the way; empty for evidence."""
        why = []
        if self.engine is EngineKind.SIMULATED:
            why.append("the engine is simulated")
        if self.content is ContentKind.SYNTHETIC:
            why.append("the prompts are synthetic")
        if self.acceptance is AcceptanceKind.SYNTHETIC:
            why.append("the acceptance is synthetic")
        return tuple(why)

    def as_dict(self) -> dict[str, str]:
        """For JSON: engine, content, acceptance."""
        return {
            "engine": self.engine.value,
            "content": self.content.value,
            "acceptance": self.acceptance.value,
        }


def read_labels(record: Mapping[str, Any], *, file: str) -> Labels:
    """Labels of a stored provenance; a missing one counts as the weaker, never as real.

    Raises:
        InputError: a label that is no label.
    """
    try:
        return Labels(
            EngineKind(record.get("engine", EngineKind.SIMULATED)),
            ContentKind(record.get("content", ContentKind.SYNTHETIC)),
            AcceptanceKind(record.get("acceptance", AcceptanceKind.SYNTHETIC)),
        )
    except ValueError as error:
        raise InputError(
            "unknown label", file=file, value=str(error).split(" is not")[0],
            mend="engine real|simulated, content real|public-proxy|synthetic, "
            "acceptance measured|synthetic",
        ) from None  # fmt: skip


def weakest(labels: Sequence[Labels]) -> Labels:
    """Labels of a result made of several runs: each the weakest of its parts.

    Raises:
        ValueError: no labels given.
    """
    return Labels(
        max((one.engine for one in labels), key=list(EngineKind).index),
        max((one.content for one in labels), key=list(ContentKind).index),
        max((one.acceptance for one in labels), key=list(AcceptanceKind).index),
    )


LOSSLESS_METHODS = ("strict", "probabilistic", "standard", "block")
"""Rejection samplers of vLLM that keep the target's distribution."""


def acceptance_of(rejection_sample_method: str | None) -> tuple[AcceptanceKind, bool]:
    """(label, lossless) of vLLM's `rejection_sample_method`.

    `synthetic` accepts by a set rate and is no evidence (as does SGLANG_SIMULATE_ACC_LEN there).
    Only the methods of LOSSLESS_METHODS keep the output's distribution; any other (`fly`, say)
    and an unstated one are measured, but never "lossless".
    """
    if rejection_sample_method == "synthetic":
        return AcceptanceKind.SYNTHETIC, False
    return AcceptanceKind.MEASURED, rejection_sample_method in LOSSLESS_METHODS


PINS = (
    "target_model",
    "target_revision",
    "tokenizer",
    "precision",
    "draft",
    "engine_version",
    "engine_image_digest",
    "hardware",
    "parallelism",
    "sampler",
    "stopping",
    "prefix_cache_policy",
)
"""What a release must pin, so that the run can be repeated and the certificate means something."""


@dataclass(frozen=True, slots=True)
class Pin:
    """One thing to pin: its value, and whether the engine showed it or the user only said it."""

    name: str
    value: str | None
    how: str  # "shown", "stated" or "not pinned"


def pins(shown: Mapping[str, str | None], stated: Mapping[str, str | None]) -> tuple[Pin, ...]:
    """The checklist in order: what engines showed wins over what the user stated."""
    out = []
    for name in PINS:
        if shown.get(name):
            out.append(Pin(name, shown[name], "shown"))
        elif stated.get(name):
            out.append(Pin(name, stated[name], "stated"))
        else:
            out.append(Pin(name, None, "not pinned"))
    return tuple(out)
