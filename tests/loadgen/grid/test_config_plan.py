"""GRID.yaml and the plan made from it: refused with line and mend, or complete and empty."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from breakeven.errors import ConfigError, InputError
from breakeven_loadgen.grid.command import grid_group
from breakeven_loadgen.grid.config import read_grid_config
from breakeven_loadgen.grid.plan import Windows, estimate, make_plan, skip_of
from breakeven_loadgen.judge.dataset import read_record, write_record

TRACES = Path(__file__).parents[2] / "data/traces"
GOOD = """
target: {model: m, hardware: 1x H100}
arms:
  base: {role: baseline, url: 'http://127.0.0.1:1', usd_per_gpu_hour: 3.0}
  short: {url: 'http://127.0.0.1:2', usd_per_gpu_hour: 3.0, family: d, k: 2}
  big: {url: 'http://127.0.0.1:3', gpus: 2, usd_per_gpu_hour: 3.0}
trace: synthetic:in=20,out=10
rates: {peak: 8, low: 2}
blocks: 6
window: 60s
warmup: 10s
cells: [baseline, short_draft, longer_draft, peak, cancellation]
slo: {ttft: 500ms, tpot: 30ms}
contract: {floors: {chat/en: {quality: 0.98}}, features: [tools]}
"""


def written(folder: Path, text: str = GOOD) -> Path:
    path = folder / "grid.yaml"
    path.write_text(text)
    return path


def test_the_plan_holds_every_run_and_no_result(tmp_path: Path) -> None:
    """2 rates x 6 blocks x (3 arms + A/A) and 6 x 3 cancellation runs, low rate first."""
    config = read_grid_config(written(tmp_path))
    record, windows = make_plan(config, tmp_path)
    main = [run for run in record.runs if run.traffic == "main"]
    assert len(main) == 2 * 6 * 4
    assert len(record.runs) - len(main) == 18
    assert [run.index for run in record.runs] == list(range(len(record.runs)))
    assert main[0].rate == 2.0
    assert sum(run.repeat for run in main) == 12
    assert {run.cell for run in main} == {"baseline", "short_draft", "longer_draft"}
    assert len({run.folder for run in record.runs}) == len(record.runs)
    assert windows == Windows(0)


def test_arms_with_more_hardware_are_separate_configurations(tmp_path: Path) -> None:
    """Their cost is in the estimate: 66 runs x 72 s at 3 + 3 + 6 $/h."""
    record, _ = make_plan(read_grid_config(written(tmp_path)), tmp_path)
    arms = {arm.name: arm for arm in record.arms}
    assert arms["big"].separate
    assert not arms["short"].separate
    found = estimate(record)
    assert found.seconds == pytest.approx(66 * 72)
    assert found.usd == pytest.approx(12 * 66 * 72 / 3600)


def test_the_record_survives_its_file(tmp_path: Path) -> None:
    """grid.json is what run, resume and decide read."""
    record, _ = make_plan(read_grid_config(written(tmp_path)), tmp_path)
    write_record(tmp_path, record)
    assert read_record(tmp_path) == record


def test_plan_prints_empty_cells_and_sends_nothing(tmp_path: Path) -> None:
    """No arm is reachable here, and none needs to be."""
    result = CliRunner().invoke(
        grid_group, ["plan", str(written(tmp_path))], catch_exceptions=False
    )
    assert result.exit_code == 0
    assert "grid (unfilled)" in result.output
    assert "66 runs, at least 79" in result.output
    found = json.loads(
        CliRunner().invoke(grid_group, ["plan", str(written(tmp_path)), "--json"]).output
    )
    assert found["results"] is None
    assert len(found["runs"]) == 66
    assert found["policy"] is None
    assert "(not configured)" in result.output


GATEWAY = """
gateway: {url: 'http://127.0.0.1:3', admin: 'http://127.0.0.1:4', low: 2, high: 30, hold: 40s,
          high_hold: 20s, cycles: 2}
