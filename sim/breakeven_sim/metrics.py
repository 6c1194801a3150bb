"""The engine's counters and its /metrics page in vLLM's names.

Plain numbers that the step loop adds to; a page is built when asked. Extra families are all named
`breakeven_sim_…`, so that nobody takes the page for a real engine's.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_1_0_0, generate_latest
from prometheus_client.metrics_core import Metric

from . import families
from .engine import SimEngine, Step
from .families import Family
from .kv import BLOCK_TOKENS
from .sequences import Emission, Sequence

CONTENT_TYPE = CONTENT_TYPE_PLAIN_1_0_0
_LAG_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Buckets:
    """A classic histogram: `bounds` upper bounds, counts per bucket, sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value (le semantics), `times` times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def cumulative(self) -> list[tuple[str, float]]:
        """(le, cumulative count) rows as the client library wants them."""
        rows: list[tuple[str, float]] = []
        seen = 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            seen += count
            rows.append((bound, seen))
        return rows


@dataclass(frozen=True, slots=True)
class Identity:
    """What the page says about the engine."""

    model: str
    preset: str
    draft: str
    k: int
    seed: int
    time_scale: float
    max_model_len: int
    version: str


class EngineMetrics:
    """Counters of one engine; a collector for the client library's registry."""

    def __init__(self, engine: SimEngine, identity: Identity, created: float) -> None:
        self._engine = engine
        self._identity = identity
        self._lengths = families.length_buckets(identity.max_model_len)
        self.per_position = [0.0] * engine.config.max_k
        self.lag = Buckets(_LAG_BUCKETS)
        self.max_lag_s = 0.0
        self.reset(created)

    def reset(self, created: float) -> None:
        """All counters to 0, as after a restart of the engine."""
        self._created = created
        self._counters: dict[tuple[str, str], float] = {}
        self._histograms: dict[str, Buckets] = {}
        for family in (*families.SPEC_DECODE, *families.ENGINE):
            if family.kind == "histogram":
                self._histograms[family.name] = Buckets(family.buckets or self._lengths)
            else:
                self._counters.update({(family.name, value): 0.0 for value in family.values})
        self._counters["vllm:engine_sleep_state", "awake"] = 1.0
        self.per_position = [0.0] * len(self.per_position)
        self._base_preemptions = self._engine.preemptions
        self._base_queries = self._engine.prefix_queries
        self._base_hits = self._engine.prefix_hits

    # -- what happened ----------------------------------------------------------------------------

    def add(self, name: str, amount: float, value: str = "") -> None:
        """Add to a counter of the table (KeyError for a name that is not in it)."""
        self._counters[name, value] += amount

    def observe(self, name: str, value: float, times: int = 1) -> None:
        """Observe into a histogram of the table."""
        self._histograms[name].observe(value, times)

    def on_step(self, step: Step, emissions: list[Emission]) -> None:
        """Book one step. Call before the emissions' sequences change any further.

        One inter-token sample per sequence and step after its first: (G − F)/S = M (README of the
        recordings, fact 10). Accepted tokens are counted before a stop cuts them off.
        """
        generated = drafts = drafted_tokens = accepted_tokens = 0
        positions = self.per_position
        gaps: dict[float, int] = {}
        for sequence, tokens, accepted, drafted in emissions:
            generated += tokens
            if sequence.output > tokens:
                gap = step.end_s - sequence.event_before_s
                gaps[gap] = gaps.get(gap, 0) + 1
            else:
                self._first_token(step, sequence)
            sequence.event_before_s = step.end_s
            if drafted:
                drafts += 1
                drafted_tokens += drafted
                accepted_tokens += accepted
                for position in range(accepted):
                    positions[position] += 1
        for gap, times in gaps.items():
            self.observe("vllm:inter_token_latency_seconds", gap, times)
        self.add("vllm:generation_tokens", generated)
        self.add("vllm:spec_decode_num_drafts", drafts)
        self.add("vllm:spec_decode_num_draft_tokens", drafted_tokens)
        self.add("vllm:spec_decode_num_accepted_tokens", accepted_tokens)
        self.observe("vllm:iteration_tokens_total", generated + step.prefill_tokens)

    def _first_token(self, step: Step, sequence: Sequence) -> None:
        self.observe("vllm:time_to_first_token_seconds", step.end_s - sequence.arrival_s)
        cached = sequence.cached_tokens
        self.add("vllm:prompt_tokens", sequence.prompt_tokens)
        self.add("vllm:prompt_tokens_by_source", sequence.prompt_tokens - cached, "local_compute")
        self.add("vllm:prompt_tokens_by_source", cached, "local_cache_hit")
        self.add("vllm:prompt_tokens_cached", cached)
        self.add("vllm:prompt_tokens_cached_by_source", cached, "device")

    def on_finish(self, sequence: Sequence, n: int, max_tokens: int | None) -> None:
        """Book a request that ended by itself; a client's abort is not counted, as in vLLM."""
        first, last = sequence.first_s, sequence.last_s
        if first is None or last is None or sequence.scheduled_s is None:
            return
        decode = last - first
        self.add("vllm:request_success", 1, sequence.finish or "error")
        self.observe("vllm:request_prompt_tokens", sequence.prompt_tokens)
        self.observe("vllm:request_generation_tokens", sequence.output)
        self.observe("vllm:request_max_num_generation_tokens", sequence.output)
        self.observe("vllm:request_params_n", n)
        if max_tokens is not None:
            self.observe("vllm:request_params_max_tokens", max_tokens)
        self.observe(
            "vllm:request_time_per_output_token_seconds", decode / max(sequence.output - 1, 1)
        )
        self.observe("vllm:e2e_request_latency_seconds", last - sequence.arrival_s)
        self.observe("vllm:request_queue_time_seconds", sequence.scheduled_s - sequence.arrival_s)
        self.observe("vllm:request_inference_time_seconds", last - sequence.scheduled_s)
        self.observe("vllm:request_prefill_time_seconds", first - sequence.scheduled_s)
        self.observe("vllm:request_decode_time_seconds", decode)
        self.observe("vllm:request_num_preemptions", sequence.preemptions)
        self.observe("vllm:request_prefill_kv_computed_tokens", sequence.computed_tokens)

    def on_lag(self, lag_s: float) -> None:
        """Book how late a step was delivered, real seconds."""
        self.lag.observe(max(lag_s, 0.0))
        self.max_lag_s = max(self.max_lag_s, lag_s)

    # -- the page ---------------------------------------------------------------------------------

    def collect(self) -> Iterator[Metric]:
        """The families in the order of the real page."""
        self._refresh()
        if self._engine.config.draft is not None:
            for family in families.SPEC_DECODE:
                yield self._scalar(family)
            yield self._per_position()
        for family in families.ENGINE:
            yield self._histogram(family) if family.kind == "histogram" else self._scalar(family)
        yield self._cache_config()
        yield from self._ours()

    def _refresh(self) -> None:
        engine, counters = self._engine, self._counters
        counters["vllm:num_requests_running", ""] = engine.running
        counters["vllm:num_requests_waiting", ""] = engine.waiting
        counters["vllm:num_requests_waiting_by_reason", "capacity"] = engine.waiting
        counters["vllm:kv_cache_usage_perc", ""] = engine.pool.usage
        counters["vllm:num_preemptions", ""] = engine.preemptions - self._base_preemptions
        counters["vllm:prefix_cache_queries", ""] = engine.prefix_queries - self._base_queries
        counters["vllm:prefix_cache_hits", ""] = engine.prefix_hits - self._base_hits

    def _labels(self, family: Family) -> list[str]:
        # Admission is counted in the API process, which knows no engine index.
        base = ["model_name"] if "admission" in family.name else ["model_name", "engine"]
        return [*base, *family.labels]

    def _label_values(self, family: Family, value: str) -> list[str]:
        base = [self._identity.model] + ([] if "admission" in family.name else ["0"])
        return [*base, *([value] if family.labels else [])]

    def _scalar(self, family: Family) -> Metric:
        labels = self._labels(family)
        if family.kind == "gauge":
            gauge = GaugeMetricFamily(family.name, family.help, labels=labels)
            for value in family.values:
                gauge.add_metric(
                    self._label_values(family, value), self._counters[family.name, value]
                )
            return gauge
        counter = CounterMetricFamily(family.name, family.help, labels=labels)
        for value in family.values:
            counter.add_metric(
                self._label_values(family, value),
                self._counters[family.name, value],
                created=self._created,
            )
        return counter

    def _per_position(self) -> Metric:
        family = families.SPEC_DECODE_PER_POSITION
        counter = CounterMetricFamily(family.name, family.help, labels=self._labels(family))
        for position, value in enumerate(self.per_position):
            counter.add_metric(
                self._label_values(family, str(position)), value, created=self._created
            )
        return counter

    def _histogram(self, family: Family) -> Metric:
        labels, values = self._labels(family), self._label_values(family, "")
        data = self._histograms[family.name]
        metric = HistogramMetricFamily(family.name, family.help, labels=labels)
        metric.add_metric(values, data.cumulative(), data.total)
        metric.add_sample(
            family.name + "_created", dict(zip(labels, values, strict=True)), self._created
        )
        return metric

    def _cache_config(self) -> Metric:
        engine = self._engine
        tokens = engine.pool.total * BLOCK_TOKENS
        labels = {
            **families.CACHE_CONFIG_LABELS,
            "enable_prefix_caching": str(engine.config.prefix_caching),
            "kv_cache_max_concurrency": f"{tokens / self._identity.max_model_len:.2f}",
            "kv_cache_size_tokens": str(tokens),
            "num_gpu_blocks": str(engine.pool.total),
        }
        name, text = families.CACHE_CONFIG
        gauge = GaugeMetricFamily(name, text, labels=list(labels))
        gauge.add_metric(list(labels.values()), 1)
        return gauge

    def _ours(self) -> Iterator[Metric]:
        identity = self._identity
        labels = {
            "simulated": "true",
            "preset": identity.preset,
            "draft": identity.draft,
            "k": str(identity.k),
            "seed": str(identity.seed),
            "time_scale": f"{identity.time_scale:g}",
            "version": identity.version,
        }
        info = GaugeMetricFamily(
            "breakeven_sim_info",
            "This page is of a simulated engine: its figures are no evidence.",
            labels=list(labels),
        )
        info.add_metric(list(labels.values()), 1)
        yield info
        lag = HistogramMetricFamily(
            "breakeven_sim_step_lag_seconds",
            "How late each step was delivered behind its model time, real seconds.",
        )
        lag.add_metric([], self.lag.cumulative(), self.lag.total)
        yield lag
        yield GaugeMetricFamily(
            "breakeven_sim_step_lag_max_seconds",
            "The largest step lag since the start, real seconds.",
            value=self.max_lag_s,
        )


def new_registry(*collectors: object) -> CollectorRegistry:
    """A registry with the process families that a real page starts with, then ours."""
    registry = CollectorRegistry()
    GCCollector(registry)
    PlatformCollector(registry)
    ProcessCollector(registry=registry)
    for collector in collectors:
        registry.register(collector)  # type: ignore[arg-type]
    return registry


def page(registry: CollectorRegistry) -> bytes:
    """The exposition text."""
    return generate_latest(registry)
