"""Quantiles that do not flatter: unanswered arrivals stay in, and say so."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
LEVELS = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}


def rank(count: int, level: float) -> int:
    """0-based nearest rank: the ⌈level·n⌉-th smallest."""
    return max(0, int(np.ceil(level * count - 1e-9)) - 1)


def plain(values: Floats) -> dict[str, Any] | None:
    """Nearest-rank quantiles, mean, extremes and count of the known values; None without any."""
    known = np.sort(values[~np.isnan(values)])
    if len(known) == 0:
        return None
    found: dict[str, Any] = {
        name: float(known[rank(len(known), level)]) for name, level in LEVELS.items()
    }
    return found | {
        "mean": float(np.mean(known)),
        "min": float(known[0]),
        "max": float(known[-1]),
        "n": len(known),
    }


def latency(
    values: Floats, failed: NDArray[np.bool_], waited: Floats, only: NDArray[np.bool_] | None = None
) -> dict[str, Any] | None:
    """Quantiles over all arrivals, answered or not.

    A failed arrival never got its answer: it ranks behind every answered one, with the time from
    its intended moment to the end of the run as the lower bound that is known. `lower_bound`
    names the quantiles that fall on one; `answered` has those of the answered ones alone. Leaving
    failures out, or counting the near-0 ms of a refusal, would make an overloaded server look
    fast.

    Args:
        values: measured latencies, NaN where there is none; shape (n,), seconds.
        failed: arrivals without a whole answer; waited: their lower bounds.
        only: restrict to these rows (streams, for TTFT).
    """
    take = np.ones(len(values), bool) if only is None else only
    values, failed, waited = values[take], failed[take], waited[take]
    answered = np.sort(values[~failed & ~np.isnan(values)])
    worst = float(answered[-1]) if len(answered) else 0.0
    joined = np.concatenate([answered, np.maximum(np.sort(waited[failed]), worst)])
    if len(joined) == 0:
        return None
    picks = {name: rank(len(joined), level) for name, level in LEVELS.items()}
    found: dict[str, Any] = {name: float(joined[i]) for name, i in picks.items()}
    return found | {
        "max": float(joined[-1]),
        "n": len(joined),
        "unanswered": int(np.sum(failed)),
        "lower_bound": [name for name, i in picks.items() if i >= len(answered)],
        "answered": plain(answered),
    }
