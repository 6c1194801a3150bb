"""Health of an arm: what probes and traffic showed, folded into up or down with hysteresis.

Here: the state table. Not here: who probes, and what a signal means on the wire (the proxy's
`control`), and what follows from an arm being down (`routing`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum


class Health(StrEnum):
    """UNKNOWN until the first signal: a candidate gets no traffic then, the baseline does."""

    UNKNOWN = "unknown"
    UP = "up"
    DOWN = "down"


class Signal(StrEnum):
    """One thing that was seen of an arm."""

    READY = "ready"  # active: /health answers 200 and /v1/models names the model
    PROBE_FAILED = "probe_failed"  # active: late or odd; may be a hiccup
    NOT_READY = "not_ready"  # either: nobody listens, or the engine itself says not ready
    ANSWERED = "answered"  # passive: a response that is no fault of the engine
    FAULT = "fault"  # passive: 5xx, broken connection, error frame after 200


@dataclass(frozen=True, slots=True)
class HealthRules:
    """Hysteresis: quick to leave, slow to come back.

    `fail_after` faults (or failed probes) in a row take an arm down; NOT_READY does at once.
    `rise_after` good probes in a row bring it back, no sooner than the hold after it went
    down. The hold doubles from `hold_s` to `max_hold_s` with each fall, and starts afresh
    when the arm has been up for `max_hold_s`: an engine that answers probes but fails its
    requests would otherwise be tried, and lose requests, every few seconds.
    """

    fail_after: int = 3
    rise_after: int = 3
    hold_s: float = 5.0
    max_hold_s: float = 300.0


@dataclass(frozen=True, slots=True)
class HealthState:
    """`since_s`: when `health` began; `hold_until_s`: no sooner up; counts are runs in a row."""

    health: Health = Health.UNKNOWN
    since_s: float = 0.0
    hold_until_s: float = 0.0
    falls: int = 0
    passes: int = 0
    failed_probes: int = 0
    faults: int = 0


def _fall(state: HealthState, now: float, rules: HealthRules) -> HealthState:
    if state.health is Health.DOWN:
        return replace(state, passes=0, failed_probes=0, faults=0)
    steady = state.health is Health.UP and now - state.since_s >= rules.max_hold_s
    falls = 1 if steady else state.falls + 1
    hold_s = min(rules.hold_s * 2.0 ** min(falls - 1, 32), rules.max_hold_s)
    return HealthState(Health.DOWN, since_s=now, hold_until_s=now + hold_s, falls=falls)


def _ready(state: HealthState, now: float, rules: HealthRules) -> HealthState:
    passes = min(state.passes + 1, rules.rise_after)
    risen = passes >= rules.rise_after and now >= state.hold_until_s
    if state.health is Health.UNKNOWN or (state.health is Health.DOWN and risen):
        return HealthState(Health.UP, since_s=now, falls=state.falls)
    return replace(state, passes=passes, failed_probes=0)


def _probe_failed(state: HealthState, now: float, rules: HealthRules) -> HealthState:
    failed = state.failed_probes + 1
    if failed >= rules.fail_after:
        return _fall(state, now, rules)
    return replace(state, passes=0, failed_probes=failed)


def _fault(state: HealthState, now: float, rules: HealthRules) -> HealthState:
    # Counted apart from probes: a passing /health says nothing about requests that fail.
    faults = state.faults + 1
    return _fall(state, now, rules) if faults >= rules.fail_after else replace(state, faults=faults)


def _answered(state: HealthState, _now: float, _rules: HealthRules) -> HealthState:
    return replace(state, faults=0) if state.faults else state


_Row = Callable[[HealthState, float, HealthRules], HealthState]
# Seen -> what becomes of the state.
TABLE: dict[Signal, _Row] = {
    Signal.NOT_READY: _fall,
    Signal.PROBE_FAILED: _probe_failed,
    Signal.FAULT: _fault,
    Signal.ANSWERED: _answered,
    Signal.READY: _ready,
}


def observe(state: HealthState, seen: Signal, now: float, rules: HealthRules) -> HealthState:
    """The state after one signal; `now` in seconds on the clock of all the other calls."""
    return TABLE[seen](state, now, rules)
