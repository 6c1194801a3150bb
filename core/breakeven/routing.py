"""The state of a candidate arm: may it be given new requests, and why not.

Here: states, reasons and the one table that leads from state and observation to state and
reason. Not here: how an observation comes about (`health`, `policy`, `guard`, `proven`,
folded by `steering`), and the sockets (the proxy's `control`).

The baseline has no state here: it is where a request goes when nothing speaks for a candidate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """Where a candidate stands; only SERVING gets new requests."""

    SERVING = "serving"
    STANDBY = "standby"  # may serve; the policy prefers the baseline
    OUT_OF_RANGE = "out_of_range"  # the load is not the one it was proven at
    UNHEALTHY = "unhealthy"  # down, not ready, or not yet seen ready
    REFUSED = "refused"  # certificate expired, or no evidence
    TRIPPED = "tripped"  # taken out by the guard or by hand; only a re-arm leads out


class Reason(StrEnum):
    """Why a transition happened: the label of the counter, so a fixed set."""

    START = "start"
    POLICY = "policy"  # single or split names the arm, or names it no longer
    LOAD_BELOW = "load_below"
    LOAD_ABOVE = "load_above"
    BASELINE_DOWN = "baseline_down"
    HEALTH_DOWN = "health_down"
    HEALTH_UP = "health_up"
    ABOVE_RANGE = "above_range"
    BELOW_RANGE = "below_range"
    ABOVE_HEADROOM = "above_headroom"
    IN_RANGE = "in_range"
    CERTIFICATE_EXPIRED = "certificate_expired"
    NOT_EVIDENCE = "not_evidence"
    CERTIFICATE_MISMATCH = "certificate_mismatch"  # the engine is not the one that was proven
    CERTIFICATE_VALID = "certificate_valid"
    GUARD_ERROR_SHARE = "guard_error_share"
    GUARD_GAP_P99 = "guard_gap_p99"
    GUARD_TTFT_P95 = "guard_ttft_p95"
    GUARD_GOODPUT = "guard_goodput"
    GUARD_COST = "guard_cost"
    TRIPPED_BY_HAND = "tripped_by_hand"
    REARMED = "rearmed"
    CONTROL_ERROR = "control_error"  # the machinery failed; the baseline carries on


@dataclass(frozen=True, slots=True)
class Observation:
    """What is known of one candidate at one moment.

    `trip`: breach or order to take it out, if any; `rearm`: a person armed it again; `refused`:
    its certificate forbids it; `healthy`: seen ready and not down; `limit`: the load rule that
    is broken; `wanted`: the policy names it, for reason `wanted_why` (or `unwanted_why`);
    `baseline_up`: False only when the baseline is known to be down.
    """

    trip: Reason | None = None
    rearm: bool = False
    refused: Reason | None = None
    healthy: bool = True
    limit: Reason | None = None
    wanted: bool = True
    wanted_why: Reason = Reason.POLICY
    unwanted_why: Reason = Reason.POLICY
    baseline_up: bool = True


@dataclass(frozen=True, slots=True)
class ArmState:
    """State, why it came about, and when (seconds on the caller's clock).

    A candidate starts UNHEALTHY: it has not been seen ready yet.
    """

    state: State = State.UNHEALTHY
    reason: Reason = Reason.START
    since_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Row:
    """Applies when `why` gives a reason (and the arm stands `only_in` that state, if given)."""

    then: State
    why: Callable[[Observation], Reason | None]
    only_in: State | None = None


# The first row that applies names the next state and the reason for entering it. What forbids
# comes before what permits, so SERVING cannot be reached past a ban.
TABLE: tuple[_Row, ...] = (
    _Row(State.TRIPPED, lambda o: o.trip),
    _Row(State.TRIPPED, lambda o: None if o.rearm else Reason.TRIPPED_BY_HAND, State.TRIPPED),
    _Row(State.REFUSED, lambda o: o.refused),
    _Row(State.UNHEALTHY, lambda o: None if o.healthy else Reason.HEALTH_DOWN),
    _Row(State.OUT_OF_RANGE, lambda o: o.limit),
    _Row(State.SERVING, lambda o: o.wanted_why if o.wanted else None),
    _Row(State.SERVING, lambda o: None if o.baseline_up else Reason.BASELINE_DOWN),
    _Row(State.STANDBY, lambda o: o.unwanted_why),
)

# Leaving one of these for SERVING or STANDBY has the end of the ban as its reason.
_RELEASED: dict[State, Reason] = {
    State.TRIPPED: Reason.REARMED,
    State.REFUSED: Reason.CERTIFICATE_VALID,
    State.UNHEALTHY: Reason.HEALTH_UP,
    State.OUT_OF_RANGE: Reason.IN_RANGE,
}


def step(arm: ArmState, seen: Observation, now: float) -> ArmState:
    """The arm's state after one observation; the same object when nothing changed."""
    for row in TABLE:
        reason = row.why(seen) if row.only_in in (None, arm.state) else None
        if reason is None:
            continue
        if row.then is arm.state:
            return arm
        if row.then in (State.SERVING, State.STANDBY):
            reason = _RELEASED.get(arm.state, reason)
        return ArmState(row.then, reason, since_s=now)
    raise AssertionError("the last row always applies")
