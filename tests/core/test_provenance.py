"""Labels: whatever is simulated or made up is never evidence."""

from __future__ import annotations

import pytest

from breakeven.errors import InputError
from breakeven.provenance import (
    PINS,
    AcceptanceKind,
    ContentKind,
    EngineKind,
    Evidence,
    Labels,
    acceptance_of,
    pins,
    read_labels,
    weakest,
)

REAL = Labels(EngineKind.REAL, ContentKind.REAL, AcceptanceKind.MEASURED)


@pytest.mark.parametrize(
    ("engine", "content", "acceptance", "evidence"),
    [
        ("real", "real", "measured", "evidence"),
        ("real", "public-proxy", "measured", "evidence"),
        ("simulated", "real", "measured", "method_check"),
        ("real", "synthetic", "measured", "method_check"),
        ("real", "real", "synthetic", "method_check"),
        ("simulated", "synthetic", "synthetic", "method_check"),
    ],
)
def test_evidence_needs_all_three(
    engine: str, content: str, acceptance: str, evidence: str
) -> None:
    """One simulated or synthetic part is enough to refuse, and is named."""
    labels = Labels(EngineKind(engine), ContentKind(content), AcceptanceKind(acceptance))
    assert labels.evidence is Evidence(evidence)
    assert bool(labels.why_not_evidence) == (evidence == "method_check")


def test_a_missing_label_is_never_read_as_real() -> None:
    """An old or damaged provenance counts as the weaker."""
    assert read_labels({}, file="provenance.json").evidence is Evidence.METHOD_CHECK
    assert read_labels({"engine": "real", "content": "real"}, file="x").why_not_evidence


def test_an_unknown_label_is_refused() -> None:
    """A typing error must not turn a simulation into evidence."""
    with pytest.raises(InputError, match="reel"):
        read_labels({"engine": "reel"}, file="provenance.json")


def test_labels_survive_a_round_trip() -> None:
    """As written, so read."""
    assert read_labels(REAL.as_dict(), file="x") == REAL


def test_a_whole_is_as_weak_as_its_weakest_part() -> None:
    """One simulated arm makes the grid a method check."""
    simulated = Labels(EngineKind.SIMULATED, ContentKind.REAL, AcceptanceKind.MEASURED)
    proxy = Labels(EngineKind.REAL, ContentKind.PUBLIC_PROXY, AcceptanceKind.MEASURED)
    assert weakest([REAL, simulated, proxy]) == Labels(
        EngineKind.SIMULATED, ContentKind.PUBLIC_PROXY, AcceptanceKind.MEASURED
    )


@pytest.mark.parametrize(
    ("method", "kind", "lossless"),
    [
        ("strict", AcceptanceKind.MEASURED, True),
        ("probabilistic", AcceptanceKind.MEASURED, True),
        ("fly", AcceptanceKind.MEASURED, False),
        ("synthetic", AcceptanceKind.SYNTHETIC, False),
        (None, AcceptanceKind.MEASURED, False),
    ],
)
def test_lossy_and_synthetic_rejection_are_told_apart(
    method: str | None, kind: AcceptanceKind, lossless: bool
) -> None:
    """Synthetic acceptance is no evidence; a lossy method is never called lossless."""
    assert acceptance_of(method) == (kind, lossless)


def test_pins_say_what_was_shown_stated_or_left_open() -> None:
    """What the engine showed wins over what the user stated."""
    found = {
        pin.name: pin
        for pin in pins({"engine_version": "0.33.0"}, {"engine_version": "0.30", "draft": "d"})
    }
    assert list(found) == list(PINS)
    assert (found["engine_version"].value, found["engine_version"].how) == ("0.33.0", "shown")
    assert found["draft"].how == "stated"
    assert (found["hardware"].value, found["hardware"].how) == (None, "not pinned")
