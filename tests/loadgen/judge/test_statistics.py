"""Intervals that cover, tests that hold their level, and the numbers of the design."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from breakeven_loadgen.judge.statistics import (
    ALPHA,
    CONFIDENCE,
    blocks_needed,
    difference,
    effect,
    holm,
    log_ratio,
    noise_floor,
    not_above,
    not_below,
    p99_certified,
    share_difference,
    share_upper,
)

EXPERIMENTS = 2000


def experiments(blocks: int, effect_size: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Seconds per token of 2,000 experiments: block weather shared, run noise apart.

    The block's noise (10 %) cancels in the ratio; each run's own (3 %) does not; one run in ten
    is a bad one (9 %), so that the noise has heavier tails than the t-test assumes.
    """
    rng = np.random.default_rng(seed)
    shape = (EXPERIMENTS, blocks)
    weather = rng.normal(0, 0.10, shape)

    def run() -> np.ndarray:
        spread = np.where(rng.random(shape) < 0.1, 0.09, 0.03)
        return rng.normal(0, 1, shape) * spread

    base = np.exp(math.log(0.010) + weather + run())
    candidate = np.exp(math.log(0.010) + weather + run() + effect_size)
    return candidate, base


@pytest.mark.parametrize("blocks", [6, 8, 12])
@pytest.mark.parametrize("true", [0.0, math.log(0.9), math.log(1.3)])
def test_the_95_percent_interval_covers_93_to_97_percent(blocks: int, true: float) -> None:
    """Over 2,000 experiments with known truth, fixed seed."""
    candidate, base = experiments(blocks, true, seed=20261130 + blocks)
    # The same library call as `effect`, for all experiments at once; the next test ties them.
    test = stats.ttest_1samp(np.log(candidate / base), 0.0, axis=1).confidence_interval(CONFIDENCE)
    covered = np.mean((test.low <= true) & (true <= test.high))
    assert 0.93 <= covered <= 0.97, covered


def test_effect_reports_that_very_interval() -> None:
    """What the coverage test checks is what `effect` returns."""
    candidate, base = experiments(8, 0.05, seed=1)
    test = stats.ttest_1samp(np.log(candidate / base), 0.0, axis=1).confidence_interval(CONFIDENCE)
    for i in range(20):
        found = log_ratio(candidate[i], base[i])
        assert found is not None
        assert (found.low, found.high) == pytest.approx((test.low[i], test.high[i]))


def test_a_request_level_interval_would_be_far_too_sure() -> None:
    """Why the block is the unit: 500 requests of a run share its weather.

    The bootstrap's interval over requests of one run pair covers a small part of the time.
    """
    rng = np.random.default_rng(7)
    covered = 0
    for _ in range(400):
        shift = rng.normal(0, 0.05)
        requests = rng.normal(shift, 0.1, 500)
        half = 1.96 * np.std(requests, ddof=1) / math.sqrt(len(requests))
        covered += abs(np.mean(requests)) <= half
    assert covered / 400 < 0.3


def test_non_inferiority_holds_its_level_at_the_limit() -> None:
    """A candidate exactly at the limit passes in at most 5 % (+ noise) of 2,000 tries."""
    rng = np.random.default_rng(3)
    values = rng.normal(0.01, 0.02, (EXPERIMENTS, 8))
    p = stats.ttest_1samp(values, 0.01, axis=1, alternative="less").pvalue
    assert np.mean(p < ALPHA) <= 0.06
    for i in range(20):
        found = not_above(values[i], 0.01)
        assert found is not None
        assert found.p == pytest.approx(p[i])


def test_six_blocks_cannot_go_below_031() -> None:
    """2 / 2^6 = .03125, the smallest two-sided p of the exact sign-flip test."""
    found = effect([0.1, 0.11, 0.12, 0.09, 0.1, 0.13])
    assert found is not None
    assert found.p_flip == pytest.approx(2 / 64)
    assert found.p < 0.001


