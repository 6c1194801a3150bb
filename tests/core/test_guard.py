"""The rollback guard: window arithmetic, and each rule with a row on either side of its limit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from statsmodels.stats.proportion import proportion_confint

from breakeven.guard import (
    ArmCounters,
    Distribution,
    GuardBudget,
    GuardWindow,
    Recent,
    Sides,
    breaches,
    cost_per_good,
    wilson_lower,
)
from breakeven.routing import Reason

BOUNDS = (0.01, 0.05, 0.1, 0.5)


def dist(*counts: int) -> Distribution:
    return Distribution(BOUNDS, counts)


OFF = GuardBudget(
    min_requests=100, error_share=None, error_excess=None, gap_p99_ratio=None,
    ttft_p95_ratio=None, goodput_excess=None,
)  # fmt: skip
GOOD = ArmCounters(
    requests=1000, errors=0, good=1000, ttft=dist(0, 1000, 0, 0, 0), gaps=dist(9990, 10, 0, 0, 0)
)


def sides(
    candidate: ArmCounters, baseline: ArmCounters | None = None, seconds: float = 300
) -> Sides:
    base = None if baseline is None else Recent(seconds, baseline)
    return Sides(Recent(seconds, candidate), base, 1 / 3600, 1 / 3600)


def reasons(s: Sides, budget: GuardBudget) -> list[Reason]:
    return [breach.reason for breach in breaches(s, budget)]


@pytest.mark.parametrize(
    ("budget", "broken", "kept", "reason"),
    [
        # 70 of 1000: Wilson lower bound 5.8 % > 5 %; 55 of 1000: 4.4 %
        ({"error_share": 0.05}, {"errors": 70}, {"errors": 55}, Reason.GUARD_ERROR_SHARE),
        # p99 gap: 200 of 10,000 above 0.1 is 2 % > 1 %; 100 is exactly 1 %
        (
            {"gap_p99_s": 0.1},
            {"gaps": dist(9800, 0, 0, 200, 0)},
            {"gaps": dist(9900, 0, 0, 100, 0)},
            Reason.GUARD_GAP_P99,
        ),
        (
            {"ttft_p95_s": 0.5},
            {"ttft": dist(0, 900, 0, 0, 100)},
            {"ttft": dist(0, 950, 0, 0, 50)},
            Reason.GUARD_TTFT_P95,
        ),
        ({"goodput_share": 0.95}, {"good": 930}, {"good": 945}, Reason.GUARD_GOODPUT),
        # 1 $/h for 300 s = 0.0833 $; ÷ 1000 good = 8.3e-5 $
        (
            {"cost_per_good_usd": 9e-5},
            {"good": 900},  # 9.26e-5
            {"good": 1000},
            Reason.GUARD_COST,
        ),
    ],
)
def test_budget_rules(
    budget: dict[str, float], broken: dict[str, object], kept: dict[str, object], reason: Reason
) -> None:
    """Each rule fires beyond its limit, alone, and not at it."""
    limits = replace(OFF, **budget)  # type: ignore[arg-type]
    assert reasons(sides(replace(GOOD, **broken)), limits) == [reason]  # type: ignore[arg-type]
    assert reasons(sides(replace(GOOD, **kept)), limits) == []  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rule", "broken", "kept", "reason"),
    [
        ({"error_excess": 0.02}, {"errors": 50}, {"errors": 25}, Reason.GUARD_ERROR_SHARE),
        # baseline p99 ≤ 0.01, × 2 = 0.02: only the buckets above 0.05 are certainly beyond it
        (
            {"gap_p99_ratio": 2.0},
            {"gaps": dist(9700, 0, 300, 0, 0)},
            {"gaps": dist(9000, 1000, 0, 0, 0)},
            Reason.GUARD_GAP_P99,
        ),
        # baseline p95 ≤ 0.05, × 2 = 0.1
        (
            {"ttft_p95_ratio": 2.0},
            {"ttft": dist(0, 900, 0, 100, 0)},
            {"ttft": dist(0, 0, 1000, 0, 0)},
            Reason.GUARD_TTFT_P95,
        ),
        ({"goodput_excess": 0.05}, {"good": 920}, {"good": 945}, Reason.GUARD_GOODPUT),
        ({"cost_ratio": 1.1}, {"good": 900}, {"good": 910}, Reason.GUARD_COST),  # 1.111, 1.099
    ],
)
def test_live_baseline_rules(
    rule: dict[str, float], broken: dict[str, object], kept: dict[str, object], reason: Reason
) -> None:
    """Against the live baseline; without a comparable baseline the rule is silent."""
    limits = replace(OFF, **rule)  # type: ignore[arg-type]
    worse = replace(GOOD, **broken)  # type: ignore[arg-type]
    assert reasons(sides(worse, GOOD), limits) == [reason]
    assert reasons(sides(replace(GOOD, **kept), GOOD), limits) == []  # type: ignore[arg-type]
    assert reasons(sides(worse), limits) == []
    few = replace(GOOD, requests=99, good=99)
    assert reasons(sides(worse, few), limits) == []


def test_too_few_requests_judge_nothing() -> None:
    """99 requests that all failed are below the minimum of 100; 100 are not."""
    budget = replace(OFF, error_share=0.05)
    assert reasons(sides(ArmCounters(requests=99, errors=99)), budget) == []
    assert reasons(sides(ArmCounters(requests=100, errors=100)), budget) == [
        Reason.GUARD_ERROR_SHARE
    ]


def test_a_hung_engine_is_seen_by_requests_that_are_overdue() -> None:
    """120 requests wait beyond the TTFT limit and none has ended: that is a breach."""
    hung = ArmCounters(overdue=120)
    (breach,) = breaches(sides(hung), replace(OFF, ttft_p95_s=0.5))
    assert (breach.reason, breach.limit) == (Reason.GUARD_TTFT_P95, 0.5)
    assert breach.observed >= 0.5


def test_no_good_response_has_no_cost() -> None:
    """0 good responses: undefined, never a number; the goodput rule speaks instead."""
    bad = replace(GOOD, good=0)
    assert cost_per_good(Recent(300, bad), 1.0) is None
    budget = replace(OFF, cost_per_good_usd=1e-9, goodput_share=0.5)
    assert reasons(sides(bad), budget) == [Reason.GUARD_GOODPUT]


def test_defaults_let_two_equal_arms_live() -> None:
    """The same figures on both sides break no rule of the default budget."""
    assert reasons(sides(GOOD, GOOD), GuardBudget()) == []


def test_breach_says_figures_and_side() -> None:
    """The text for the log has the observed share, the limit and what it was held against."""
    (breach,) = breaches(sides(replace(GOOD, errors=70)), replace(OFF, error_share=0.05))
    assert str(breach) == "0.07 above 0.05 (budget)"


def test_wilson_by_hand() -> None:
    """70/1000 at z 1.645: (0.07 + 0.001353 − 0.013341) / 1.002706 = 0.05785."""
    assert wilson_lower(70, 1000) == pytest.approx(0.05785, abs=2e-5)
    assert wilson_lower(0, 0) == 0.0
    assert wilson_lower(0, 50) == 0.0


@given(st.integers(0, 5000), st.integers(1, 5000))
def test_wilson_is_statsmodels(hits: int, total: int) -> None:
    """Foreign witness: statsmodels' Wilson interval at 90 % two-sided has the same lower end."""
    hits = min(hits, total)
    low, _ = proportion_confint(hits, total, alpha=0.0999698, method="wilson")  # z = 1.645
    assert wilson_lower(hits, total) == pytest.approx(low, abs=1e-6)


