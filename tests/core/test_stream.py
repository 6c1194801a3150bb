"""`breakeven.stream`: scripts of reads with times, and the numbers that must come out."""

from __future__ import annotations

import gc
import json
import pickle
import types
from typing import Any

import pytest

from breakeven.chunks import ErrorInfo
from breakeven.histogram import Buckets
from breakeven.stream import Ending, GapSink, StreamObserver, StreamReport

CANARY = "canary-7f3a"
MS = 0.001


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def chat(
    content: str | None = "x",
    *,
    index: int = 0,
    total: int | None = None,
    finish: str | None = None,
    ids: list[int] | None = None,
    **delta: Any,
) -> bytes:
    """A chat chunk; `total`: cumulative usage of this choice."""
    fields: dict[str, Any] = {"content": content, **delta}
    choice = {"index": index, "delta": fields, "finish_reason": finish, "token_ids": ids}
    usage = {} if total is None else {"usage": {"prompt_tokens": 9, "completion_tokens": total}}
    return event(choices=[choice], **usage)


def usage(total: int, prompt: int = 9) -> bytes:
    return event(choices=[], usage={"prompt_tokens": prompt, "completion_tokens": total})


ROLE = event(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}}])
DONE = b"data: [DONE]\n\n"
PING = b": keep-alive\n\n"


def observe(
    *reads: tuple[float, bytes],
    ending: Ending = Ending.COMPLETE,
    start: float = 0.0,
    **options: Any,
) -> StreamReport:
    observer = StreamObserver(start, **options)
    for now, data in reads:
        observer.receive_data(data, now)
    return observer.finish(reads[-1][0] if reads else start, ending)


# Time to first token ------------------------------------------------------------------------


def test_ttft_ignores_comments_and_the_role_chunk() -> None:
    """TTFT is the first event with a token: not a ping, not the role chunk, not a usage of 0."""
    role = event(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}}],
                 usage={"prompt_tokens": 9, "completion_tokens": 0})  # fmt: skip
    report = observe((1.0, PING), (2.0, role), (3.0, chat("")), (5.9, chat("Hi", total=1)))
    assert (report.ttft_s, report.first_event_s, report.events) == (5.9, 5.9, 1)


def test_role_chunk_and_first_token_in_one_read_are_one_event() -> None:
    """vLLM sends both together: that read is not merged."""
    report = observe((1.0, ROLE + chat()), (2.0, chat()))
    assert (report.ttft_s, report.ttft_merged, report.merged_reads) == (1.0, False, 0)


def test_times_count_from_start() -> None:
    """Offsets are differences to the start, on any clock."""
    report = observe((1000.25, chat()), (1000.75, chat()), start=1000.0)
    assert (report.ttft_s, report.last_event_s, report.decode_s) == (0.25, 0.75, 0.5)


def test_ttfo_is_the_first_output_after_reasoning() -> None:
    """Reasoning tokens start TTFT; output that is none starts TTFO."""
    report = observe(
        (1.0, chat(None, reasoning="hm")),
        (2.0, chat(None, reasoning_content="so")),
        (3.0, chat("A")),
    )
    assert (report.ttft_s, report.ttfo_s, report.events) == (1.0, 3.0, 3)
    capped = observe((1.0, chat(None, reasoning="hm", finish="length")))
    assert (capped.ttft_s, capped.ttfo_s, capped.empty) == (1.0, None, False)


def test_tool_and_refusal_deltas_are_tokens() -> None:
    """Tool deltas have content null; they are events and output."""
    call = {"index": 0, "function": {"arguments": "{"}}
    report = observe((1.0, chat(None, tool_calls=[call])), (2.0, chat(None, refusal="No")))
    assert (report.events, report.ttfo_s, report.empty) == (2, 1.0, False)


def test_spaces_only_are_an_answer() -> None:
    """Output of spaces and newlines only is output."""
    report = observe((1.0, chat(" ")), (2.0, chat("\n", finish="stop")))
    assert (report.events, report.empty, report.ttft_s) == (2, False, 1.0)


def test_event_that_ends_in_a_later_read_has_its_time() -> None:
    """An event split over reads counts when it is whole."""
    data = chat()
    report = observe((1.0, data[:30]), (2.0, data[30:-1]), (3.0, data[-1:]))
    assert (report.ttft_s, report.events, report.merged_reads) == (3.0, 1, 0)


