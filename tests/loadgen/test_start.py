"""What the start of a replay imports: only what the run needs, and all of that before the run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.target import scripted

LATER = (
    "aiohttp", "breakeven.engine_metrics", "breakeven.exposition", "breakeven_loadgen.judge",
    "breakeven_loadgen.replay.summary", "breakeven_loadgen.report.tables",
    "breakeven_loadgen.traffic.pool", "pandas", "prometheus_client", "pyarrow.compute",
    "pyarrow.parquet", "rich", "scipy", "statsmodels", "yaml",
)  # fmt: skip
"""Needed by an option that was not given, or once the last answer has come."""

SPY = """
import asyncio, sys, time
from breakeven_loadgen.config import ReplayConfig
from breakeven_loadgen.replay.run import replay

at_start, at_end = set(), set()

async def start():
    at_start.update(sys.modules)
    return time.monotonic() + 0.05

class Spy:
    def update(self, glance):
        at_end.clear()
        at_end.update(sys.modules)

url, out = sys.argv[1:]
replay(ReplayConfig(trace="synthetic:in=4,out=4", arrival="constant", rate=100.0, requests=150,
                    url=url, out=out), start=start, progress=Spy())
assert at_start and at_end
print(*sorted(at_start))
print(*sorted(at_end - at_start))
"""
"""`start` is asked last before the first arrival; the last `update` follows the last answer."""


def _python(code: str, *args: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", code, *args], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_command_imports_nothing_that_only_the_end_needs() -> None:
    """`loadgen replay` as the command line loads it."""
    code = "import sys; from breakeven_loadgen.cli import run; run(['replay', '--help']); print(); "
    lines = _python(code + "print(*sys.modules)")
    assert "breakeven_loadgen.replay.run" in lines[-1].split()
    assert set(lines[-1].split()).isdisjoint(LATER)


def test_the_run_itself_imports_nothing(tmp_path: Path) -> None:
    """An import takes milliseconds of the event loop, and an arrival may fall due meanwhile."""
    with scripted() as target:
        at_start, later = _python(SPY, target.url, str(tmp_path / "out"))
    assert set(at_start.split()).isdisjoint(LATER)
    assert later.split() == []
