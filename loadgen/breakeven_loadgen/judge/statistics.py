"""The tests and intervals of a decision, from scipy and statsmodels; nothing they have is redone.

Here: per-block effects, sign-flip check, non-inferiority, Holm, proportions, p99 certification,
blocks needed. Not here: what is compared (figures, assess). The unit of inference is the block:
requests of one run share its weather, so a request-level bootstrap is far too sure of itself.
Sources: docs/definitions.md; docstrings name the library function.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower
from statsmodels.stats.proportion import confint_proportions_2indep

Floats = NDArray[np.float64]

CONFIDENCE = 0.95
ALPHA = 0.05
MIN_BLOCKS = 6
"""Fewest blocks for any decision: an exact two-sided sign-flip test cannot go below .031 with 6."""
DEFAULT_BLOCKS = 8
POWER = 0.8
"""Chance of a significant result that "blocks needed" plans for."""
LARGE_EFFECT = 2.0
"""Standard deviations: shown by MIN_BLOCKS blocks with more than POWER, so nothing is solved."""
MAX_BLOCKS_NEEDED = 1000
"""Above this the answer is "no difference that can be shown", not a number of blocks."""


@dataclass(frozen=True, slots=True)
class Effect:
    """Mean per-block difference with its paired-t interval.

    Attributes:
        mean, low, high: of the differences (of logs, for a ratio), two-sided CONFIDENCE.
        p: two-sided p of the paired t-test; p_flip: of the exact sign-flip test.
        n: blocks; sd: standard deviation over blocks.
    """

    mean: float
    low: float
    high: float
    p: float
    p_flip: float
    n: int
    sd: float

    @property
    def ratio(self) -> tuple[float, float, float]:
        """exp of (mean, low, high): the ratio of a log effect."""
        return math.exp(self.mean), math.exp(self.low), math.exp(self.high)


def effect(differences: ArrayLike) -> Effect | None:
    """Paired t over blocks (scipy.stats.ttest_1samp), with a sign-flip check beside it.

    Args:
        differences: one value per block, shape (n,); NaN blocks are left out.

    Returns:
        None with fewer than two blocks: one block has no spread.
    """
    values = np.asarray(differences, np.float64)
    values = values[np.isfinite(values)]
    if len(values) < 2:
        return None
    mean, sd = float(np.mean(values)), float(np.std(values, ddof=1))
    flip = sign_flip_p(values)
    if sd <= 1e-12 * max(1.0, abs(mean)):
        # Identical blocks (a deterministic engine): no spread to infer from, only the exact test.
        return Effect(mean, mean, mean, 1.0 if mean == 0 else flip, flip, len(values), 0.0)
    test = stats.ttest_1samp(values, 0.0)
    interval = test.confidence_interval(CONFIDENCE)
    return Effect(
        mean, float(interval.low), float(interval.high), float(test.pvalue), flip, len(values), sd
    )


def log_ratio(candidate: ArrayLike, baseline: ArrayLike) -> Effect | None:
    """Effect of log(candidate / baseline), block by block; shapes (n,), values above 0."""
    above, below = np.asarray(candidate, np.float64), np.asarray(baseline, np.float64)
    usable = (above > 0) & (below > 0)
    return effect(np.log(above[usable] / below[usable]))


def difference(candidate: ArrayLike, baseline: ArrayLike) -> Effect | None:
    """Effect of candidate - baseline, block by block (shares of requests, say)."""
    return effect(np.asarray(candidate, np.float64) - np.asarray(baseline, np.float64))


def sign_flip_p(values: Floats) -> float:
    """Two-sided p of the exact sign-flip test (scipy.stats.permutation_test, "samples").

    All 2^n flips up to n = 13, else 9,999 random ones with a fixed seed.
    """
    if np.ptp(values) == 0 and values[0] == 0:
        return 1.0
    found = stats.permutation_test(
        (values,),
        lambda x, axis: np.mean(x, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=9999,
        alternative="two-sided",
        rng=np.random.default_rng(0),
    )
    return float(found.pvalue)


@dataclass(frozen=True, slots=True)
class OneSided:
    """A one-sided bound against a limit."""

    bound: float
    limit: float
    p: float

    @property
    def shown(self) -> bool:
        """Whether the bound is on the right side of the limit."""
        return self.p < ALPHA


def not_above(differences: ArrayLike, limit: float) -> OneSided | None:
    """Non-inferiority: is the mean difference shown to lie below `limit` (alpha .05, one-sided)?

    Floors are joined as an intersection-union test: each at ALPHA, no correction, all must hold.
    None with fewer than two blocks.
    """
    values = np.asarray(differences, np.float64)
    values = values[np.isfinite(values)]
    if len(values) < 2:
        return None
    mean, sd = float(np.mean(values)), float(np.std(values, ddof=1))
    if sd <= 1e-12 * max(1.0, abs(mean)):
        return OneSided(mean, limit, 0.0 if mean < limit else 1.0)
    test = stats.ttest_1samp(values, limit, alternative="less")
    bound = float(test.confidence_interval(CONFIDENCE).high)
    return OneSided(bound, limit, float(test.pvalue))


def not_below(differences: ArrayLike, limit: float) -> OneSided | None:
    """The mirror of `not_above`: is the mean shown to lie above `limit`?"""
    found = not_above(-np.asarray(differences, np.float64), -limit)
    return None if found is None else OneSided(-found.bound, limit, found.p)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm-adjusted p values, in the order given (statsmodels multipletests)."""
    if not p_values:
        return []
    adjusted = multipletests(list(p_values), alpha=ALPHA, method="holm")[1]
    return [float(p) for p in adjusted]


