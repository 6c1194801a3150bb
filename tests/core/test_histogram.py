"""`breakeven.histogram`: buckets as Prometheus counts them; quantiles with a stated error."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven import histogram
from breakeven.histogram import (
    Buckets,
    BucketSnapshot,
    LogLinearHistogram,
    p99_rank,
    with_bounds,
)

VALUES = st.floats(min_value=0, max_value=1e9, allow_nan=False, allow_infinity=False)
TIMES = st.floats(min_value=1e-6, max_value=1e6)


def test_a_bound_belongs_to_its_bucket() -> None:
    """le: a value equal to a bound is counted below it; what is above all goes to +Inf."""
    buckets = Buckets([1, 2, 5])
    for value in (0, 1, 1.5, 2, 2.0001, 5, 6, -1):
        buckets.observe(value)
    assert buckets.counts == [3, 2, 2, 1]
    assert buckets.snapshot() == BucketSnapshot((1, 2, 5), (3, 5, 7, 8), 16.5001)
    assert (buckets.count, buckets.snapshot().count) == (8, 8)


@pytest.mark.parametrize(
    "bounds", [[], [1, 1], [2, 1], [1, math.inf], [math.nan], [1, math.nan, 3]]
)
def test_bounds_must_rise(bounds: list[float]) -> None:
    """Bounds that are no bounds are refused, and named."""
    with pytest.raises(ValueError, match="must be finite and rise"):
        Buckets(bounds)


def test_a_nan_is_no_value() -> None:
    """It would fall into the first bucket and spoil the sum for ever."""
    buckets = Buckets([1, 2])
    with pytest.raises(ValueError, match="NaN"):
        buckets.observe(math.nan)
    assert (buckets.count, buckets.sum) == (0, 0)
    buckets.observe(math.inf)
    assert buckets.counts == [0, 0, 1]


def test_buckets_merge_only_with_their_like() -> None:
    """Counts and sums add; other bounds are refused."""
    one, two = Buckets([1, 2]), Buckets([1, 2])
    one.observe(0.5)
    two.observe(1.5)
    two.observe(9)
    one.merge(two)
    assert (one.counts, one.sum) == ([1, 1, 1], 11.0)
    with pytest.raises(ValueError, match="cannot merge"):
        one.merge(Buckets([1, 3]))


@given(st.lists(VALUES), st.lists(st.floats(-10, 1e6), min_size=1, max_size=30, unique=True))
def test_cumulative_counts(values: list[float], bounds: list[float]) -> None:
    """cumulative[i] is the number of values ≤ bounds[i], counted one by one."""
    buckets = Buckets(sorted(bounds))
    for value in values:
        buckets.observe(value)
    found = buckets.snapshot()
    assert list(found.cumulative[:-1]) == [sum(v <= b for v in values) for b in sorted(bounds)]
    assert found.count == len(values)


def test_with_bounds_adds_the_slo() -> None:
    """An SLO's bound becomes a bucket bound once, in its place."""
    assert with_bounds((0.1, 0.5, 1), (0.3,)) == (0.1, 0.3, 0.5, 1.0)
    assert with_bounds((0.1, 0.5), (0.5, 2)) == (0.1, 0.5, 2.0)
    assert with_bounds([1], []) == (1.0,)
    with pytest.raises(ValueError, match="finite"):
        with_bounds((0.1,), (math.inf,))


@pytest.mark.parametrize(
    "name", [name for name in vars(histogram) if name.endswith(("_BOUNDS", "_BOUNDS_S"))]
)
def test_the_catalogue_has_legal_bounds(name: str) -> None:
    """Each constant makes a histogram, and none has more than 25 buckets (series cost)."""
    bounds = getattr(histogram, name)
    Buckets(bounds)
    assert len(bounds) <= 25


@pytest.mark.parametrize(("n", "rank"), [(0, 0), (1, 1), (2, 2), (99, 99), (100, 99), (101, 100),
                                         (200, 198), (1000, 990), (1001, 991)])  # fmt: skip
def test_p99_rank(n: int, rank: int) -> None:
    """⌈0.99·n⌉ without the rounding of floats."""
    assert p99_rank(n) == rank


# Log-linear ---------------------------------------------------------------------------------


