"""docs/real-gpu.md holds a grid that the tool reads; needs no engine, so it runs in `make test`."""

from __future__ import annotations

import re
from pathlib import Path

from breakeven_loadgen.grid.config import read_grid_config

PAGE = Path(__file__).resolve().parents[2] / "docs" / "real-gpu.md"


def test_the_grid_of_the_gpu_page_is_valid(tmp_path: Path) -> None:
    """The GRID.yaml of the page passes, gateway and all; arms differ in the draft alone."""
    found = re.findall(r"```yaml\n(.*?)```", PAGE.read_text("utf-8"), flags=re.DOTALL)
    assert len(found) == 2
    path = tmp_path / "GRID.yaml"
    path.write_text("".join(found), "utf-8")
    config = read_grid_config(path)
    assert config.gateway is not None
    baseline = config.arms[config.baseline].launch
    for name, arm in config.arms.items():
        assert arm.launch[: len(baseline)] == baseline, name
        more = arm.launch[len(baseline) :]
        flags = [flag for flag in more if flag.startswith("--")]
        wanted = ["--per-request-spec-decode-metrics", "--speculative-config"]
        assert flags == ([] if name == config.baseline else wanted), name
        assert all(f'"num_speculative_tokens": {arm.k}' in more[-1] for _ in flags), name


def test_the_gpu_page_says_that_no_gpu_figure_was_taken() -> None:
    """A reader must not take anything on the page for a measurement on a GPU."""
    assert "**No GPU figure was taken for this repository.**" in PAGE.read_text("utf-8")
