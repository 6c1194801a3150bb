"""The repeated event is counted as the parsed one would be, whatever stands in it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breakeven import counting
from breakeven.gaps import GapSink
from breakeven.repeat import frame_of, is_string
from breakeven.report import Ending, StreamReport
from breakeven.stream import StreamObserver


def chat(text: object, **more: Any) -> dict[str, Any]:
    """A chunk as vLLM 0.32 sends it (tests/data/vllm)."""
    choice = {"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": None}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [choice], **more}


def completion(text: object) -> dict[str, Any]:
    return {"id": "cmpl-1", "choices": [{"index": 0, "text": text, "finish_reason": None}]}


def reasoning(text: object) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": None, "reasoning": text}}]}


def event(obj: object, *, ascii_only: bool = False) -> bytes:
    """As pydantic writes it (no spaces, UTF-8), or escaped."""
    data = json.dumps(obj, ensure_ascii=ascii_only, separators=(",", ":"))
    return b"data: " + data.encode("utf-8", "surrogatepass") + b"\n\n"


Report = tuple[StreamReport, list[list[int]], list[float]]


def told(reads: list[tuple[bytes, float]], *, by: str, keep: bool = False) -> Report:
    """The report, and what went into the histograms."""
    sink = GapSink()
    seen = StreamObserver(0.0, sink=sink, gap_bound_s=0.05, keep_events=keep)
    if by == "reads":
        seen.receive_reads(reads)
    else:
        for data, now in reads:
            seen.receive_data(data, now)
    report = seen.finish(reads[-1][1] if reads else 0.0, Ending.COMPLETE)
    filled = [sink.event_gaps, sink.burst_gaps, sink.burst_tokens]
    return report, [b.counts for b in filled], [round(b.sum, 9) for b in filled]


def parsed(reads: list[tuple[bytes, float]], **how: Any) -> Report:
    """The same by parsing every event."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counting, "FRAMES_TRIED", 0)
        return told(reads, by="data", **how)


TEXTS = st.one_of(
    st.text(max_size=6),
    st.sampled_from(
        [" the", "\n\n", '"', "\\", "\\u0041", "é", "漢字", "😀", "\x7f", "\x01", "\r"]
    ),
)
ODD = st.sampled_from(
    [
        event(chat("a", usage={"completion_tokens": 7, "prompt_tokens": 3})),
        event(chat("a", usage={"completion_tokens": 30, "prompt_tokens": 3})),
        event(chat(None)),
        event({"choices": [{"index": 1, "delta": {"content": "b"}}]}),
        event({"choices": [{"index": 0, "delta": {"content": "c"}, "finish_reason": "stop"}]}),
        event({"choices": [{"index": 0, "delta": {"content": "c"}, "token_ids": [1, 2]}]}),
        event({"choices": [], "usage": {"completion_tokens": 9, "prompt_tokens": 3}}),
        event({"error": {"message": "x", "code": 500}}),
        event(chat("half"))[:40],  # never continued
        b'data: {"a":',
        b": keep-alive\n\n",
        b"data: [DONE]\n\n",
    ]
)
STEPS = st.lists(
    st.tuples(
        st.integers(0, 9),  # below 8: the stream's own kind of chunk
        TEXTS,
        st.booleans(),  # escaped
        ODD,
        st.sampled_from([0.02, 0.02, 0.02, 0.0, 0.001, 0.06, -0.5]),
        st.sampled_from(["", "", "", "", "", "joined", "cut"]),
    ),
    min_size=4,
    max_size=40,
)


