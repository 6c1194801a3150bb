"""Several processes, one schedule: workers on this machine, shards on many, and their merge.

Every part computes the whole plan and offers its own arrivals of it, so the union is the single
run: same arrivals, intended times and bytes. Not here: how a plan is divided (traffic.plan).
"""

from __future__ import annotations

from breakeven.errors import BreakevenError

from .prepare import Prepared
from .results import RunResult


def replay_workers(prepared: Prepared, *, progress: object | None = None) -> RunResult:
    """Run `--workers` processes and merge what they leave."""
    raise BreakevenError("--workers is not there yet")
