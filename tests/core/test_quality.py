"""Shapes, divergences and loops: what breaks, what does not, and that no text is kept."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.quality import (
    Divergence,
    first_divergence,
    json_shape_fault,
    loops,
    max_tokens_fault,
    repeat_share,
    stop_fault,
    tool_call_fault,
)

SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["name", "age"],
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}},
    },
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('{"name": "CANARY", "age": 3}', None),
        ('{"name": "x", "age": 3, "tags": ["a"]}', None),
        ('{"name": "CANARY", "age": 3', "no valid JSON"),
        ('{"name": "x", "age": "3"}', "$.age is no integer"),
        ('{"name": "x", "age": true}', "$.age is no integer"),
        ('{"name": "x"}', "$ lacks age"),
        ('{"name": "x", "age": 3, "CANARY": 1}', "$ has a key that the schema does not allow"),
        ('{"name": "x", "age": 3, "tags": ["CANARY"]}', "$.tags[0] is none of the allowed values"),
        ("[]", "$ is no object"),
    ],
)
def test_json_shapes(text: str, fault: str | None) -> None:
    """The fault names a place, never the answer's words."""
    assert json_shape_fault(text, SCHEMA) == fault


@pytest.mark.parametrize(
    ("calls", "fault"),
    [
        ([{"function": {"name": "f", "arguments": "{}"}}], None),
        ([], "no tool call"),
        ([{"function": {"name": "g", "arguments": "{}"}}], "a tool that was not offered"),
        ([{"function": {"name": "f", "arguments": "{"}}], "arguments that are no JSON"),
        ([{"function": {"name": "f", "arguments": "[]"}}], "arguments that are no JSON object"),
        ([{"function": {"name": "f"}}], "arguments that are no JSON"),
    ],
)
def test_tool_calls(calls: list[dict[str, Any]], fault: str | None) -> None:
    """At least one, of a known name, with an object as arguments."""
    assert tool_call_fault(calls, ["f"]) == fault


@pytest.mark.parametrize(
    ("tokens", "reason", "broken"),
    [(5, "length", False), (6, "length", True), (4, "length", True), (4, "stop", False),
     (None, "length", False)],
)  # fmt: skip
def test_max_tokens_edge(tokens: int | None, reason: str, broken: bool) -> None:
    """A speculating engine must cut its last cycle at the edge."""
    assert (max_tokens_fault(tokens, 5, reason) is not None) == broken


def test_stop_strings() -> None:
    """Nothing after a stop, and the reason says so."""
    assert stop_fault("before", ["END"], "stop") is None
    assert stop_fault("before END after", ["END"], "stop") == "text ran past a stop string"
    assert stop_fault("before", ["END"], None) is not None


@pytest.mark.parametrize(
    ("left", "right", "found"),
    [
        ([1, 2, 3], [1, 2, 3], Divergence(None, 3)),
        ([1, 2, 3], [1, 9, 3], Divergence(1, 2, 0.2)),
        ([1, 2, 3], [9], Divergence(0, 1, 0.1)),
        ([1, 2, 3], [1, 2], Divergence(None, 2)),
        ([], [1], Divergence(None, 0)),
    ],
)
def test_first_divergence(left: list[int], right: list[int], found: Divergence) -> None:
    """Nothing after the first difference counts."""
    assert first_divergence(left, right, [0.1, 0.2, 0.3]) == found


def test_a_near_tie_is_not_hard() -> None:
    """Two best tokens 0.2 nats apart, tolerance 0.25."""
    assert Divergence(1, 2, 0.2).hard(0.25) is False
    assert Divergence(1, 2, 0.3).hard(0.25) is True
    assert Divergence(1, 2, None).hard(0.25) is None
    assert Divergence(None, 2).hard(0.25) is False


@pytest.mark.parametrize(
    ("tokens", "share"),
    [
        ([7] * 40, 1.0),
        (list(range(20)) + [1, 2, 3] * 10, 30 / 50),
        (list(range(60)), 0.0),
        ([7] * 10, 0.0),  # too short to tell
        (list(range(40)) + [5, 6] * 2, 0.0),  # a pair said twice is no loop
    ],
)
def test_repeated_tails(tokens: list[int], share: float) -> None:
    """The share of the answer that one run at its end makes up."""
    assert repeat_share(tokens) == pytest.approx(share)
    assert loops(tokens) == (share > 0.5)


@given(st.lists(st.integers(0, 50), max_size=120))
def test_a_repeat_share_is_a_share(tokens: list[int]) -> None:
    """Whatever the answer."""
    assert 0.0 <= repeat_share(tokens) <= 1.0
