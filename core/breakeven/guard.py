"""The rollback guard: does the candidate, as served lately, break its budget?

Here: the window over an arm's counters, and one table of rules (window of the candidate, window
of the live baseline -> breach). Not here: what a breach leads to (`routing`), and who counts.

A share above its limit is a breach only where its one-sided 95 % lower bound (Wilson 1927) is
above it too: the guard looks every second for weeks, and a limit met by luck of 100 requests
would fire it. Latency limits are read as shares as well: "p99 <= 0.1 s" is "at most 1 % above
0.1 s", exact when the limit is a bucket bound.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate

from .routing import Reason

_Z = 1.645  # one-sided 95 %
_STEPS = 30  # snapshots in a window: its edge is this coarse


@dataclass(frozen=True, slots=True)
class Distribution:
    """Histogram: `bounds` (upper, inclusive, seconds, ascending) and len(bounds) + 1 counts."""

    bounds: tuple[float, ...] = ()
    counts: tuple[int, ...] = (0,)

    @property
    def total(self) -> int:
        return sum(self.counts)

    def minus(self, earlier: Distribution) -> Distribution:
        """What was added since `earlier`; an earlier one without counts is all zero."""
        if len(earlier.counts) != len(self.counts):
            return self
        counts = (max(0, a - b) for a, b in zip(self.counts, earlier.counts, strict=True))
        return Distribution(self.bounds, tuple(counts))

    def above(self, limit: float) -> int:
        """How many certainly lie above `limit`: the bucket that holds the limit is left out."""
        return sum(self.counts[bisect_left(self.bounds, limit) + 1 :])

    def quantile_at_most(self, q: float) -> float | None:
        """The bound that the q-quantile (nearest rank) does not exceed; None beyond the last."""
        rank = max(1, math.ceil(q * self.total))
        for bound, upto in zip(self.bounds, accumulate(self.counts), strict=False):
            if upto >= rank:
                return bound
        return None

    def quantile_at_least(self, q: float) -> float:
        """The bound that the q-quantile (nearest rank) exceeds; 0 in the first bucket."""
        rank = max(1, math.ceil(q * self.total))
        for i, upto in enumerate(accumulate(self.counts)):
            if upto >= rank:
                return self.bounds[i - 1] if i else 0.0
        return 0.0


@dataclass(frozen=True, slots=True)
class ArmCounters:
    """Cumulative counts of one arm.

    `requests`: offered without cancelled and interrupted; `errors`: error, timeout, truncated,
    malformed; `good`: verdict good; `ttft`, `gaps`: seconds; `overdue`: requests that right now
    wait for their first event longer than the TTFT limit (not cumulative): a hung engine ends
    no request, so the ended ones alone would never show it.
    """

    requests: int = 0
    errors: int = 0
    good: int = 0
    ttft: Distribution = field(default_factory=Distribution)
    gaps: Distribution = field(default_factory=Distribution)
    overdue: int = 0


@dataclass(frozen=True, slots=True)
class Recent:
    """One arm over the guard's window: the differences of its counters, and the seconds."""

    seconds: float
    counters: ArmCounters


