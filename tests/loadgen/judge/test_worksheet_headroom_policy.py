"""Worksheet on data, headroom and load policy: interpolation without extrapolation."""

from __future__ import annotations

import pytest

from breakeven.facts import Interval
from breakeven_loadgen.judge.headroom import Capacity, capacity, rollback
from breakeven_loadgen.judge.policy import (
    DepthPoint,
    depth_schedule,
    load_policy,
    policy_json,
)
from breakeven_loadgen.judge.worksheet_fit import band, fit_sweep


@pytest.mark.parametrize(
    ("points", "found"),
    [
        ([(2, 1.0), (8, 1.0), (20, 0.5)], Capacity(8 + 12 * (0.01 / 0.5), False)),
        ([(2, 1.0), (8, 0.995)], Capacity(8, True)),
        ([(2, 0.5), (8, 1.0)], Capacity(None, False)),
        ([(8, 0.5), (2, 0.99)], Capacity(2, False)),
        ([], Capacity(None, False)),
    ],
)
def test_capacity_is_the_last_rate_that_keeps_the_objective(
    points: list[tuple[float, float]], found: Capacity
) -> None:
    """Objective .99; between 8 (1.0) and 20 (.5) the line meets .99 at 8.24."""
    got = capacity(points, 0.99)
    assert got.open_end == found.open_end
    assert got.rps == (None if found.rps is None else pytest.approx(found.rps))


@pytest.mark.parametrize(
    ("rps", "wanted", "possible"),
    [
        (10.0, 8.0, True),
        (8.0, 8.0, True),
        (6.0, 8.0, False),
        (None, 8.0, False),
        (10.0, None, None),
    ],
)
def test_rollback_needs_the_baseline_to_carry_it(
    rps: float | None, wanted: float | None, possible: bool | None
) -> None:
    """What the candidate carries must come back within the SLO."""
    assert rollback(Capacity(rps, False), wanted).possible is possible


def test_a_sweep_needs_three_depths() -> None:
    """cycle = 7 ms + .5 ms k."""
    points = [(k, 0.007 + 0.0005 * k) for k in (1, 3, 5)]
    found = fit_sweep("d", 2.0, points)
    assert found is not None
    assert found.slope_s == pytest.approx(0.0005)
    assert found.intercept_s == pytest.approx(0.007)
    assert found.source == "k-sweep fit"
    assert fit_sweep("d", 2.0, points[:2]) is None


def test_the_shown_band_is_narrower_than_the_estimate() -> None:
    """The lower ends of the intervals cross earlier."""
    found = band([(2.0, Interval(0.2, 0.1, 0.3)), (10.0, Interval(-0.2, -0.3, -0.1))])
    assert found.estimate[0].high == pytest.approx(6.0)
    assert found.shown[0].high == pytest.approx(4.0)


def test_policy_thresholds_leave_a_band() -> None:
    """Leave above 95 %, come back below 80 % of the proven rate per replica."""
    found = load_policy("d", (2.0, 20.0), 2, None)
    assert (found.min_rps, found.max_rps) == (1.0, 10.0)
    assert found.leave_above_rps == pytest.approx(9.5)
    assert found.enter_below_rps == pytest.approx(8.0)
    assert load_policy("d", (2.0, 20.0), 2, 14.0).max_rps == 7.0
    assert load_policy("d", (2.0, 20.0), 2, 30.0).max_rps == 10.0  # never above what was proven
    assert policy_json(None, None) == {"proxy": None, "engine": None}


def test_a_depth_schedule_follows_the_measured_optimum() -> None:
    """k 5 wins at batch 2, k 2 at 20, no draft at 100; borders half-way."""

    def points(k: int, times: tuple[float, ...]) -> list[DepthPoint]:
        return [DepthPoint(k, b, t) for b, t in zip((2, 20, 100), times, strict=True)]

    schedule = depth_schedule(
        [*points(2, (5.0, 6.0, 12.0)), *points(5, (4.0, 7.0, 15.0))], points(0, (7.0, 8.0, 10.0))
    )
    assert schedule == [[1, 11, 5], [12, 60, 2], [61, 1_000_000, 0]]


def test_no_schedule_from_too_little() -> None:
    """Two depths, or one load: a guessed schedule throws the gain away."""
    base = [DepthPoint(0, 2, 7.0), DepthPoint(0, 20, 8.0)]
    assert depth_schedule([DepthPoint(2, 2, 5.0), DepthPoint(2, 20, 6.0)], base) is None
    three = [DepthPoint(2, 2, 5.0), DepthPoint(5, 2, 4.0)]
    assert depth_schedule(three, base[:1]) is None


def test_p99_certification_needs_its_number_of_answers() -> None:
    """No miss in a few hundred answers certifies at 95 or 99 %, one in a hundred never."""
    from tests.loadgen.judge.test_gates import SOUND

    from breakeven_loadgen.judge.assess import assess
    from breakeven_loadgen.judge.capture import certified

    found = certified(assess(SOUND))["draft"]["low"]
    answers = sum(len(r.rows) for r in SOUND.runs if r.plan.arm == "draft")
    assert found["tpot_s"] == ("99%" if answers >= 459 else "95%" if answers >= 299 else "no")