"""


def test_a_gateway_adds_the_policy_cell(tmp_path: Path) -> None:
    """One run more: 20 + 40 + 20 + 40 + 20 s; in the table, the order, the JSON and grid.json."""
    path = written(tmp_path, GOOD + GATEWAY)
    record, _ = make_plan(read_grid_config(path), tmp_path)
    assert record.cells[-1] == "policy"
    assert record.gateway is not None
    assert record.gateway.seconds == 140.0
    assert not [run for run in record.runs if run.cell == "policy"]
    assert estimate(record).runs == 67
    assert estimate(record).seconds == pytest.approx(66 * 72 + 140)
    write_record(tmp_path, record)
    assert read_record(tmp_path) == record
    result = CliRunner().invoke(grid_group, ["plan", str(path)], catch_exceptions=False)
    assert "(the gateway)" in result.output
    assert "30/s → 2/s → 30/s → 2/s → 30/s, 2.33 min" in " ".join(result.output.split())
    found = json.loads(CliRunner().invoke(grid_group, ["plan", str(path), "--json"]).output)
    assert found["policy"] == {
        "low_rps": 2.0, "high_rps": 30.0, "cycles": 2, "seconds": 140.0, "folder": "policy",
    }  # fmt: skip


def test_a_grid_of_an_earlier_release_has_no_gateway(tmp_path: Path) -> None:
    """grid.json without the key is read as one without a policy cell."""
    record, _ = make_plan(read_grid_config(written(tmp_path)), tmp_path)
    write_record(tmp_path, record)
    path = tmp_path / "grid.json"
    stored = json.loads(path.read_text())
    del stored["gateway"]
    path.write_text(json.dumps(stored))
    assert read_record(tmp_path) == record


BAD: list[tuple[str, str, str]] = [
    ("role: baseline, ", "", "exactly one arm is the baseline"),
    ("url: 'http://127.0.0.1:2', ", "", "one way to reach it"),
    ("rates: {peak: 8, low: 2}", "rates: {}", "at least one offered rate"),
    ("rates: {peak: 8, low: 2}", "rates: {peak: 0}", "must be above 0"),
    ("rates: {peak: 8, low: 2}", "rates: {peak: .nan}", "finite"),
    ("rates: {peak: 8, low: 2}", "rates: {peak: 2, low: 2}", "must differ"),
    ("blocks: 6", "blocks: 0", "at least one block"),
    ("blocks: 6", "bloks: 6", "did you mean blocks?"),
    ("window: 60s", "window: 0s", "above 0"),
    ("window: 60s", "window: 5 parsecs", "unknown unit"),
    ("peak, cancellation]", "peek]", "unknown cell"),
    ("hardware:", "hardwear:", "unknown pin"),
    ("features: [tools]", "features: [tool]", "unknown feature"),
    ("quality: 0.98", "quality: 98", "a share above 0"),
    ("quality: 0.98", "qualty: 0.98", "did you mean quality?"),
    ("k: 2", "replicas: 0", "at least one replica"),
    ("gpus: 2", "gpus: -1", "must not be negative"),
    ("ttft: 500ms", "ttft: fast", "no duration"),
    ("peak, cancellation]", "peak, policy]", "the cell policy drives a gateway"),
]
BAD_GATEWAY: list[tuple[str, str, str]] = [
    ("url: 'http://127.0.0.1:3', ", "", "gateway.url"),
    ("http://127.0.0.1:3", "127.0.0.1:3", "gateway.url"),
    ("http://127.0.0.1:4", "http://127.0.0.1:0", "gateway.admin"),
    ("low: 2", "low: 0", "gateway.low/high"),
    ("high: 30", "high: 2", "gateway.low/high"),
    ("high: 30", "high: .inf", "gateway"),
    ("high: 30", "high: .nan", "gateway"),
    ("hold: 40s", "hold: 0s", "gateway.hold"),
    ("hold: 40s", "hold: long", "gateway.hold"),
    ("high_hold: 20s", "high_hold: 0", "gateway.high_hold"),
    ("cycles: 2", "cycles: 0", "gateway.cycles"),
    ("cycles: 2", "out_tokens: 0", "gateway.out_tokens"),
    ("cycles: 2", "cycle: 2", "did you mean cycles?"),
]


@pytest.mark.parametrize(("old", "new", "what"), BAD, ids=[row[2] for row in BAD])
def test_bad_settings_name_key_and_mend(tmp_path: Path, old: str, new: str, what: str) -> None:
    """Nothing was sent."""
    assert old in GOOD
    path = written(tmp_path, GOOD.replace(old, new, 1))
    with pytest.raises(ConfigError) as caught:
        read_grid_config(path)
    assert what in str(caught.value)
    assert caught.value.file == str(path)


@pytest.mark.parametrize(("old", "new", "what"), BAD_GATEWAY)
def test_a_bad_gateway_is_refused(tmp_path: Path, old: str, new: str, what: str) -> None:
    """With key, file and a mend."""
    assert GATEWAY.count(old) == 1
    with pytest.raises(ConfigError) as caught:
        read_grid_config(written(tmp_path, GOOD + GATEWAY.replace(old, new)))
    assert what in str(caught.value)
    assert caught.value.mend


def test_blocks_replay_distinct_windows_of_a_trace() -> None:
    """1,000 arrivals, 100 in a window: side by side; with 300 they overlap evenly."""
    wide, narrow = Windows(1000), Windows(300)
    assert [skip_of(wide, 10, 10, b, 8) for b in range(3)] == [0, 100, 200]
    found = [skip_of(narrow, 10, 10, b, 8) for b in range(8)]
    assert found[0] == 0
    assert found[-1] == 200
    assert len(set(found)) == 8


def test_a_trace_that_is_too_short_is_refused(tmp_path: Path) -> None:
    """Before anything is sent, with what would mend it."""
    trace = TRACES / "azure-2023-conv-head1000.csv"
    text = GOOD.replace("synthetic:in=20,out=10", str(trace)).replace("peak: 8", "peak: 80")
    with pytest.raises(InputError, match="shorten window"):
        make_plan(read_grid_config(written(tmp_path, text)), tmp_path)
    config = read_grid_config(written(tmp_path, GOOD.replace("synthetic:in=20,out=10", str(trace))))
    _, windows = make_plan(config, tmp_path)
    assert "overlap" in windows.notes[0]


@pytest.mark.parametrize("args", [["resume", "{grid}", "--out", "{out}"]])
def test_resume_needs_a_grid(tmp_path: Path, args: list[str]) -> None:
    """An empty folder holds nothing to go on with."""
    places: dict[str, Any] = {"grid": written(tmp_path), "out": tmp_path / "none"}
    with pytest.raises(InputError, match="no grid to resume"):
        CliRunner().invoke(
            grid_group, [arg.format(**places) for arg in args], catch_exceptions=False
        )