# Token counts -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reads", "tokens"),
    [
        ([chat(total=1), chat(total=6), chat(total=7)], (1, 5, 1)),
        ([chat(ids=[5]), chat(ids=[6, 7, 8])], (1, 3)),
        ([chat(), chat()], (None, None)),  # never 1 per chunk
        ([chat(total=1), chat("", total=3), chat(total=4)], (1, 2, 1)),  # text held back: an event
        ([chat("", ids=[4, 5])], (2,)),
        ([chat(total=1), chat("", total=1), chat(total=2)], (1, 1)),  # nothing new: no event
        ([chat(total=2), chat("late text", total=2)], (2,)),  # text of tokens counted before
        ([chat(total=1, ids=[1, 2])], (1,)),  # usage comes first
        # only the last chunk has a usage: it says the total, not what the chunk holds
        ([chat(), chat(), chat(total=9, finish="stop")], (None, None, None)),
        ([chat(total=9, finish="stop")], (9,)),  # the whole answer in one chunk
        # a count is known again after a gap in the usage
        ([chat(total=1), chat(), chat(total=5), chat(total=6)], (1, None, None, 1)),
        ([chat(ids=[1]), chat(total=4), chat(ids=[9]), chat(total=7)], (1, 3, 1, 2)),
        # placeholders: text beside a total of 0 shows that the totals are none
        ([chat(total=0), chat(total=0), chat(total=7, finish="stop")], (None, None, None)),
        ([chat(ids=[]), chat(ids=[])], (None, None)),
        ([chat(total=5), chat(total=3), chat(total=4)], (5, None, 1)),  # runs backwards
        # each choice has its own cumulative count
        ([chat(total=1), chat(index=1, total=1), chat(total=4), chat(index=1, total=3)],
         (1, 1, 3, 2)),
    ],
)  # fmt: skip
def test_tokens_per_event(reads: list[bytes], tokens: tuple[int | None, ...]) -> None:
    """Cumulative usage, else ids, else unknown; empty text with new tokens is an event."""
    timed = [(float(number), data) for number, data in enumerate(reads, start=1)]
    report = observe(*timed, keep_events=True)
    assert report.event_tokens == tokens
    assert report.events == len(tokens)
    assert report.events_counted == sum(count is not None for count in tokens)
    assert report.counted_tokens == sum(count or 0 for count in tokens)


@pytest.mark.parametrize(
    ("reads", "tokens", "usage_tokens"),
    [
        ([chat(total=1), chat(total=6)], 6, 6),
        ([chat(), chat(), usage(7)], 7, 7),  # the total is known, the split is not
        ([chat(ids=[5]), chat(ids=[6, 7, 8])], 4, None),
        ([chat(ids=[5]), chat()], None, None),
        ([chat(), chat()], None, None),
        ([chat(), chat(total=9, finish="stop")], 9, 9),
        ([chat(total=2), chat(index=1, total=3)], 5, 5),
        ([chat(total=2), chat(index=1, total=3), usage(5)], 5, 5),
        ([chat(total=2), chat(index=1)], None, None),  # one choice says nothing
        ([], None, None),
        ([usage(0)], 0, 0),
    ],
)
def test_totals(reads: list[bytes], tokens: int | None, usage_tokens: int | None) -> None:
    """The engine's usage, else the sum of known counts, else unknown."""
    report = observe(*[(float(number), data) for number, data in enumerate(reads, start=1)])
    assert (report.tokens, report.usage_tokens) == (tokens, usage_tokens)


def test_prompt_tokens_come_from_the_usage() -> None:
    """Cumulative chunks state one prompt's; the last usage states all of them."""
    assert observe((1.0, chat(total=1))).prompt_tokens == 9
    assert observe((1.0, chat(total=1)), (2.0, usage(1, prompt=18))).prompt_tokens == 18
    assert observe((1.0, chat())).prompt_tokens is None


