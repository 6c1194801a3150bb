"""A small grid on two simulated engines over HTTP: run, resume, decide; nothing is evidence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.leaks import leaks_in_folder

from breakeven.exitcodes import ExitCode
from breakeven_loadgen.cli import run
from breakeven_loadgen.judge.dataset import read_grid, read_record

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
