"""A small grid on two simulated engines over HTTP: run, resume, decide; nothing is evidence."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.support import scripted_gateway as gateways
from tests.support.leaks import leaks_in_folder

from breakeven.errors import NotReadyError
from breakeven.exitcodes import ExitCode
from breakeven_loadgen.cli import run
from breakeven_loadgen.grid import policy_cell, policy_profile
from breakeven_loadgen.grid.config import read_grid_config
from breakeven_loadgen.grid.plan import make_plan
from breakeven_loadgen.judge.dataset import read_grid, read_policy, read_record, write_record

CANARY = "CANARY-7f3a prompt of a customer"
GRID = """
target: {model: simulated-8b}
content: pool.jsonl
reuse_content: true
arms:
  base: {role: baseline, sim: {preset: 8b-h100}, usd_per_gpu_hour: 3.0}
  short: {sim: {preset: 8b-h100, draft: ngram, k: 3}, usd_per_gpu_hour: 3.0}
trace: synthetic:in=40,out=16
rates: {low: 10}
blocks: 1
window: 1s
warmup: 0s
cells: [baseline, short_draft, restart_fallback]
slo: {e2e: 20s}
contract: {floors: {other: {quality: 0.9}}}
"""


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(GRID.yaml, its finished folder)."""
    folder = tmp_path_factory.mktemp("grid")
    path = folder / "grid.yaml"
    path.write_text(GRID)
    prompts = (json.dumps({"prompt": f"{CANARY} {i}"}) for i in range(40))
    (folder / "pool.jsonl").write_text("\n".join(prompts))
    out = folder / "out"
    # Timing gates may fail on a busy machine; the runs must all be there.
    assert run(["grid", "run", str(path), "--out", str(out)]) in (
        ExitCode.OK, ExitCode.NOT_EVIDENCE,
    )  # fmt: skip
    return path, out


def test_every_planned_run_has_its_folder(grid: tuple[Path, Path]) -> None:
    """Baseline, its A/A repeat and the candidate, with byte-identical prompts."""
    found = read_grid(grid[1])
    assert len(found.runs) == len(found.record.runs) == 3
    assert len({run_.facts["content"] for run_ in found.runs}) == 1
    assert len({run_.facts["schedule"] for run_ in found.runs}) == 1
    assert {run_.labels.engine.value for run_ in found.runs} == {"simulated"}
    assert all(run_.engine[0]["m"] is not None for run_ in found.runs)


def test_the_arms_showed_what_they_are(grid: tuple[Path, Path]) -> None:
    """Identity, support matrix, quality counts with an A/A control, restart."""
    found = read_grid(grid[1])
    assert found.identity["base"]["tokenize"] == found.identity["short"]["tokenize"]
    assert found.probes["short"]["max_tokens"]["support"] == "supported"
    assert found.probes["short"]["adapters"]["support"] == "untested"
    assert found.quality["base"]["l1"]["pairs"] > 0
    restart = found.restart["short"]
    assert restart["ready_s"] > 0
    assert restart["memory_peak_bytes"] > 10**6
    assert restart["lost"] == 8
    assert restart["back_s"] > 0


def test_no_prompt_or_answer_is_in_the_grids_own_files(grid: tuple[Path, Path]) -> None:
    """Questions of ours, the user's prompts and the answers leave counts behind, and no text."""
    texts = [path.read_text() for path in grid[1].glob("*.json")]
    assert texts
    assert not any("weather" in text for text in texts)
    assert leaks_in_folder(grid[1], CANARY) == []


def test_resume_runs_only_what_is_missing(grid: tuple[Path, Path]) -> None:
    """A killed grid goes on at the run it was in."""
    path, out = grid
    record = read_record(out)
    summaries = [out / one.folder / "summary.json" for one in record.runs]
    summaries[1].unlink()
    before = [s.stat().st_mtime_ns for s in summaries if s.exists()]
    run(["grid", "resume", str(path), "--out", str(out)])
    assert summaries[1].exists()
    after = [s.stat().st_mtime_ns for i, s in enumerate(summaries) if i != 1]
    assert after == before


def test_another_grid_is_not_mixed_in(grid: tuple[Path, Path], tmp_path: Path) -> None:
    """Exit 2: the folder holds another plan."""
    other = tmp_path / "other.yaml"
    other.write_text(GRID.replace("low: 10", "low: 11"))
    assert run(["grid", "run", str(other), "--out", str(grid[1])]) is ExitCode.USAGE


