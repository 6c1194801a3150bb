"""The series of the proxy's metrics, bound once by arm, cohort and load, and initialised to 0.

Here: which children can occur. Not here: names (`metrics`), what is counted when (`meter`).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

from breakeven.histogram import (
    BURST_GAP_BOUNDS_S,
    BURST_TOKENS_BOUNDS,
    DURATION_BOUNDS_S,
    EVENT_GAP_BOUNDS_S,
    TPOT_BOUNDS_S,
    TTFT_BOUNDS_S,
    with_bounds,
)
from breakeven.load import LOAD_CLASSES, LoadClass
from breakeven.slo import SLO, Verdict
from breakeven.stream import GapSink
from breakeven_proxy.config import ProxySettings
from breakeven_proxy.observe.metrics import Cell, Metrics

VERDICTS: tuple[Verdict, ...] = tuple(
    verdict for verdict in Verdict if verdict not in {Verdict.DROPPED, Verdict.INTERRUPTED}
)
"""What the proxy can say of a request; the other two are the generator's."""

LENGTH_CLASSES = ((256, "le256"), (2048, "le2048"), (16384, "le16384"))
LENGTHS = (*(name for _, name in LENGTH_CLASSES), "gt16384", "unknown")
"""Classes of prompt and output lengths, tokens."""

MAX_ACCEPTED_LENGTH = 32
"""Accepted lengths above share the last label."""

OVERHEAD_BOUNDS_S = (
    0.00002, 0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0,
)  # fmt: skip

SOURCES = ("block", "stream")
UNREAD = ("encoding", "too_large", "content_type")


def bounds_of(
    slo: SLO, *, guard_ttft_s: float | None = None, guard_gap_s: float | None = None
) -> dict[str, tuple[float, ...]]:
    """Bucket bounds of the histogram families, with those of SLO and guard among them."""

    def extra(*bounds: float | None) -> list[float]:
        return [bound for bound in bounds if bound is not None]

    return {
        "ttft_seconds": with_bounds(TTFT_BOUNDS_S, extra(slo.ttft_s, guard_ttft_s)),
        "event_gap_seconds": with_bounds(EVENT_GAP_BOUNDS_S, extra(slo.gap_p99_s)),
        "burst_gap_seconds": with_bounds(BURST_GAP_BOUNDS_S, extra(slo.gap_p99_s, guard_gap_s)),
        "burst_tokens": tuple(float(bound) for bound in BURST_TOKENS_BOUNDS),
        "request_max_gap_seconds": with_bounds(BURST_GAP_BOUNDS_S, extra(slo.gap_p99_s)),
        "time_per_output_token_seconds": with_bounds(TPOT_BOUNDS_S, extra(slo.tpot_s)),
        "request_duration_seconds": with_bounds(DURATION_BOUNDS_S, extra(slo.e2e_s)),
        "overhead_seconds": OVERHEAD_BOUNDS_S,
        "event_loop_lag_seconds": OVERHEAD_BOUNDS_S,
    }


def settings_bounds(settings: ProxySettings) -> dict[str, tuple[float, ...]]:
    """The same for a configuration. Bounds stand until a restart: a reload that changes a guard
    limit to anything but a bound is refused (`reload.check_guard_limits`)."""
    guard = settings.routing.guard
    return bounds_of(
        settings.slo.slo(), guard_ttft_s=guard.ttft_p95_s, guard_gap_s=guard.gap_p99_s
    )  # fmt: skip


def length_class(tokens: int | None) -> str:
    """The label of a token count."""
    if tokens is None:
        return "unknown"
    for bound, name in LENGTH_CLASSES:
        if tokens <= bound:
            return name
    return "gt16384"


class CohortMeters:
    """The series of one arm and cohort, bound once."""

    def __init__(self, metrics: Metrics, arm: str, cohort: str) -> None:
        m = metrics
        self.arm = arm
        self.cohort = cohort
        self.ttft = m["ttft_seconds"].buckets(arm, cohort)
        self.max_gap = m["request_max_gap_seconds"].buckets(arm, cohort)
        self.tpot = m["time_per_output_token_seconds"].buckets(arm, cohort)
        self.duration = m["request_duration_seconds"].buckets(arm, cohort)
        self.sink = GapSink(
            m["event_gap_seconds"].buckets(arm, cohort),
            m["burst_gap_seconds"].buckets(arm, cohort),
            m["burst_tokens"].buckets(arm, cohort),
        )
        self.completion_tokens = m["completion_tokens_total"].cell(arm, cohort)
        self.prompt_tokens = m["prompt_tokens_total"].cell(arm, cohort)
        self.by_accepted = [
            m["spec_cycles_by_accepted_length_total"].cell(arm, cohort, _accepted_label(i))
            for i in range(MAX_ACCEPTED_LENGTH + 1)
        ]
        self.loads: dict[LoadClass, LoadMeters] = {
            load: LoadMeters(m, arm, cohort, load) for load in LOAD_CLASSES
        }


class LoadMeters:
    """The series of one arm, cohort and load."""

    def __init__(self, metrics: Metrics, arm: str, cohort: str, load: str) -> None:
        self.verdicts: dict[Verdict, Cell] = {
            verdict: metrics["requests_total"].cell(arm, cohort, load, verdict.value)
            for verdict in VERDICTS
        }
        self.decode_seconds = metrics["decode_seconds_total"].cell(arm, cohort, load)
        self.decode_tokens = metrics["decode_tokens_total"].cell(arm, cohort, load)
        self.spec: dict[str, tuple[Cell, Cell, Cell, Cell]] = {}
        for source in SOURCES:
            labels = (arm, cohort, load, source)
            self.spec[source] = (
                metrics["spec_cycles_total"].cell(*labels),
                metrics["spec_draft_tokens_total"].cell(*labels),
                metrics["spec_accepted_tokens_total"].cell(*labels),
                metrics["spec_committed_tokens_total"].cell(*labels),
            )


class ArmMeters:
    """The series of one arm."""

    def __init__(self, metrics: Metrics, arm: str, cohorts: Iterable[str]) -> None:
        m = metrics
        self.arm = arm
        self.cohorts = {cohort: CohortMeters(m, arm, cohort) for cohort in cohorts}
        self.merged_reads = m["merged_reads_total"].cell(arm)
        self.unobserved_gaps = m["unobserved_gaps_total"].cell(arm)
        self.backpressured = m["backpressured_requests_total"].cell(arm)
        self.overhead = m["overhead_seconds"].buckets(arm)
        self.token_known = {k: m["token_coverage_total"].cell(arm, _yes(k)) for k in (True, False)}
        self.usage_known = {k: m["usage_coverage_total"].cell(arm, _yes(k)) for k in (True, False)}
        self.spec_reports = {k: m["spec_reports_total"].cell(arm, _yes(k)) for k in (True, False)}
        self.unread = {why: m["unobserved_responses_total"].cell(arm, why) for why in UNREAD}
        self.by_length: dict[tuple[str, str, Verdict], Cell] = {
            key: m["requests_by_length_total"].cell(arm, key[0], key[1], key[2].value)
            for key in product(LENGTHS, LENGTHS, VERDICTS)
        }
        self.other = {
            code: m["other_requests_total"].cell(arm, code)
            for code in ("1xx", "2xx", "3xx", "4xx", "5xx", "none")
        }


def _accepted_label(length: int) -> str:
    return str(length) if length < MAX_ACCEPTED_LENGTH else f"{MAX_ACCEPTED_LENGTH}+"


def _yes(flag: bool) -> str:
    return "yes" if flag else "no"
