"""Fixtures of the generator's tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from breakeven_loadgen.config import ReplayConfig
from breakeven_loadgen.replay.results import RunResult, read_rows
from breakeven_loadgen.replay.run import replay

Run = Callable[..., tuple[RunResult, list[dict[str, Any]]]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Replays against a URL and returns (result, rows); options as in ReplayConfig."""
    count = 0

    def call(url: str, **options: Any) -> tuple[RunResult, list[dict[str, Any]]]:
        nonlocal count
        count += 1
        values: dict[str, Any] = {
            "trace": "synthetic:in=4,out=4",
            "arrival": "constant",
            "rate": 200.0,
            "requests": 5,
            "out": str(tmp_path / f"out{count}"),
        }
        result = replay(ReplayConfig(url=url, **(values | options)))
        return result, read_rows(result.folder).to_pylist()

    return call
