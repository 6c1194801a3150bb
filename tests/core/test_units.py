"""Durations and rates: units in, seconds inside, nothing that is no number."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.errors import InputError
from breakeven.units import format_duration, parse_duration, parse_rate


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("2s", 2.0),
        ("3", 3.0),
        (3, 3.0),
        (0.25, 0.25),
        (" 1.5 m ", 90.0),
        ("2h", 7200.0),
        ("250us", 250e-6),
        ("250µs", 250e-6),
        ("1e-3s", 1e-3),
        (".5s", 0.5),
        ("0", 0.0),
    ],
)
def test_durations_take_units_and_bare_seconds(text: str | float, seconds: float) -> None:
    """A bare number is seconds."""
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text",
    [
        "nan",
        "inf",
        "-1s",
        "5 parsecs",
        "",
        "ms",
        "1s2",
        "1_0",
        float("nan"),
        float("inf"),
        -1,
        True,
    ],
)
def test_bad_durations_name_the_value_and_the_mend(text: str | float) -> None:
    """NaN, infinity, negatives and unknown units are refused."""
    with pytest.raises(InputError) as caught:
        parse_duration(text)
    assert repr(text) in str(caught.value) or str(text) in str(caught.value)
    assert caught.value.mend


@pytest.mark.parametrize("text", ["0", "-2", "nan", "inf", "fast", 0, -1.0, float("nan"), False])
def test_rates_must_be_finite_and_above_zero(text: str | float) -> None:
    """A zero rate never ends."""
    with pytest.raises(InputError):
        parse_rate(text)


def test_rates_are_arrivals_per_second() -> None:
    """Text and numbers alike."""
    assert parse_rate("8") == parse_rate(8) == 8.0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.00649093, "6.49 ms"),
        (0.5, "500 ms"),
        (1.0, "1 s"),
        (90, "90 s"),
        (240, "4 min"),
        (7200, "2 h"),
        (2.5e-5, "25 µs"),
        (3e-9, "3 ns"),
        (0, "0 s"),
        (-0.012, "-12 ms"),
    ],
)
def test_printing_chooses_the_unit_that_reads_best(seconds: float, text: str) -> None:
    """Three significant digits."""
    assert format_duration(seconds) == text


@given(st.floats(min_value=1e-8, max_value=1e6))
def test_print_and_parse_agree_to_three_digits(seconds: float) -> None:
    """What is printed can be read back."""
    assert parse_duration(format_duration(seconds).replace(" ", "")) == pytest.approx(
        seconds, rel=6e-3
    )
