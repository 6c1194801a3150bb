"""The worksheet on data: T, C, M, break-even band and alpha, and the k-sweep's slope.

Here: what core worksheet computes, fed with measured sums, and a fit over depths. Not here:
intervals of margins (assess). D, V and H singly are not exposed by an engine: from a sweep of at
least three depths at one load come only a slope (cost of one more draft token, drafted and
verified) and an intercept (the cycle without drafts), and both are labelled as a fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scipy import stats

from breakeven.facts import Interval
from breakeven.worksheet import Band, break_even, break_even_alpha, pays_bands

from .figures import Figures, summed
from .pairs import Pair

MIN_DEPTHS = 3
"""Two depths give a line through any noise."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """One cohort at one load, from sums over all blocks; None is not known.

    Attributes:
        t_s: baseline decode seconds per token. c_s: candidate's seconds per cycle.
        m: committed tokens per cycle; m_source: counters, block or stream (an estimate).
        inflation: C / T. margin: 1 - inflation / m.
        alpha: break-even acceptance at this depth and cycle; None where none pays, or k unknown.
    """

    t_s: float | None
    c_s: float | None
    m: float | None
    m_source: str | None
    inflation: float | None
    margin: float | None
    alpha: float | None
    k: int | None


def sheet(pairs: Sequence[Pair], k: int | None, *, whole: bool) -> Sheet:
    """T, C and M of these pairs.

    Args:
        whole: the cohort is all traffic, so that the engine's own counters speak for it.
    """
    if not pairs:
        return Sheet(None, None, None, None, None, None, None, k)
    base = summed([pair.base for pair in pairs])
    arm = summed([pair.arm for pair in pairs])
    t_s = base.decode_s / base.decode_tokens if base.decode_tokens else None
    m, source = _m(pairs, arm, whole)
    c_s = arm.decode_s / arm.decode_tokens * m if m and arm.decode_tokens else None
    pair = break_even(t_s, c_s, m) if t_s and c_s and m else None
    inflation = pair.inflation if pair else None
    alpha = break_even_alpha(k, inflation) if k and inflation is not None else None
    return Sheet(t_s, c_s, m, source, inflation, pair.margin if pair else None, alpha, k)


def _m(pairs: Sequence[Pair], arm: Figures, whole: bool) -> tuple[float | None, str | None]:
    """M of the candidate by the best source there is: counters, then block, then the stream."""
    if whole:
        m = counters_m(pairs)
        if m is not None:
            return m, "counters"
    if arm.block_steps > 0:
        return arm.block_tokens / arm.block_steps, "block"
    if arm.m is not None:
        return arm.m, "stream"
    return None, None


def counters_m(pairs: Sequence[Pair]) -> float | None:
    """(dG - dF) / dS over all metrics pages of the candidate's runs; None where not exposed."""
    committed = steps = 0.0
    for pair in pairs:
        for page in pair.arm_run.engine:
            g, f, s = page.get("g"), page.get("f"), page.get("s")
            if g is None or f is None or s is None or page.get("m") is None:
                return None
            committed += g - f
            steps += s
    return committed / steps if steps > 0 else None


def depth(pairs: Sequence[Pair], stated: int | None) -> int | None:
    """Depth of speculation: the engine's count of positions, else what the user states."""
    for pair in pairs:
        for page in pair.arm_run.engine:
            if page.get("k"):
                return int(page["k"])
    return stated


@dataclass(frozen=True, slots=True)
class SweepFit:
    """A line through cycle time against depth at one load (scipy.stats.linregress).

    Attributes:
        slope_s: seconds per further draft token: its draft and its verification together.
        intercept_s: the cycle at depth 0: V without drafts, and H.
        slope_low_s, slope_high_s: 95 % interval of the slope.
        depths: the k that were measured; rate: offered req/s; source: always "k-sweep fit".
    """

    family: str
    rate: float
    depths: tuple[int, ...]
    slope_s: float
    intercept_s: float
    slope_low_s: float
    slope_high_s: float
    source: str = "k-sweep fit"


def fit_sweep(family: str, rate: float, points: Sequence[tuple[int, float]]) -> SweepFit | None:
    """Fit cycle seconds against k; None with fewer than three distinct depths."""
    depths = sorted({k for k, _ in points})
    if len(depths) < MIN_DEPTHS:
        return None
    line = stats.linregress([k for k, _ in points], [c for _, c in points])
    half = float(stats.t.ppf(0.975, max(1, len(points) - 2)) * line.stderr)
    return SweepFit(
        family, rate, tuple(depths), float(line.slope), float(line.intercept),
        float(line.slope) - half, float(line.slope) + half,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class BreakEvenBand:
    """Offered rates at which it pays: by the estimate, and where the whole interval says so."""

    estimate: tuple[Band, ...]
    shown: tuple[Band, ...]


def band(points: Sequence[tuple[float, Interval]]) -> BreakEvenBand:
    """Bands over offered rate from (rate, margin) pairs; linear between rates, no extrapolation."""
    return BreakEvenBand(
        pays_bands([(rate, margin.value) for rate, margin in points]),
        pays_bands([(rate, margin.low) for rate, margin in points]),
    )