def test_the_ratio_is_the_exponential_of_the_log_effect() -> None:
    """Twice as slow in every block."""
    found = log_ratio([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    assert found is not None
    assert found.ratio == pytest.approx((2.0, 2.0, 2.0))


@pytest.mark.parametrize("values", [[], [0.1], [math.nan, 0.1]])
def test_one_block_has_no_spread(values: list[float]) -> None:
    """None, never an interval of no width."""
    assert effect(values) is None
    assert not_above(values, 0.1) is None


def test_identical_blocks_say_nothing_against_zero() -> None:
    """A deterministic engine against itself."""
    found = difference([1.0] * 6, [1.0] * 6)
    assert found is not None
    assert (found.mean, found.low, found.high, found.p) == (0, 0, 0, 1)


def test_broken_blocks_are_left_out() -> None:
    """A block without tokens has no ratio."""
    found = log_ratio([1.1, 0.0, 1.2, math.nan], [1.0, 1.0, 1.0, 1.0])
    assert found is not None
    assert found.n == 2


def test_not_below_is_the_mirror() -> None:
    """Goodput shown to be at most one point worse."""
    values = [-0.001, 0.002, 0.0, -0.002, 0.001, 0.0]
    low = not_below(values, -0.01)
    assert low is not None
    assert low.shown
    assert low.bound < 0 < low.bound + 0.01
    none = not_below(values, 0.01)
    assert none is not None
    assert not none.shown


def test_holm_by_hand() -> None:
    """.01*3, .02*2, .04*1, made monotone: .03, .04, .04."""
    assert holm([0.04, 0.01, 0.02]) == pytest.approx([0.04, 0.03, 0.04])
    assert holm([]) == []


@pytest.mark.parametrize(
    ("misses", "n", "confidence", "certified"),
    [
        (0, 459, 0.99, True),
        (0, 458, 0.99, False),
        (0, 299, 0.95, True),
        (0, 298, 0.95, False),
        (1, 459, 0.99, False),
        (0, 0, 0.95, False),
    ],
)
def test_p99_certification(misses: int, n: int, confidence: float, certified: bool) -> None:
    """.99^459 = .0099, .99^299 = .0495."""
    assert p99_certified(misses, n, confidence) is certified


@pytest.mark.parametrize(
    ("gain", "low", "high"), [(0.03, 22, 25), (0.05, 9, 11), (0.10, 6, 6), (1e-6, 0, 0)]
)
def test_blocks_needed_as_in_the_design(gain: float, low: int, high: int) -> None:
    """With 5 % spread per block: 3 % about 23, 5 % about 10, 10 % the minimum of 6."""
    found = blocks_needed(gain, 0.05)
    if high == 0:
        assert found is None
    else:
        assert found is not None
        assert low <= found <= high


def test_shares_are_compared_by_newcombe() -> None:
    """5 of 100 against 1 of 100: the interval holds the difference and is not symmetric."""
    found = share_difference(5, 100, 1, 100)
    assert found is not None
    value, low, high = found
    assert value == pytest.approx(0.04)
    assert low < value < high
    assert share_difference(0, 0, 1, 2) is None


def test_the_rule_of_three() -> None:
    """0 of 600 diverging bounds the share below .5 % at 95 %."""
    upper = share_upper(0, 600)
    assert upper is not None
    assert upper == pytest.approx(3 / 600, rel=0.01)
    assert share_upper(0, 0) is None


def test_the_noise_floor_is_what_blocks_can_still_show() -> None:
    """A/A with 2 % spread over 8 blocks: about 2-3 % can be told."""
    rng = np.random.default_rng(5)
    first = np.exp(rng.normal(0, 0.1, 8))
    second = first * np.exp(rng.normal(0, 0.02, 8))
    found = noise_floor(first, second, 8)
    assert found is not None
    assert 0.01 < found.smallest < 0.04
    assert found.effect.p > ALPHA