def test_fewer_tokens_than_the_usage_says() -> None:
    """Counted events below the usage: tokens are missing, and no TPOT is computed."""
    report = observe((1.0, chat(ids=[1])), (2.0, chat(ids=[2], finish="stop")), (3.0, usage(5)))
    assert (report.tokens_missing, report.tokens, report.tpot_s) == (True, 5, None)
    whole = observe((1.0, chat(ids=[1])), (2.0, chat(ids=[2], finish="stop")), (3.0, usage(2)))
    assert (whole.tokens_missing, whole.tpot_s) == (False, 1.0)


def test_logprobs_may_hide_tokens() -> None:
    """A parser that hides a delta hides its logprobs: fewer than the usage says is no fault."""

    def one(finish: str | None) -> bytes:
        logprobs = {"content": [{"token": "x"}]}
        choice = {"index": 0, "delta": {"content": "x"}, "logprobs": logprobs}
        return event(choices=[{**choice, "finish_reason": finish}])

    report = observe((1.0, one(None)), (2.0, one("stop")), (3.0, usage(5)))
    assert (report.counted_tokens, report.tokens) == (2, 5)
    assert (report.counted_by_logprobs, report.tokens_missing) == (True, False)
    assert report.tpot_s is None  # the split is not known


def test_the_whole_answer_in_one_chunk_and_a_usage() -> None:
    """An engine that streams an answer as one chunk: its tokens are known, TPOT does not exist."""
    report = observe((1.0, chat("all of it", finish="stop")), (1.2, usage(40)), (1.2, DONE))
    assert (report.tokens, report.decode_tokens, report.tpot_s) == (40, 0, None)
    assert (report.ttft_s, report.answer_s, report.burst_gaps) == (1.0, 1.0, 0)


# TPOT ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reads", "decode_tokens", "tpot_s"),
    [
        # 10 tokens in 4 events, first one of 1: (4 − 1) s / (10 − 1)
        ([chat(total=1), chat(total=4), chat(total=7), chat(total=10)], 9, 3 / 9),
        ([chat(total=4), chat(total=7), chat(total=10)], 6, 2 / 6),  # many tokens in the first
        ([chat(total=4, finish="stop")], 0, None),  # nothing to divide by
        ([chat(finish="stop")], 0, None),  # nor here, though the count is unknown
        ([chat(), chat(), usage(9)], None, None),  # first event's count unknown
        ([chat(), chat()], None, None),
        ([], None, None),
        # ratio of sums over choices: (3 − 1) + (4 − 2) s over (3 − 1) + (5 − 1) tokens
        ([chat(total=1), chat(index=1, total=1), chat(total=3), chat(index=1, total=5)], 6, 4 / 6),
    ],
)
def test_tpot(reads: list[bytes], decode_tokens: int | None, tpot_s: float | None) -> None:
    """(last − first event) / (tokens − tokens of the first event); None when there are none."""
    report = observe(*[(float(number), data) for number, data in enumerate(reads, start=1)])
    assert report.decode_tokens == decode_tokens
    assert report.tpot_s == pytest.approx(tpot_s) if tpot_s else report.tpot_s is None


def test_a_late_usage_chunk_moves_nothing() -> None:
    """The usage chunk is no event: it overwrites no TTFT, adds no gap, and extends no e2e."""
    report = observe(
        (1.0, chat(total=1)), (2.0, chat(total=2, finish="stop")), (9.0, usage(2)), (12.0, DONE)
    )
    assert (report.ttft_s, report.last_event_s, report.answer_s) == (1.0, 2.0, 2.0)
    assert (report.burst_gap_max_s, report.tpot_s, report.end_s) == (1.0, 1.0, 12.0)


def test_the_answer_ends_with_its_finish_reason() -> None:
    """A finish reason in a chunk of its own ends the answer; without one there is no end."""
    finish = event(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}])
    assert observe((1.0, chat()), (3.0, finish)).answer_s == 3.0
    assert observe((1.0, chat())).answer_s is None
    both = observe((1.0, chat(finish="stop")), (2.0, chat(index=1, finish="stop")))
    assert both.answer_s == 2.0
    assert observe((1.0, chat(finish="stop")), (2.0, chat(index=1))).answer_s is None


# Bursts and gaps ----------------------------------------------------------------------------


