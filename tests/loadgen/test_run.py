"""What a run does beyond the faults: sessions, cancellations, warm-up, engine pages, stopping."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.loadgen.conftest import Run
from tests.support.target import STREAM_HEAD, Call, Target, event, good, scripted

from breakeven.errors import InputError, NotReadyError
from breakeven.exitcodes import ExitCode
from breakeven_loadgen.replay.results import read_record


def trace_file(path: Path, rows: list[dict[str, Any]]) -> str:
    header = {"breakeven_trace": 1, "block": {"unit": "tokens", "size": 8}}
    path.write_text("\n".join(json.dumps(r) for r in [header, *rows]), "utf-8")
    return str(path)


def test_follow_up_turns_wait_for_their_predecessor(run: Run, tmp_path: Path) -> None:
    """A turn that falls due early is sent after the answer before it; both times are kept."""

    async def slow_first(call: Call, target: Target) -> None:
        if call.number == 0:
            await asyncio.sleep(0.15)
        await good(call, target)

    session = "0123456789abcdef"
    rows = [{"t": t, "in": 4, "out": 2, "session": session} for t in (0.0, 0.01, 0.02)]
    path = trace_file(tmp_path / "t.jsonl", rows)
    with scripted(slow_first) as target:
        _, rows_out = run(target.url, trace=path, arrival="trace", rate=None, requests=None,
                          max_inflight=1)  # fmt: skip
        assert target.most_inflight == 1
    assert [row["verdict"] for row in rows_out] == ["good"] * 3
    assert [row["turn_of"] for row in rows_out] == [None, 0, 1]
    for before, after in pairwise(rows_out):
        assert after["ready_s"] == max(after["intended_s"], before["end_s"])
        assert after["sent_s"] >= before["end_s"]
        assert after["lag_s"] == after["sent_s"] - after["ready_s"]
    assert rows_out[1]["intended_s"] == 0.01


def test_cancelled_share_is_cancelled_after_its_tokens(run: Run) -> None:
    """The run closes the connection after the drawn tokens; verdict cancelled, server notices."""

    async def drip(call: Call, target: Target) -> None:
        await good(call, target, gap_s=0.005)

    with scripted(drip) as target:
        result, rows = run(
            target.url, trace="synthetic:in=4,out=40", requests=10, cancel_share=1.0, seed=3
        )
    assert {row["verdict"] for row in rows} == {"cancelled"}
    assert {row["error_class"] for row in rows} == {"cancelled_by_run"}
    for row in rows:
        seen = sum(row["event_tokens"])
        assert row["cancel_after"] <= seen <= row["asked_output_tokens"]
    assert result.summary["goodput"]["share"] is None, "nothing is left to judge"
    assert result.exit_code is not ExitCode.ALL_FAILED


def test_timeouts_are_rows(run: Run) -> None:
    """A request that is never answered ends at --timeout, by phase."""

    async def hang(call: Call, target: Target) -> None:
        if call.number % 2:
            await call.write(STREAM_HEAD)
            await call.chunk(event(1, 1))
        await asyncio.sleep(20)

    with scripted(hang) as target:
        result, rows = run(target.url, requests=4, timeout=0.2)
    assert {row["verdict"] for row in rows} == {"timeout"}
    assert {row["error_class"] for row in rows} == {"timeout_head", "timeout_body"}
    assert result.exit_code is ExitCode.ALL_FAILED


@pytest.mark.parametrize(
    ("tokens", "verdict", "word"),
    [(3, "truncated", "short_output"), (5, "malformed", "long_output")],
)
def test_wrong_lengths_have_their_verdict(run: Run, tokens: int, verdict: str, word: str) -> None:
    """Forced to 4 tokens: fewer is truncated, more breaks max_tokens."""

    async def script(call: Call, target: Target) -> None:
        await call.write(STREAM_HEAD)
        for i in range(1, tokens + 1):
            await call.chunk(event(1, i, finish="stop" if i == tokens else None))
        await call.chunk(b"data: [DONE]\n\n")
        await call.end()

    with scripted(script) as target:
        result, rows = run(target.url)
    assert {(row["verdict"], row["error_class"]) for row in rows} == {(verdict, word)}
    assert result.summary["tokens"]["length_misses"] == 5


def test_json_answer_to_a_stream_is_not_a_stream(run: Run) -> None:
    """A 200 with JSON instead of events: an error body is an error, anything else malformed."""

    async def script(call: Call, target: Target) -> None:
        body = {"error": {"message": "x", "code": 400}} if call.number == 0 else {"choices": []}
        await call.answer(200, json.dumps(body).encode())

    with scripted(script) as target:
        _, rows = run(target.url, requests=2)
    assert [row["verdict"] for row in rows] == ["error", "truncated"] or [
        row["verdict"] for row in rows
    ] == ["error", "malformed"]


def test_non_streams_are_measured_by_their_whole_answer(run: Run, tmp_path: Path) -> None:
    """stream:false: tokens from the body, e2e, no TTFT; an SLO on TTFT does not judge it."""

    async def script(call: Call, target: Target) -> None:
        assert call.json["stream"] is False
        n = call.json["max_tokens"]
        usage = {"prompt_tokens": 4, "completion_tokens": n, "total_tokens": 4 + n}
        choice = {"index": 0, "text": "x", "finish_reason": "length"}
        await call.answer(200, json.dumps({"choices": [choice], "usage": usage}).encode())

    path = trace_file(tmp_path / "t.jsonl", [{"t": 0, "in": 4, "out": 3, "stream": False}] * 3)
    with scripted(script) as target:
        _, rows = run(target.url, trace=path, arrival="constant", requests=3,
                      goodput="ttft:1us,e2e:60s")  # fmt: skip
    assert [(r["verdict"], r["output_tokens"], r["ttft_s"]) for r in rows] == [
        ("good", 3, None)
    ] * 3


def test_warmup_is_out_of_statistics_and_in_tokens(run: Run) -> None:
    """Warm-up rows are flagged; verdict counts leave them out, token sums and gates do not."""
    with scripted() as target:
        result, rows = run(target.url, rate=100.0, requests=10, warmup=0.05,
                           metrics_url=(target.url,))  # fmt: skip
    assert sum(row["warmup"] for row in rows) == 5
    assert sum(result.summary["verdicts"].values()) == 5
    assert result.summary["tokens"]["output"] == 40
    gate = next(g for g in result.summary["gates"] if g["name"] == "tokens")
    assert gate["passed"] is True


def test_engine_pages_become_figures(run: Run) -> None:
    """Before and after pages give M and the token comparison; samples go to engine.parquet."""

    async def script(call: Call, target: Target) -> None:
        await good(call, target, per_event=2)

    with scripted(script) as target:
        result, _ = run(target.url, trace="synthetic:in=4,out=10", metrics_url=(target.url,))
    page = read_record(result.folder)["engine"][0]
    assert page["g"] == 50
    assert result.summary["speculation"]["m_counters"] == pytest.approx((50 - 5) / (5 * 4)), (
        "the script counts a step per event after the first"
    )
    table = pq.read_table(result.folder / "engine.parquet")
    assert "generation_tokens" in table["name"].to_pylist()


def test_engine_that_counts_other_tokens_fails_the_gate(run: Run) -> None:
    """Another client on the engine: exit 4, the gate and both counts are named."""

    async def script(call: Call, target: Target) -> None:
        target.generated += 1
        await good(call, target)

    with scripted(script) as target:
        result, _ = run(target.url, metrics_url=(target.url,))
    assert result.exit_code is ExitCode.NOT_EVIDENCE
    assert "tokens" in result.failed_gates
    gate = next(g for g in result.summary["gates"] if g["name"] == "tokens")
    assert gate["reason"] == "engine counts 25 tokens, the client 20"


def test_chat_words_are_calibrated_on_the_target(run: Run) -> None:
    """Without a pool on chat: /tokenize is asked, then words are written to the length."""

    async def script(call: Call, target: Target) -> None:
        if call.path == "/tokenize":
            words = call.json["messages"][0]["content"].split()
            await call.answer(200, json.dumps({"count": 7 + 2 * len(words)}).encode())
        else:
            await good(call, target)

    with scripted(script) as target:
        run(target.url, trace="synthetic:in=107,out=2", endpoint="chat", requests=2)
        chats = [c for c in target.calls if c.path == "/v1/chat/completions"]
    assert [len(c.json["messages"][0]["content"].split()) for c in chats] == [50, 50]


def test_a_target_that_is_not_there_is_exit_3(run: Run) -> None:
    """Unreachable before the first arrival."""
    with pytest.raises(NotReadyError, match="/v1/models"):
        run("http://127.0.0.1:1")


def test_a_model_that_is_not_served_is_bad_input(run: Run) -> None:
    """The served ones are named; nothing was sent."""
    with scripted() as target, pytest.raises(InputError, match="it serves: scripted"):
        run(target.url, model="other")


def test_url_with_and_without_v1(run: Run) -> None:
    """Both forms reach the same path."""
    with scripted() as target:
        run(target.url + "/v1", requests=1)
        run(target.url + "/", requests=1)
        assert {call.path for call in target.calls} == {"/v1/completions"}


def test_start_at_in_the_past_is_refused(run: Run) -> None:
    """A common start that has passed is bad input; nothing was sent."""
    with scripted() as target:
        with pytest.raises(InputError, match="--start-at"):
            run(target.url, start_at=1.0)
        assert not target.calls


def test_an_out_folder_that_holds_something_is_refused(run: Run, tmp_path: Path) -> None:
    """Unless --force, which removes what an earlier run wrote and nothing else."""
    out = tmp_path / "mine"
    out.mkdir()
    (out / "notes.txt").write_text("keep")
    (out / "summary.json").write_text("old")
    with scripted() as target:
        with pytest.raises(InputError, match=r"--out: the folder holds notes\.txt"):
            run(target.url, out=str(out))
        run(target.url, out=str(out), force=True)
    assert (out / "notes.txt").read_text() == "keep"
    assert json.loads((out / "summary.json").read_text())["breakeven_summary"] == 1


@contextmanager
def interrupted_when(target: Target, calls: int) -> Iterator[None]:
    """Sends SIGINT to this process once the target has seen so many calls."""
    stop = threading.Event()

    def watch() -> None:
        while len(target.calls) < calls and not stop.wait(0.005):
            pass
        if not stop.is_set():
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_ctrl_c_keeps_partial_results(run: Run) -> None:
    """SIGINT ends the run: rows interrupted, exit 130, files whole, no connection left."""

    async def slow(call: Call, target: Target) -> None:
        await asyncio.sleep(10)

    with scripted(slow) as target, interrupted_when(target, 5):
        result, rows = run(target.url, rate=50.0, requests=5000)
    assert result.exit_code is ExitCode.INTERRUPTED
    assert result.summary["state"] == "interrupted"
    assert {row["verdict"] for row in rows} == {"interrupted"}
    assert result.summary["arrivals"]["never_started"] == 5000 - len(rows)
    schedule = next(g for g in result.summary["gates"] if g["name"] == "schedule")
    assert "have no row" not in schedule["reason"]


def test_own_metrics_while_it_runs(run: Run) -> None:
    """--metrics-listen serves offered, admitted, dropped, served, lag and in flight."""
    pages: list[str] = []
    port = free_port()

    async def script(call: Call, target: Target) -> None:
        if call.number == 3:
            url = f"http://127.0.0.1:{port}/metrics"
            pages.append(
                await asyncio.to_thread(lambda: urllib.request.urlopen(url).read().decode())
            )
        await good(call, target)

    with scripted(script) as target:
        run(target.url, requests=8, metrics_listen=f"127.0.0.1:{port}")
    values = {
        line.split(" ")[0]: float(line.split(" ")[1])
        for line in pages[0].splitlines()
        if line and not line.startswith("#")
    }
    assert values["loadgen_scheduled_arrivals"] == 8
    assert values["loadgen_offered_total"] >= 4
    assert values["loadgen_admitted_total"] == values["loadgen_offered_total"]
    assert values["loadgen_inflight_requests"] >= 1
    assert values["loadgen_dropped_total"] == 0
    assert (
        values["loadgen_served_total"] + values["loadgen_inflight_requests"]
        == (values["loadgen_admitted_total"])
    )
    assert 'loadgen_requests_total{verdict="good"}' in values


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"url": "http://127.0.0.1:1"}, "/v1/models"),
        ({"url": "http://127.0.0.1:1", "workers": 2}, "/v1/models"),
        ({"metrics_listen": "taken"}, "cannot listen"),
    ],
)
def test_a_refused_run_keeps_the_results_that_force_would_replace(
    run: Run, tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    """--force removes an earlier run only once nothing can refuse this one any more."""
    with scripted() as target:
        result, _ = run(target.url)
        before = {path.name: path.read_bytes() for path in result.folder.iterdir()}
        given = {"url": target.url, "out": str(result.folder), "force": True} | options
        if given.get("metrics_listen"):
            given["metrics_listen"] = target.url.removeprefix("http://")
        with pytest.raises((InputError, NotReadyError), match=words):
            run(**given)
    after = {p.name: p.read_bytes() for p in result.folder.iterdir() if p.is_file()}
    assert after == before
    assert [path.name for path in result.folder.iterdir() if path.is_dir()] == []


def test_a_page_that_cannot_be_served_leaves_no_folder(run: Run, tmp_path: Path) -> None:
    """--metrics-listen at a taken port: nothing was sent, so nothing is left."""
    with scripted() as target:
        taken, out = target.url.removeprefix("http://"), str(tmp_path / "refused")
        with pytest.raises(InputError, match="choose a free port"):
            run(target.url, metrics_listen=taken, out=out)
    assert not (tmp_path / "refused").exists()


def test_force_removes_the_parts_of_a_killed_run(run: Run, tmp_path: Path) -> None:
    """Else `report` after another kill would take the old workers' rows for this run's."""
    with scripted() as target:
        old, _ = run(target.url, out=str(tmp_path / "out" / "workers" / "7"))
        assert old.folder.is_dir()
        for workers in (1, 2):
            result, rows = run(
                target.url, out=str(tmp_path / "out"), force=True, workers=workers, requests=4
            )
            assert len(rows) == 4
            assert not (result.folder / "workers").exists()


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_api_key_and_headers_are_sent_and_never_stored(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Authorization value reaches the target and no file of the result."""
    monkeypatch.setenv("TEST_KEY", "sk-canary-7391")
    with scripted() as target:
        result, _ = run(target.url, api_key_env="TEST_KEY", header=("X-Team: canary-team-42",))
        assert target.calls[0].headers["authorization"] == "Bearer sk-canary-7391"
        assert target.calls[0].headers["x-team"] == "canary-team-42"
        assert target.calls[0].headers["x-breakeven-cohort"] == "other"
    for path in result.folder.iterdir():
        data = path.read_bytes()
        assert b"canary" not in data, path.name


def test_an_unset_key_is_bad_input(run: Run) -> None:
    """Better than 401 for every request."""
    with scripted() as target, pytest.raises(InputError, match="api-key-env: is not set"):
        run(target.url, api_key_env="NO_SUCH_VARIABLE_HERE")
