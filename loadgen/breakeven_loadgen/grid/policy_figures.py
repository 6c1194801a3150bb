"""Figures of the policy cell: crossings, switches, time in the wrong mode, what requests waited.

Here: arithmetic on a profile of rates, switches and rows. Not here: where they come from
(policy_cell).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..replay.columns import Columns


@dataclass(frozen=True, slots=True)
class Level:
    """A constant rate (req/s in total) from `start_s` on, for `hold_s` seconds."""

    start_s: float
    rps: float
    hold_s: float

    @property
    def end_s(self) -> float:
        """When the next one begins."""
        return self.start_s + self.hold_s


@dataclass(frozen=True, slots=True)
class Switch:
    """The candidate began or ceased to serve `at_s` seconds after the start, for `reason`."""

    at_s: float
    serving: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Waits:
    """What requests waited: counts, and seconds (None without any)."""

    requests: int
    gap_max_s: float | None
    gap_p99_s: float | None
    ttft_p95_s: float | None


def crossings(levels: Sequence[Level], break_even_rps: float, serving: bool) -> list[Level]:
    """Levels that call for another mode than the one before; `serving`: the mode at the start."""
    found, mode = [], serving
    for level in levels:
        wanted = level.rps < break_even_rps
        if wanted is not mode:
            found.append(level)
        mode = wanted
    return found


def wrong_mode_s(
    levels: Sequence[Level], end_s: float, break_even_rps: float, serving: bool,
    switches: Sequence[Switch],
) -> float:  # fmt: skip
    """Seconds of [0, end_s] in which the candidate served above break-even or rested below it."""
    marks = sorted({0.0, end_s, *(x.start_s for x in levels), *(s.at_s for s in switches)})
    marks = [mark for mark in marks if 0 <= mark <= end_s]
    wrong = 0.0
    for begin, end in itertools.pairwise(marks):
        rps = [level.rps for level in levels if level.start_s <= begin][-1]
        mode = ([serving] + [s.serving for s in switches if s.at_s <= begin])[-1]
        wrong += 0.0 if mode is (rps < break_even_rps) else end - begin
    return wrong


def lateness(crossed: Sequence[Level], switches: Sequence[Switch], below: float) -> list[float]:
    """Per crossing, seconds until the first switch to the mode it calls for; absent if none."""
    found = []
    ends = [level.start_s for level in crossed[1:]] + [float("inf")]
    for level, end in zip(crossed, ends, strict=True):
        wanted = level.rps < below
        hits = [s.at_s for s in switches if level.start_s <= s.at_s < end and s.serving is wanted]
        found += [hits[0] - level.start_s] if hits else []
    return found


def waits(columns: Columns) -> Waits:
    """Pooled figures of some rows."""

    def quantile(name: str, q: float) -> float | None:
        values = columns.numbers(name)
        values = np.sort(values[~np.isnan(values)])
        if not len(values):
            return None
        return float(values[max(0, int(np.ceil(q * len(values))) - 1)])  # nearest rank

    gaps = np.sort(columns.burst_gaps_s()) if len(columns) else np.zeros(0)
    p99 = float(gaps[max(0, int(np.ceil(0.99 * len(gaps))) - 1)]) if len(gaps) else None
    return Waits(len(columns), quantile("gap_max_s", 1.0), p99, quantile("ttft_s", 0.95))


def running_at(columns: Columns, moments: Sequence[float]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Rows that were sent before one of the moments and had not ended by then."""
    sent, ends = columns.numbers("sent_s"), columns.numbers("end_s")
    found = np.zeros(len(columns), np.bool_)
    for moment in moments:
        found |= (sent <= moment) & (np.isnan(ends) | (ends >= moment))
    return found
