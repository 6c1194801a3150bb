"""The one table of the proxy's metrics: names, labels, help; and the values behind them.

Values are plain ints, floats and `Buckets`, bound once by their labels: an observation costs
about 0.1 µs where a client library's costs 0.7. `Metrics` is a custom collector of
prometheus_client; `page` renders it in slices and yields to the loop between them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from breakeven.histogram import Buckets

PREFIX = "breakeven_"

SLICE_SAMPLES = 40
"""Samples rendered between two yields to the loop, one histogram at least: about 0.4 ms."""


@dataclass(frozen=True, slots=True)
class Spec:
    """A family: its kind, its label names and its help."""

    kind: str
    labels: tuple[str, ...]
    help: str


def _table(text: str) -> dict[str, Spec]:
    """NAME | KIND | LABELS | HELP, a row a line."""
    specs: dict[str, Spec] = {}
    for line in text.strip().splitlines():
        name, kind, labels, words = (part.strip() for part in line.split("|", 3))
        if kind not in KINDS or name in specs or not words:
            raise ValueError(f"metric table: {line!r}")
        specs[name] = Spec(kind, tuple(labels.split()), words)
    return specs


KINDS = {"counter", "gauge", "histogram"}

SPECS = _table(
    """
build_info | gauge | version | Always 1.
config_info | gauge | stamps token_counts routing | Always 1.
arm_info | gauge | arm role | Always 1.
arm_exclusive | gauge | arm | 1: all of the arm's traffic comes through here.
slo_objective | gauge | | Share of responses that the SLO wants good.
slo_threshold_seconds | gauge | kind | Bounds of the SLO.
epsilon_seconds | gauge | | Events closer than this are one burst.
replicas | gauge | arm | Replicas behind the arm's URL.
load_class_max_requests_per_second | gauge | load | Upper bound of a load class, per replica.
requests_total | counter | arm cohort load verdict | Metered requests by their one verdict.
requests_by_length_total | counter | arm prompt_class output_class verdict | Same, by token counts.
other_requests_total | counter | arm code_class | Requests to paths that are not metered.
bad_requests_total | counter | code | Requests that were no valid HTTP, by our answer.
ttft_seconds | histogram | arm cohort | Complete request head to first event with a token.
event_gap_seconds | histogram | arm cohort | Gap between two timed points of a stream.
burst_gap_seconds | histogram | arm cohort | End of a burst to the first event of the next.
burst_tokens | histogram | arm cohort | Tokens per fully observed burst.
request_max_gap_seconds | histogram | arm cohort | Longest burst gap of a stream.
time_per_output_token_seconds | histogram | arm cohort | Decode time per token, per request.
request_duration_seconds | histogram | arm cohort | Complete request head to response's end.
decode_seconds_total | counter | arm cohort load | First to last event, where counts are known.
decode_tokens_total | counter | arm cohort load | Their tokens after the first event.
completion_tokens_total | counter | arm cohort | Completion tokens, where known.
prompt_tokens_total | counter | arm cohort | Prompt tokens, where stated.
spec_cycles_total | counter | arm cohort load source | Verification cycles.
spec_draft_tokens_total | counter | arm cohort load source | Draft tokens proposed.
spec_accepted_tokens_total | counter | arm cohort load source | Draft tokens accepted.
spec_committed_tokens_total | counter | arm cohort load source | Tokens committed in those cycles.
spec_cycles_by_accepted_length_total | counter | arm cohort accepted_length | Drafted cycles.
spec_reports_total | counter | arm present | Responses with or without a speculation block.
merged_reads_total | counter | arm | Reads that held several events of one stream.
unobserved_gaps_total | counter | arm | Gaps in no statistic: merged reads, pauses, clock steps.
token_coverage_total | counter | arm known | Events whose token count is known or not.
usage_coverage_total | counter | arm known | Responses whose token total is known or not.
backpressured_requests_total | counter | arm | Requests whose client was slow to read.
unobserved_responses_total | counter | arm reason | Metered responses that could not be read.
unstamped_reads_total | counter | arm | Reads without a kernel stamp although those are in use.
clock_steps_total | counter | arm | Steps of the realtime clock noticed.
stamps_info | gauge | arm stamps | 1 for the stamps in use.
upstream_retries_total | counter | arm | Requests sent again after a stale keep-alive connection.
upstream_failures_total | counter | arm kind phase | Exchanges that failed.
upstream_connections | gauge | arm | Open connections to the engine.
upstream_up | gauge | arm | Whether the engine's /health answers.
upstream_identity_ok | gauge | arm check | Whether an arm is what the configuration claims.
inflight_requests | gauge | arm | Admitted requests in the relay.
queued_requests | gauge | arm | Requests that wait for a place.
rejections_total | counter | arm reason | Requests refused with 429 or 503.
arrival_rate | gauge | arm | Arrivals per second and replica over 30 s.
client_connections | gauge | | Client connections.
config_reloads_total | counter | result | Configurations read again on SIGHUP: ok or refused.
config_last_reload_successful | gauge | | 0 while the newest configuration on disk was refused.
route_state | gauge | arm state | 1 for the state a candidate is in; only serving gets requests.
route_transitions_total | counter | arm reason | Changes of a candidate's state.
route_share | gauge | arm | Share of the steered requests that the arm gets while it serves.
route_load_requests_per_second | gauge | | Mean load that load_aware compares, per replica.
route_threshold_requests_per_second | gauge | bound | Its thresholds.
route_diverted_total | counter | arm | Requests moved to another arm: no connection could be made.
route_errors_total | counter | | Faults of the steering itself; the baseline served.
simulated_evidence_allowed | gauge | | 1: a certificate of simulated origin may steer traffic.
overhead_seconds | histogram | arm | Request whole here to request with the engine.
event_loop_lag_seconds | histogram | | Lateness of a timer that is due every 100 ms.
telemetry_errors_total | counter | | Observations that failed; the streams went on.
label_overflow_total | counter | label | Values that had no label of their own.
recorded_arrivals_total | counter | result | Arrivals written to the redacted trace, or dropped.
spans_total | counter | result | Spans recorded or dropped.
scrape_seconds | gauge | | How long the last page took.
draining | gauge | | 1 after SIGTERM.
engine_schema_info | gauge | arm engine version schema | What was found on the arm's /metrics.
engine_scrapes_total | counter | arm result | Readings of the arm's /metrics.
engine_resets_total | counter | arm | Counter resets seen: the engine restarted.
fleet_cost_usd_per_second | gauge | arm | Configured cost of the arm's fleet.
certificate_info | gauge | evidence | 1 when a certificate is loaded.
certificate_expires_timestamp_seconds | gauge | | When it expires.
certified_baseline_seconds_per_token | gauge | cohort load | Frozen baseline's.
certified_baseline_gap_p99_seconds | gauge | cohort load | Frozen baseline's.
certified_baseline_ttft_p95_seconds | gauge | cohort load | Frozen baseline's.
certified_baseline_cost_per_good_usd | gauge | cohort load | Frozen baseline's.
certified_range_requests_per_second | gauge | bound | Proven load range, per replica.
certified_rollback_headroom_rps | gauge | | Rate that the baseline is certified to take over.
"""
)


class Cell:
    """One number of one series."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1) -> None:
        """Adds to it."""
        self.value += amount


