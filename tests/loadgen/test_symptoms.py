"""Symptoms reported of load generators in public trackers (peers-loadgen.md), one case each."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.loadgen.conftest import Run
from tests.loadgen.test_faults import chat, chat_pool
from tests.support.target import DONE, STREAM_HEAD, Call, Target, event, good, scripted, usage_event

from breakeven.errors import InputError
from breakeven.exitcodes import ExitCode
from breakeven.trace import Arrival, Block
from breakeven_loadgen.config import ReplayConfig, check
from breakeven_loadgen.replay.ahead import BEFORE_START_S, Ahead
from breakeven_loadgen.replay.gates import client
from breakeven_loadgen.traffic.arrivals import Arrival as Spacing
from breakeven_loadgen.traffic.arrivals import cap_gaps, draw, rescale
from breakeven_loadgen.traffic.content import Bodies, BodyFormat, TokenIdPrompts
from breakeven_loadgen.traffic.plan import Planned


def numbers(value: Any) -> list[float]:
    """Every number anywhere in a JSON value."""
    if isinstance(value, dict):
        return [n for item in value.values() for n in numbers(item)]
    if isinstance(value, list):
        return [n for item in value for n in numbers(item)]
    return [float(value)] if isinstance(value, int | float) else []


def test_latency_includes_the_dispatch_delay(run: Run) -> None:
    """e2e from the intended time is e2e from the send plus the lag."""
    with scripted() as target:
        _, rows = run(target.url)
    assert all(r["e2e_s"] == pytest.approx(r["e2e_sent_s"] + r["lag_s"]) for r in rows)


def test_long_prompts_are_built_before_and_between_arrivals() -> None:
    """Before the start building stops at its time budget; what is missing is built when due."""
    plan = [Planned(i, float(i), Arrival(0.0, 20_000, 4)) for i in range(50)]
    maker = Bodies(TokenIdPrompts(0, 0, Block("tokens", 512)), BodyFormat("m", True, 0), b"k")
    ahead = Ahead(maker, plan)
    shares = (0.0, 0.4, 0.8, 1.1)  # the clock is read once, then before each body
    ticks = iter([share * BEFORE_START_S for share in shares])
    ahead.before_start(clock=lambda: next(ticks))
    built = len(ahead._built)
    assert built == 2, "two looks inside the budget, the third is not"
    assert ahead.take(0).data == maker.body(plan[0]).data
    assert ahead.take(30).data == maker.body(plan[30]).data
    assert not ahead.in_gap(0.0), "no gap, no building"
    assert ahead.in_gap(60.0)


@pytest.mark.parametrize(("step_s", "expected"), [(0.25, 5), (1e-6, 40)])
def test_where_gaps_are_long_only_the_first_second_is_built_before(
    step_s: float, expected: int
) -> None:
    """Start to first request does not wait for bodies that the gaps have room for."""
    plan = [Planned(i, i * step_s, Arrival(0.0, 200, 4)) for i in range(40)]
    maker = Bodies(TokenIdPrompts(0, 0, Block("tokens", 512)), BodyFormat("m", True, 0), b"k")
    ahead = Ahead(maker, plan)
    ahead.before_start(clock=lambda: 0.0)
    assert len(ahead._built) == expected
    assert ahead.in_gap(60.0) == (expected < len(plan))


def test_two_rates_after_each_other_do_not_hang(run: Run) -> None:
    """A second run in the same process, at another rate, ends like the first."""
    with scripted() as target:
        for rate in (50.0, 400.0):
            result, rows = run(target.url, rate=rate, requests=8)
            assert len(rows) == 8
            assert result.summary["verdicts"]["good"] == 8


@pytest.mark.parametrize("kind", ["text/event-stream", "application/json"])
def test_200_with_an_empty_body_is_no_success(run: Run, kind: str) -> None:
    """Neither an empty stream nor an empty JSON body counts as an answer."""

    async def script(call: Call, target: Target) -> None:
        await call.answer(200, b"", kind)

    with scripted(script) as target:
        result, rows = run(target.url)
    assert {row["verdict"] for row in rows} <= {"truncated", "malformed"}
    assert result.exit_code is ExitCode.ALL_FAILED


def test_gaps_are_capped_before_rescaling() -> None:
    """The cap is in the trace's own time, so the shape does not depend on the rate."""
    times = np.array([0.0, 1.0, 101.0, 102.0])
    capped = cap_gaps(times, 10.0)
    assert capped.tolist() == [0.0, 1.0, 11.0, 12.0]
    assert rescale(capped, 0.5).tolist() == pytest.approx([0.0, 0.5, 5.5, 6.0])


