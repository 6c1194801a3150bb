"""Histograms: fixed buckets for Prometheus, log-linear ones for quantiles that merge.

Here: counting and merging, and the bucket bounds of the metric catalogue. Not here: exposition
text and labels (each shell room's `metrics`).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

TTFT_BOUNDS_S = (
    0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75,
    1.0, 1.5, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0,
)  # fmt: skip
"""Time to first token: a warm small prompt (5 ms) to a queue of minutes."""
EVENT_GAP_BOUNDS_S = (
    0.00025, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04,
    0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
)  # fmt: skip
"""Gap between two events: below ε (2 ms) to see coalescing, fine where decode steps lie."""
BURST_GAP_BOUNDS_S = (
    0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1,
    0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
"""Gap between two bursts: what a user waits. vLLM's own first bucket (10 ms) is too coarse."""
BURST_TOKENS_BOUNDS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16, 24, 32, 64, 128, 256, 512, 1024)
"""Tokens per burst: every k + 1 in use has its own bucket; what lies above shows coalescing."""
TPOT_BOUNDS_S = (
    0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.008, 0.01, 0.0125, 0.015, 0.0175, 0.02, 0.025,
    0.03, 0.035, 0.04, 0.05, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0,
)  # fmt: skip
"""Time per output token: break-even is decided by a few tenths, so steps of about 1.25."""
DURATION_BOUNDS_S = (
    0.05, 0.1, 0.2, 0.4, 0.75, 1.0, 1.5, 2.5, 4.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0, 45.0,
    60.0, 90.0, 120.0, 180.0, 300.0, 600.0, 1200.0,
)  # fmt: skip
"""Whole request: an embedding-sized answer to a long reasoning one."""

SUB_BUCKETS = 64
"""Buckets an octave of `LogLinearHistogram`: relative error of a quantile at most 1/128."""


def p99_rank(n: int) -> int:
    """⌈0.99·n⌉ in integers: the rank of the nearest-rank p99 among n values (1-based)."""
    return (99 * n + 99) // 100


def with_bounds(bounds: Iterable[float], extra: Iterable[float]) -> tuple[float, ...]:
    """The bounds with those of an SLO added, sorted, each once: a share at the SLO is then exact.

    Raises:
        ValueError: a bound is not finite.
    """
    merged = tuple(sorted({float(bound) for bound in (*bounds, *extra)}))
    if not all(math.isfinite(bound) for bound in merged):
        raise ValueError(f"bucket bounds must be finite: {merged!r}")
    return merged


@dataclass(frozen=True, slots=True)
class BucketSnapshot:
    """A `Buckets` at one moment, as Prometheus writes it.

    `cumulative[i]` counts the values ≤ `bounds[i]`; its last entry, one more than there are
    bounds, is le="+Inf" and so the count of all.
    """

    bounds: tuple[float, ...]
    cumulative: tuple[int, ...]
    sum: float

    @property
    def count(self) -> int:
        return self.cumulative[-1]


class Buckets:
    """A classic Prometheus histogram in plain ints: 0.1 µs an observation.

    Args:
        bounds: upper bounds (each belongs to its own bucket, `le`), rising and finite.

    Raises:
        ValueError: the bounds are empty, not finite or do not rise.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(float(bound) for bound in bounds)
        rising = all(a < b for a, b in zip(self.bounds, self.bounds[1:], strict=False))
        if not self.bounds or not rising or not all(map(math.isfinite, self.bounds)):
            raise ValueError(f"bucket bounds must be finite and rise: {self.bounds!r}")
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value. A NaN is no value: it would go into a bucket and spoil the sum.

        Raises:
            ValueError: the value is NaN.
        """
        bucket = bisect_left(self.bounds, value)
        if not bucket and value != value:  # no comparison with a NaN holds: it falls into the first
            raise ValueError("a NaN cannot be observed")
        self.counts[bucket] += 1
        self.sum += value

    @property
    def count(self) -> int:
        return sum(self.counts)

    def merge(self, other: Buckets) -> None:
        """Add the counts of another histogram with the same bounds.

        Raises:
            ValueError: the bounds differ.
        """
        if self.bounds != other.bounds:
            raise ValueError(f"cannot merge buckets {other.bounds!r} into {self.bounds!r}")
        for index, count in enumerate(other.counts):
            self.counts[index] += count
        self.sum += other.sum

    def snapshot(self) -> BucketSnapshot:
        return BucketSnapshot(self.bounds, tuple(accumulate(self.counts)), self.sum)