@settings(max_examples=300)
@given(
    kind=st.sampled_from([chat, completion, reasoning]),
    steps=STEPS,
    spoil=st.none() | st.tuples(st.integers(0, 5000), st.integers(0, 255)),
    keep=st.booleans(),
)
def test_the_report_is_that_of_parsing_every_event(
    kind: Callable[[object], dict[str, Any]],
    steps: list[tuple[int, str, bool, bytes, float, str]],
    spoil: tuple[int, int] | None,
    keep: bool,
) -> None:
    """Escapes, odd events between, joined and cut reads, a spoilt byte, a clock that steps back."""
    reads: list[tuple[bytes, float]] = []
    now = 1.0
    for which, text, ascii_only, odd, gap, how in steps:
        data = event(kind(text), ascii_only=ascii_only) if which < 8 else odd
        if how == "joined" and reads:
            reads[-1] = (reads[-1][0] + data, reads[-1][1])
            continue
        now += gap
        if how == "cut":
            reads += [(data[: len(data) // 2], now), (data[len(data) // 2 :], now)]
        else:
            reads.append((data, now))
    if spoil is not None:
        at = spoil[0] % len(reads)
        spoilt = bytearray(reads[at][0])
        spoilt[spoil[0] % len(spoilt)] = spoil[1]
        reads[at] = (bytes(spoilt), reads[at][1])
    expected = parsed(reads, keep=keep)
    assert told(reads, by="data", keep=keep) == expected
    assert told(reads, by="reads", keep=keep) == expected


def test_a_pause_ends_what_is_repeated() -> None:
    """A gap across a pause for a slow client is not observed, whichever way it is counted."""
    seen = StreamObserver(0.0)
    for number in range(10):
        seen.receive_data(event(chat("a")), 1.0 + number, paused=number == 7)
    report = seen.finish(11.0, Ending.COMPLETE)
    assert (report.events, report.backpressured, report.unobserved_gaps) == (10, 1, 1)
    assert report.burst_gaps == 8


@given(
    st.binary(max_size=12) | st.text(max_size=6).map(lambda text: json.dumps(text)[1:-1].encode())
)
def test_what_is_taken_for_a_string_is_one(inside: bytes) -> None:
    """is_string is never laxer than the parser."""
    if is_string(inside):
        value = orjson.loads(b'"' + inside + b'"')
        assert isinstance(value, str)
        assert value


@pytest.mark.parametrize("text", [" the", "漢字", "😀 é", 'say "a\\b"\n\t', "ʼn\x7f"])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_text_as_engines_write_it_is_a_string(text: str, ascii_only: bool) -> None:
    """The short way is taken for all of it, but for escaped characters beyond the first plane."""
    inside = json.dumps(text, ensure_ascii=ascii_only)[1:-1].encode()
    assert bool(is_string(inside)) == (not (ascii_only and "😀" in text))


@pytest.mark.parametrize(
    "obj",
    [
        chat("a", metrics={"content": "a"}),  # a second place with the same words
        chat(""),
        {"choices": [{"index": 0, "delta": {"content": "a", "refusal": "b"}}]},
        {"choices": [{"index": 0, "delta": {"tool_calls": [{"id": "a"}]}}]},
        {"choices": [{"index": 0}]},
    ],
)
def test_no_frame_where_the_place_is_not_sure(obj: dict[str, Any]) -> None:
    """The first of them is sure of its place all the same: the proof decides, not the words."""
    frame = frame_of(event(obj)[6:-2], obj)
    assert (frame is not None) == ("metrics" in obj)


def test_a_frame_holds_no_text() -> None:
    """Neither the frame nor its repr keeps what the chunk said."""
    frame = frame_of(event(chat("CANARY"))[6:-2], chat("CANARY"))
    assert frame is not None
    assert b"CANARY" not in frame.head + frame.tail
    assert "chatcmpl" not in repr(frame)


def test_one_stream_looks_for_few_frames() -> None:
    """An engine that changes every chunk's id costs three looks, no more."""
    looks: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counting, "frame_of", lambda *_: looks.append(1))
        seen = StreamObserver(0.0)
        for number in range(50):
            seen.receive_data(event(chat("a") | {"id": f"chatcmpl-{number}"}), float(number))
    assert len(looks) == counting.FRAMES_TRIED
    assert dataclasses.asdict(seen.finish(50.0, Ending.COMPLETE))["events"] == 50


def test_an_uncounted_event_between_two_totals_is_no_count_of_the_second() -> None:
    """The second total covers events that nobody counted: how many tokens it adds is unknown."""
    plain = event(chat("a"))
    totals = [event(chat("a", usage={"completion_tokens": n, "prompt_tokens": 3})) for n in (7, 30)]
    order = [plain, plain, plain, plain, totals[0], plain, plain, totals[1]]
    reads = [(data, 1.0 + number) for number, data in enumerate(order)]
    report = told(reads, by="reads")[0]
    assert report == parsed(reads)[0]
    assert (report.events, report.events_counted, report.usage_tokens) == (8, 0, 30)
