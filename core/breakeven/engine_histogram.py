"""A histogram of an engine's page: summed over engines, subtracted, read for quantiles.

Here: what classic Prometheus buckets can prove. Not here: our own histograms (histogram).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .errors import SchemaError
from .exposition import Sample


@dataclass(frozen=True, slots=True)
class EngineHistogram:
    """A Prometheus histogram summed over engines.

    Attributes:
        count: samples.
        total: sum of the samples, in the family's unit (seconds but for iteration_tokens).
        bounds: upper bounds, ascending, the last is inf; empty where the engines' bounds differ.
        cumulative: samples <= bound, one per bound.
    """

    count: float
    total: float
    bounds: tuple[float, ...] = ()
    cumulative: tuple[float, ...] = ()

    def minus(self, earlier: EngineHistogram) -> EngineHistogram:
        """The samples that came between; bounds are dropped if they changed."""
        same = self.bounds == earlier.bounds
        pairs = zip(self.cumulative, earlier.cumulative, strict=True) if same else ()
        return EngineHistogram(
            self.count - earlier.count,
            self.total - earlier.total,
            self.bounds if same else (),
            tuple(now - then for now, then in pairs),
        )

    def mean(self) -> float | None:
        """Mean of the samples; None without any."""
        return self.total / self.count if self.count > 0 else None

    def quantile_bracket(self, q: float) -> tuple[float, float] | None:
        """The bucket (low, high] that holds the q-quantile; None without samples or buckets.

        All that buckets can prove: high is inf where the quantile lies above the last bound.
        """
        if self.count <= 0 or not self.bounds:
            return None
        rank = q * self.count
        low = 0.0
        for bound, below in zip(self.bounds, self.cumulative, strict=True):
            if below >= rank:
                return low, bound
            low = bound
        return low, float("inf")

    def quantile(self, q: float) -> float | None:
        """The q-quantile by linear interpolation inside its bucket, as Prometheus does.

        None without samples, and None where it lies above the last finite bound: the page cannot
        tell how far, and that bound would be a made-up number.
        """
        bracket = self.quantile_bracket(q)
        if bracket is None or bracket[1] == float("inf"):
            return None
        low, high = bracket
        index = self.bounds.index(high)
        before = self.cumulative[index - 1] if index else 0.0
        inside = self.cumulative[index] - before
        return low + (high - low) * ((q * self.count - before) / inside if inside > 0 else 1.0)


def summed_histogram(name: str, by_name: Mapping[str, list[Sample]]) -> EngineHistogram:
    """The family `name`, summed over its label sets; its _count and _sum must be there."""
    bounds, cumulative = _buckets(by_name.get(f"{name}_bucket", []))
    return EngineHistogram(
        sum(s.value for s in by_name[f"{name}_count"]),
        sum(s.value for s in by_name[f"{name}_sum"]),
        bounds,
        cumulative,
    )


def _bound(sample: Sample) -> float:
    try:
        bound = float(sample.labels.get("le", ""))
    except ValueError:
        bound = float("nan")
    if bound != bound:
        raise SchemaError(f"{sample.name}: the label le is no number")
    return bound


def _buckets(samples: Iterable[Sample]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Sum the buckets of all label sets; nothing when their bounds differ."""
    series: dict[frozenset[tuple[str, str]], dict[float, float]] = {}
    for sample in samples:
        rest = frozenset(item for item in sample.labels.items() if item[0] != "le")
        series.setdefault(rest, {})[_bound(sample)] = sample.value
    if not series or len({tuple(sorted(one)) for one in series.values()}) != 1:
        return (), ()
    bounds = tuple(sorted(next(iter(series.values()))))
    return bounds, tuple(sum(one[bound] for one in series.values()) for bound in bounds)
