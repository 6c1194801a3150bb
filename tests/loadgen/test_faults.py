"""The thirteen faults of known load generators (peers-loadgen.md), each as a named case."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.loadgen.conftest import Run
from tests.support.target import DONE, STREAM_HEAD, Call, Target, event, good, scripted, usage_event

from breakeven.exitcodes import ExitCode
from breakeven_loadgen.traffic.arrivals import Arrival, Purpose, constant, draw, generator
from breakeven_loadgen.traffic.formats import load_trace


def test_fault_01_schedule_is_never_re_anchored(run: Run) -> None:
    """With every slot taken by a stalled server all arrivals are still offered, at their times."""

    async def never(call: Call, target: Target) -> None:
        if call.number < 10:
            await asyncio.sleep(0.4)
        await good(call, target)

    with scripted(never) as target:
        result, rows = run(target.url, rate=100.0, requests=60, max_inflight=10)
    assert len(rows) == 60
    assert [row["intended_s"] for row in rows] == [i / 100.0 for i in range(60)]
    dropped = [row for row in rows if row["verdict"] == "dropped"]
    assert dropped, "ten slots are stalled for 40 arrivals"
    assert all(row["sent_s"] is None for row in dropped)
    assert target.most_inflight <= 10
    ttft = result.summary["latency"]["ttft_s"]
    assert ttft["unanswered"] == len(dropped)
    assert "p95" in ttft["lower_bound"], "dropped arrivals stay in the tail"


def test_fault_02_headline_latency_starts_at_the_intended_time(run: Run) -> None:
    """TTFT counts from the intended time; the one from the send stands beside it."""
    with scripted() as target:
        _, rows = run(target.url)
    for row in rows:
        assert row["ttft_s"] == pytest.approx(row["ttft_sent_s"] + row["lag_s"])
        assert row["lag_s"] >= 0


def test_fault_03_poisson_is_poisson_also_in_shards() -> None:
    """Independent exponential gaps: dispersion 1, no autocorrelation, not rescaled to N/rate."""
    rng = generator(0, 0, Purpose.ARRIVALS)
    times = draw(Arrival("poisson"), 20.0, rng, duration_s=2000.0, count=None)
    gaps = np.diff(times)
    assert len(np.unique(gaps)) == len(gaps)
    counts = np.bincount(times.astype(int))
    assert np.var(counts) / np.mean(counts) == pytest.approx(1.0, abs=0.1)
    assert abs(np.corrcoef(gaps[:-1], gaps[1:])[0, 1]) < 0.03
    assert np.std(gaps) / np.mean(gaps) == pytest.approx(1.0, abs=0.03)
    assert len(times) != 40_000, "a Poisson count is random"
    assert len(times) == pytest.approx(40_000, abs=4 * 200)


def test_fault_03_constant_is_constant() -> None:
    """Every time is its index over the rate: no rounding adds up."""
    times = constant(20.0, 100_000)
    assert float(times[99_999]) == 99_999 / 20.0
    assert np.ptp(np.diff(times)) < 1e-9


async def half_way(call: Call, target: Target) -> None:
    """A stream that ends cleanly without finish reason, usage or [DONE]."""
    await call.write(STREAM_HEAD)
    await call.chunk(event(1, None))
    await call.chunk(event(1, None))
    await call.end()


def test_fault_04_clean_end_half_way_is_truncated(run: Run) -> None:
    """No finish reason: truncated, and no token is credited that did not come."""
    with scripted(half_way) as target:
        result, rows = run(target.url)
    assert {row["verdict"] for row in rows} == {"truncated"}
    assert {row["error_class"] for row in rows} == {"no_finish_reason"}
    assert result.summary["tokens"]["output"] == 0
    assert result.exit_code is ExitCode.ALL_FAILED


def test_fault_05_error_frame_after_200_is_an_error(run: Run) -> None:
    """`data: {"error": …}` and [DONE] after a 200 is a failure, its text is not kept."""

    async def script(call: Call, target: Target) -> None:
        await call.write(STREAM_HEAD)
        await call.chunk(event(1, 1))
        await call.chunk(b'data: {"error": {"message": "secret", "code": 500}}\n\n')
        await call.chunk(DONE)
        await call.end()

    with scripted(script) as target:
        _, rows = run(target.url)
    assert {row["verdict"] for row in rows} == {"error"}
    assert all(row["error_class"].startswith("error_frame") for row in rows)
    assert "secret" not in json.dumps(rows)


@pytest.mark.parametrize("space", [b" ", b""])
@pytest.mark.parametrize("eol", [b"\n", b"\r\n"])
def test_fault_06_line_ends_and_missing_space_are_legal(run: Run, eol: bytes, space: bytes) -> None:
    """CRLF and `data:` without a space carry the same tokens."""

    async def script(call: Call, target: Target) -> None:
        await call.write(STREAM_HEAD)
        for i in range(1, 5):
            finish = "length" if i == 4 else None
            await call.chunk(event(1, i, finish=finish, eol=eol, space=space))
        await call.chunk(b"data:" + space + b"[DONE]" + eol + eol)
        await call.end()

    with scripted(script) as target:
        _, rows = run(target.url)
    assert [(row["verdict"], row["output_tokens"]) for row in rows] == [("good", 4)] * 5


def test_fault_07_every_request_failed_is_exit_6(run: Run) -> None:
    """A run without a single answer does not exit 0."""

    async def script(call: Call, target: Target) -> None:
        await call.answer(500, b'{"error": {"message": "boom"}}')

    with scripted(script) as target:
        result, rows = run(target.url)
    assert result.exit_code is ExitCode.ALL_FAILED
    assert {row["error_class"] for row in rows} == {"http_500"}


def chat(delta: dict[str, Any], finish: str | None = None, total: int | None = None) -> bytes:
    """One chat event."""
    body: dict[str, Any] = {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
    if total is not None:
        body["usage"] = {"prompt_tokens": 4, "completion_tokens": total, "total_tokens": 4 + total}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def chat_pool(tmp_path: Path, n: int = 5) -> str:
    path = tmp_path / "pool.jsonl"
    lines = [json.dumps({"messages": [{"role": "user", "content": f"q{i}"}]}) for i in range(n)]
    path.write_text("\n".join(lines), "utf-8")
    return str(path)


def test_fault_08_role_chunk_is_no_first_token(run: Run, tmp_path: Path) -> None:
    """TTFT is the first token's event, not the role-only chunk that opens a chat."""

    async def script(call: Call, target: Target) -> None:
        await call.write(STREAM_HEAD)
        await call.chunk(chat({"role": "assistant", "content": ""}, total=0))
        with_token = chat({"content": "x"}, "stop", 1)
        await asyncio.sleep(0.05)
        await call.chunk(with_token + DONE)
        await call.end()

    with scripted(script) as target:
        _, rows = run(target.url, content=chat_pool(tmp_path), requests=3)
    assert all(row["events"] == 1 for row in rows)
    assert all(row["event_offset_s"] == [row["ttft_sent_s"]] for row in rows)
    assert all(row["ttft_sent_s"] > 0.04 for row in rows), "the script waits 50 ms before it"


