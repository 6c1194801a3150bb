"""How many series a configuration can make: counted on the real table, not estimated."""

from __future__ import annotations

from breakeven.load import LOAD_CLASSES
from breakeven_proxy.config import ProxySettings
from breakeven_proxy.observe.bound import settings_bounds
from breakeven_proxy.observe.meter import Meter
from breakeven_proxy.observe.metrics import Metrics

LATE_SERIES_PER_ARM = 256
"""Series of an arm that appear with what happens: failed exchanges by kind and phase (28), the
engine's counters and gauges by our names (about 70), accepted tokens by position, schema,
identity, stamps, route states and transitions by reason."""

LATE_SERIES = 64
"""The same for the process: bad requests by code, label overflow, recorder, spans, process_*."""

FROZEN_FIGURES = 4
"""Figures of a certificate's baseline, by cohort and load."""


def series_of(settings: ProxySettings) -> int:
    """Upper bound of the samples on /metrics."""
    metrics = Metrics(settings_bounds(settings))
    Meter(metrics, settings.slo.slo(), settings.epsilon_s, settings.arms, list(settings.cohorts))
    frozen = FROZEN_FIGURES * len(LOAD_CLASSES) * (len(settings.cohorts) + 1)
    late = LATE_SERIES_PER_ARM * len(settings.arms) + LATE_SERIES
    return metrics.series() + frozen + late
