"""The proven range: the load and the cohorts a candidate was certified for.

Here: the limits, and the hysteresis at their edge. Not here: reading a certificate's file
(`certificate`), and what follows from a broken limit (`routing`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from .routing import Reason

# A broken limit counts as kept again when the load stood this share inside it ...
DEFAULT_MARGIN = 0.1
# ... for this long: a load that hovers at the edge must not move traffic to and fro.
DEFAULT_HOLD_S = 60.0


@dataclass(frozen=True, slots=True)
class ProvenRange:
    """Where a candidate may serve.

    `min_rps`, `max_rps`: req/s per replica of the candidate; `headroom_rps`: req/s that the
    baseline (all its replicas) is certified to take over, None when not certified;
    `denied_cohorts` stay on the baseline; `expires_s`: Unix time. Rates below `min_rps` count
    as out of range only with `enforce_min`: with less load a batch is smaller and a draft pays
    more, so the usual night is no reason to move traffic.
    """

    min_rps: float
    max_rps: float
    headroom_rps: float | None
    expires_s: float
    denied_cohorts: frozenset[str] = frozenset()
    enforce_min: bool = False


@dataclass(frozen=True, slots=True)
class Load:
    """`offered_rps`: all steered requests; `arm_rps`: what the candidate gets, or would get.

    `offered_rps` is req/s in total, `arm_rps` req/s per replica of the candidate.
    """

    offered_rps: float
    arm_rps: float


@dataclass(frozen=True, slots=True)
class LimitState:
    """The broken limit, if any, and since when the load is well inside again (seconds)."""

    broken: Reason | None = None
    clear_since_s: float | None = None


@dataclass(frozen=True, slots=True)
class _Row:
    reason: Reason
    broken: Callable[[ProvenRange, Load, float], bool]


# Limit -> is it broken when each bound is drawn in by the factor `inside` (1 at the edge itself).
LIMITS: tuple[_Row, ...] = (
    _Row(Reason.ABOVE_RANGE, lambda r, x, inside: x.arm_rps > r.max_rps * inside),
    _Row(
        Reason.ABOVE_HEADROOM,
        lambda r, x, inside: r.headroom_rps is not None and x.offered_rps > r.headroom_rps * inside,
    ),
    _Row(
        Reason.BELOW_RANGE,
        lambda r, x, inside: r.enforce_min and x.arm_rps < r.min_rps / inside,
    ),
)


def check(
    state: LimitState,
    proven: ProvenRange,
    load: Load,
    now: float,
    *,
    margin: float = DEFAULT_MARGIN,
    hold_s: float = DEFAULT_HOLD_S,
) -> LimitState:
    """The limits after one look at the load: broken at once, kept again only after the hold."""
    for row in LIMITS:
        if row.broken(proven, load, 1.0):
            return LimitState(broken=row.reason)
    if state.broken is None:
        return state
    if any(row.broken(proven, load, 1.0 - margin) for row in LIMITS):
        return replace(state, clear_since_s=None)
    if state.clear_since_s is None:
        return replace(state, clear_since_s=now)
    return LimitState() if now - state.clear_since_s >= hold_s else state


def headroom_shortfall(
    proven: ProvenRange, *, replicas: int, allowed_rps: float | None = None
) -> float | None:
    """Req/s by which the candidate's allowed load exceeds what the baseline may take over.

    Allowed load = the range's upper end × `replicas`, or `allowed_rps` (req/s in total) where a
    policy lets less through. None when it fits, or when no headroom is certified.
    """
    if proven.headroom_rps is None:
        return None
    allowed = proven.max_rps * replicas if allowed_rps is None else allowed_rps
    return allowed - proven.headroom_rps if allowed > proven.headroom_rps else None