def filled(values: list[float], sub_buckets: int = 64) -> LogLinearHistogram:
    made = LogLinearHistogram(sub_buckets)
    for value in values:
        made.observe(value)
    return made


@given(st.lists(TIMES, min_size=1), st.floats(0, 1), st.sampled_from([1, 8, 64, 128]))
def test_quantile_error(values: list[float], q: float, sub_buckets: int) -> None:
    """A quantile is the nearest-rank value within 1 / (2 · sub_buckets), and inside the range."""
    made = filled(values, sub_buckets)
    exact = sorted(values)[max(1, math.ceil(q * len(values))) - 1]
    found = made.quantile(q)
    assert found is not None
    assert abs(found - exact) <= made.relative_error * exact * (1 + 1e-9)
    assert min(values) <= found <= max(values)


@given(st.lists(VALUES), st.lists(VALUES), st.lists(VALUES))
def test_merge_is_associative(a: list[float], b: list[float], c: list[float]) -> None:
    """(a + b) + c = a + (b + c) = all at once, in every count; sums to float rounding."""
    left = filled(a)
    left.merge(filled(b))
    left.merge(filled(c))
    tail = filled(b)
    tail.merge(filled(c))
    right = filled(a)
    right.merge(tail)
    whole = filled(a + b + c)
    for other in (right, whole):
        assert other.counts == left.counts
        assert (other.min, other.max) == (left.min, left.max)
        assert other.sum == pytest.approx(left.sum)


@given(st.lists(VALUES), st.lists(VALUES))
def test_merge_is_commutative(a: list[float], b: list[float]) -> None:
    """The order of shards does not matter."""
    one, two = filled(a), filled(b)
    one.merge(filled(b))
    two.merge(filled(a))
    assert (one.counts, one.quantile(0.5), one.quantile(1)) == (
        two.counts, two.quantile(0.5), two.quantile(1),
    )  # fmt: skip


def test_zero_is_exact() -> None:
    """Zero has its own bucket, below all others."""
    made = filled([0, 0, 0, 5])
    assert (made.quantile(0), made.quantile(0.75), made.quantile(1)) == (0, 0, 5)


def test_counts_by_weight() -> None:
    """A value may be observed many times at once."""
    made = LogLinearHistogram()
    made.observe(1.0, 99)
    made.observe(100.0)
    assert (made.count, made.sum, made.quantile(0.99)) == (100, 199.0, pytest.approx(1, rel=0.008))
    assert made.quantile(0.991) == 100


def test_empty_is_unknown() -> None:
    """No values, no quantile."""
    assert LogLinearHistogram().quantile(0.5) is None


@pytest.mark.parametrize("value", [-1e-9, math.nan, math.inf, -math.inf])
def test_values_that_cannot_be(value: float) -> None:
    """Negative, infinite and NaN values are refused."""
    with pytest.raises(ValueError, match="can be observed"):
        LogLinearHistogram().observe(value)


def test_bad_arguments() -> None:
    """Widths, counts and quantiles out of range are refused; so is a merge of two widths."""
    with pytest.raises(ValueError, match="sub_buckets"):
        LogLinearHistogram(0)
    with pytest.raises(ValueError, match="count"):
        LogLinearHistogram().observe(1, 0)
    with pytest.raises(ValueError, match="quantile"):
        filled([1]).quantile(1.1)
    with pytest.raises(ValueError, match="cannot merge"):
        LogLinearHistogram(8).merge(LogLinearHistogram(16))


@given(st.lists(VALUES))
def test_plain_numbers_and_back(values: list[float]) -> None:
    """A shard's histogram survives JSON."""
    made = filled(values)
    again = LogLinearHistogram.from_dict(json.loads(json.dumps(made.as_dict())))
    assert (again.counts, again.sum, again.min, again.max) == (
        made.counts, made.sum, made.min, made.max,
    )  # fmt: skip


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"sub_buckets": 64},
        {"sub_buckets": 64, "buckets": 3, "sum": 1},
        {"sub_buckets": None, "buckets": [], "sum": 0},
    ],
)
def test_what_is_no_histogram(values: dict[str, object]) -> None:
    """Another mapping is refused."""
    with pytest.raises(ValueError, match="not a log-linear histogram"):
        LogLinearHistogram.from_dict(values)