class LogLinearHistogram:
    """Counts values ≥ 0 in buckets of equal relative width; quantiles merge across shards.

    Each octave [2^e, 2^(e+1)) is cut into `sub_buckets` equal parts (as HdrHistogram does), and a
    quantile is the middle of its bucket, so its relative error is at most 1 / (2 · sub_buckets)
    (0.79 % at 64). Zero has its own bucket. Memory: one int for each bucket in use. Merging adds
    ints, so it is exact, commutative and associative in the counts (`sum` to float rounding).

    Args:
        sub_buckets: parts an octave.
    """

    __slots__ = ("counts", "max", "min", "sub_buckets", "sum")

    def __init__(self, sub_buckets: int = SUB_BUCKETS) -> None:
        if sub_buckets < 1:
            raise ValueError(f"sub_buckets must be at least 1, not {sub_buckets!r}")
        self.sub_buckets = sub_buckets
        self.counts: dict[int | None, int] = {}  # bucket -> count; None is the bucket of zero
        self.sum = 0.0
        self.min = math.inf
        self.max = -math.inf

    @property
    def relative_error(self) -> float:
        """Largest |quantile − true value| ÷ true value."""
        return 1 / (2 * self.sub_buckets)

    @property
    def count(self) -> int:
        return sum(self.counts.values())

    def observe(self, value: float, count: int = 1) -> None:
        """Count a value `count` times.

        Raises:
            ValueError: the value is negative, infinite or NaN.
        """
        if not 0 <= value < math.inf:
            raise ValueError(f"only finite values ≥ 0 can be observed, not {value!r}")
        if count <= 0:
            raise ValueError(f"count must be positive, not {count!r}")
        bucket = self._bucket(value)
        self.counts[bucket] = self.counts.get(bucket, 0) + count
        self.sum += value * count
        self.min = min(self.min, value)
        self.max = max(self.max, value)

    def merge(self, other: LogLinearHistogram) -> None:
        """Add the counts of another histogram of the same width.

        Raises:
            ValueError: the widths differ.
        """
        if self.sub_buckets != other.sub_buckets:
            raise ValueError(f"cannot merge {other.sub_buckets} into {self.sub_buckets} an octave")
        for bucket, count in other.counts.items():
            self.counts[bucket] = self.counts.get(bucket, 0) + count
        self.sum += other.sum
        self.min = min(self.min, other.min)
        self.max = max(self.max, other.max)

    def quantile(self, q: float) -> float | None:
        """Nearest rank: the ⌈q·n⌉-th smallest value, to `relative_error`; None when empty.

        Raises:
            ValueError: q lies outside [0, 1].
        """
        if not 0 <= q <= 1:
            raise ValueError(f"a quantile lies in [0, 1], not {q!r}")
        total = self.count
        if total == 0:
            return None
        rank = max(1, math.ceil(q * total))
        for bucket, running in self._running():
            if running >= rank:
                return min(max(self._middle(bucket), self.min), self.max)
        return self.max  # pragma: no cover - the last running count is the total

    def as_dict(self) -> dict[str, object]:
        """Plain numbers, for JSON; `from_dict` reads them back."""
        buckets = [[bucket, count] for bucket, count in self.counts.items()]
        bounds = {"min": self.min, "max": self.max} if buckets else {}
        return {"sub_buckets": self.sub_buckets, "sum": self.sum, "buckets": buckets, **bounds}

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> LogLinearHistogram:
        """What `as_dict` wrote.

        Raises:
            ValueError: the mapping is not one of those.
        """
        try:
            made = cls(int(values["sub_buckets"]))  # type: ignore[call-overload]
            made.counts = {bucket: int(n) for bucket, n in values["buckets"]}  # type: ignore[attr-defined]
            made.sum = float(values["sum"])  # type: ignore[arg-type]
            made.min = float(values.get("min", math.inf))  # type: ignore[arg-type]
            made.max = float(values.get("max", -math.inf))  # type: ignore[arg-type]
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a log-linear histogram: {error}") from error
        return made

    def _bucket(self, value: float) -> int | None:
        if value == 0:
            return None
        mantissa, exponent = math.frexp(value)  # value = mantissa · 2^exponent, ½ ≤ mantissa < 1
        return exponent * self.sub_buckets + int((mantissa * 2 - 1) * self.sub_buckets)

    def _middle(self, bucket: int | None) -> float:
        if bucket is None:
            return 0.0
        exponent, part = divmod(bucket, self.sub_buckets)
        return math.ldexp(0.5 + (part + 0.5) / (2 * self.sub_buckets), exponent)

    def _running(self) -> Iterable[tuple[int | None, int]]:
        order = sorted(self.counts, key=lambda bucket: -math.inf if bucket is None else bucket)
        return zip(order, accumulate(self.counts[bucket] for bucket in order), strict=True)
