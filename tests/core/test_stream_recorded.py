"""The stream observer on the recordings of the real engine: the foreign witness of every number.

What the recordings show beside the rule "one event = one verification step": the API process
merges steps when it lags (base/sse_chat_logprobs: 13 tokens in one event without speculation;
base/sse_chat_tokenids: one event of 2), `stream_interval` merges them on purpose
(sse_comp_interval4), steps without a draft commit one token and are in no block, and max_tokens
or a stop cuts accepted tokens from the last step. Those streams are named in the tables below;
every other one must keep the rule exactly.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.captures import DATA, reads, request, response, streams

from breakeven.chunks import ErrorInfo, parse_body
from breakeven.slo import SLO, Outcome, Verdict, classify
from breakeven.stream import Ending, GapSink, StreamObserver, StreamReport

STREAMS = streams("base", "ngram", "admission")
ENGINE_MERGED = {"sse_chat_logprobs", "sse_comp_interval4"}


def name(path: Path) -> str:
    return f"{path.parent.name}-{path.stem}"


def events_of(path: Path) -> list[dict[str, Any]]:
    """The JSON of every data event, read without our decoder (the recordings use LF)."""
    body = response(path).body
    lines = [line[6:] for line in body.decode().split("\n") if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


def observe(path: Path, **options: Any) -> StreamReport:
    observer = StreamObserver(0.0, keep_events=True, **options)
    now = 0.0
    for now, data in reads(path):
        observer.receive_data(data, now)
    return observer.finish(now, Ending.COMPLETE)


def usage_of(path: Path) -> int | None:
    """Completion tokens that the stream states last, over all choices."""
    stated: dict[int, int] = {}
    for event in events_of(path):
        if event.get("type") == "response.completed":
            return int(event["response"]["usage"]["output_tokens"])
        if event.get("usage"):
            total = int(event["usage"]["completion_tokens"])
            if not event["choices"]:
                return total
            stated[event["choices"][0]["index"]] = total
    return sum(stated.values()) if stated else None


@pytest.mark.parametrize("path", STREAMS, ids=name)
def test_reads_add_up_to_the_body(path: Path) -> None:
    """The recording itself: the reads, dechunked one by one, are the body of the raw file."""
    assert b"".join(data for _, data in reads(path)) == response(path).body


@pytest.mark.parametrize("path", STREAMS, ids=name)
def test_token_totals(path: Path) -> None:
    """Totals equal the usage in the stream; counted events add up to it; else unknown."""
    report = observe(path)
    usage = usage_of(path)
    assert report.usage_tokens == usage
    assert report.malformed == 0
    assert report.error_frame is None
    if report.events_counted == report.events:
        assert report.tokens == report.counted_tokens == sum(report.event_tokens or ())  # type: ignore[arg-type]
        assert usage in (None, report.tokens)
        assert report.tokens_missing is False
    else:
        assert (report.events_counted, report.tokens) == (0, usage)
        assert report.tpot_s is None or report.decode_tokens == 0


@pytest.mark.parametrize("arm", ["base", "ngram"])
def test_token_counts_agree_between_requests(arm: str) -> None:
    """The same greedy request counted by usage, by ids and by logprobs has the same tokens."""
    for names in (
        ["sse_comp_contusage", "sse_comp_tokenids", "sse_comp_logprobs", "sse_comp_usage"],
        ["sse_chat_contusage", "sse_chat_tokenids", "sse_chat_usage"],
    ):
        totals = {each: observe(DATA / arm / f"{each}.raw").tokens for each in names}
        assert len(set(totals.values())) == 1, totals
        whole = parse_body(response(DATA / arm / f"{names[0][4:8]}.raw").body)
        assert whole.usage is not None
        assert whole.usage.completion_tokens == totals[names[0]]


@pytest.mark.parametrize("path", streams("ngram"), ids=name)
def test_tokens_per_event_are_accepted_plus_one(path: Path) -> None:
    """Each step of the block is an event of accepted + 1 tokens, in order; the others hold 1.

    Except the last step, which a stop or max_tokens may cut, and the streams whose steps the
    engine merged into one event.
    """
    metrics = [event["metrics"] for event in events_of(path) if event.get("metrics")]
    blocks = [found.get("speculative_decoding") for found in metrics]
    blocks = [block for block in blocks if block and "per_step_accepted" in block]
    if not blocks:
        assert path.stem in NO_STEPS
        return
    (block,) = blocks
    report = observe(path)
    assert report.spec is not None
    steps = [accepted + 1 for accepted in block["per_step_accepted"]]
    assert (report.spec.cycles, report.spec.committed) == (len(steps), sum(steps))
    counts = list(report.event_tokens or ())
    if path.stem in ENGINE_MERGED:
        assert report.block_cycles is not None
        assert report.block_cycles > report.stream_cycles
        return
    assert counts[0] == 1  # the prefill's token
    cut_by = matched(steps, counts[1:])  # type: ignore[arg-type]
    assert cut_by is not None, (steps, counts)
    assert 0 <= cut_by <= 4
    assert report.block_cycles == report.stream_cycles
    # The identity of the counters, per request: committed = cycles + accepted − cut.
    assert report.decode_tokens == report.stream_cycles + report.spec.accepted - cut_by


NO_STEPS = {
    "disconnect_sse",  # the client left
    "sse_responses", "sse_chat_n2", "sse_comp_n2", "sse_comp_multi_prompt",  # only for n = 1
    "sse_comp_stop", "sse_comp_stop_included",  # ended by the detokenizer: vLLM sends no block
    "sse_chat_json_schema", "sse_comp_regex", "sse_comp_length1",  # nothing was drafted
}  # fmt: skip


def matched(steps: list[int], counts: list[int]) -> int | None:
    """Tokens cut from the last step, if the events are the steps in order with 1s between them.

    A step that accepted nothing looks like one without a draft, so only longer ones are placed.
    None: they are not.
    """
    long_steps = [step for step in steps if step > 1]
    long_events = [count for count in counts if count > 1]
    if long_events == long_steps:
        return 0
    last = counts[-1]
    if long_steps and long_events[: len(long_steps) - 1] == long_steps[:-1]:
        rest = long_events[len(long_steps) - 1 :]
        if rest in ([last], []) and last < long_steps[-1]:
            return long_steps[-1] - last
    return None


@pytest.mark.parametrize("path", streams("ngram"), ids=name)
def test_finish_and_fingerprint(path: Path) -> None:
    """Every stream that the client did not leave has its finish reason, [DONE] and fingerprint."""
    report = observe(path)
    left = path.stem == "disconnect_sse"
    assert report.finished is not left
    assert report.done is not left
    expected = None if left or path.stem == "sse_responses" else "vllm-0.32.0-558d0f8d"
    assert report.system_fingerprint == expected


@pytest.mark.parametrize("path", STREAMS, ids=name)
def test_ttft_ignores_head_role_and_comments(path: Path) -> None:
    """TTFT is the time of the read that brought the first text, not the head, role or a ping."""
    rows = reads(path)
    text = re.compile(rb'"(text|content|delta)":"[^"]')
    expected = next(now for now, data in rows if text.search(data))
    report = observe(path)
    assert report.ttft_s == expected
    assert report.ttft_s > rows[0][0]


def test_keep_alive_comments_are_no_first_token() -> None:
    """admission/r04: five pings, one a second, then the first token after 5.89 s in the queue."""
    rows = reads(DATA / "admission/r04.raw")
    pings = [now for now, data in rows if data == b": keep-alive\n\n"]
    assert [round(now) for now in pings] == [1, 2, 3, 4, 5]
    assert observe(DATA / "admission/r04.raw").ttft_s == 5.8924


@pytest.mark.parametrize(
    ("path", "merged", "over_one"),
    [
        ("base/sse_chat_tokenids", 1, 1),  # the API lagged once: an event of 2 tokens
        ("base/sse_chat_logprobs", 0, 1),  # and by 12 steps: an event of 13
        ("base/sse_comp_ignore_eos", 0, 0),
        ("ngram/sse_comp_ignore_eos", 2, 14),
        ("ngram/sse_chat_n2", 0, 4),
    ],
)
def test_merges(path: str, merged: int, over_one: int) -> None:
    """Merged reads of one choice are counted; n = 2 arriving together is none."""
    report = observe(DATA / f"{path}.raw")
    assert report.merged_reads == merged
    assert sum((count or 0) > 1 for count in report.event_tokens or ()) == over_one


@pytest.mark.parametrize("path", streams("base", "ngram"), ids=name)
def test_gaps_and_histograms_agree(path: Path) -> None:
    """What the sink got is what the report counts, and decode time is the sum of all gaps."""
    sink = GapSink()
    report = observe(path, sink=sink, gap_bound_s=0.03)
    assert sink.burst_gaps.count == report.burst_gaps
    assert sink.event_gaps.count + report.unobserved_gaps + report.choices == report.events
    assert report.bursts == report.burst_gaps + report.choices
    assert report.decode_s == pytest.approx(sink.event_gaps.sum)
    assert report.p99_over_bound == ((report.burst_gap_p99_s or 0) > 0.03)


# Every split --------------------------------------------------------------------------------


def counts(report: StreamReport) -> tuple[object, ...]:
    """All that may not depend on how the reads were cut."""
    return (
        report.events, report.events_counted, report.event_tokens, report.event_choices,
        report.tokens, report.usage_tokens, report.prompt_tokens, report.finish_reasons,
        report.done, report.error_frame, report.malformed, report.truncated_event, report.spec,
        report.system_fingerprint, report.empty, report.counted_tokens,
    )  # fmt: skip


def cut(body: bytes, *offsets: int) -> StreamReport:
    observer = StreamObserver(0.0, keep_events=True)
    bounds = (0, *offsets, len(body))
    for number, start in enumerate(bounds[:-1]):
        observer.receive_data(body[start : bounds[number + 1]], float(number))
    return observer.finish(float(len(bounds)), Ending.COMPLETE)


SMALL = [path for path in STREAMS if len(response(path).body) < 3000]


@pytest.mark.parametrize("path", SMALL, ids=name)
def test_split_at_every_offset(path: Path) -> None:
    """Two reads, cut at every byte offset: the same counts, and the same with a byte a read."""
    body = response(path).body
    expected = counts(cut(body))
    for offset in range(len(body) + 1):
        assert counts(cut(body, offset)) == expected, offset


@pytest.mark.parametrize("path", STREAMS, ids=name)
def test_a_byte_a_read(path: Path) -> None:
    """Every recorded stream, one byte a read."""
    body = response(path).body
    assert counts(cut(body, *range(1, len(body)))) == counts(cut(body))


@pytest.mark.parametrize("ends", [b"\r\n", b"\r"], ids=["crlf", "cr"])
@pytest.mark.parametrize("path", SMALL[::2], ids=name)
def test_other_line_ends(path: Path, ends: bytes) -> None:
    """The same stream with the other legal line ends, cut anywhere in its last 600 bytes."""
    body = response(path).body
    expected = counts(cut(body))
    other = body.replace(b"\n", ends)
    for offset in range(max(0, len(other) - 600), len(other) + 1):
        assert counts(cut(other, offset)) == expected, offset


BODIES = {name(path): response(path).body for path in STREAMS}
WHOLE = {key: counts(cut(body)) for key, body in BODIES.items()}


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(BODIES)), st.data())
def test_split_anywhere(key: str, data: st.DataObject) -> None:
    """Any stream in any number of reads: the same counts."""
    body = BODIES[key]
    offsets = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=40)))
    assert counts(cut(body, *offsets)) == WHOLE[key]


# What is no success -------------------------------------------------------------------------


def verdict_of(path: Path, ending: Ending = Ending.COMPLETE) -> Verdict:
    """The verdict as a shell reaches it: streams by the observer, bodies by parse_body."""
    found = response(path)
    if found.is_stream:
        observer = StreamObserver(0.0)
        observer.receive_data(found.body, 1.0)
        report = observer.finish(2.0, ending)
        return classify(Outcome.of_stream(report, status=found.status), SLO())
    outcome = Outcome.of_body(parse_body(found.body), e2e_s=1.0, status=found.status, ending=ending)
    return classify(outcome, SLO())


def test_the_engine_died_mid_stream() -> None:
    """crash/stream_midcrash: 200, tokens, an error frame, [DONE]. That is an error."""
    path = DATA / "crash/stream_midcrash.txt"
    found = response(path)
    observer = StreamObserver(0.0)
    observer.receive_data(found.body, 1.0)
    report = observer.finish(2.0, Ending.COMPLETE)
    assert found.status == 200
    assert report.events == 47
    assert report.done
    assert report.error_frame == ErrorInfo(500, "InternalServerError")
    assert not report.finished
    assert verdict_of(path) is Verdict.ERROR


def test_the_engine_was_told_to_abort() -> None:
    """admission/aborted_stream (no head was recorded): its error frame makes it an error."""
    observer = StreamObserver(0.0)
    observer.receive_data((DATA / "admission/aborted_stream.txt").read_bytes(), 1.0)
    report = observer.finish(2.0, Ending.COMPLETE)
    assert report.error_frame == ErrorInfo(500, "InternalServerError")
    assert classify(Outcome.of_stream(report), SLO()) is Verdict.ERROR


def every_response() -> list[Path]:
    return [
        path
        for arm in ("base", "ngram", "admission")
        for path in sorted((DATA / arm).glob("*.raw"))
        if path.read_bytes().startswith(b"HTTP/1.1")
        and path.stem.startswith(
            ("err_", "chat", "comp", "conc", "sse_", "r0", "r1", "disc", "hdr_")
        )
    ]


@pytest.mark.parametrize("path", every_response(), ids=name)
def test_verdict_of_every_recorded_response(path: Path) -> None:
    """Good if and only if it was answered 200 and ended; each failure has its own word."""
    found = response(path)
    if found.status == 503:
        expected = Verdict.REJECTED
    elif found.status != 200:
        expected = Verdict.ERROR
    elif path.stem == "disconnect_sse":
        expected = Verdict.TRUNCATED
    else:
        expected = Verdict.GOOD
    assert verdict_of(path) is expected
    if path.stem == "disconnect_sse":
        assert not found.complete
        assert verdict_of(path, Ending.CANCELLED) is Verdict.CANCELLED
        assert verdict_of(path, Ending.BROKEN) is Verdict.ERROR


@pytest.mark.parametrize("path", STREAMS, ids=name)
def test_a_stream_cut_before_its_end_is_truncated(path: Path) -> None:
    """The same bytes without their last events, cleanly ended: never a success."""
    body = response(path).body
    finish = body.find(b'"finish_reason":"')
    at = finish if finish >= 0 else body.find(b"event: response.completed")
    if at < 0:
        assert path.stem == "disconnect_sse"
        return
    cut_at = body.rfind(b"\n\n", 0, at) + 2
    observer = StreamObserver(0.0)
    observer.receive_data(body[:cut_at], 1.0)
    report = observer.finish(2.0, Ending.COMPLETE)
    assert classify(Outcome.of_stream(report), SLO()) is Verdict.TRUNCATED


@pytest.mark.parametrize("path", streams("base", "ngram"), ids=name)
def test_the_requests_are_what_they_say(path: Path) -> None:
    """The recording's own request: it streamed, and its n is the choices that were seen."""
    sent = request(path)
    assert sent["stream"] is True
    prompts = sent.get("prompt")
    several = len(prompts) if isinstance(prompts, list) else 1
    assert observe(path).choices == int(str(sent.get("n", 1))) * several
