"""The run cells as a table, and which arms and rates each of them runs.

Source: docs/definitions.md, "Experiment". An unfilled grid prints empty result cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..judge.dataset import Traffic

Rates = Literal["all", "peak", "low", "gateway"]
Arms = Literal["baseline", "first", "second", "further", "all", "candidates", "gateway"]


@dataclass(frozen=True, slots=True)
class Cell:
    """One run cell.

    Attributes:
        arms: which arms, candidates in the order of GRID.yaml; rates: at which rates. `gateway`:
            those that the gateway gives its traffic to, at rates around its thresholds.
        traffic: what is replayed. asks: the question that the cell answers.
        before_promotion: not one of the six; run before a canary.
    """

    arms: Arms
    rates: Rates
    traffic: Traffic
    asks: str
    before_promotion: bool = False


CELLS: dict[str, Cell] = {
    "baseline": Cell("baseline", "all", "main", "what the service does without a draft"),
    "short_draft": Cell("first", "all", "main", "does a short draft pay"),
    "longer_draft": Cell("second", "all", "main", "does drafting deeper pay more"),
    "alternative_draft": Cell("further", "all", "main", "does another method do better"),
    "peak": Cell("all", "peak", "main", "what remains of it at peak"),
    "restart_fallback": Cell("candidates", "low", "restart", "cold start, and the way back"),
    "warm_cache": Cell("all", "low", "warm_cache", "with a warm prefix cache", True),
    "long_context": Cell("all", "low", "long_context", "with long contexts", True),
    "cancellation": Cell("all", "low", "cancellation", "when clients go away", True),
    "policy": Cell("gateway", "gateway", "policy", "does the gateway follow", True),
}


def cell_of(arm: str, baseline: str, candidates: Sequence[str]) -> str:
    """The main-traffic cell that an arm fills."""
    if arm == baseline:
        return "baseline"
    place = candidates.index(arm)
    return ("short_draft", "longer_draft")[place] if place < 2 else "alternative_draft"


def arms_of(cell: str, baseline: str, candidates: Sequence[str]) -> list[str]:
    """Names of the arms that a cell runs."""
    names: dict[Arms, list[str]] = {
        "baseline": [baseline],
        "first": list(candidates[:1]),
        "second": list(candidates[1:2]),
        "further": list(candidates[2:]),
        "candidates": list(candidates),
        "all": [baseline, *candidates],
        "gateway": [],  # which arm serves is what the cell asks
    }
    return names[CELLS[cell].arms]