def test_bursts() -> None:
    """Gaps below ε are inside a burst: they are event gaps, and no burst gaps."""
    sink = GapSink(Buckets([0.0015, 0.05, 1]), Buckets([0.0015, 0.05, 1]), Buckets([1, 2, 3, 5]))
    report = observe(
        (1.000, chat(total=1)),
        (1.001, chat(total=3)),  # 1 ms after: same burst, 3 tokens in all
        (1.041, chat(total=4)),  # 40 ms: next
        (1.141, chat(total=9)),  # 100 ms: next, 5 tokens
        epsilon_s=2 * MS, gap_bound_s=50 * MS, sink=sink,
    )  # fmt: skip
    assert (report.bursts, report.burst_gaps, report.max_burst_tokens) == (3, 2, 5)
    assert report.burst_gap_max_s == pytest.approx(0.1)
    assert report.burst_gaps_over == 1
    assert sink.event_gaps.counts == [1, 1, 1, 0]
    assert sink.burst_gaps.counts == [0, 1, 1, 0]
    assert sink.burst_tokens.counts == [1, 0, 1, 1, 0]  # 3, 1 and 5 tokens


def test_a_gap_of_epsilon_parts_bursts() -> None:
    """The rule is gap < ε, exactly."""
    assert observe((1.0, chat()), (1.5, chat()), epsilon_s=0.5).bursts == 2
    assert observe((1.0, chat()), (1.4999, chat()), epsilon_s=0.5).bursts == 1
    assert observe((1.0, chat()), (1.0, chat()), epsilon_s=0.5).bursts == 1


def test_bursts_without_counts_have_no_tokens() -> None:
    """An unknown count makes the burst's tokens unknown: not recorded, never guessed."""
    sink = GapSink()
    report = observe(
        (1.0, chat(total=1)), (1.001, chat()), (2.0, chat()), (3.0, chat(total=9)), sink=sink
    )
    assert (report.bursts, report.max_burst_tokens, sink.burst_tokens.count) == (3, None, 0)


def test_events_of_different_choices_are_no_burst() -> None:
    """n = 2: events of both choices come together; gaps and bursts are those of each choice."""
    sink = GapSink(burst_tokens=Buckets([1, 2, 3, 4]))
    report = observe(
        (1.0, chat(total=1) + chat(index=1, total=1)),
        (1.5, chat(total=3) + chat(index=1, total=2)),
        (2.0, chat(total=4)), (2.0001, chat(index=1, total=4)),
        sink=sink, keep_events=True,
    )  # fmt: skip
    assert (report.choices, report.events, report.merged_reads) == (2, 6, 0)
    assert (report.burst_gaps, report.bursts, report.ttft_merged) == (4, 6, False)
    assert sink.burst_tokens.counts == [4, 2, 0, 0, 0]  # 1, 2, 1 and 1, 1, 2
    assert report.first_event_tokens == 2
    assert report.decode_s == pytest.approx(1.0 + 1.0001)
    assert report.event_choices == (0, 1, 0, 1, 0, 1)


