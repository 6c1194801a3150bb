"""`breakeven.load`: classes of arrival rate, and the window that measures it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.errors import InputError
from breakeven.load import ArrivalWindow, LoadClasses


@pytest.mark.parametrize(
    ("rate", "name"),
    [(0, "low"), (4, "low"), (4.001, "normal"), (12, "normal"), (12.001, "peak"), (1e9, "peak")],
)
def test_classes(rate: float, name: str) -> None:
    """Up to low_max low, up to normal_max normal, above peak."""
    assert LoadClasses(4, 12).classify(rate) == name


@pytest.mark.parametrize(
    ("low", "normal", "key"),
    [(0, 1, "low_max"), (-1, 1, "low_max"), (math.nan, 1, "low_max"), (1, math.inf, "normal_max"),
     (4, 4, "normal_max"), (5, 4, "normal_max")],
)  # fmt: skip
def test_bounds_that_cannot_be(low: float, normal: float, key: str) -> None:
    """The error names the bound."""
    with pytest.raises(InputError, match=key):
        LoadClasses(low, normal)


def test_rate_over_a_full_window() -> None:
    """60 arrivals in the last 30 s are 2/s, whatever came before."""
    window = ArrivalWindow(0.0)
    for number in range(200):
        window.record(number * 0.5)
    assert window.rate(99.5) == pytest.approx(2.0, rel=0.02)


def test_arrivals_leave_the_window() -> None:
    """After 30 s without arrivals the rate is 0; after a long time too."""
    window = ArrivalWindow(100.0)
    for _ in range(30):
        window.record(131.0)
    assert window.rate(131.0) == 1.0
    assert window.rate(160.8) == 1.0
    assert window.rate(161.0) == 0.0
    window.record(161.0)
    assert window.rate(1e6) == 0.0


def test_a_young_window_is_not_idle() -> None:
    """28/s for 5 s is 28/s, not 4.7/s; and one arrival at once is one a second."""
    window = ArrivalWindow(50.0)
    window.record(50.0)
    assert window.rate(50.0) == 1.0
    for number in range(1, 140):
        window.record(50.0 + number / 28)
    assert window.rate(55.0) == pytest.approx(28.0)


def test_a_clock_that_steps_back() -> None:
    """Arrivals are not lost, and nothing is negative."""
    window = ArrivalWindow(0.0)
    window.record(40.0)
    window.record(10.0)
    window.record(-5.0)
    assert window.rate(40.0) == pytest.approx(3 / 30)
    assert window.rate(-5.0) >= 0


@pytest.mark.parametrize(("window_s", "slots"), [(0, 3), (-1, 3), (math.nan, 3), (30, 0)])
def test_windows_that_cannot_be(window_s: float, slots: int) -> None:
    """No length or no slots is refused."""
    with pytest.raises(ValueError, match="must be positive"):
        ArrivalWindow(0.0, window_s=window_s, slots=slots)


@given(st.lists(st.floats(0, 200), max_size=80), st.floats(0, 60))
def test_against_a_list(times: list[float], wait: float) -> None:
    """The rate is that of the window, or of one that is a slot shorter, counted one by one."""
    times = sorted(times)
    window = ArrivalWindow(0.0)
    for now in times:
        window.record(now)
    now = (times[-1] if times else 0.0) + wait
    open_s = min(max(now, 1.0), 30.0)
    least = sum(t > now - 29.9 + 1e-6 for t in times)
    most = sum(t >= now - 30.0 - 1e-6 for t in times)
    assert least / open_s - 1e-9 <= window.rate(now) <= most / open_s + 1e-9