class GuardWindow:
    """Remembers an arm's counters for `window_s` seconds, in at most ~30 snapshots."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._past: deque[tuple[float, ArmCounters]] = deque()

    def reset(self) -> None:
        """Forget: after a re-arm the old breach must not count again."""
        self._past.clear()

    def record(self, now: float, counters: ArmCounters) -> Recent:
        """Note the counters as of `now`; returns what was added within the window."""
        if not self._past or now - self._past[-1][0] >= self._window_s / _STEPS:
            self._past.append((now, counters))
        while len(self._past) > 1 and self._past[1][0] <= now - self._window_s:
            self._past.popleft()
        start, then = self._past[0]
        added = ArmCounters(
            requests=max(0, counters.requests - then.requests),
            errors=max(0, counters.errors - then.errors),
            good=max(0, counters.good - then.good),
            ttft=counters.ttft.minus(then.ttft),
            gaps=counters.gaps.minus(then.gaps),
            overdue=counters.overdue,
        )
        return Recent(seconds=now - start, counters=added)


@dataclass(frozen=True, slots=True)
class GuardBudget:
    """Limits of the candidate; None switches a rule off.

    The first group is absolute. The second compares with the live baseline and acts only while
    both arms had `min_requests` in the window and stood in the same load class: at unequal load
    they are not the same measurement. `*_ratio`: candidate ÷ baseline; `*_excess`: difference
    of shares. `cost_ratio` is off by default: a fixed fleet's cost per good response falls with
    its traffic, so between arms of unequal share per dollar it compares the shares.
    """

    window_s: float = 300.0
    min_requests: int = 100
    error_share: float | None = 0.05
    gap_p99_s: float | None = None
    ttft_p95_s: float | None = None
    goodput_share: float | None = None
    cost_per_good_usd: float | None = None
    error_excess: float | None = 0.02
    gap_p99_ratio: float | None = 1.25
    ttft_p95_ratio: float | None = 1.25
    goodput_excess: float | None = 0.05
    cost_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class Sides:
    """What the rules look at; `baseline` is None while it cannot be compared.

    Costs are the arms' standing fleet costs in USD per second; None when not configured.
    """

    candidate: Recent
    baseline: Recent | None = None
    candidate_usd_per_s: float | None = None
    baseline_usd_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class Breach:
    """A broken rule: what was observed, and the limit it broke (share, seconds or USD)."""

    reason: Reason
    observed: float
    limit: float
    against: str  # "budget" or "baseline"

    def __str__(self) -> str:
        return f"{self.observed:.4g} above {self.limit:.4g} ({self.against})"


def wilson_lower(hits: float, total: float, z: float = _Z) -> float:
    """Lower bound of a share (Wilson score interval, one-sided at `z`); 0 without trials."""
    if total <= 0:
        return 0.0
    share = hits / total
    centre = share + z * z / (2 * total)
    spread = z * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    return max(0.0, (centre - spread) / (1 + z * z / total))


_Rule = Callable[[Sides, GuardBudget], "Breach | None"]


def _share(
    reason: Reason, hits: float, total: float, limit: float | None, against: str
) -> Breach | None:
    if limit is None or wilson_lower(hits, total) <= limit:
        return None
    return Breach(reason, observed=hits / total, limit=limit, against=against)


def _error_budget(sides: Sides, budget: GuardBudget) -> Breach | None:
    c = sides.candidate.counters
    return _share(Reason.GUARD_ERROR_SHARE, c.errors, c.requests, budget.error_share, "budget")


def _error_live(sides: Sides, budget: GuardBudget) -> Breach | None:
    if sides.baseline is None or budget.error_excess is None:
        return None
    c, b = sides.candidate.counters, sides.baseline.counters
    limit = b.errors / b.requests + budget.error_excess
    return _share(Reason.GUARD_ERROR_SHARE, c.errors, c.requests, limit, "baseline")


def _bad(arm: ArmCounters) -> int:
    return arm.requests - arm.good


def _goodput_budget(sides: Sides, budget: GuardBudget) -> Breach | None:
    if budget.goodput_share is None:
        return None
    c, limit = sides.candidate.counters, 1 - budget.goodput_share
    return _share(Reason.GUARD_GOODPUT, _bad(c), c.requests, limit, "budget")


def _goodput_live(sides: Sides, budget: GuardBudget) -> Breach | None:
    if sides.baseline is None or budget.goodput_excess is None:
        return None
    c, b = sides.candidate.counters, sides.baseline.counters
    limit = _bad(b) / b.requests + budget.goodput_excess
    return _share(Reason.GUARD_GOODPUT, _bad(c), c.requests, limit, "baseline")


def _latency(
    reason: Reason, seen: Distribution, q: float, limit_s: float | None, against: str,
    overdue: int = 0,
) -> Breach | None:  # fmt: skip
    if limit_s is None:
        return None
    hits, total = seen.above(limit_s) + overdue, seen.total + overdue
    if wilson_lower(hits, total) <= 1 - q:
        return None
    # Reported from the buckets: the least that the quantile can be. Overdue requests lie above
    # the limit by how much nobody knows yet.
    return Breach(
        reason, observed=max(seen.quantile_at_least(q), limit_s), limit=limit_s, against=against
    )


def _times(quantile: float | None, ratio: float | None) -> float | None:
    return None if quantile is None or ratio is None else quantile * ratio


def _gap_budget(sides: Sides, budget: GuardBudget) -> Breach | None:
    gaps = sides.candidate.counters.gaps
    return _latency(Reason.GUARD_GAP_P99, gaps, 0.99, budget.gap_p99_s, "budget")


def _gap_live(sides: Sides, budget: GuardBudget) -> Breach | None:
    if sides.baseline is None:
        return None
    limit_s = _times(sides.baseline.counters.gaps.quantile_at_most(0.99), budget.gap_p99_ratio)
    return _latency(
        Reason.GUARD_GAP_P99, sides.candidate.counters.gaps, 0.99, limit_s, "baseline"
    )  # fmt: skip


def _ttft_budget(sides: Sides, budget: GuardBudget) -> Breach | None:
    c = sides.candidate.counters
    return _latency(
        Reason.GUARD_TTFT_P95, c.ttft, 0.95, budget.ttft_p95_s, "budget", c.overdue
    )  # fmt: skip


def _ttft_live(sides: Sides, budget: GuardBudget) -> Breach | None:
    if sides.baseline is None:
        return None
    limit_s = _times(sides.baseline.counters.ttft.quantile_at_most(0.95), budget.ttft_p95_ratio)
    c = sides.candidate.counters
    return _latency(Reason.GUARD_TTFT_P95, c.ttft, 0.95, limit_s, "baseline")


def cost_per_good(recent: Recent, usd_per_s: float | None) -> float | None:
    """Standing cost ÷ good responses over the window, USD; None when either is unknown or 0."""
    if usd_per_s is None or not recent.counters.good:
        return None
    return usd_per_s * recent.seconds / recent.counters.good


def _cost_budget(sides: Sides, budget: GuardBudget) -> Breach | None:
    cost, limit = (
        cost_per_good(sides.candidate, sides.candidate_usd_per_s),
        budget.cost_per_good_usd,
    )
    if cost is None or limit is None or cost <= limit:
        return None
    return Breach(Reason.GUARD_COST, observed=cost, limit=limit, against="budget")


def _cost_live(sides: Sides, budget: GuardBudget) -> Breach | None:
    if sides.baseline is None:
        return None
    cost = cost_per_good(sides.candidate, sides.candidate_usd_per_s)
    limit = _times(cost_per_good(sides.baseline, sides.baseline_usd_per_s), budget.cost_ratio)
    if cost is None or limit is None or cost <= limit:
        return None
    return Breach(Reason.GUARD_COST, observed=cost, limit=limit, against="baseline")


# Worst first: the first breach names the reason.
RULES: tuple[_Rule, ...] = (
    _error_budget, _error_live, _ttft_budget, _ttft_live, _gap_budget, _gap_live,
    _goodput_budget, _goodput_live, _cost_budget, _cost_live,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Idle:
    """Why rules are not looked at just now, in words: those against the budget, and those against
    the live baseline. None: they are, as far as their limits are given."""

    budget: str | None = None
    baseline: str | None = None


def idle(sides: Sides, budget: GuardBudget) -> Idle:
    """Why `breaches` passes rules over; a baseline that is not comparable is None in `sides`."""
    seen = sides.candidate.counters.requests + sides.candidate.counters.overdue
    if seen < budget.min_requests:
        few = f"{seen} of {budget.min_requests} requests in the window"
        return Idle(few, few)
    if sides.baseline is None:
        return Idle(None, "the baseline cannot be compared")
    if sides.baseline.counters.requests < budget.min_requests:
        had = sides.baseline.counters.requests
        return Idle(None, f"the baseline had {had} of {budget.min_requests} requests in the window")
    return Idle()


def breaches(sides: Sides, budget: GuardBudget) -> Iterator[Breach]:
    """Every broken rule, worst first; none while the candidate has too few requests."""
    resting = idle(sides, budget)
    if resting.budget is not None:
        return
    if resting.baseline is not None:
        sides = Sides(
            sides.candidate, None, sides.candidate_usd_per_s, sides.baseline_usd_per_s
        )  # fmt: skip
    for rule in RULES:
        breach = rule(sides, budget)
        if breach is not None:
            yield breach