def test_fault_09_chunks_are_not_tokens(run: Run) -> None:
    """Four tokens an event: tokens come from usage, TPOT divides by tokens, bursts hold four."""

    async def script(call: Call, target: Target) -> None:
        await good(call, target, per_event=4, gap_s=0.005)

    with scripted(script) as target:
        result, rows = run(target.url, trace="synthetic:in=4,out=40", requests=3)
    for row in rows:
        assert row["output_tokens"] == 40
        assert row["events"] == 10
        assert row["event_tokens"] == [4] * 10
        first = row["event_offset_s"].count(row["event_offset_s"][0])  # events of the first read
        assert row["decode_tokens"] == 40 - 4 * first
        assert row["tpot_s"] == pytest.approx(row["decode_s"] / row["decode_tokens"])
    assert result.summary["tokens"]["output"] == 120
    assert result.summary["speculation"]["m_stream_estimate"] == pytest.approx(4.0)


def test_a_merged_first_read_is_in_neither_side_of_m(run: Run) -> None:
    """Prefill's token and a step in one read: M = 8 tokens in 2 cycles, by block and by stream."""
    block = {"num_spec_steps": 3, "num_draft_tokens": 12, "num_accepted_draft_tokens": 9}
    end = {
        "choices": [],
        "usage": {"prompt_tokens": 4, "completion_tokens": 13, "total_tokens": 17},
        "metrics": {"speculative_decoding": block},
    }

    async def script(call: Call, target: Target) -> None:
        await call.write(STREAM_HEAD)
        await call.chunk(event(1, 1) + event(4, 5))
        for total, finish in ((9, None), (13, "length")):
            await asyncio.sleep(0.03)
            await call.chunk(event(4, total, finish=finish))
        await call.chunk(b"data: " + json.dumps(end).encode() + b"\n\n" + DONE)
        await call.end()

    with scripted(script) as target:
        result, rows = run(target.url, trace="synthetic:in=4,out=13", requests=3)
    for row in rows:
        assert (row["ttft_merged"], row["decode_tokens"]) == (True, 8)
        assert (row["stream_cycles"], row["block_cycles"]) == (2, 2)
    found = result.summary["speculation"]
    assert (found["m_block"], found["m_stream_estimate"]) == (4.0, 4.0)
    assert (found["block_cycles"], found["drafted_cycles"]) == (6, 9)


