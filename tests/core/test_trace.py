"""The redacted trace: what it takes, what it refuses, and that it cannot carry text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.errors import TraceError
from breakeven.trace import Arrival, Block, Header, Trace, read_trace, write_trace

HEAD = '{"breakeven_trace": 1, "block": {"unit": "bytes", "size": 2048}, "source": "staging"}'
GOOD: dict[str, Any] = {
    "t": 0.5,
    "in": 12,
    "out": 3,
    "cohort": "chat-en",
    "task": "chat",
    "lang": "en",
    "sampling": "greedy",
    "stream": True,
    "prefix": ["0123456789abcdef"],
    "session": "fedcba9876543210",
}


def line(**changes: Any) -> str:
    return json.dumps({k: v for k, v in {**GOOD, **changes}.items() if v is not ...})


def test_a_full_line_is_read() -> None:
    """All fields of the format."""
    trace = read_trace([HEAD, line()])
    assert trace.header == Header(Block("bytes", 2048), {"source": "staging"})
    assert trace.arrivals == (
        Arrival(
            0.5, 12, 3, "chat-en", "chat", "en", "greedy", True,
            ("0123456789abcdef",), "fedcba9876543210",
        ),
    )  # fmt: skip


def test_labels_have_defaults() -> None:
    """t, in and out are what a replay cannot do without."""
    (arrival,) = read_trace(['{"breakeven_trace": 1}', '{"t": 0, "in": 1, "out": 1}']).arrivals
    assert arrival == Arrival(0.0, 1, 1)


@pytest.mark.parametrize(
    ("changes", "key", "what"),
    [
        ({"prompt": "CANARY"}, "prompt", "not allowed"),
        ({"CANARY text": 1}, "(a name that is no label)", "not allowed"),
        ({"t": -1}, "t", ">= 0"),
        ({"t": "0"}, "t", "seconds"),
        ({"t": True}, "t", "seconds"),
        ({"t": ...}, "t", "missing"),
        ({"out": 0}, "out", "at least 1"),
        ({"in": 0}, "in", "at least 1"),
        ({"in": 10**20}, "in", "at most"),
        ({"out": 10**9 + 1}, "out", "at most"),
        ({"t": 10**400}, "t", "finite"),
        ({"t": 1e300}, "t", "finite"),
        ({"in": 1.5}, "in", "whole number"),
        ({"in": True}, "in", "whole number"),
        ({"out": ...}, "out", "missing"),
        ({"cohort": "CANARY: a sentence"}, "cohort", "label"),
        ({"task": "x" * 65}, "task", "label"),
        ({"lang": ""}, "lang", "label"),
        ({"lang": 3}, "lang", "label"),
        ({"sampling": "hot"}, "sampling", "unknown sampling"),
        ({"stream": 1}, "stream", "true or false"),
        ({"prefix": "0123456789abcdef"}, "prefix", "keyed ids"),
        ({"prefix": ["CANARY"]}, "prefix", "keyed ids"),
        ({"prefix": [1]}, "prefix", "keyed ids"),
        ({"session": "user@CANARY"}, "session", "keyed id"),
    ],
)
def test_a_bad_field_is_refused_with_line_and_mend(
    changes: dict[str, Any], key: str, what: str
) -> None:
    """The field is named; a value that could be text is never quoted."""
    with pytest.raises(TraceError) as caught:
        read_trace([HEAD, line(), line(**changes)], file="t.jsonl")
    assert caught.value.line == 3
    assert caught.value.key == key
    assert what in str(caught.value)
    assert caught.value.mend
    assert "CANARY" not in str(caught.value)


@pytest.mark.parametrize(
    ("lines", "number", "what"),
    [
        ([], None, "empty"),
        (["", "\n"], None, "empty"),
        ([HEAD], None, "no arrivals"),
        ([line()], 1, "no header"),
        (['{"breakeven_trace": 2}', line()], 1, "unknown trace version"),
        (['{"breakeven_trace": true}', line()], 1, "unknown trace version"),
        (['{"breakeven_trace": 1, "user": "x"}', line()], 1, "not allowed in the header"),
        (['{"breakeven_trace": 1, "source": 3}', line()], 1, "short line"),
        (['{"breakeven_trace": 1, "block": 3}', line()], 1, "unit and size"),
        (['{"breakeven_trace": 1, "block": {"unit": "x", "size": 1}}', line()], 1, "unknown unit"),
        (['{"breakeven_trace": 1, "block": {"unit": "bytes", "size": 0}}'], 1, "at least 1"),
        ([HEAD, line(t=2), line(t=1)], 3, "must not decrease"),
        ([HEAD, "not json"], 2, "no JSON object"),
        ([HEAD, "[1]"], 2, "no JSON object"),
        ([HEAD, "[" * 100_000], 2, "no JSON object"),
        ([HEAD, '{"t": NaN, "in": 1, "out": 1}'], 2, "finite"),
        ([HEAD, '{"t": 1e999, "in": 1, "out": 1}'], 2, "finite"),
        ([HEAD, '{"t": ' + "1" * 5000 + ', "in": 1, "out": 1}'], 2, "no JSON object"),
        ([HEAD, '{"t": 1, "t": 2, "in": 1, "out": 1}'], 2, "given twice"),
        ([HEAD, b'{"t": 1, "in": 1, "out": 1, "cohort": "\xff"}'], 2, "invalid UTF-8"),
    ],
)
def test_a_bad_trace_is_refused_with_its_line(
    lines: list[Any], number: int | None, what: str
) -> None:
    """Nothing is replayed from half a trace."""
    with pytest.raises(TraceError, match=what) as caught:
        read_trace(lines)
    assert caught.value.line == number


def test_equal_times_are_a_batch() -> None:
    """Public traces have many simultaneous arrivals."""
    assert len(read_trace([HEAD, line(t=1), line(t=1)]).arrivals) == 2


LABELS = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9_.:/+-]{0,20}\Z")
IDS = st.from_regex(r"\A[0-9a-f]{16}\Z")
ARRIVALS = st.builds(
    Arrival,
    t=st.floats(0, 1e6),
    in_tokens=st.integers(1, 10**6),
    out_tokens=st.integers(1, 10**5),
    cohort=LABELS,
    task=LABELS,
    lang=LABELS,
    sampling=st.sampled_from(["greedy", "sampled"]),
    stream=st.booleans(),
    prefix=st.none() | st.lists(IDS, max_size=3).map(tuple),
    session=st.none() | IDS,
)


@given(st.lists(ARRIVALS, min_size=1, max_size=8))
def test_what_is_written_is_read_back(arrivals: list[Arrival]) -> None:
    """Writer and reader are one format."""
    trace = Trace.of(sorted(arrivals, key=lambda a: a.t), Header(Block("tokens", 512)))
    assert read_trace(write_trace(trace)) == trace