Sample = tuple[str, tuple[str, ...], float]


class Family:
    """One family's series; `cell` and `buckets` bind a series and keep it."""

    def __init__(self, name: str, spec: Spec, bounds: Sequence[float] | None = None) -> None:
        self.name = PREFIX + name
        self.spec = spec
        self._bounds = bounds
        self.cells: dict[tuple[str, ...], Cell] = {}
        self.histograms: dict[tuple[str, ...], Buckets] = {}

    def cell(self, *labels: str) -> Cell:
        """The counter or gauge with these label values."""
        found = self.cells.get(labels)
        if found is None:
            self._check(labels)
            found = self.cells[labels] = Cell()
        return found

    def set(self, value: float, *labels: str) -> None:
        """Sets a gauge (or a counter that mirrors somebody else's count)."""
        self.cell(*labels).value = value

    def remove(self, *labels: str) -> None:
        """Takes a gauge's series off the page."""
        self.cells.pop(labels, None)

    def buckets(self, *labels: str) -> Buckets:
        """The histogram with these label values."""
        found = self.histograms.get(labels)
        if found is None:
            self._check(labels)
            assert self._bounds is not None
            found = self.histograms[labels] = Buckets(self._bounds)
        return found

    def _check(self, labels: tuple[str, ...]) -> None:
        if len(labels) != len(self.spec.labels):
            raise ValueError(f"{self.name} has labels {self.spec.labels}, got {labels}")

    def series(self) -> int:
        """How many samples a page shows of it now."""
        bounds = len(self._bounds or ())
        return len(self.cells) + len(self.histograms) * (bounds + 3)

    def slices(self) -> Iterator[Metric]:
        """The family as metrics of at most about `SLICE_SAMPLES` samples."""
        metric, count = self._metric(), 0
        for labels, cell in list(self.cells.items()):
            metric.add_sample(
                self.name, dict(zip(self.spec.labels, labels, strict=True)), cell.value
            )
            count += 1
            if count >= SLICE_SAMPLES:
                yield metric
                metric, count = self._metric(), 0
        for labels, buckets in list(self.histograms.items()):
            named = dict(zip(self.spec.labels, labels, strict=True))
            shot = buckets.snapshot()
            for bound, value in zip((*shot.bounds, float("inf")), shot.cumulative, strict=True):
                le = {"le": _bound(bound)}
                metric.add_sample(f"{self.name}_bucket", named | le, value)
            metric.add_sample(f"{self.name}_sum", named, shot.sum)
            metric.add_sample(f"{self.name}_count", named, shot.count)
            count += len(shot.cumulative) + 2
            if count >= SLICE_SAMPLES:
                yield metric
                metric, count = self._metric(), 0
        if metric.samples:
            yield metric

    def _metric(self) -> Metric:
        # A counter's samples carry _total in the table already; Metric would add nothing.
        name = self.name.removesuffix("_total") if self.spec.kind == "counter" else self.name
        return Metric(name, self.spec.help, self.spec.kind)


