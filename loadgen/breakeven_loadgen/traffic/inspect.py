"""Facts of a trace: rate, gaps, lengths, labels. Numbers only; printing is the report's."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from breakeven.trace import Arrival, Trace

from .arrivals import mean_rate

RATE_BINS = 60
"""Columns of the picture of arrivals over time."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What `loadgen trace inspect` shows. Rates per second, times in seconds."""

    format: str
    arrivals: int
    duration_s: float
    rate: float | None
    gap_cv: float | None
    gap_p50_s: float | None
    gap_p99_s: float | None
    gap_max_s: float | None
    same_time: int
    in_tokens: dict[str, float]
    out_tokens: dict[str, float]
    labels: dict[str, dict[str, int]]
    streams: int
    sessions: int
    with_prefix: int
    shared_prefix_tokens: float | None
    counts: tuple[int, ...]
    """Arrivals in each of RATE_BINS equal parts of the duration."""

    def as_json(self) -> dict[str, Any]:
        """For --json."""
        return {name: getattr(self, name) for name in self.__slots__}


def facts(trace: Trace, name: str) -> Facts:
    """Facts of a trace of the format `name`."""
    arrivals = trace.arrivals
    times = np.array([a.t for a in arrivals])
    times = times - times[0]
    gaps = np.diff(times)
    spread = len(gaps) > 0 and float(np.mean(gaps)) > 0
    counts, _ = np.histogram(times, RATE_BINS, (0.0, max(float(times[-1]), 1e-9)))
    return Facts(
        format=name,
        arrivals=len(arrivals),
        duration_s=float(times[-1]),
        rate=mean_rate(times),
        gap_cv=float(np.std(gaps) / np.mean(gaps)) if spread else None,
        gap_p50_s=float(np.quantile(gaps, 0.5)) if len(gaps) else None,
        gap_p99_s=float(np.quantile(gaps, 0.99)) if len(gaps) else None,
        gap_max_s=float(np.max(gaps)) if len(gaps) else None,
        same_time=int(np.sum(gaps == 0)),
        in_tokens=_lengths([a.in_tokens for a in arrivals]),
        out_tokens=_lengths([a.out_tokens for a in arrivals]),
        labels={
            field: dict(Counter(getattr(a, field) for a in arrivals).most_common())
            for field in ("cohort", "task", "lang", "sampling")
        },
        streams=sum(a.stream for a in arrivals),
        sessions=len({a.session for a in arrivals if a.session is not None}),
        with_prefix=sum(a.prefix is not None for a in arrivals),
        shared_prefix_tokens=_shared(arrivals, trace.header.block.size)
        if trace.header.block.unit == "tokens"
        else None,
        counts=tuple(counts.tolist()),
    )


def _lengths(values: list[int]) -> dict[str, float]:
    data = np.array(values)
    return {
        "mean": float(np.mean(data)),
        "p50": float(np.quantile(data, 0.5)),
        "p95": float(np.quantile(data, 0.95)),
        "max": float(np.max(data)),
        "sum": float(np.sum(data)),
    }


def _shared(arrivals: tuple[Arrival, ...], size: int) -> float | None:
    """Share of prompt tokens in blocks that an earlier arrival had, too: what an endless prefix
    cache could serve. None without prefixes."""
    if all(a.prefix is None for a in arrivals):
        return None
    seen: set[str] = set()
    shared = total = 0
    for a in arrivals:
        total += a.in_tokens
        for item in a.prefix or ():
            if item in seen:
                shared += size
            seen.add(item)
    return min(1.0, shared / total)
