"""The engine dies mid-stream: each affected row is an error, the gateway falls back, and returns.

Last of its arm: the engine's counters start anew. The names of the files keep this order.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.support import processes
from tests.support.leaks import leaks_in_folder
from tests.vllm.client import counters, until
from tests.vllm.engine import BASELINE, Engine, Engines, processes_of
from tests.vllm.prompts import CANARY
from tests.vllm.shells import (
    REPLAY_DEADLINE_S,
    arm_settings,
    proxy,
    read_replayed,
    replay,
    replay_flags,
    write_traffic,
)

STREAMS = 4
LONG = 400
"""Output tokens of the streams that are cut: more than can be made before the kill."""


@pytest.mark.parametrize("arm_name", ["custom"])
def test_death_fallback_and_return(
    arm: Engine, baseline: Engine, tmp_path: Path, log_folder: Path
) -> None:
    """Killed mid-stream: `error` on each row; the baseline serves; restarted, the arm serves."""
    arms = {
        BASELINE: arm_settings(baseline),
        arm.name: arm_settings(arm, role="candidate"),
    }
    health = {"interval_s": 0.3, "fail_after": 2, "rise_after": 2, "hold_s": 0.5}
    routing = {
        "policy": "split",
        "weights": {BASELINE: 0, arm.name: 100},
        "health": health,
        "guard": {"enabled": False},  # four errors of four would trip it: that is its own test
    }
    with proxy(tmp_path, arms, routing=routing, scrape_interval_s=0.5) as front:

        def serving() -> bool:
            return front.total("route_state", arm=arm.name, state="serving") == 1

        until(serving)
        # Death: all streams are in flight when the engine's core is killed.
        cut = tmp_path / "cut"
        cut.mkdir()
        traffic = write_traffic(cut, arrivals=STREAMS, gap_s=0.0, out_tokens=LONG)
        flags = replay_flags(front.url, traffic, cut / "out")
        child = subprocess.Popen(
            [str(processes.BIN / "loadgen"), *flags],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        try:
            until(lambda: counters(arm.url).gauges["requests_running"] == STREAMS)
            arm.kill_core()
            printed, _ = child.communicate(timeout=REPLAY_DEADLINE_S)
        finally:
            child.kill()
            child.wait()
        run = read_replayed(cut / "out", child.returncode, printed)
        assert run.verdicts() == {"error": STREAMS}
        assert {row["status"] for row in run.rows} == {200}
        assert all((row["output_tokens"] or 0) < LONG for row in run.rows)
        assert run.status == 6, run.printed  # every request failed
        assert front.verdicts(arm=arm.name) == {"error": STREAMS}

        # Fallback: what comes now is served by the baseline, and nothing of it is lost.
        until(lambda: not serving())
        until(lambda: not arm.healthy())
        after = tmp_path / "after"
        after.mkdir()
        few = write_traffic(after, arrivals=4)
        fallen_back = replay(front.url, few, after / "out")
        assert fallen_back.verdicts() == {"good": 4}
        assert front.verdicts(arm=BASELINE) == {"good": 4}
        assert front.verdicts(arm=arm.name) == {"error": STREAMS}

        # Return: same port, new process; probes find it, and it gets the traffic again.
        group = arm.pid
        arm.end()
        assert processes_of(group) == {}
        arm.start()
        arm.wait_ready()
        until(serving)
        again = tmp_path / "again"
        again.mkdir()
        returned = replay(front.url, write_traffic(again, arrivals=4), again / "out")
        assert returned.verdicts() == {"good": 4}
        assert front.verdicts(arm=arm.name) == {"error": STREAMS, "good": 4}
        until(lambda: front.total("engine_resets_total", arm=arm.name) >= 1)
        assert front.total("route_transitions_total", arm=arm.name) >= 3
        written = front.child.text()
    assert CANARY not in written
    for run_folder in (cut, after, again):
        assert leaks_in_folder(run_folder / "out", CANARY) == []


@pytest.mark.parametrize("arm_name", ["custom"])
def test_no_server_log_holds_a_prompt(arm: Engine, held_engines: Engines, log_folder: Path) -> None:
    """After all that was asked, no server's log holds the canary that stood in the prompts."""
    logs = {path.name for path in log_folder.glob("vllm-*.log")}
    assert {f"vllm-{BASELINE}.log", f"vllm-{arm.name}.log"} <= logs
    assert leaks_in_folder(log_folder, CANARY) == []
