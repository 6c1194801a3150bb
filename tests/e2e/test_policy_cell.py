"""The policy cell against a real gateway and two simulated engines: up, down, nothing lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from tests.support import processes


@pytest.mark.timeout(240)  # a minute of traffic: a load is defined over 30 s
def test_one_switch_per_crossing_and_no_request_lost(tmp_path: Path) -> None:
    """30/s → 1/s → 30/s across thresholds of 3 and 5: off, on, off; 0 failed; exit 0."""
    out = tmp_path / "out"
    serve = ("breakeven-sim", "serve", "--listen", "127.0.0.1:0", "--model", "m")
    with (
        processes.running(*serve) as base,
        processes.running(*serve, "--draft", "ngram", "--k", "4") as draft,
    ):
        rules = {"enter_below_rps": 3, "leave_above_rps": 5, "window_s": 1, "dwell_s": 0.5}
        config = {
            "listen": "127.0.0.1:0",
            "admin": "127.0.0.1:0",
            "arms": {"base": {"url": base.url}, "draft": {"url": draft.url, "role": "candidate"}},
            "routing": {
                "policy": "load_aware", "load_aware": rules, "guard": {"enabled": False},
            },
        }  # fmt: skip
        path = tmp_path / "proxy.yaml"
        path.write_text(yaml.safe_dump(config))
        with processes.running("breakeven-proxy", "serve", "--config", str(path)) as gateway:
            done = processes.run(
                "loadgen", "grid", "policy", "--url", gateway.urls[0], "--admin", gateway.urls[1],
                "--low", "1", "--high", "30", "--hold", "35s", "--high-hold", "11s",
                "--cycles", "1",
                "--out-tokens", "16", "--out", str(out), "--json", deadline_s=200,
            )  # fmt: skip
    report = json.loads(done.stdout) if done.stdout else {}
    assert done.returncode == 0, (done.stderr, report.get("why_not"))
    assert report["passed"] is True
    assert report["failed"] == {}
    # Settled, that is idle and known to be: it begins on the candidate, and every crossing counts.
    assert report["switches"] == report["expected_switches"] == 3
    assert set(report["by_reason"]) == {"load_above", "load_below"}
    assert len(report["late_s"]) == report["expected_switches"]
    assert 0 < report["wrong_mode_s"] < report["duration_s"]
    assert report["evidence"] == "method_check"
    assert report["labels"]["engine"] == "simulated"
    assert report == json.loads((out / "policy_cell.json").read_text())