def test_fault_10_prompts_do_not_depend_on_the_salted_hash(tmp_path: Path) -> None:
    """Two processes with different hash seeds make byte-identical prompts."""
    program = (
        "import hashlib\n"
        "from breakeven.trace import Arrival, Block\n"
        "from breakeven_loadgen.traffic.content import Bodies, BodyFormat, TokenIdPrompts\n"
        "from breakeven_loadgen.traffic.plan import Planned\n"
        "b = Bodies(TokenIdPrompts(7, 2, Block('tokens', 8)), BodyFormat('m', True, 7), b'k')\n"
        "a = Arrival(0.0, 40, 4, prefix=('p1', 'p2'))\n"
        "d = b''.join(b.body(Planned(i, 0.0, a)).data for i in range(5))\n"
        "print(hashlib.sha256(d).hexdigest())\n"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PATH": "/usr/bin"},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


def test_fault_10_csv_columns_are_read_by_name(tmp_path: Path) -> None:
    """Columns in another order, and more of them, give the same arrivals."""
    plain, other = tmp_path / "a.csv", tmp_path / "b.csv"
    plain.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,10,20\n1.5,30,40\n")
    other.write_text(
        "x,num_decode_tokens,arrived_at,num_prefill_tokens\n9,20,0.0,10\n9,40,1.5,30\n"
    )
    assert load_trace(str(plain)).arrivals == load_trace(str(other)).arrivals


def test_fault_11_no_interpolated_token_times(run: Run) -> None:
    """Events that arrive in one burst keep one time each: nothing is spread evenly."""

    async def script(call: Call, target: Target) -> None:
        await call.write(STREAM_HEAD)
        await call.chunk(event(1, 1))
        await asyncio.sleep(0.03)
        await call.write(
            b"".join(
                b"%x\r\n%b\r\n" % (len(e), e)
                for e in (event(1, 2), event(1, 3), event(1, 4, finish="length"))
            )
        )
        await call.chunk(usage_event(4) + DONE)
        await call.end()

    with scripted(script) as target:
        _, rows = run(target.url, requests=2)
    for row in rows:
        offsets = row["event_offset_s"]
        assert offsets[1] - offsets[0] > offsets[3] - offsets[1], "one write stays one burst"
        assert row["bursts"] == 2


def test_fault_12_lag_is_absolute(run: Run) -> None:
    """A constant lateness is visible: lag is send minus intended, not minus the luckiest."""
    with scripted() as target:
        result, rows = run(target.url)
    lag = result.summary["latency"]["lag_s"]
    assert lag["min"] > 0, "a send cannot come before its time, and takes some"
    assert [row["lag_s"] for row in rows] == [row["sent_s"] - row["intended_s"] for row in rows]


def test_fault_13_a_waiting_arrival_holds_no_slot(run: Run) -> None:
    """With one slot and instant answers nothing is dropped, however many arrivals still wait."""
    with scripted() as target:  # 400 ms apart: a busy machine answers in that time
        result, _ = run(target.url, rate=2.5, requests=8, max_inflight=1, arrival="constant")
    assert result.summary["verdicts"]["dropped"] == 0
    assert target.most_inflight == 1
