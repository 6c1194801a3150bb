"""The quality contract, layers L0 and L1, and its guards: pure checks of answers.

Here: what counts as a broken shape, where two greedy answers part, what loops. Not here: asking
the engines (grid), the statistics over many answers (judge). Texts and token ids come in as
arguments and go nowhere: results hold counts and positions only.

L0 shapes (JSON schema, tools, stop strings, max_tokens, n > 1, logprobs); L1 greedy to the first
divergence. L2 (teacher-forced calibration) and L3 (two-sample tests) have their place in `Layer`
and are not implemented: no result claims them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import orjson

REPEAT_SHARE_MAX = 0.5
"""An answer more than half of whose tail repeats one short run of tokens is a loop."""
REPEAT_MIN_TOKENS = 24
"""Shorter answers cannot be told from a list or a refrain."""
LOOP_LENGTH_MAX = 32
"""Longest run of tokens that is looked for as the body of a loop."""


class Layer(StrEnum):
    """Layers of the contract."""

    L0 = "L0"
    L1 = "L1"
    L2 = "L2"
    L3 = "L3"


class Feature(StrEnum):
    """What a client may ask of an engine; one probe row each."""

    STRUCTURED_OUTPUT = "structured_output"
    TOOLS = "tools"
    ADAPTERS = "adapters"
    N_CHOICES = "n_choices"
    LOGPROBS = "logprobs"
    STOP_STRINGS = "stop_strings"
    MAX_TOKENS = "max_tokens"


class Support(StrEnum):
    """Outcome of a probe."""

    SUPPORTED = "supported"
    FAILED = "failed"
    UNTESTED = "untested"


# --- L0: shapes -------------------------------------------------------------------------------


def json_shape_fault(text: str, schema: Mapping[str, Any] | None = None) -> str | None:
    """Why a structured answer breaks its contract, or None.

    Checks what a JSON schema's `type`, `required`, `properties`, `items` and `enum` ask for (the
    part of JSON Schema that guided decoding can enforce); words of the answer never appear.
    """
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return "no valid JSON"
    return None if schema is None else _schema_fault(value, schema, "$")


_TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}


def _schema_fault(value: Any, schema: Mapping[str, Any], place: str) -> str | None:
    wanted = schema.get("type")
    if isinstance(wanted, str) and not _is_type(value, wanted):
        return f"{place} is no {wanted}"
    if "enum" in schema and value not in schema["enum"]:
        return f"{place} is none of the allowed values"
    if isinstance(value, dict):
        missing = [key for key in schema.get("required", ()) if key not in value]
        if missing:
            return f"{place} lacks {missing[0]}"
        for key, inner in schema.get("properties", {}).items():
            fault = _schema_fault(value[key], inner, f"{place}.{key}") if key in value else None
            if fault:
                return fault
        if schema.get("additionalProperties") is False:
            extra = set(value) - set(schema.get("properties", {}))
            if extra:
                return f"{place} has a key that the schema does not allow"
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        for i, item in enumerate(value):
            fault = _schema_fault(item, schema["items"], f"{place}[{i}]")
            if fault:
                return fault
    return None


def _is_type(value: Any, name: str) -> bool:
    kind = _TYPES.get(name)
    if kind is None:
        return True
    if isinstance(value, bool) and name in ("integer", "number"):
        return False
    return isinstance(value, kind)


def tool_call_fault(calls: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str | None:
    """Why tool calls break their contract, or None: one at least, a known name, JSON arguments."""
    if not calls:
        return "no tool call"
    for call in calls:
        function = call.get("function") or {}
        if function.get("name") not in names:
            return "a tool that was not offered"
        try:
            arguments = orjson.loads(function.get("arguments") or "")
        except orjson.JSONDecodeError:
            return "arguments that are no JSON"
        if not isinstance(arguments, dict):
            return "arguments that are no JSON object"
    return None


def stop_fault(text: str, stops: Sequence[str], finish_reason: str | None) -> str | None:
    """Why an answer breaks its stop strings, or None: text after a stop, or a wrong reason."""
    if any(stop in text for stop in stops):
        return "text ran past a stop string"
    return None if finish_reason in ("stop", "length") else "no finish reason of a stop"


def max_tokens_fault(tokens: int | None, asked: int, finish_reason: str | None) -> str | None:
    """Why an answer breaks max_tokens, or None: a speculating engine must cut its last cycle."""
    if tokens is None:
        return None
    if tokens > asked:
        return f"{tokens} tokens where {asked} were asked for at most"
    if finish_reason == "length" and tokens < asked:
        return f"ended for length at {tokens} of {asked} tokens"
    return None


# --- L1: greedy to the first divergence -------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where two greedy answers to one prompt part.

    Attributes:
        position: index of the first token that differs, from 0; None where they agree.
        compared: tokens compared up to there.
        gap: difference of the two best log-probabilities there on the baseline, in nats; None
            where the engine gave no logprobs.
    """

    position: int | None
    compared: int
    gap: float | None = None

    def hard(self, tau: float) -> bool | None:
        """Whether it is no near-tie at tolerance `tau` (nats); None where the gap is unknown."""
        if self.position is None:
            return False
        return None if self.gap is None else self.gap > tau


def first_divergence(
    reference: Sequence[int], other: Sequence[int], top_gaps: Sequence[float] | None = None
) -> Divergence:
    """Compare two token sequences from the start; only the common length is compared.

    After the first difference the two answer different questions, so nothing later counts.

    Args:
        top_gaps: per position of `reference`, best minus second-best log-probability.
    """
    length = min(len(reference), len(other))
    for i in range(length):
        if reference[i] != other[i]:
            gap = top_gaps[i] if top_gaps is not None and i < len(top_gaps) else None
            return Divergence(i, i + 1, gap)
    return Divergence(None, length)


# --- guards -----------------------------------------------------------------------------------


def repeat_share(tokens: Sequence[int]) -> float:
    """Share of an answer that is one run of up to 32 tokens repeated at its end, 0..1.

    A looping output was once the fastest arm: drafts of a loop are always accepted.
    """
    n = len(tokens)
    if n < REPEAT_MIN_TOKENS:
        return 0.0
    best = 0
    for size in range(1, min(LOOP_LENGTH_MAX, n // 3) + 1):
        repeated = size
        while repeated < n and tokens[n - 1 - repeated] == tokens[n - 1 - repeated + size]:
            repeated += 1
        if repeated >= 3 * size:
            best = max(best, repeated)
    return best / n


def loops(tokens: Sequence[int]) -> bool:
    """Whether an answer is a loop."""
    return repeat_share(tokens) > REPEAT_SHARE_MAX
