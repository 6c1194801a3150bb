"""Capacity within the SLO, and rollback headroom: can the baseline take the traffic back?

Here: interpolation of goodput over the swept rates. Not here: goodput itself. Nothing is
extrapolated: beyond the highest swept rate the answer is "at least".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Capacity:
    """Highest offered rate that an arm carries within the SLO.

    Attributes:
        rps: req/s in total; None where it fails at the lowest swept rate.
        open_end: the highest swept rate was carried: the capacity is at least that.
    """

    rps: float | None
    open_end: bool


def capacity(points: Sequence[tuple[float, float]], objective: float) -> Capacity:
    """Capacity from (rate, goodput share) pairs of one arm, any order.

    From the lowest rate up, the last rate that keeps the objective; between it and the first that
    does not, linear in the share.
    """
    carried: tuple[float, float] | None = None
    for rate, share in sorted(points):
        if share >= objective:
            carried = (rate, share)
            continue
        if carried is None:
            return Capacity(None, False)
        before, kept = carried
        part = (kept - objective) / (kept - share) if kept > share else 0.0
        return Capacity(before + (rate - before) * part, False)
    return Capacity(carried[0] if carried else None, carried is not None)


@dataclass(frozen=True, slots=True)
class Rollback:
    """Whether the baseline can take over what the candidate carries.

    Attributes:
        headroom_rps: highest rate that the baseline carries within the SLO; None: none swept.
        wanted_rps: the highest rate at which the candidate would be used.
        possible: headroom >= wanted.
        open_end: the headroom is at least that.
    """

    headroom_rps: float | None
    wanted_rps: float | None
    possible: bool | None
    open_end: bool


def rollback(baseline: Capacity, wanted_rps: float | None) -> Rollback:
    """Compare the baseline's capacity with the candidate's proven range."""
    possible = None
    if wanted_rps is not None:
        possible = baseline.rps is not None and baseline.rps >= wanted_rps - 1e-9
    return Rollback(baseline.rps, wanted_rps, possible, baseline.open_end)