def test_failures_stay_in_percentiles_and_do_not_lower_them(run: Run) -> None:
    """Half refused at once: the upper quantiles rest on unanswered arrivals and say so."""

    async def script(call: Call, target: Target) -> None:
        if call.number % 2:
            await call.answer(503, b"{}")
        else:
            await good(call, target)

    with scripted(script) as target:
        result, _ = run(target.url, requests=20)
    e2e = result.summary["latency"]["e2e_s"]
    assert e2e["n"] == 20
    assert e2e["unanswered"] == 10
    assert set(e2e["lower_bound"]) == {"p90", "p95", "p99"}
    assert e2e["p95"] >= e2e["answered"]["max"]
    assert result.summary["verdicts"]["rejected"] == 10


def test_reasoning_is_tokens_and_has_a_first_token(run: Run, tmp_path: Path) -> None:
    """An answer that is all reasoning, cut by max_tokens, has TTFT, tokens and no TTFO."""

    async def script(call: Call, target: Target) -> None:
        await call.write(STREAM_HEAD)
        await call.chunk(chat({"role": "assistant", "content": ""}, total=0))
        for i in range(1, 5):
            finish = "length" if i == 4 else None
            await call.chunk(chat({"reasoning_content": "t"}, finish, i))
        await call.chunk(DONE)
        await call.end()

    with scripted(script) as target:
        _, rows = run(target.url, content=chat_pool(tmp_path), requests=3)
    for row in rows:
        assert row["verdict"] == "good"
        assert row["output_tokens"] == 4
        assert row["ttft_s"] is not None
        assert row["ttfo_s"] is None
        assert row["finish_reason"] == "length"


def test_the_bound_holds_at_the_server(run: Run) -> None:
    """With bound 3 the server never sees a fourth request at once."""

    async def slow(call: Call, target: Target) -> None:
        await asyncio.sleep(0.05)
        await good(call, target)

    with scripted(slow) as target:
        result, _ = run(target.url, rate=300.0, requests=40, max_inflight=3)
    assert target.most_inflight <= 3
    assert result.summary["verdicts"]["dropped"] > 0


def test_freed_slots_release_no_burst(run: Run) -> None:
    """After a stall no send happens away from its own intended time: nothing was queued."""

    async def stall(call: Call, target: Target) -> None:
        if call.number < 4:
            await asyncio.sleep(0.2)
        await good(call, target)

    with scripted(stall) as target:
        result, rows = run(target.url, rate=100.0, requests=60, max_inflight=4)
    sent = sorted(row["intended_s"] for row in rows if row["sent_s"] is not None)
    assert len(sent) + result.summary["verdicts"]["dropped"] == 60
    assert all(row["ready_s"] == row["intended_s"] for row in rows if row["sent_s"] is not None)


def test_huge_contexts_do_not_share_a_session(run: Run) -> None:
    """50,000-token prompts side by side: every byte arrives, each on its own connection."""
    with scripted() as target:
        result, _ = run(
            target.url, trace="synthetic:in=50000,out=2", rate=100.0, requests=6, duration=None
        )
    assert result.summary["verdicts"]["good"] == 6
    assert [len(call.json["prompt"]) for call in target.calls] == [50_000] * 6


