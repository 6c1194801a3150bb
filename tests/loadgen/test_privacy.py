"""No text of a request or an answer in anything that a run leaves, whole or killed."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.support.leaks import leaks_in_bytes, leaks_in_folder
from tests.support.target import DONE, STREAM_HEAD, Call, Target, event, scripted, usage_event

from breakeven_loadgen.cli import run as command
from breakeven_loadgen.replay.spool import SPOOL

CANARY = "Käfer-canary-5512 ☂"
KEY = "sk-canary-8830"


def pool(path: Path, n: int) -> Path:
    lines = [json.dumps({"prompt": f"{i} {CANARY}", "contract": {"stop": [CANARY]}})
             for i in range(n)]  # fmt: skip
    path.write_text("\n".join(lines), "utf-8")
    return path


async def echo(call: Call, target: Target) -> None:
    """Says the canary in every way: content, error body, error frame, half a stream."""
    await asyncio.sleep(0.05)
    error = json.dumps({"error": {"message": CANARY, "type": CANARY, "code": 500}}).encode()
    if call.number % 4 == 0:
        await call.answer(400, error)
        return
    await call.write(STREAM_HEAD)
    await call.chunk(event(1, 1, text=CANARY))
    if call.number % 4 == 1:
        await call.chunk(b"data: " + error + b"\n\n" + DONE)
    elif call.number % 4 == 2:
        await call.chunk(event(1, 2, text=CANARY, finish=CANARY))
    else:
        await call.chunk(event(1, 2, text=CANARY, finish="stop") + usage_event(2) + DONE)
    await call.end()


def args(url: str, tmp_path: Path, *more: str) -> list[str]:
    content = pool(tmp_path / "pool.jsonl", 3000)
    return ["replay", "synthetic:in=4,out=2", "--arrival", "constant", "--url", url,
            "--content", str(content), "--endpoint", "completions", "--reuse-content",
            "--header", f"X-User: {KEY}", "--out", str(tmp_path / "out"), *more]  # fmt: skip


def assert_clean(folder: Path) -> None:
    for secret in (CANARY, KEY):
        assert leaks_in_folder(folder, secret) == []


def test_a_whole_run_keeps_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Result folder, report.html, CSV, terminal and JSON are clean."""
    out = tmp_path / "out"
    with scripted(echo) as target:
        command(args(target.url, tmp_path, "--rate", "100", "--requests", "24", "--warmup", "50ms"))
        assert any(CANARY in call.json["prompt"] for call in target.calls), "it was really sent"
    command(["report", str(out), "--csv", str(out / "rows.csv")])
    command(["report", str(out), "--json"])
    shown = capsys.readouterr()
    assert_clean(out)
    for secret in (CANARY, KEY):
        assert leaks_in_bytes("terminal", (shown.out + shown.err).encode(), secret) == []


def ended(out: Path) -> bool:
    """No worker writes any more; a single process was killed outright."""
    return all((part / "summary.json").exists() for part in out.glob("workers/*"))


@pytest.mark.timeout(260)  # two waits of up to 110 s, on a machine that others load
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_killed_run_keeps_no_text(tmp_path: Path, workers: str) -> None:
    """The spool of a killed run is clean before and after it is recovered."""
    out = tmp_path / "out"
    with scripted(echo) as target:
        process = subprocess.Popen(
            [sys.executable, "-c", "from breakeven_loadgen.cli import main; main()",
             *args(target.url, tmp_path, "--rate", "60", "--duration", "300s", "--workers",
                   workers)],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        end_s = time.monotonic() + 110
        while len(target.calls) < 150:
            assert process.poll() is None
            assert time.monotonic() < end_s
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        end_s = time.monotonic() + 110
        while not ended(out):  # workers hear that the parent is gone, and end cleanly
            time.sleep(0.02)
            assert time.monotonic() < end_s
    assert list(out.rglob(SPOOL)) or list(out.rglob("requests.parquet"))
    assert_clean(out)
    command(["report", str(out)])
    assert (out / "report.html").exists()
    assert_clean(out)


def test_the_search_finds_a_planted_leak(tmp_path: Path) -> None:
    """The same search is not blind: a leak in a Parquet column and in JSON is found."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"x": [CANARY]}), tmp_path / "requests.parquet")
    assert leaks_in_folder(tmp_path, CANARY)
    (tmp_path / "requests.parquet").unlink()
    (tmp_path / "summary.json").write_text(json.dumps({"note": CANARY}))
    assert leaks_in_folder(tmp_path, CANARY)