class Metrics(Collector):
    """All families. `before_page` hooks fill gauges that are read, not counted.

    Args:
        bounds: bucket bounds of each histogram family of `SPECS`.
    """

    def __init__(self, bounds: Mapping[str, Sequence[float]]) -> None:
        self.families = {
            name: Family(name, spec, bounds[name] if spec.kind == "histogram" else None)
            for name, spec in SPECS.items()
        }
        self.before_page: list[Callable[[], None]] = []
        self.extra: list[Callable[[], Iterable[Metric]]] = []
        """Families whose names are not ours: normalised engine counters, process figures."""

    def __getitem__(self, name: str) -> Family:
        return self.families[name]

    def series(self) -> int:
        """Samples of our own families on a page now."""
        return sum(family.series() for family in self.families.values())

    def collect(self) -> Iterator[Metric]:
        """For a prometheus_client registry: every family, in one go."""
        for hook in self.before_page:
            hook()
        for family in self.families.values():
            yield from family.slices()
        for source in self.extra:
            yield from source()

    async def page(self) -> bytes:
        """The exposition text, built slice by slice with the loop free in between."""
        parts: list[bytes] = []
        last = ""
        for metric in self.collect():
            text = generate_latest(_One(metric))
            if metric.name == last:  # a later slice of the same family: no second HELP and TYPE
                text = b"".join(
                    line for line in text.splitlines(keepends=True) if not line.startswith(b"#")
                )
            last = metric.name
            parts.append(text)
            await asyncio.sleep(0)
        return b"".join(parts)


def _bound(value: float) -> str:
    """The le label as Prometheus' clients write it."""
    return "+Inf" if value == float("inf") else repr(value)


class _One(CollectorRegistry):
    """A registry of one metric, for the library's renderer."""

    def __init__(self, metric: Metric) -> None:
        super().__init__(auto_describe=False)
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self._metric
