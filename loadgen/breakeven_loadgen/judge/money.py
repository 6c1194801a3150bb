"""What each arm costs at each rate: ledgers by block, and the two prices.

Here: the grid's fleets and intervals turned into ledgers (core costs). Not here: the ledger's
arithmetic. Below saturation a fixed fleet's cost per good response does not move even when
latency halves: the report says so beside the figures.
"""

from __future__ import annotations

from dataclasses import dataclass

from breakeven.costs import (
    Fleet,
    Ledger,
    Reserved,
    largest_draft_usd_per_hour,
    ledger_of,
    marginal_usd_per_good,
    reserved,
    total,
)
from breakeven.facts import Interval

from .dataset import ArmRecord, Grid, RunData
from .figures import Figures, summed
from .pairs import Book, Pair, faults
from .statistics import log_ratio

BELOW_SATURATION = (
    "a fixed fleet costs the same per good response while every request is good, even when "
    "latency halves: the bill moves only when replicas are removed or avoided"
)


def ledger(fleet: Fleet, run: RunData, found: Figures, window_s: float, warmup_s: float) -> Ledger:
    """The ledger of one run: window, warm-up, and the drain until the last response."""
    drain_s = max(0.0, run.drained_s - window_s - warmup_s)
    return ledger_of(
        fleet,
        serving_s=window_s,
        warm_up_s=warmup_s,
        drain_s=drain_s,
        good=found.good,
        offered=found.offered,
    )


def priced(arm: ArmRecord) -> bool:
    """Whether a price was given."""
    return arm.fleet.usd_per_hour > 0


def cost_ratio(book: Book, arm: ArmRecord, pairs: list[Pair]) -> Interval | None:
    """Cost per good response over the baseline's, over blocks; None without prices.

    Blocks in which an arm has no good response have no price; where that is most of them the
    ratio is undefined, and completion rates must speak.
    """
    base = book.grid.record.baseline
    if not (priced(arm) and priced(base)):
        return None
    record = book.grid.record
    above, below = [], []
    for pair in pairs:
        one = ledger(arm.fleet, pair.arm_run, pair.arm, record.window_s, record.warmup_s)
        two = ledger(base.fleet, pair.base_run, pair.base, record.window_s, record.warmup_s)
        if one.usd_per_good is not None and two.usd_per_good is not None:
            above.append(one.usd_per_good)
            below.append(two.usd_per_good)
    if len(above) < max(2, len(pairs) // 2):
        return None
    effect = log_ratio(above, below)
    return None if effect is None else Interval(*effect.ratio)


@dataclass(frozen=True, slots=True)
class ArmCost:
    """One arm at one rate; None is undefined (no price given, or not one good response).

    Attributes:
        usd_per_good: pooled over blocks, a ratio of sums. usd_per_hour: the standing bill.
        good_per_s: good responses per second of the window.
    """

    arm: str
    load: str
    rate: float
    usd_per_good: float | None
    usd_per_hour: float | None
    good_per_s: float


def arm_cost(grid: Grid, book: Book, arm: ArmRecord, load: str) -> ArmCost | None:
    """Pooled cost of one arm at one rate; None without a sound run."""
    record = grid.record
    runs = [run for run in grid.of(arm.name, load).values() if not faults(run)]
    found = [(run, book.figures(run)) for run in runs]
    known = [(run, one) for run, one in found if one is not None]
    if not known:
        return None
    whole = total(
        ledger(arm.fleet, run, one, record.window_s, record.warmup_s) for run, one in known
    )
    good = summed([one for _, one in known]).good
    return ArmCost(
        arm.name,
        load,
        record.rates[load],
        whole.usd_per_good if priced(arm) else None,
        arm.fleet.usd_per_hour if priced(arm) else None,
        good / (record.window_s * len(known)),
    )


@dataclass(frozen=True, slots=True)
class Prices:
    """The two prices of one arm, from its capacity within the SLO.

    `capacity_rps` per replica, None where it carries none of the swept rates; `open_end`: the
    highest swept rate was still carried, so capacity is at least that.
    """

    arm: str
    capacity_rps: float | None
    open_end: bool
    reserved: Reserved | None
    reserved_usd_per_good: float | None
    marginal_usd_per_good: float | None


def prices(
    arm: ArmRecord, capacity_rps: float | None, open_end: bool, *, peak_rps: float, headroom: float
) -> Prices:
    """Reserved and marginal price; `capacity_rps` is the whole arm's, in req/s."""
    if not priced(arm):
        return Prices(arm.name, capacity_rps, open_end, None, None, None)
    per_replica = None if capacity_rps is None else capacity_rps / arm.fleet.replicas
    bill = reserved(
        arm.fleet, peak_rps=peak_rps, headroom=headroom, capacity_rps_per_replica=per_replica
    )
    return Prices(
        arm.name,
        per_replica,
        open_end,
        bill,
        None if bill is None else bill.usd_per_hour / (peak_rps * 3600),
        marginal_usd_per_good(arm.fleet, per_replica),
    )


def largest_draft(base: ArmCost, candidate: ArmCost, fleet: Fleet) -> float | None:
    """The largest draft cost per hour that the gain can pay, at one rate."""
    bare = fleet.usd_per_hour - fleet.replicas * fleet.draft_gpus * fleet.usd_per_gpu_hour
    return largest_draft_usd_per_hour(base.usd_per_good, candidate.good_per_s * 3600, bare)