@pytest.mark.parametrize(
    ("limit", "above"),
    [(0.01, 9), (0.05, 7), (0.07, 4), (0.1, 4), (0.5, 0), (9.0, 0), (0.001, 9)],
)
def test_above_counts_what_is_certain(limit: float, above: int) -> None:
    """Counts 1 | 2 | 3 | 4 | 0: exact at a bound, else without the limit's own bucket."""
    assert dist(1, 2, 3, 4, 0).above(limit) == above


def test_quantile_bounds() -> None:
    """Of 10 values the 9th lies in (0.1, 0.5]; of one beyond all bounds only the least is known."""
    d = dist(1, 2, 3, 4, 0)
    assert (d.quantile_at_least(0.9), d.quantile_at_most(0.9)) == (0.1, 0.5)
    beyond = dist(0, 0, 0, 0, 1)
    assert (beyond.quantile_at_least(0.99), beyond.quantile_at_most(0.99)) == (0.5, None)
    assert dist(0, 0, 0, 0, 0).quantile_at_most(0.99) is None


def test_window_holds_only_what_was_added_within_it() -> None:
    """10 requests a second for 100 s, window 30 s: 300 to 310 of them, and the same in buckets."""
    window = GuardWindow(30)
    for now in range(101):
        n = now * 10
        counters = ArmCounters(n, now, n - now, ttft=dist(n, 0, 0, 0, 0), overdue=7)
        recent = window.record(now, counters)
    assert 30 <= recent.seconds <= 31
    assert recent.counters.requests == 10 * recent.seconds
    assert recent.counters.errors == recent.seconds
    assert recent.counters.ttft.total == recent.counters.requests
    assert recent.counters.overdue == 7
    assert len(window._past) <= 32
    window.reset()
    assert window.record(101, counters).counters.requests == 0
