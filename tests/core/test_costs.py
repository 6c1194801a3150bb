"""The ledger, with the sums beside the rows."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.costs import (
    Fleet,
    Ledger,
    Line,
    Resource,
    largest_draft_usd_per_hour,
    ledger_of,
    marginal_usd_per_good,
    reserved,
    total,
)
from breakeven.errors import InputError

FLEET = Fleet(replicas=2, gpus=4, draft_gpus=1, usd_per_gpu_hour=3.0, standby_replicas=1,
              operations_usd_per_hour=10.0)  # fmt: skip


def test_every_second_of_every_gpu_is_booked_once() -> None:
    """One hour serving, 6 min warm-up, 6 min drain.

    target 2*4*3 = 24; draft 2*1*3 = 6; standby 1.2 h * 4*3 = 14.4; warm-up .1*2*15 = 3;
    drain 3; operations 1.2*10 = 12; sum 62.4.
    """
    ledger = ledger_of(FLEET, serving_s=3600, warm_up_s=360, drain_s=360, good=100, offered=120)
    assert ledger.usd == pytest.approx(62.4)
    assert ledger.usd_of(Resource.TARGET) == pytest.approx(24)
    assert ledger.usd_of(Resource.STANDBY, Resource.WARM_UP) == pytest.approx(17.4)
    assert ledger.usd_per_good == pytest.approx(0.624)


def test_failures_cost_through_the_numerator_only() -> None:
    """Twice the retries, the same fleet: the same bill, fewer good responses."""
    well = ledger_of(FLEET, serving_s=3600, good=100, offered=100)
    badly = ledger_of(FLEET, serving_s=3600, good=50, offered=200)
    assert badly.usd == well.usd
    assert badly.usd_per_good == pytest.approx(2 * well.usd_per_good)


def test_without_a_good_response_the_price_is_undefined() -> None:
    """Never a number, not even infinity."""
    ledger = ledger_of(FLEET, serving_s=3600, good=0, offered=100)
    assert ledger.usd_per_good is None
    assert ledger.repriced(2.0) is None


@given(st.floats(0.1, 10), st.floats(0, 100))
def test_price_sensitivity_is_one_multiplication(factor: float, price: float) -> None:
    """Repricing the sum is repricing every line."""
    lines = (Line(Resource.TARGET, 2, 4, price), Line(Resource.OPERATIONS, 1, 1, 3 * price))
    dearer = tuple(Line(x.resource, x.hours, x.units, x.usd_per_unit_hour * factor) for x in lines)
    assert Ledger(lines, 7, 9).repriced(factor) == pytest.approx(Ledger(dearer, 7, 9).usd_per_good)


def test_intervals_add_up_as_a_ratio_of_sums() -> None:
    """1 good at 10 $ and 9 good at 10 $ are 2 $ each, not 5.56."""
    parts = [Ledger((Line(Resource.TARGET, 1, 1, 10.0),), good, 10) for good in (1, 9)]
    assert total(parts).usd_per_good == pytest.approx(2.0)


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
@pytest.mark.parametrize("field", ["hours", "units", "usd_per_unit_hour"])
def test_a_line_takes_no_impossible_number(field: str, value: float) -> None:
    """NaN would make every total NaN."""
    with pytest.raises(InputError, match=field):
        Line(Resource.TARGET, **{"hours": 1, "units": 1, "usd_per_unit_hour": 1, field: value})


@pytest.mark.parametrize(
    ("peak", "headroom", "capacity", "replicas"),
    [(20, 1.0, 10, 2), (20, 1.2, 10, 3), (20.1, 1.0, 10, 3), (1, 1.0, 10, 1), (20, 1.0, 20, 1)],
)
def test_reserved_replicas_are_rounded_up(
    peak: float, headroom: float, capacity: float, replicas: int
) -> None:
    """ceil(peak * headroom / capacity); at least one."""
    found = reserved(FLEET, peak_rps=peak, headroom=headroom, capacity_rps_per_replica=capacity)
    assert found is not None
    assert found.replicas == replicas
    assert found.usd_per_hour == pytest.approx(replicas * 15 + 12 + 10)


def test_a_fleet_that_carries_nothing_has_no_price() -> None:
    """Capacity unknown or 0: undefined."""
    for capacity in (None, 0.0):
        assert reserved(FLEET, peak_rps=1, headroom=1, capacity_rps_per_replica=capacity) is None
        assert marginal_usd_per_good(FLEET, capacity) is None


def test_the_marginal_price_is_a_full_replicas_hour() -> None:
    """15 $/h over 10 good/s * 3600 s."""
    assert marginal_usd_per_good(FLEET, 10) == pytest.approx(15 / 36000)


def test_the_largest_draft_cost_that_pays() -> None:
    """.01 $/good * 4000 good/h - 30 $/h = 10 $/h."""
    assert largest_draft_usd_per_hour(0.01, 4000, 30) == pytest.approx(10)
    assert largest_draft_usd_per_hour(None, 4000, 30) is None
