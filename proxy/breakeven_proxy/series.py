"""How many series a configuration can make: counted on the real table, not estimated."""

from __future__ import annotations

from breakeven_proxy.config import ProxySettings
from breakeven_proxy.observe.bound import bounds_of
from breakeven_proxy.observe.meter import Meter
from breakeven_proxy.observe.metrics import Metrics

LATE_SERIES_PER_ARM = 64
"""Series of an arm that appear with what happens: failures by kind and phase, schema, identity."""

LATE_SERIES = 32
"""The same for the process: bad requests by code, label overflow."""


def series_of(settings: ProxySettings) -> int:
    """Upper bound of the samples on /metrics."""
    metrics = Metrics(bounds_of(settings.slo.slo()))
    Meter(metrics, settings.slo.slo(), settings.epsilon_s, settings.arms, list(settings.cohorts))
    return metrics.series() + LATE_SERIES_PER_ARM * len(settings.arms) + LATE_SERIES
