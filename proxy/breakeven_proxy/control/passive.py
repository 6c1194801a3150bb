"""What the traffic itself shows of an arm: health signals and the guard's counters.

Here: reading what `observe` metered. Not here: probes, thresholds, consequences.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from breakeven.guard import ArmCounters, Distribution
from breakeven.health import Signal
from breakeven.histogram import Buckets
from breakeven.slo import OUTSIDE_GOODPUT, Verdict
from breakeven_proxy.observe.bound import ArmMeters
from breakeven_proxy.observe.meter import Metered
from breakeven_proxy.relay.seams import Close
from breakeven_wire import Failure, FailureKind

ERRORS = (Verdict.ERROR, Verdict.TIMEOUT, Verdict.TRUNCATED, Verdict.MALFORMED)
"""Verdicts of the guard's error share. Slow is goodput's matter; rejected is busy, not broken."""

UNREACHABLE = (FailureKind.REFUSED, FailureKind.TLS, FailureKind.TIMEOUT)
"""No connection, by the engine's fault for certain: down at once. What else hinders a connection
(no descriptor left, no route) may be ours, so it takes several in a row."""


def signal_of(metered: Metered) -> Signal | None:
    """What a finished request says of its engine's health; None: nothing."""
    if metered.close in (Close.CANCELLED, Close.REFUSED, Close.BAD_REQUEST):
        return None
    if metered.failure is not None:
        return Signal.FAULT
    if metered.close is Close.TIMEOUT:
        return None  # the client's own upload stalled
    report = metered.report
    if (metered.status or 500) >= 500 or (report is not None and report.error_frame):
        return Signal.FAULT
    return Signal.ANSWERED


def unreachable_signal(failure: Failure) -> Signal:
    """What a connection that could not be made says."""
    return Signal.NOT_READY if failure.kind in UNREACHABLE else Signal.FAULT


def counters_of(arm: ArmMeters, overdue: int) -> ArmCounters:
    """An arm's cumulative counts over its cohorts and loads."""
    requests = errors = good = 0
    for cohort in arm.cohorts.values():
        for load in cohort.loads.values():
            for verdict, cell in load.verdicts.items():
                count = int(cell.value)
                requests += 0 if verdict in OUTSIDE_GOODPUT else count
                errors += count if verdict in ERRORS else 0
                good += count if verdict is Verdict.GOOD else 0
    cohorts = arm.cohorts.values()
    return ArmCounters(
        requests=requests,
        errors=errors,
        good=good,
        ttft=_summed(cohort.ttft for cohort in cohorts),
        gaps=_summed(cohort.sink.burst_gaps for cohort in cohorts),
        overdue=overdue,
    )


def _summed(many: Iterable[Buckets]) -> Distribution:
    found = list(many)
    if not found:
        return Distribution()
    columns: Iterable[Sequence[int]] = zip(*(buckets.counts for buckets in found), strict=True)
    return Distribution(found[0].bounds, tuple(sum(column) for column in columns))
