"""What classic buckets can prove about a quantile, and what they cannot."""

from __future__ import annotations

import math

import pytest

from breakeven.engine_histogram import EngineHistogram, summed_histogram
from breakeven.exposition import parse_page

# 10 samples: 2 in (0, 1], 6 in (1, 2], 2 above 2.
H = EngineHistogram(10, 17.0, (1.0, 2.0, math.inf), (2, 8, 10))


@pytest.mark.parametrize(
    ("q", "value"),
    [
        (0.1, 0.5),  # rank 1 of the 2 below 1
        (0.2, 1.0),
        (0.5, 1.5),  # rank 5: 3 of 6 into (1, 2]
        (0.8, 2.0),
        (0.9, None),  # above the last finite bound: the page cannot tell
    ],
)
def test_quantiles_interpolate_inside_the_bucket(q: float, value: float | None) -> None:
    """As Prometheus' histogram_quantile, except that an open end stays unknown."""
    assert H.quantile(q) == (None if value is None else pytest.approx(value))


def test_the_bracket_is_what_buckets_prove() -> None:
    """An open end is shown as such."""
    assert H.quantile_bracket(0.5) == (1.0, 2.0)
    assert H.quantile_bracket(0.95) == (2.0, math.inf)


def test_nothing_observed_has_no_mean_and_no_quantile() -> None:
    """None, never 0."""
    empty = EngineHistogram(0, 0.0, (1.0, math.inf), (0, 0))
    assert empty.mean() is None
    assert empty.quantile(0.5) is None
    assert H.mean() == pytest.approx(1.7)


def test_a_difference_keeps_buckets_only_if_their_bounds_are_the_same() -> None:
    """Bounds change with --custom-histogram-buckets; counts and sums stay right."""
    late = EngineHistogram(15, 25.0, (1.0, 2.0, math.inf), (3, 12, 15))
    assert late.minus(H) == EngineHistogram(5, 8.0, (1.0, 2.0, math.inf), (1, 4, 5))
    assert EngineHistogram(15, 25.0, (1.0, math.inf), (3, 15)).minus(H).bounds == ()


PAGE = """
x_bucket{engine="0",le="1"} 1
x_bucket{engine="0",le="+Inf"} 2
x_sum{engine="0"} 3
x_count{engine="0"} 2
x_bucket{engine="1",le="1"} 4
x_bucket{engine="1",le="%s"} 5
x_sum{engine="1"} 6
x_count{engine="1"} 5
"""


def summed(text: str) -> EngineHistogram:
    page = parse_page(text)
    return summed_histogram("x", {name: page.named(name) for name in page.names})


def test_engines_are_summed_bucket_by_bucket() -> None:
    """Data parallel has several engines on one page."""
    assert summed(PAGE % "+Inf") == EngineHistogram(7, 9.0, (1.0, math.inf), (5, 7))


def test_engines_with_different_bounds_have_no_common_buckets() -> None:
    """Their counts and sums are still right."""
    assert summed(PAGE % "2") == EngineHistogram(7, 9.0)
