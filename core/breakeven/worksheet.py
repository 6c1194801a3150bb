"""The break-even sum: committed tokens per cycle, time per committed token, margin.

Here: the worksheet's arithmetic, and the same on measured figures. Not here: statistics.
Speculation pays where D + V + H < M * T: D draft, V verify, H overhead of one cycle (seconds of
elapsed critical path), M committed tokens per cycle, T baseline seconds per token at the same
offered rate. margin = 1 - (D + V + H) / (M * T): the share of decode time saved.
Source: Leviathan et al. 2023 (arXiv 2211.17192), eq. 1 for M(k); docs/definitions.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .errors import InputError

MAX_K = 64
"""Deepest speculation the worksheet takes: engines stop at 16 or so."""


def committed_per_cycle(k: int, alpha: float) -> float:
    """M(k) = 1 + alpha + … + alpha^k, tokens per cycle.

    True only under independent acceptance of constant probability alpha; for a worksheet, never
    for a measurement (reading the overall accepted share as alpha understates M(5) by 41-44 %).

    Raises:
        InputError: k is no whole number in 0..64, or alpha is not in 0..1.
    """
    _depth(k)
    _share("alpha", alpha)
    return math.fsum(alpha**i for i in range(k + 1))


def committed_from_survival(survival: Sequence[float]) -> float:
    """M = 1 + S_1 + … + S_k, with S_i the share of drafts accepted at least up to position i.

    Raises:
        InputError: a value outside 0..1, or a survival that rises from one position to the next.
    """
    for i, value in enumerate(survival):
        _share(f"survival[{i}]", value)
        if i and value > survival[i - 1] + 1e-9:
            raise InputError(
                "survival cannot rise", key=f"survival[{i}]", value=value,
                mend="give cumulative shares; for conditional ones multiply them up",
            )  # fmt: skip
    return 1.0 + math.fsum(survival)


def survival_from_conditional(conditional: Sequence[float]) -> tuple[float, ...]:
    """S_i = c_1 * … * c_i: cumulative shares from conditional acceptance by position."""
    out: list[float] = []
    for i, value in enumerate(conditional):
        _share(f"conditional[{i}]", value)
        out.append(value * (out[-1] if out else 1.0))
    return tuple(out)


@dataclass(frozen=True, slots=True)
class Worksheet:
    """Result of one break-even sum; times in seconds.

    Attributes:
        baseline_s: T, seconds per token without speculation.
        m: committed tokens per cycle.
        cycle_s: D + V + H.
        s_per_token: cycle_s / m.
        margin: 1 - s_per_token / baseline_s; above 0 it pays.
        inflation: C / T, cycle time over baseline step time: M must exceed it.
        k: depth, None where only a survival curve was given.
        break_even_alpha: smallest alpha that pays at this k and cycle; None where none does.
        break_even_draft_s: largest D that pays; negative where no draft is cheap enough.
    """

    baseline_s: float
    m: float
    cycle_s: float
    s_per_token: float
    margin: float
    inflation: float
    k: int | None
    break_even_alpha: float | None
    break_even_draft_s: float

    @property
    def pays(self) -> bool:
        """Strictly faster than the baseline; a tie does not pay."""
        return self.margin > 0

    @property
    def word(self) -> str:
        """pays or loses."""
        return "pays" if self.pays else "loses"


def worksheet(
    baseline_s: float, draft_s: float, verify_s: float, overhead_s: float, m: float, k: int | None
) -> Worksheet:
    """Do the sum for given D, V, H and M (see the module's docstring).

    Raises:
        InputError: a time that is not finite, negative, or zero where it divides; M below 1.
    """
    for name, value in (("draft", draft_s), ("verify", verify_s), ("overhead", overhead_s)):
        _time(name, value, positive=False)
    _time("baseline", baseline_s, positive=True)
    if not math.isfinite(m) or m < 1 or (k is not None and m > k + 1):
        top = "" if k is None else f" and at most k + 1 = {k + 1}"
        raise InputError(f"M must be at least 1{top}", key="m", value=m, mend="check k and alpha")
    cycle_s = draft_s + verify_s + overhead_s
    _time("cycle", cycle_s, positive=True)
    return Worksheet(
        baseline_s=baseline_s,
        m=m,
        cycle_s=cycle_s,
        s_per_token=cycle_s / m,
        margin=1.0 - cycle_s / (m * baseline_s),
        inflation=cycle_s / baseline_s,
        k=k,
        break_even_alpha=None if k is None else break_even_alpha(k, cycle_s / baseline_s),
        break_even_draft_s=m * baseline_s - verify_s - overhead_s,
    )


def break_even_alpha(k: int, inflation: float) -> float | None:
    """Smallest constant acceptance alpha with M(k, alpha) >= C/T.

    Returns:
        0..1 by bisection to 1e-12 (M rises with alpha); 0 where the cycle costs no more than a
        baseline step; None where even alpha = 1 does not pay, since M <= k + 1.
    """
    _depth(k)
    if inflation <= 1:
        return 0.0
    if inflation > k + 1:
        return None
    low, high = 0.0, 1.0
    while high - low > 1e-12:
        middle = (low + high) / 2
        low, high = (middle, high) if committed_per_cycle(k, middle) < inflation else (low, middle)
    return high


# --- the same on measured figures -------------------------------------------------------------


def margin(baseline_s_per_token: float, decode_s: float, decode_tokens: float) -> float | None:
    """Measured margin: 1 - (decode seconds per token of the arm / that of the baseline).

    Both at the same offered rate, one cohort, one load. Ratio of sums, so that long answers count
    by their tokens. None where the arm decoded no token after its first or the baseline none.
    """
    if decode_tokens <= 0 or not baseline_s_per_token > 0:
        return None
    return 1.0 - (decode_s / decode_tokens) / baseline_s_per_token


@dataclass(frozen=True, slots=True)
class BreakEven:
    """The diagnosis pair of one cohort at one load: what a cycle costs beside what it commits.

    Attributes:
        inflation: C / T; M above it pays.
        m: committed tokens per cycle.
        margin: 1 - inflation / m.
        cycle_s, baseline_s: C and T, seconds.
    """

    cycle_s: float
    baseline_s: float
    m: float
    inflation: float
    margin: float


def break_even(baseline_s: float, cycle_s: float, m: float) -> BreakEven | None:
    """C/T beside M from measured T, C and M; None where a figure is missing (not above 0)."""
    if not (baseline_s > 0 and cycle_s > 0 and m > 0):
        return None
    inflation = cycle_s / baseline_s
    return BreakEven(cycle_s, baseline_s, m, inflation, 1.0 - inflation / m)


@dataclass(frozen=True, slots=True)
class Band:
    """An interval of offered rates (req/s) where the margin is at or above 0.

    `low_open`, `high_open`: the end is that of the swept range, not a crossing: the true end lies
    outside what was measured.
    """

    low: float
    high: float
    low_open: bool
    high_open: bool


def pays_bands(points: Sequence[tuple[float, float]]) -> tuple[Band, ...]:
    """Intervals of offered rate where the margin is above 0, by linear interpolation.

    Args:
        points: (rate req/s, margin), any order, distinct rates. Nothing is extrapolated.
    """
    ordered = sorted(points)
    bands: list[Band] = []
    start: float | None = None
    start_open = False
    for i, (rate, value) in enumerate(ordered):
        if value > 0 and start is None:
            start_open = i == 0
            start = rate if i == 0 else _crossing(ordered[i - 1], (rate, value))
        elif value <= 0 and start is not None:
            bands.append(Band(start, _crossing(ordered[i - 1], (rate, value)), start_open, False))
            start = None
    if start is not None:
        bands.append(Band(start, ordered[-1][0], start_open, True))
    return tuple(bands)


def _crossing(left: tuple[float, float], right: tuple[float, float]) -> float:
    """Rate at which the straight line between two points of opposite sign meets 0."""
    (x0, y0), (x1, y1) = left, right
    return x0 if y1 == y0 else x0 + (x1 - x0) * (0.0 - y0) / (y1 - y0)


# --- checks -----------------------------------------------------------------------------------


def _depth(k: int) -> None:
    if isinstance(k, bool) or k != int(k) or not 0 <= k <= MAX_K:
        raise InputError(
            f"k must be a whole number from 0 to {MAX_K}", key="k", value=k, mend="e.g. --k 4"
        )


def _share(name: str, value: float) -> None:
    if not math.isfinite(value) or not 0 <= value <= 1:
        raise InputError(
            "an acceptance must lie between 0 and 1", key=name, value=value, mend="e.g. 0.7"
        )


def _time(name: str, value: float, *, positive: bool) -> None:
    if not math.isfinite(value) or value < 0 or (positive and value == 0):
        least = "above 0" if positive else "at least 0"
        raise InputError(
            f"a time must be finite and {least}", key=name, value=value, mend="in milliseconds"
        )
