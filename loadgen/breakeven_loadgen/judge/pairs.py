"""Pairs of runs: one candidate beside the baseline in the same block, cohort by cohort.

Here: which runs are compared, and their figures, computed once. Not here: tests (floors, assess).
A run whose own gates failed is no evidence: its block is left out at that load.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from breakeven.facts import ALL

from .dataset import Grid, RunData, Traffic
from .figures import MIN_COHORT_ROWS, Figures, cohorts, figures

Floats = NDArray[np.float64]

RUN_GATES = ("schedule", "accounting", "client", "tokens")
"""Gates of a single run that make it no evidence; `stability` only limits what may be compared."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Baseline and candidate of one block."""

    block: int
    base: Figures
    arm: Figures
    base_run: RunData
    arm_run: RunData


class Book:
    """All figures of a grid, by run and cohort; each computed once."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self._figures: dict[tuple[int, str], Figures] = {}
        self._cohorts: dict[int, dict[str, NDArray[np.bool_]]] = {}

    def figures(self, run: RunData, cohort: str = ALL) -> Figures | None:
        """Figures of one cohort of a run; None where the cohort is too small in it."""
        key = (run.plan.index, cohort)
        if key not in self._figures:
            rows = run.rows
            if cohort != ALL:
                mask = self.masks(run).get(cohort)
                if mask is None or np.sum(mask) < MIN_COHORT_ROWS:
                    return None
                rows = rows.where(mask)
            self._figures[key] = figures(rows, self.grid.record.slo)
        return self._figures[key]

    def masks(self, run: RunData) -> dict[str, NDArray[np.bool_]]:
        """The cohorts of a run that are large enough."""
        if run.plan.index not in self._cohorts:
            self._cohorts[run.plan.index] = cohorts(run.rows)
        return self._cohorts[run.plan.index]

    def cohorts(self, load: str, traffic: Traffic = "main") -> list[str]:
        """Cohorts that occur in the baseline's runs of this load; ALL is not listed."""
        names: set[str] = set()
        for run in self.grid.of(self.grid.record.baseline.name, load, traffic=traffic).values():
            names |= set(self.masks(run))
        return sorted(names)

    def pairs(
        self, arm: str, load: str, cohort: str = ALL, traffic: Traffic = "main"
    ) -> list[Pair]:
        """Blocks in which both runs are evidence and have the cohort."""
        base = self.grid.of(self.grid.record.baseline.name, load, traffic=traffic)
        other = self.grid.of(arm, load, traffic=traffic)
        out = []
        for block in sorted(base.keys() & other.keys()):
            left, right = base[block], other[block]
            if faults(left) or faults(right):
                continue
            first, second = self.figures(left, cohort), self.figures(right, cohort)
            if first is not None and second is not None:
                out.append(Pair(block, first, second, left, right))
        return out

    def aa_pairs(self, load: str) -> list[Pair]:
        """The baseline's two runs of each block."""
        name = self.grid.record.baseline.name
        first, second = self.grid.of(name, load), self.grid.of(name, load, repeat=True)
        out = []
        for block in sorted(first.keys() & second.keys()):
            left, right = first[block], second[block]
            one, two = self.figures(left), self.figures(right)
            if one and two and not faults(left) and not faults(right):
                out.append(Pair(block, one, two, left, right))
        return out


def faults(run: RunData) -> list[str]:
    """Gates that make this run no evidence, as "gate: reason"."""
    return [
        f"{name}: {run.gates[name][1]}"
        for name in RUN_GATES
        if name in run.gates and run.gates[name][0] is False
    ]


def unstable(run: RunData) -> bool:
    """Whether a queue built up over this run's window."""
    return run.gates.get("stability", (None, ""))[0] is False


def mean_batch(found: Figures, window_s: float) -> float | None:
    """Mean number of requests decoding, by Little's law: sum of decode seconds / window."""
    return found.decode_s / window_s if window_s > 0 and found.decode_s > 0 else None


def s_per_token(pairs: list[Pair]) -> tuple[Floats, Floats]:
    """(candidate, baseline) decode seconds per token by block; shapes (blocks,)."""
    return (
        np.array([pair.arm.s_per_token for pair in pairs]),
        np.array([pair.base.s_per_token for pair in pairs]),
    )