@pytest.mark.parametrize(("n", "over"), [(1, 1), (50, 1), (99, 1), (100, 2), (101, 2), (200, 3)])
def test_p99_is_the_nearest_rank(n: int, over: int) -> None:
    """p99 = the ⌈0.99·n⌉-th smallest burst gap; the counters decide the same."""
    gaps = [(number + 1) * 0.01 for number in range(n)]
    expected = gaps[-(-99 * n // 100) - 1]  # ⌈99·n / 100⌉ in integers
    for bound in (expected, expected - 0.005):
        now = 1.0
        reads = [(now, chat())]
        for gap in gaps:
            now += gap
            reads.append((now, chat()))
        report = observe(*reads, gap_bound_s=bound + 1e-9, epsilon_s=0.002)
        assert report.burst_gap_p99_s == pytest.approx(expected)
        assert report.p99_over_bound is (bound < expected)
    assert over == n - (-(-99 * n // 100)) + 1  # so many must be above for the p99 to be


def test_p99_beyond_what_is_kept() -> None:
    """From 25,600 gaps on the p99's value is unknown, but the verdict on it stays exact."""

    def run(n: int, slow: int) -> StreamReport:
        observer = StreamObserver(0.0, gap_bound_s=0.05)
        now, data = 0.0, chat()
        for number in range(n + 1):
            now += 0.1 if number % (n // slow) == 1 and number <= n // slow * slow else 0.01
            observer.receive_data(data, now)
        return observer.finish(now, Ending.COMPLETE)

    short = run(25_599, 256)  # 256 slow gaps: rank 25,344 is one of them
    assert short.burst_gaps == 25_599
    assert short.burst_gap_p99_s == pytest.approx(0.1)
    assert short.p99_over_bound is True
    assert run(25_600, 256).burst_gap_p99_s is None  # the rank is one beyond what is kept
    long = run(30_000, 301)
    assert (long.burst_gap_p99_s, long.p99_over_bound) == (None, True)
    assert run(30_000, 300).p99_over_bound is False
    assert long.burst_gap_max_s == pytest.approx(0.1)


# Reads, merges and pauses -------------------------------------------------------------------


def test_a_merged_read_is_one_point() -> None:
    """Two events in one read: one timed point, the inner gap unobserved, no burst tokens."""
    sink = GapSink()
    report = observe(
        (1.0, chat(total=1)), (2.0, chat(total=2) + chat(total=5)), (3.0, chat(total=6)), sink=sink
    )
    assert (report.events, report.merged_reads, report.unobserved_gaps) == (4, 1, 1)
    assert (report.burst_gaps, report.burst_gap_max_s) == (2, 1.0)
    assert (sink.event_gaps.count, sink.burst_gaps.count) == (2, 2)
    assert sink.burst_tokens.count == 2  # the first and the last burst; the merged one is not
    assert (report.ttft_merged, report.tpot_s) == (False, 2 / 5)


def test_a_merged_first_read_flags_ttft() -> None:
    """The stamp is the last event's; TPOT takes off all tokens of that first point."""
    report = observe((1.0, chat(total=1) + chat(total=3)), (2.0, chat(total=5)))
    assert (report.ttft_s, report.ttft_merged, report.first_event_tokens) == (1.0, True, 3)
    assert (report.decode_tokens, report.stream_cycles) == (2, 1)
    later = observe((1.0, chat(total=1)), (2.0, chat(index=1, total=1) + chat(index=1, total=2)))
    assert (later.ttft_merged, later.merged_reads) == (False, 1)


def test_a_merged_read_inside_a_burst() -> None:
    """Its burst is not fully observed: its tokens are in no statistic."""
    sink = GapSink()
    observe((1.0, chat(total=1)), (1.001, chat(total=2) + chat(total=5)), (2.0, chat(total=6)),
            sink=sink)  # fmt: skip
    assert (sink.burst_tokens.count, sink.burst_tokens.sum) == (1, 1)


def test_the_whole_answer_in_one_read() -> None:
    """Everything at once: one point, no gap observed, TPOT does not exist."""
    report = observe((1.0, ROLE + chat(total=1) + chat(total=3, finish="stop") + usage(3) + DONE))
    assert (report.events, report.tokens, report.finished, report.done) == (2, 3, True, True)
    assert (report.burst_gaps, report.unobserved_gaps, report.decode_tokens) == (0, 1, 0)
    assert (report.tpot_s, report.answer_s) == (None, 1.0)


def test_a_pause_is_kept_out_of_the_gaps() -> None:
    """A gap across a slow client's pause is counted backpressured and in no statistic."""
    sink = GapSink()
    observer = StreamObserver(0.0, gap_bound_s=0.5, sink=sink)
    observer.receive_data(chat(total=1), 1.0)
    observer.receive_data(chat(total=2), 1.1)
    observer.receive_data(chat(total=3)[:20], 9.0, paused=True)  # half an event ends the pause
    observer.receive_data(chat(total=3)[20:], 9.001)
    observer.receive_data(chat(total=4), 9.1)
    report = observer.finish(9.2, Ending.COMPLETE)
    assert (report.backpressured, report.unobserved_gaps, report.burst_gaps) == (1, 1, 2)
    assert report.burst_gap_max_s == pytest.approx(0.1)
    assert (report.burst_gaps_over, sink.event_gaps.count) == (0, 2)
    assert sink.burst_tokens.count == 2  # those on both sides of the pause are not whole
    assert report.decode_s == pytest.approx(8.1)  # what the client saw


def test_a_pause_before_the_first_event_is_no_gap() -> None:
    """There is no gap before the first event."""
    observer = StreamObserver(0.0)
    observer.receive_data(PING, 1.0, paused=True)
    observer.receive_data(chat(), 2.0)
    observer.receive_data(chat(), 3.0)
    report = observer.finish(3.0, Ending.COMPLETE)
    assert (report.backpressured, report.burst_gaps) == (0, 1)


def test_a_clock_that_steps_back() -> None:
    """The step is counted, its gap unobserved, nothing is negative and later gaps are right."""
    report = observe(
        (10.0, chat(total=1)), (10.5, chat(total=2)), (4.0, chat(total=3)), (4.25, chat(total=4)),
        start=9.0, keep_events=True,
    )  # fmt: skip
    assert (report.clock_steps, report.unobserved_gaps, report.backpressured) == (1, 1, 0)
    assert report.event_offsets_s == (1.0, 1.5, 1.5, 1.75)
    assert (report.burst_gaps, report.burst_gap_max_s, report.decode_s) == (2, 0.5, 0.75)
    early = observe((8.0, chat()), (8.5, chat()), start=9.0)
    assert (early.ttft_s, early.clock_steps, early.burst_gap_max_s) == (0.0, 1, 0.5)


# Ends ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", list(Ending))
def test_endings(ending: Ending) -> None:
    """The ending is the socket's; the numbers up to it stand."""
    report = observe((1.0, chat(total=1)), (2.0, chat(total=2)), ending=ending)
    assert (report.ending, report.tokens, report.ttft_s, report.finished) == (ending, 2, 1.0, False)


def test_a_cut_burst_is_not_recorded() -> None:
    """The last burst of a broken stream may have gone on: its tokens are in no statistic."""
    for ending, recorded in ((Ending.COMPLETE, 2), (Ending.BROKEN, 1), (Ending.CANCELLED, 1)):
        sink = GapSink()
        observe((1.0, chat(total=1)), (2.0, chat(total=2)), ending=ending, sink=sink)
        assert sink.burst_tokens.count == recorded


def test_a_clean_end_half_way_is_not_finished() -> None:
    """No finish reason, no usage, no [DONE]: the stream ended, the answer did not."""
    report = observe((1.0, chat()), (2.0, chat()))
    assert (report.finished, report.done, report.answer_s) == (False, False, None)
    half = observe((1.0, chat(finish="stop")), (1.1, chat(index=1)))
    assert (half.finished, half.finish_reasons) == (False, ("stop", None))
    assert observe((1.0, chat()), (2.0, chat()[:-1])).truncated_event is True


def test_an_error_frame_after_200() -> None:
    """The engine died: an error frame, then [DONE]; it stays an error."""
    error = event(error={"message": CANARY, "type": "InternalServerError", "code": 500})
    report = observe((1.0, chat()), (2.0, error), (2.0, DONE))
    assert report.error_frame == ErrorInfo(500, "InternalServerError")
    assert (report.done, report.finished, report.events, report.malformed) == (True, False, 1, 0)


def test_an_error_beside_choices() -> None:
    """An error in a chunk that has choices too is seen; a null one is none."""
    broken = {"index": 0, "delta": {"content": "x"}, "finish_reason": "error"}
    assert observe((1.0, event(choices=[broken], error={"code": 500}))).error_frame is not None
    report = observe((1.0, event(choices=[broken], error=None, usage={"completion_tokens": 2})))
    assert (report.error_frame, report.counted_tokens) == (None, 2)


@pytest.mark.parametrize(
    "data",
    [b"data: {\n\n", b"data: 7\n\n", b'data: {"choices": [{"index": "0", "text": "x"}]}\n\n',
     b'data: {"choices": [{"index": -1, "text": "x"}]}\n\n',
     b'data: {"choices": [{"index": 1024, "text": "x"}]}\n\n',
     b'data: {"choices": [{"index": true, "text": "x"}]}\n\n',
     b'data: {"choices": [7]}\n\n', b'data: {"choices": {"a": 1}, "usage": []}\n\n',
     DONE + chat()],
)  # fmt: skip
def test_malformed_events(data: bytes) -> None:
    """What is no JSON of the API, or follows the end, is counted; the rest is measured."""
    report = observe((1.0, chat(total=1)), (2.0, data))
    assert (report.malformed, report.events, report.tokens) == (1, 1, 1)


def test_counts_that_are_no_counts() -> None:
    """A usage of the wrong type states nothing."""
    for total in ("3", 3.5, True, None, -1, [3]):
        fields = {"prompt_tokens": CANARY, "completion_tokens": total}
        report = observe((1.0, event(choices=[{"index": 0, "text": "x"}], usage=fields)))
        assert (report.events, report.events_counted) == (1, 0), total
        assert (report.tokens, report.prompt_tokens) == (None, None), total


def test_an_endless_event_ends_the_metering() -> None:
    """Beyond max_event_bytes the stream is malformed and no longer read; memory is bounded."""
    observer = StreamObserver(0.0, max_event_bytes=1000)
    observer.receive_data(chat(total=1), 1.0)
    for number in range(100):
        observer.receive_data(b"data: " + b"x" * 100, 2.0 + number)
    report = observer.finish(200.0, Ending.COMPLETE)
    assert (report.malformed, report.events, report.tokens) == (1, 1, 1)


def test_finish_is_final() -> None:
    """The report stays the same; later bytes change nothing."""
    observer = StreamObserver(0.0)
    observer.receive_data(chat(), 1.0)
    report = observer.finish(2.0, Ending.BROKEN)
    observer.receive_data(chat(), 3.0)
    assert observer.finish(4.0, Ending.COMPLETE) is report


def test_nothing_arrived() -> None:
    """No read at all: everything is unknown, nothing is zero."""
    report = observe(ending=Ending.TIMEOUT)
    assert (report.events, report.choices, report.bursts) == (0, 0, 0)
    for name in ("ttft_s", "ttfo_s", "tokens", "tpot_s", "decode_s", "burst_gap_p99_s", "answer_s",
                 "burst_gap_max_s", "max_burst_tokens", "first_event_tokens", "spec"):  # fmt: skip
        assert getattr(report, name) is None, name
    assert report.empty
    assert not report.finished


def test_line_ends_and_missing_space() -> None:
    """CRLF, CR and `data:` without a space give the same numbers."""
    plain = ROLE + chat(total=1) + PING + chat(total=3, finish="stop") + usage(3) + DONE
    expected = observe((1.0, plain))
    for other in (plain.replace(b"\n", b"\r\n"), plain.replace(b"\n", b"\r"),
                  plain.replace(b"data: ", b"data:"), b"\xef\xbb\xbf" + plain):  # fmt: skip
        assert observe((1.0, other)) == expected


# /v1/responses ------------------------------------------------------------------------------


def test_responses_stream() -> None:
    """Deltas are events, their repetitions none; the terminal event ends and totals."""
    done = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"},
            "usage": {"input_tokens": 7, "output_tokens": 5}}  # fmt: skip
    report = observe(
        (1.0, event(type="response.created", response={})),
        (2.0, event(type="response.reasoning_text.delta", delta="hm")),
        (3.0, event(type="response.output_text.delta", delta="x", logprobs=[])),
        (4.0, event(type="response.function_call_arguments.delta", delta="{")),
        (5.0, event(type="response.output_text.done", text="x")),
        (6.0, event(type="response.completed", response=done)),
    )
    assert (report.events, report.ttft_s, report.ttfo_s) == (3, 2.0, 3.0)
    assert (report.tokens, report.prompt_tokens, report.finish_reasons) == (5, 7, ("length",))
    assert (report.done, report.finished, report.answer_s, report.malformed) == (True, True, 6.0, 0)


# Speculation --------------------------------------------------------------------------------


def test_block_cycles() -> None:
    """Decode steps from the block: decode tokens − accepted, never below what was seen."""

    def run(steps: int, accepted: int, *totals: int) -> int | None:
        block = {
            "num_spec_steps": steps,
            "num_draft_tokens": 9,
            "num_accepted_draft_tokens": accepted,
        }
        reads = [(float(n), chat(total=total)) for n, total in enumerate(totals, start=1)]
        last = event(choices=[], usage={"completion_tokens": totals[-1]},
                     metrics={"speculative_decoding": block})  # fmt: skip
        return observe(*reads, (99.0, last)).block_cycles

    assert run(2, 7, 1, 6, 10, 11, 12) == 4  # 11 − 7: two drafted steps, two without a draft
    assert run(2, 7, 1, 6, 12) == 4  # the engine merged events
    assert run(3, 12, 1, 6, 11, 14) == 3  # 13 − 12 = 1, but three events came: a stop cut 2
    assert run(3, 12, 1, 14) == 3  # merged and cut: the drafted steps are left
    assert observe((1.0, chat(total=1)), (2.0, chat(total=2))).block_cycles is None


def test_block_cycles_after_a_merged_first_read() -> None:
    """The steps that the first point hides are in neither side: M = decode tokens / cycles."""
    block = {"num_spec_steps": 3, "num_draft_tokens": 12, "num_accepted_draft_tokens": 9}
    report = observe(
        (1.0, chat(total=1) + chat(total=5)),  # the prefill's token, and a step that accepted 3
        (2.0, chat(total=9)),
        (3.0, chat(total=13)),
        (9.0, event(choices=[], usage={"completion_tokens": 13},
                    metrics={"speculative_decoding": block})),
    )  # fmt: skip
    assert (report.decode_tokens, report.stream_cycles, report.block_cycles) == (8, 2, 2)


def test_what_is_known_while_it_runs() -> None:
    """Whether it has started, events and counted tokens so far: for deadlines and cancellation."""
    observer = StreamObserver(0.0)
    observer.receive_data(ROLE + PING, 1.0)
    assert (observer.started, observer.events, observer.counted_tokens) == (False, 0, 0)
    observer.receive_data(chat(total=1) + chat(total=4) + chat(), 2.0)
    assert (observer.started, observer.events, observer.counted_tokens) == (True, 3, 4)
    assert observer.least_tokens == 5, "an event of unknown size holds one token at least"


# Privacy ------------------------------------------------------------------------------------


def reachable(root: object) -> list[object]:
    """Every object that can be reached from this one, classes and code left out."""
    left_out = (type, types.ModuleType, types.FunctionType)
    seen: dict[int, object] = {}
    stack = [root]
    while stack:
        item = stack.pop()
        if id(item) not in seen and not isinstance(item, left_out):
            seen[id(item)] = item
            stack += gc.get_referents(item)
    return list(seen.values())


def test_no_text_stays() -> None:
    """After whole events, and after the end, no object holds content, ids or an error's words."""
    observer = StreamObserver(0.0, keep_events=True, sink=GapSink())
    logprobs = {"content": [{"token": CANARY, "bytes": [1]}]}
    reads = [
        event(id=CANARY, model=CANARY, choices=[{
            "index": 0, "delta": {"role": CANARY, "content": CANARY}, "logprobs": logprobs,
            "prompt_token_ids": [77001], "stop_reason": CANARY, "finish_reason": CANARY}],
            usage={"prompt_tokens": CANARY, "completion_tokens": 1}, system_fingerprint="a b"),
        chat(None, reasoning=CANARY), chat(None, tool_calls=[{"function": {"name": CANARY}}]),
        b"event: " + CANARY.encode() + b"\nid: " + CANARY.encode() + b"\ndata: " + CANARY.encode()
        + b"\n\n",
        event(type="response.output_text.delta", delta=CANARY),
        event(error={"message": CANARY, "type": CANARY, "param": CANARY, "code": CANARY}),
        b": " + CANARY.encode() + b"\n\n",
    ]  # fmt: skip
    for number, data in enumerate(reads, start=1):
        observer.receive_data(data, float(number))
        held = [item for item in reachable(observer) if isinstance(item, str | bytes | bytearray)]
        assert not any(CANARY in str(item) for item in held), number
        assert 77001 not in reachable(observer)
    observer.receive_data(b"data: " + CANARY.encode(), 9.0)  # cut off: in flight until the end
    assert CANARY not in repr(observer)
    with pytest.raises(TypeError, match="in flight"):
        pickle.dumps(observer)
    report = observer.finish(10.0, Ending.COMPLETE)
    assert not any(CANARY in str(item) for item in reachable(observer))
    assert CANARY not in repr(report)
    assert CANARY.encode() not in pickle.dumps(report)
    assert pickle.loads(pickle.dumps(report)) == report