def share_difference(
    hits: int, n: int, other_hits: int, other_n: int
) -> tuple[float, float, float] | None:
    """(difference, low, high) of two shares (statsmodels confint_proportions_2indep, Newcombe).

    For rare events counted over whole arms, where per-block differences are mostly 0.
    None where an arm has no request.
    """
    if n <= 0 or other_n <= 0:
        return None
    low, high = confint_proportions_2indep(
        hits, n, other_hits, other_n, compare="diff", method="newcomb", alpha=1 - CONFIDENCE
    )
    return hits / n - other_hits / other_n, float(low), float(high)


def share_upper(hits: int, n: int, confidence: float = CONFIDENCE) -> float | None:
    """One-sided exact upper bound of a share (scipy.stats.binomtest, Clopper-Pearson)."""
    if n <= 0:
        return None
    test = stats.binomtest(hits, n, alternative="less")
    return float(test.proportion_ci(confidence, method="exact").high)


def p99_certified(misses: int, n: int, confidence: float = 0.99) -> bool:
    """Whether fewer than 1 % of requests miss, at this confidence (exact binomial test).

    0 misses in 459 certify at 99 %, in 299 at 95 %.
    """
    if n <= 0:
        return False
    test = stats.binomtest(misses, n, 0.01, alternative="less")
    return bool(test.pvalue <= 1 - confidence)


def blocks_needed(mean: float, sd: float) -> int | None:
    """Blocks that show a mean effect of this size with power .8 (statsmodels TTestPower).

    With a spread of .05 per block: 3 % need about 24, 5 % about 10, 10 % about 5.

    Returns:
        None where more than 1,000 would be needed: no difference that can be shown.
    """
    if sd <= 0:
        return MIN_BLOCKS
    size = abs(mean) / sd
    if size < 1e-3:
        return None
    if size >= LARGE_EFFECT:
        return MIN_BLOCKS
    solved = TTestPower().solve_power(
        effect_size=size, alpha=ALPHA, power=POWER, alternative="two-sided"
    )
    count = max(MIN_BLOCKS, math.ceil(float(np.max(solved))))
    return count if count <= MAX_BLOCKS_NEEDED else None


@dataclass(frozen=True, slots=True)
class NoiseFloor:
    """What the A/A runs show: the spread between two equal arms.

    Attributes:
        effect: of the A/A log ratios; its interval should hold 0.
        smallest: smallest relative effect that `blocks` blocks could show with power .8.
    """

    effect: Effect
    smallest: float


def noise_floor(first: ArrayLike, second: ArrayLike, blocks: int) -> NoiseFloor | None:
    """Noise floor from the baseline run twice in each block; shapes (n,), values above 0."""
    found = log_ratio(second, first)
    if found is None or blocks < 2:
        return None
    if found.sd <= 0:
        return NoiseFloor(found, 0.0)
    size = TTestPower().solve_power(nobs=blocks, alpha=ALPHA, power=POWER, alternative="two-sided")
    return NoiseFloor(found, math.expm1(float(np.max(size)) * found.sd))
