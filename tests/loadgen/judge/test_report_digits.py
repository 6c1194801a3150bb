"""Figures on the grid's page, as people read them."""

from __future__ import annotations

import pytest

from breakeven_loadgen.judge import report_html


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0421, "0.0421"), (7.0, "7"), (49.44, "49.4"), (221.3, "221"), (2854.0, "2,854"),
     (123456.7, "123,457")],
)  # fmt: skip
def test_three_digits_and_no_exponent(value: float, shown: str) -> None:
    """Milliseconds above a thousand are written out."""
    assert report_html._digits(value) == shown
