"""What traffic shows of an arm: signals of finished requests, counters for the guard."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from breakeven.guard import ArmCounters, Distribution
from breakeven.health import Signal
from breakeven.slo import SLO, Verdict
from breakeven_proxy.control.passive import counters_of, signal_of, unreachable_signal
from breakeven_proxy.observe.bound import ArmMeters, bounds_of
from breakeven_proxy.observe.metrics import Metrics
from breakeven_proxy.relay.seams import Close
from breakeven_wire import Failure, FailureKind, Phase

BROKE = Failure(FailureKind.RESET, Phase.BODY, "reset")


def metered(**fields: Any) -> Any:
    plain = {"close": Close.COMPLETE, "failure": None, "status": 200, "report": None}
    return SimpleNamespace(**(plain | fields))


@pytest.mark.parametrize(
    ("fields", "signal"),
    [
        ({}, Signal.ANSWERED),
        ({"status": 400}, Signal.ANSWERED),  # the client's fault
        ({"status": 429}, Signal.ANSWERED),  # busy is alive
        ({"status": 500}, Signal.FAULT),
        ({"status": 503}, Signal.FAULT),  # the engine's own; ours is Close.REFUSED
        ({"report": SimpleNamespace(error_frame=True)}, Signal.FAULT),
        ({"report": SimpleNamespace(error_frame=False)}, Signal.ANSWERED),
        ({"close": Close.BROKEN, "failure": BROKE}, Signal.FAULT),
        ({"close": Close.TIMEOUT, "failure": BROKE, "status": 504}, Signal.FAULT),
        ({"close": Close.TIMEOUT, "status": 408}, None),  # the client's upload stalled
        ({"close": Close.CANCELLED}, None),
        ({"close": Close.REFUSED, "status": 503}, None),
        ({"close": Close.BAD_REQUEST, "status": 413}, None),
    ],
)
def test_what_a_request_says(fields: dict[str, Any], signal: Signal | None) -> None:
    """Only what is certainly the engine's fault speaks against it."""
    assert signal_of(metered(**fields)) is signal


@pytest.mark.parametrize(
    ("kind", "signal"),
    [
        (FailureKind.REFUSED, Signal.NOT_READY),
        (FailureKind.TIMEOUT, Signal.NOT_READY),
        (FailureKind.TLS, Signal.NOT_READY),
        (FailureKind.UNREACHABLE, Signal.FAULT),  # may be our own descriptors
    ],
)
def test_what_a_missing_connection_says(kind: FailureKind, signal: Signal) -> None:
    """Nobody listens: at once. What may be our own want takes several."""
    assert unreachable_signal(Failure(kind, Phase.CONNECT, "")) is signal


def test_counters_are_sums_over_cohorts_and_loads() -> None:
    """Good, slow, errors, rejected and cancelled, in two cohorts and loads; gaps in both."""
    meters = ArmMeters(Metrics(bounds_of(SLO(ttft_s=0.33))), "a", ["x", "y"])
    x, y = meters.cohorts["x"], meters.cohorts["y"]
    for verdict, count in (
        (Verdict.GOOD, 5), (Verdict.SLOW_GAP, 2), (Verdict.ERROR, 1), (Verdict.CANCELLED, 9),
    ):  # fmt: skip
        x.loads["low"].verdicts[verdict].inc(count)
    y.loads["peak"].verdicts[Verdict.TRUNCATED].inc(3)
    y.loads["peak"].verdicts[Verdict.REJECTED].inc(4)
    x.ttft.observe(0.33)
    y.ttft.observe(0.34)
    x.sink.burst_gaps.observe(0.05)
    found = counters_of(meters, overdue=7)
    # 5 + 2 + 1 + 3 + 4; cancelled is not judged, rejected is but is no error
    assert (found.requests, found.errors, found.good, found.overdue) == (15, 4, 5, 7)
    assert found.ttft.total == 2
    assert found.ttft.above(0.33) == 1
    assert found.gaps.total == 1


def test_an_arm_without_cohorts_has_no_counts() -> None:
    """Nothing observed is an empty distribution."""
    meters = ArmMeters(Metrics(bounds_of(SLO())), "a", [])
    assert counters_of(meters, 0) == ArmCounters(ttft=Distribution(), gaps=Distribution())