def test_one_block_decides_nothing(grid: tuple[Path, Path]) -> None:
    """The gate is named, the page written, the exit code 4."""
    assert run(["decide", str(grid[1])]) is ExitCode.NOT_EVIDENCE
    found = json.loads((grid[1] / "decision.json").read_text())
    assert found["decision"] == "invalid"
    assert found["evidence"] == "method_check"
    page = (grid[1] / "report.html").read_text()
    assert "method check" in page
    assert "src=" not in page
    assert "http://" not in page
    assert run(["report", str(grid[1])]) is ExitCode.OK


def test_an_engine_that_does_not_start_is_named(tmp_path: Path) -> None:
    """Exit 3, with its log."""
    path = tmp_path / "grid.yaml"
    text = GRID.replace("content: pool.jsonl\nreuse_content: true\n", "")
    path.write_text(text.replace("draft: ngram, k: 3", "draft: none, flags: [--no-such-flag]"))
    assert run(["grid", "run", str(path), "--out", str(tmp_path / "out")]) is ExitCode.UNREACHABLE
    assert "no-such-flag" in (tmp_path / "out/logs/short.log").read_text()


# --- the policy cell ------------------------------------------------------------------------------


def with_gateway(grid: tuple[Path, Path], folder: Path, url: str, admin: str) -> tuple[Path, Path]:
    """The finished grid once more, with a gateway in its YAML and the policy cell left to do."""
    path, out = folder / "grid.yaml", folder / "out"
    text = (
        grid[0].read_text() + f"gateway: {{url: '{url}', admin: '{admin}', {gateways.PROFILE}}}\n"
    )
    path.write_text(text)
    shutil.copy(grid[0].parent / "pool.jsonl", folder)
    shutil.copytree(grid[1], out)
    record, _ = make_plan(read_grid_config(path), folder)
    write_record(out, dataclasses.replace(record, epsilon_s=read_record(out).epsilon_s))
    return path, out


def decided(out: Path) -> tuple[dict[str, Any], str]:
    """(decision.json, report.html) of a folder."""
    assert run(["decide", str(out)]) is ExitCode.NOT_EVIDENCE  # one block
    return json.loads((out / "decision.json").read_text()), (out / "report.html").read_text()


