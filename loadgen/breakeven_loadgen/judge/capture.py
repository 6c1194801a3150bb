"""What each cell captured: the filled grid, one row per arm and rate.

Here: everything that a cell of the grid shows, from the runs' rows, counters and
gauges. None is "not exposed" (or "undefined" for a price): never a made-up 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .assess import Assessment
from .dataset import RunData
from .figures import Figures, summed
from .pairs import Book, faults
from .statistics import p99_certified

QUANTILES = ("p50", "p95", "p99")


@dataclass(frozen=True, slots=True)
class Captured:
    """One arm at one rate (and traffic), over its sound blocks.

    Attributes:
        latency: kind -> quantile -> median over blocks, seconds; kinds ttft, tpot, gap, e2e.
        output_per_s: tokens of whole answers per second; committed_per_s: of the engine's counter.
        verdict counts are shares of offered arrivals, but for `cancelled`, a count.
        discarded: draft tokens that were not accepted, per second.
        survival: share of drafts accepted up to each position.
    """

    arm: str
    cell: str
    load: str
    rate: float
    traffic: str
    blocks: int
    latency: Mapping[str, Mapping[str, float] | None]
    goodput: float | None
    good_per_s: float | None
    errors: float | None
    dropped: float | None
    timeouts: float | None
    cancelled: int
    output_per_s: float | None
    committed_per_s: float | None
    queue: float | None
    preemptions: float | None
    kv_capacity_tokens: float | None
    kv_usage: float | None
    device_memory_bytes: float | None
    m: float | None
    cycle_s: float | None
    acceptance: float | None
    survival: tuple[float, ...] | None
    discarded: float | None
    usd_per_good: float | None


def capture(assessment: Assessment) -> tuple[Captured, ...]:
    """Every cell that has a sound run, in the order of the plan."""
    grid = assessment.grid
    book = Book(grid)
    prices = {(cost.arm, cost.load): cost.usd_per_good for cost in assessment.costs}
    groups: dict[tuple[str, str, str], list[RunData]] = {}
    for run in grid.runs:
        if not run.plan.repeat and not faults(run):
            key = (run.plan.traffic, run.plan.load, run.plan.arm)
            groups.setdefault(key, []).append(run)
    out = []
    for (traffic, load, arm), runs in groups.items():
        price = prices.get((arm, load)) if traffic == "main" else None
        out.append(_captured(book, runs, price, grid.record.window_s))
    order = {arm.name: i for i, arm in enumerate(grid.record.arms)}
    return tuple(sorted(out, key=lambda c: (c.traffic != "main", c.rate, order[c.arm])))


def _captured(
    book: Book, runs: Sequence[RunData], price: float | None, window_s: float
) -> Captured:
    plan = runs[0].plan
    found = [figures for run in runs if (figures := book.figures(run)) is not None]
    whole = summed(found)
    seconds = window_s * len(runs)
    pages = [page for run in runs for page in run.engine]
    words = np.concatenate([run.rows.verdict for run in runs])

    def share(name: str) -> float | None:
        return float(np.sum(words == name)) / whole.offered if whole.offered else None

    committed = total(pages, "g")
    steps, step_s = total(pages, "s"), total(pages, "step_s")
    drafted, accepted = total(pages, "draft_tokens"), total(pages, "accepted")
    return Captured(
        arm=plan.arm,
        cell=plan.cell,
        load=plan.load,
        rate=plan.rate,
        traffic=plan.traffic,
        blocks=len(runs),
        latency={
            "ttft": medians([f.ttft_s for f in found]),
            "tpot": medians([f.tpot_s for f in found]),
            "gap": medians([f.gap_s for f in found]),
            "e2e": medians([f.e2e_s for f in found]),
        },
        goodput=_known(whole.goodput),
        good_per_s=whole.good / seconds if seconds else None,
        errors=_known(whole.share(whole.failed)),
        dropped=share("dropped"),
        timeouts=share("timeout"),
        cancelled=whole.cancelled,
        output_per_s=whole.output_tokens / seconds if seconds and whole.output_tokens else None,
        committed_per_s=committed / seconds if committed is not None and seconds else None,
        queue=_mean(runs, "requests_waiting"),
        preemptions=_counters(pages, "preemptions"),
        kv_capacity_tokens=_first(pages, "kv_capacity_tokens"),
        kv_usage=_peak(runs, "kv_cache_usage"),
        device_memory_bytes=_peak(runs, "device_memory_used_bytes"),
        m=_m(pages, whole),
        cycle_s=step_s / steps if step_s is not None and steps else None,
        acceptance=accepted / drafted if accepted is not None and drafted else None,
        survival=survival(pages),
        discarded=(drafted - accepted) / seconds
        if drafted is not None and accepted is not None and seconds
        else None,
        usd_per_good=price,
    )


def _m(pages: Sequence[Mapping[str, Any]], whole: Figures) -> float | None:
    g, f, s = total(pages, "g"), total(pages, "f"), total(pages, "s")
    if g is not None and f is not None and s:
        return (g - f) / s
    return whole.m


def certified(assessment: Assessment) -> dict[str, dict[str, dict[str, str]]]:
    """Arm -> load -> SLO bound -> confidence ("99 %", "95 %" or "no") that its p99 is kept.

    An exact binomial test over all answers of the main traffic: 0 misses in 459 certify at 99 %,
    in 299 at 95 %. It speaks of these windows; blocks, not requests, speak of the next ones.
    """
    book = Book(assessment.grid)
    out: dict[str, dict[str, dict[str, str]]] = {}
    for arm in assessment.grid.record.arms:
        for load in assessment.grid.record.rates:
            runs = [r for r in assessment.grid.of(arm.name, load).values() if not faults(r)]
            found = [f for r in runs if (f := book.figures(r)) is not None]
            if not found:
                continue
            whole = summed(found)
            answered = whole.offered - whole.failed
            words = {
                name: next((f"{level:.0%}" for level in (0.99, 0.95)
                            if p99_certified(misses, answered, level)), "no")
                for name, misses in whole.slow.items()
            }  # fmt: skip
            out.setdefault(arm.name, {})[load] = words
    return out


def medians(parts: Sequence[Mapping[str, float] | None]) -> dict[str, float] | None:
    """Median over blocks of each quantile; None where no block has any."""
    known = [part for part in parts if part is not None]
    if not known:
        return None
    return {name: float(np.median([part[name] for part in known])) for name in QUANTILES}


def total(pages: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """Sum over pages; None as soon as one page does not know it."""
    values = [page.get(name) for page in pages]
    if not values or any(value is None for value in values):
        return None
    return float(sum(value for value in values if value is not None))


def survival(pages: Sequence[Mapping[str, Any]]) -> tuple[float, ...] | None:
    """Accepted by position over drafts, summed over pages; None where not exposed."""
    positions = [page.get("accepted_per_position") for page in pages]
    drafts = total(pages, "drafts")
    if not positions or any(not one for one in positions) or not drafts:
        return None
    depth = max(len(one) for one in positions if one)
    sums = [sum(one[i] for one in positions if one and i < len(one)) for i in range(depth)]
    return tuple(value / drafts for value in sums)


def _counters(pages: Sequence[Mapping[str, Any]], name: str) -> float | None:
    values = [(page.get("counters") or {}).get(name) for page in pages]
    known = [value for value in values if value is not None]
    return float(sum(known)) if known else None


def _first(pages: Sequence[Mapping[str, Any]], name: str) -> float | None:
    return next((float(p[name]) for p in pages if p.get(name) is not None), None)


def _mean(runs: Sequence[RunData], name: str) -> float | None:
    values = [run.gauges[name] for run in runs if name in run.gauges]
    return float(np.mean(values)) if values else None


def _peak(runs: Sequence[RunData], name: str) -> float | None:
    values = [run.gauges[name] for run in runs if name in run.gauges]
    return max(values) if values else None


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