def test_every_request_is_accounted_for(run: Run) -> None:
    """Mixed endings: one row and one verdict per arrival, and the counts add up."""

    async def mixed(call: Call, target: Target) -> None:
        if call.number % 4 == 0:
            await call.answer(500, b"{}")
        elif call.number % 4 == 1:
            call.writer.close()
        elif call.number % 4 == 2:
            await call.write(STREAM_HEAD)
            await call.chunk(event(1, 1))
            call.writer.close()
        else:
            await good(call, target)

    with scripted(mixed) as target:
        result, rows = run(target.url, requests=40)
    assert sorted(row["index"] for row in rows) == list(range(40))
    assert sum(result.summary["verdicts"].values()) == 40
    assert all(row["verdict"] is not None and row["end_s"] is not None for row in rows)
    gates = {gate["name"]: gate["passed"] for gate in result.summary["gates"]}
    assert gates["accounting"] is True


@pytest.mark.parametrize("bound", [0, -1])
def test_bound_zero_or_negative_is_refused(bound: int) -> None:
    """--max-inflight below 1 is bad input, with the mend."""
    with pytest.raises(InputError, match="max-inflight: must be at least 1"):
        check(ReplayConfig(trace="synthetic:in=1,out=1", url="x", out="y", max_inflight=bound))


def test_late_usage_chunk_moves_neither_ttft_nor_e2e(run: Run) -> None:
    """TTFT stays the first token's, e2e ends with the answer, although usage comes later."""

    async def script(call: Call, target: Target) -> None:
        await call.write(STREAM_HEAD)
        for i in range(4):
            await call.chunk(event(1, None, finish="length" if i == 3 else None))
        await asyncio.sleep(0.1)
        await call.chunk(usage_event(4))
        await call.chunk(DONE)
        await call.end()

    with scripted(script) as target:
        _, rows = run(target.url, requests=3)
    for row in rows:
        assert row["output_tokens"] == 4
        assert row["ttft_sent_s"] == row["event_offset_s"][0]
        assert row["e2e_sent_s"] == pytest.approx(row["event_offset_s"][-1], abs=1e-6)
        assert row["end_s"] - row["sent_s"] > row["e2e_sent_s"] + 0.09


def test_whole_answer_in_one_chunk(run: Run) -> None:
    """One event with all tokens and a usage chunk: tokens known, TPOT undefined, good."""

    async def script(call: Call, target: Target) -> None:
        await call.write(STREAM_HEAD)
        await call.chunk(event(4, 4, finish="length") + usage_event(4) + DONE)
        await call.end()

    with scripted(script) as target:
        _, rows = run(target.url, goodput="tpot:30ms,ttft:60s")
    for row in rows:
        assert row["verdict"] == "good"
        assert row["output_tokens"] == 4
        assert row["tpot_s"] is None
        assert row["decode_tokens"] == 0


def test_tokens_of_the_first_chunk_do_not_count_as_decoded(run: Run) -> None:
    """Three tokens in the first event: decode tokens are what came after it."""

    async def script(call: Call, target: Target) -> None:
        await call.write(STREAM_HEAD)
        await call.chunk(event(3, 3))
        await asyncio.sleep(0.01)
        await call.chunk(event(1, 4, finish="length") + DONE)
        await call.end()

    with scripted(script) as target:
        _, rows = run(target.url, requests=3)
    for row in rows:  # a busy client may read both events at once: then all came first
        at_once = row["event_offset_s"].count(row["event_offset_s"][0])
        assert row["decode_tokens"] == (1 if at_once == 1 else 0)


def test_output_of_spaces_only_is_output(run: Run) -> None:
    """White space is text: tokens are counted, the answer is not empty."""

    async def script(call: Call, target: Target) -> None:
        await call.write(STREAM_HEAD)
        for i in range(1, 5):
            await call.chunk(event(1, i, text="  ", finish="length" if i == 4 else None))
        await call.chunk(DONE)
        await call.end()

    with scripted(script) as target:
        _, rows = run(target.url)
    assert {(row["verdict"], row["output_tokens"]) for row in rows} == {("good", 4)}