def test_the_policy_cell_drives_the_gateway_as_a_run_of_its_own(
    grid: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the blocks: resumed once, decided upon, shown; nothing of the runs is run again."""
    monkeypatch.setattr(policy_profile, "WINDOW_S", gateways.LOAD_S)
    monkeypatch.setattr(policy_profile, "LOOKS_S", 2 * gateways.LOOK_S)
    with gateways.scripted_gateway() as gateway:
        path, out = with_gateway(grid, tmp_path, gateway.url, gateway.admin)
        code = run(["grid", "resume", str(path), "--out", str(out)])
    found = read_policy(out)
    assert found["expected_switches"] == 3  # off, on, off: it began settled, on the candidate
    assert found["failed"] == {}
    assert found["offered"] > 100
    moves = [row for row in gateway.transitions if "serving" in (row["from"], row["to"])]
    # Before the run it was settled, and after it the gateway goes on by itself.
    assert 0 < found["switches"] < len(moves)
    # A stall of a busy machine may cost a switch at this scale; it is then said everywhere.
    assert code is (ExitCode.OK if found["passed"] else ExitCode.THRESHOLD_MISSED)
    decision, page = decided(out)
    shown = decision["checklist"]["policy_cell"]
    assert shown["state"] == ("passed" if found["passed"] else "failed")
    assert shown["switches"] == found["switches"]
    assert "2 and 60/s across 12 and 20/s" in page
    # It is done: neither the gateway nor the engines are asked again.
    assert run(["grid", "resume", str(path), "--out", str(out)]) is code


REPORT: dict[str, Any] = {
    "passed": False, "why_not": ["4 switches where the profile crosses 3 times"], "switches": 4,
    "expected_switches": 3, "by_reason": {"load_above": 2, "load_below": 2}, "late_s": [0.5],
    "wrong_mode_s": 3.25, "wrong_mode_share": 0.5, "duration_s": 6.5, "offered": 240,
    "failed": {"error": 2}, "low_rps": 2, "high_rps": 60, "enter_below_rps": 12,
    "leave_above_rps": 20, "evidence": "method_check", "labels": {},
    "during": {"requests": 3, "gap_max_s": 0.2, "gap_p99_s": 0.1, "ttft_p95_s": 0.1},
    "otherwise": {"requests": 237, "gap_max_s": 0.02, "gap_p99_s": None, "ttft_p95_s": 0.1},
}  # fmt: skip


def test_a_failed_policy_cell_is_said_everywhere(
    grid: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 5, in the reasons, in the checklist, on the page with its figures; resume repeats it."""
    path, out = with_gateway(grid, tmp_path, "http://127.0.0.1:9", "http://127.0.0.1:9")
    (out / "policy").mkdir()
    (out / "policy/policy_cell.json").write_text(json.dumps(REPORT))
    assert run(["grid", "resume", str(path), "--out", str(out)]) is ExitCode.THRESHOLD_MISSED
    assert (
        "policy: 4 switches where the profile crosses 3 times (remove " in capsys.readouterr().err
    )
    decision, page = decided(out)
    said = "the policy cell failed: 4 switches where the profile crosses 3 times"
    assert [one for one in decision["checklist"]["before_promotion"] if one.startswith(said)]
    assert f"Before promotion: {said}" in decision["reasons"]
    assert f"Before promotion: {said}" in page
    for figure in ("3.2 s (50.0%)", "2 error of 240", "100.0 / 200.0 (3)", "not exposed / 20.0"):
        assert figure in page


def test_a_damaged_report_of_the_policy_cell_is_named(
    grid: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 2 with the file and the mend, not a guess at what it said."""
    _, out = with_gateway(grid, tmp_path, "http://127.0.0.1:9", "http://127.0.0.1:9")
    (out / "policy").mkdir()
    less = {name: value for name, value in REPORT.items() if name != "wrong_mode_s"}
    (out / "policy/policy_cell.json").write_text(json.dumps(less))
    assert run(["decide", str(out)]) is ExitCode.USAGE
    said = capsys.readouterr().err
    assert "policy/policy_cell.json" in said
    assert "lacks wrong_mode_s" in said


def test_a_policy_cell_that_has_not_run_is_said(grid: tuple[Path, Path], tmp_path: Path) -> None:
    """No gateway: exit 3 after the blocks; the decision names what is missing."""
    path, out = with_gateway(grid, tmp_path, "http://127.0.0.1:9", "http://127.0.0.1:9")
    assert run(["grid", "resume", str(path), "--out", str(out)]) is ExitCode.UNREACHABLE
    decision, page = decided(out)
    assert decision["checklist"]["policy_cell"]["state"] == "not_run"
    assert "Before promotion: the policy cell has not finished" in decision["reasons"]
    assert "(not run)" in page


def test_a_gateway_that_comes_up_late_holds_no_other_cell_up(
    grid: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The restart cell runs without the gateway; an interrupted policy cell leaves nothing."""
    path, out = with_gateway(grid, tmp_path, "http://127.0.0.1:9", "http://127.0.0.1:9")
    (out / "restart.json").unlink()
    assert run(["grid", "resume", str(path), "--out", str(out)]) is ExitCode.UNREACHABLE
    assert (out / "restart.json").exists()
    monkeypatch.setattr(policy_cell, "run_policy_cell", lambda cell, say: None)
    assert run(["grid", "resume", str(path), "--out", str(out)]) is ExitCode.INTERRUPTED
    assert read_policy(out) == {}

    def unsettled(cell: policy_profile.PolicyCell, say: object) -> None:
        raise NotReadyError("the gateway did not settle")

    monkeypatch.setattr(policy_cell, "run_policy_cell", unsettled)
    assert run(["grid", "resume", str(path), "--out", str(out)]) is ExitCode.UNREACHABLE


def test_a_gateway_that_cannot_be_judged_is_refused_before_the_runs(
    grid: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Levels of 2 s cannot be judged where a load is defined over 30 s: exit 2, key of the YAML."""
    with gateways.scripted_gateway() as gateway:
        path, out = with_gateway(grid, tmp_path, gateway.url, gateway.admin)
        assert run(["grid", "resume", str(path), "--out", str(out)]) is ExitCode.USAGE
    assert "gateway.hold" in capsys.readouterr().err
    assert read_policy(out) == {}


def test_without_a_gateway_nothing_is_said_of_a_promotion(grid: tuple[Path, Path]) -> None:
    """The cell is shown as not configured, and no reason is added."""
    decision, page = decided(grid[1])
    assert decision["checklist"]["policy_cell"] == {"state": "not_configured", "why_not": []}
    assert decision["checklist"]["before_promotion"] == []
    assert "Before promotion" not in decision["reasons"]
    assert "not configured" in page