@pytest.mark.parametrize(("rate", "seconds"), [(20.0, 15.0), (0.1, 30.0), (1e3, 0.3), (3.0, 7.0)])
def test_constant_count_is_rate_times_duration(rate: float, seconds: float) -> None:
    """Exactly rate × duration arrivals, also where floats make it 2.9999999."""
    times = draw(
        Spacing("constant"), rate, np.random.default_rng(0), duration_s=seconds, count=None
    )
    assert len(times) == round(rate * seconds)


def test_abort_when_the_rate_cannot_be_reached(run: Run) -> None:
    """--abort-below stops a run whose arrivals cannot be sent: exit 5, rows interrupted."""

    async def never(call: Call, target: Target) -> None:
        await asyncio.sleep(30)

    with scripted(never) as target:
        result, rows = run(target.url, rate=50.0, requests=2000, max_inflight=2, abort_below=90.0)
    assert result.summary["thresholds"][0].startswith("only ")
    assert "--abort-below 90 %" in result.summary["thresholds"][0]
    assert len(rows) < 2000
    assert {row["verdict"] for row in rows} == {"dropped", "interrupted"}
    assert result.exit_code in (ExitCode.THRESHOLD_MISSED, ExitCode.ALL_FAILED)


def test_idle_time_is_in_no_latency(run: Run) -> None:
    """At a low rate latencies are those of the answers, not of the gaps between arrivals."""
    with scripted() as target:
        _, rows = run(target.url, rate=4.0, requests=4)
    assert all(row["e2e_sent_s"] <= row["end_s"] - row["sent_s"] + 1e-3 for row in rows)
    assert [row["intended_s"] for row in rows] == [0.0, 0.25, 0.5, 0.75]


def test_errors_pollute_neither_latency_nor_rate(run: Run) -> None:
    """TPOT, gaps and the answered rate are those of answers; errors stand beside them."""

    async def script(call: Call, target: Target) -> None:
        if call.number % 2:
            await call.answer(500, b"{}")
        else:
            await good(call, target)

    with scripted(script) as target:
        result, _ = run(target.url, requests=20, rate=200.0)
    summary = result.summary
    assert summary["latency"]["e2e_s"]["answered"]["n"] == 10
    assert summary["decode"]["requests"] <= 10
    assert summary["latency"]["ttft_s"]["answered"]["n"] == 10
    assert summary["rate"]["answered"] == pytest.approx(summary["rate"]["offered"] / 2)


@pytest.mark.parametrize("requests", [1, 2])
def test_short_runs_have_no_nan(run: Run, requests: int) -> None:
    """One arrival gives a summary without NaN or infinity."""
    with scripted() as target:
        result, _ = run(target.url, requests=requests, metrics_url=(target.url,))
    text = (result.folder / "summary.json").read_text("utf-8")
    assert all(math.isfinite(n) for n in numbers(json.loads(text)))


def test_clock_steps_fail_the_client_gate() -> None:
    """A step of the realtime clock invalidates the run by name."""
    gate = client(cpu_shares=[0.1], loop_lag_p99_s=0.0, clock_steps=1)
    assert gate.passed is False
    assert "clock stepped" in gate.reason


def test_sse_split_at_every_byte(run: Run) -> None:
    """The same answer written byte by byte gives the same tokens and verdict."""

    async def script(call: Call, target: Target) -> None:
        await call.write(STREAM_HEAD)
        text = b"".join(event(1, i, finish="length" if i == 4 else None) for i in range(1, 5))
        for byte in text + usage_event(4) + DONE:
            await call.chunk(bytes([byte]))
            await asyncio.sleep(0)
        await call.end()

    with scripted(script) as target:
        _, rows = run(target.url, requests=2)
    assert {(r["verdict"], r["output_tokens"], r["events"]) for r in rows} == {("good", 4, 4)}
