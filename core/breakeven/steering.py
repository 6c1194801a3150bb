"""Steering: the arms' states, kept up to date by what is seen, and the arm of each request.

Here: the fold of health, load, proven range and guard into one observation per candidate, and
the walk of `routing`'s table. Pure: clocks, rates and counters are passed in. Not here: probes,
sockets, metrics, the admin port (the proxy's `control`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from .guard import (
    ArmCounters,
    Breach,
    GuardBudget,
    GuardWindow,
    Idle,
    Recent,
    Sides,
    breaches,
    idle,
)
from .health import Health, HealthRules, HealthState, Signal, observe
from .load import LoadClasses
from .policy import LoadAwareRules, LoadPreference, LoadWindow, prefer, split_arm
from .proven import LimitState, Load, ProvenRange, check
from .routing import ArmState, Observation, Reason, State, step

Policy = Literal["single", "split", "load_aware"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """What one candidate is held to.

    `replicas`: servers behind it; `proven`: its certificate's range, None without certificate;
    `refused`: why its certificate may not be used, if so; `usd_per_s`: standing fleet cost.
    """

    replicas: int = 1
    proven: ProvenRange | None = None
    refused: Reason | None = None
    usd_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """One configuration of the steering; a reload swaps it whole.

    `baseline`: where requests go when nothing speaks for a candidate; `arm`: the arm that
    `single` uses, or the candidate of `load_aware`; `weights`: share of each arm under `split`
    (any scale); `salt`: 1 to 64 bytes that key the sticky hash.
    """

    baseline: str
    policy: Policy = "single"
    arm: str = ""
    candidates: Mapping[str, Candidate] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    load_aware: LoadAwareRules | None = None
    salt: bytes = b"breakeven"
    health: HealthRules = field(default_factory=HealthRules)
    budget: GuardBudget = field(default_factory=GuardBudget)
    load_classes: LoadClasses | None = None
    baseline_replicas: int = 1
    baseline_usd_per_s: float | None = None

    def share(self, arm: str) -> float:
        """Share of all steered requests that the arm gets while it serves."""
        if self.policy == "split":
            total = sum(self.weights.values())
            return self.weights.get(arm, 0.0) / total if total else 0.0
        return 1.0 if arm == self.arm else 0.0


@dataclass(frozen=True, slots=True)
class Traffic:
    """Rates at one tick, req/s: `offered_rps` all steered requests, `arm_rps` those of each arm."""

    offered_rps: float
    arm_rps: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Transition:
    """One change of a candidate's state at `at_s` (the caller's clock), with figures in words."""

    at_s: float
    arm: str
    before: State
    after: State
    reason: Reason
    detail: str = ""


NOT_YET = Idle("not looked at yet", "not looked at yet")


@dataclass(slots=True)
class _Seen:
    """What is known of one candidate; `arm` is where the table put it."""

    window: GuardWindow
    arm: ArmState = field(default_factory=ArmState)
    health: HealthState = field(default_factory=HealthState)
    limit: LimitState = field(default_factory=LimitState)
    load: Load = field(default_factory=lambda: Load(0.0, 0.0))
    recent: Recent | None = None
    idle: Idle = NOT_YET
    expired: bool = False
    mismatch: bool = False
    detail: str = ""


class Steering:
    """The arms' states under one plan. Every call takes `now`, seconds on one monotonic clock."""

    def __init__(self, plan: Plan, now: float, *, epoch_s: float = 0.0) -> None:
        self._plan = plan
        self._now = now
        self._traffic = Traffic(0.0)
        self._baseline = HealthState()
        self._baseline_window = GuardWindow(plan.budget.window_s)
        self._load_window = LoadWindow(plan.load_aware.window_s if plan.load_aware else 0.0)
        self._preference = LoadPreference()
        self._gone: dict[str, ArmState] = {}  # tripped arms that a reload took out
        self._seen: dict[str, _Seen] = {}
        self._adopt(plan, now)
        self._expire(epoch_s)

    # --- per request -------------------------------------------------------------------------

    def arm_for(self, cohort: str, key: bytes) -> str:
        """The arm of one request. `key`: what `split` is sticky by (or a running number)."""
        plan = self._plan
        wanted = split_arm(key, plan.weights, plan.salt) if plan.policy == "split" else plan.arm
        if self._may_serve(wanted, cohort):
            return wanted
        if self._baseline.health is Health.DOWN:
            for name in self._seen:
                if self._may_serve(name, cohort):
                    return name
        return plan.baseline

    def _may_serve(self, name: str, cohort: str) -> bool:
        seen = self._seen.get(name)
        if seen is None or seen.arm.state is not State.SERVING:
            return False
        proven = self._plan.candidates[name].proven
        return proven is None or cohort not in proven.denied_cohorts

    def steady(self, arm: str) -> bool:
        """Whether an answered request of this arm changes nothing: no fault waits to be forgotten.

        An answer says nothing of the baseline (see `saw`).
        """
        seen = self._seen.get(arm)
        return seen is None or not seen.health.faults

    # --- what is seen ------------------------------------------------------------------------

    def saw(self, arm: str, signal: Signal, now: float) -> list[Transition]:
        """Take in one health signal; a candidate that is down loses its traffic in this call.

        The baseline is judged by probes and connections alone, and is back without a hold: answers
        with 5xx may be the doing of a client, and to keep the last resort out would be an outage.
        """
        rules = self._plan.health
        if arm == self._plan.baseline:
            if signal in (Signal.FAULT, Signal.ANSWERED):
                return []
            before = self._baseline
            self._baseline = observe(before, signal, now, replace(rules, hold_s=0.0))
            changed = self._baseline.health is not before.health
            return self._step_all(now) if changed else []
        seen = self._seen.get(arm)
        if seen is None:
            return []
        was = seen.health.health
        seen.health = observe(seen.health, signal, now, rules)
        if seen.health.health is was:
            return []
        return self._step(arm, now, detail=f"signal {signal.value}")

    def tick(
        self, now: float, epoch_s: float, traffic: Traffic, counters: Mapping[str, ArmCounters]
    ) -> list[Transition]:
        """Once a second: load, range, expiry (`epoch_s`, Unix time) and guard."""
        plan = self._plan
        self._traffic = traffic
        self._expire(epoch_s)
        if plan.load_aware is not None and plan.arm in plan.candidates:
            load = traffic.offered_rps / plan.candidates[plan.arm].replicas
            self._load_window.record(now, load)
            mean = self._load_window.mean(now)
            self._preference = prefer(self._preference, mean, now, plan.load_aware)
        base = counters.get(plan.baseline)
        base_recent = self._baseline_window.record(now, base) if base else None
        moved: list[Transition] = []
        for name, seen in self._seen.items():
            self._look_at_load(name, seen, traffic, now)
            breach = self._guard(name, seen, traffic, counters.get(name), base_recent, now)
            trip = breach.reason if breach else None
            moved += self._step(name, now, trip=trip, detail=str(breach or ""))
        return moved

    def trip(
        self, arm: str, now: float, detail: str, *, why: Reason = Reason.TRIPPED_BY_HAND
    ) -> list[Transition]:
        """Take a candidate out until it is armed again. KeyError: no such candidate."""
        self._seen[arm]
        return self._step(arm, now, trip=why, detail=detail)

    def rearm(self, arm: str, now: float, detail: str) -> list[Transition]:
        """Arm a candidate again; what the guard saw before is forgotten. KeyError as above."""
        seen = self._seen[arm]
        seen.window.reset()
        seen.recent = None
        return self._step(arm, now, rearm=True, detail=detail)

    def mismatch(self, arm: str, wrong: bool, now: float, detail: str) -> list[Transition]:
        """Whether a candidate's engine contradicts its certificate. KeyError as above."""
        seen = self._seen[arm]
        if seen.mismatch is wrong:
            return []
        seen.mismatch = wrong
        return self._step(arm, now, detail=detail)

    def replan(
        self, plan: Plan, now: float, *, epoch_s: float, renewed: frozenset[str] = frozenset()
    ) -> list[Transition]:
        """Go on under another plan: health, trips and windows of arms that stay are kept.

        `renewed`: arms behind which another engine stands now: it has to be seen ready first, and
        answers for none of the old one's figures. A trip stays all the same.
        """
        old = self._plan
        if plan.budget.window_s != old.budget.window_s:
            self._baseline_window = GuardWindow(plan.budget.window_s)
        if plan.baseline != old.baseline or plan.baseline in renewed:
            self._baseline = HealthState()
            self._baseline_window.reset()
        rules = (plan.load_aware, plan.arm)
        if rules != (old.load_aware, old.arm):
            self._load_window = LoadWindow(plan.load_aware.window_s if plan.load_aware else 0.0)
            self._preference = replace(self._preference, since_s=now)
        self._adopt(plan, now)
        for name in renewed & self._seen.keys():
            self._seen[name].health = HealthState()
            self._seen[name].window.reset()
        self._expire(epoch_s)
        for name, seen in self._seen.items():
            self._look_at_load(name, seen, self._traffic, now)
        return self._step_all(now, detail="configuration reloaded")

    # --- for people --------------------------------------------------------------------------

    @property
    def plan(self) -> Plan:
        return self._plan

    @property
    def baseline_health(self) -> Health:
        return self._baseline.health

    @property
    def mean_load(self) -> float | None:
        """Mean load under load_aware, req/s per replica; None before one window was observed."""
        return self._load_window.mean(self._now) if self._plan.load_aware else None

    def state(self, arm: str) -> ArmState:
        """Where a candidate stands. KeyError: no such candidate."""
        return self._seen[arm].arm

    def health(self, arm: str) -> Health:
        """Health of any arm of the plan. KeyError: no such arm."""
        return self.baseline_health if arm == self._plan.baseline else self._seen[arm].health.health

    def recent(self, arm: str) -> Recent | None:
        """What the guard saw of a candidate at the last tick. KeyError: no such candidate."""
        return self._seen[arm].recent

    def idle(self, arm: str) -> Idle:
        """Why rules of the guard rest for a candidate. KeyError: no such candidate."""
        return self._seen[arm].idle

    # --- inside ------------------------------------------------------------------------------

    def _adopt(self, plan: Plan, now: float) -> None:
        for name, seen in self._seen.items():
            if name not in plan.candidates and seen.arm.state is State.TRIPPED:
                self._gone[name] = seen.arm
        kept = {name: seen for name, seen in self._seen.items() if name in plan.candidates}
        for name in plan.candidates:
            if name in kept:
                if plan.budget.window_s != self._plan.budget.window_s:
                    kept[name].window = GuardWindow(plan.budget.window_s)
                continue
            arm = self._gone.pop(name, ArmState(since_s=now))
            kept[name] = _Seen(GuardWindow(plan.budget.window_s), arm=arm)
        self._seen, self._plan = kept, plan

    def _expire(self, epoch_s: float) -> None:
        for name, seen in self._seen.items():
            proven = self._plan.candidates[name].proven
            seen.expired = proven is not None and epoch_s >= proven.expires_s

    def _look_at_load(self, name: str, seen: _Seen, traffic: Traffic, now: float) -> None:
        """Load the candidate would get, or gets (a sticky split may be skewed): the larger."""
        rules = self._plan.candidates[name]
        due_rps = self._plan.share(name) * traffic.offered_rps
        got_rps = traffic.arm_rps.get(name, 0.0) if seen.arm.state is State.SERVING else 0.0
        seen.load = Load(traffic.offered_rps, max(due_rps, got_rps) / rules.replicas)
        if rules.proven is None:
            seen.limit = LimitState()
        else:
            seen.limit = check(seen.limit, rules.proven, seen.load, now)

    def _guard(
        self, name: str, seen: _Seen, traffic: Traffic, counters: ArmCounters | None,
        baseline: Recent | None, now: float,
    ) -> Breach | None:  # fmt: skip
        if counters is None or seen.arm.state is State.TRIPPED:
            why = "the guard is off" if counters is None else "tripped"
            seen.idle = Idle(why, why)
            return None
        seen.recent = seen.window.record(now, counters)
        if self._baseline.health is Health.DOWN:
            seen.idle = Idle("the baseline is down", "the baseline is down")
            return None  # poor service is better than none; the window remembers
        apart = self._apart(name, traffic)
        sides = Sides(
            candidate=seen.recent,
            baseline=None if apart else baseline,
            candidate_usd_per_s=self._plan.candidates[name].usd_per_s,
            baseline_usd_per_s=self._plan.baseline_usd_per_s,
        )
        seen.idle = idle(sides, self._plan.budget)
        if apart and seen.idle.budget is None:
            seen.idle = replace(seen.idle, baseline=apart)
        return next(breaches(sides, self._plan.budget), None)

    def _apart(self, name: str, traffic: Traffic) -> str | None:
        """Why two arms' figures are not comparable: they do not stand in one load class."""
        plan = self._plan
        if plan.load_classes is None:
            return "no load_classes are configured"
        mine = traffic.arm_rps.get(name, 0.0) / plan.candidates[name].replicas
        other = traffic.arm_rps.get(plan.baseline, 0.0) / plan.baseline_replicas
        classes = plan.load_classes.classify(mine), plan.load_classes.classify(other)
        if classes[0] == classes[1]:
            return None
        return f"other load class: {name} {classes[0]}, {plan.baseline} {classes[1]}"

    def _observation(self, name: str, trip: Reason | None, rearm: bool) -> Observation:
        plan, seen = self._plan, self._seen[name]
        wanted = plan.share(name) > 0
        why, why_not = Reason.POLICY, Reason.POLICY
        if plan.policy == "load_aware" and name == plan.arm:
            wanted = self._preference.candidate
            why, why_not = Reason.LOAD_BELOW, Reason.LOAD_ABOVE
        refused = plan.candidates[name].refused
        if seen.mismatch:
            refused = Reason.CERTIFICATE_MISMATCH
        return Observation(
            trip=trip,
            rearm=rearm,
            refused=Reason.CERTIFICATE_EXPIRED if seen.expired else refused,
            healthy=seen.health.health is Health.UP,
            limit=seen.limit.broken,
            wanted=wanted,
            wanted_why=why,
            unwanted_why=why_not,
            baseline_up=self._baseline.health is not Health.DOWN,
        )

    def _step(
        self, name: str, now: float, *, trip: Reason | None = None, rearm: bool = False,
        detail: str = "",
    ) -> list[Transition]:  # fmt: skip
        self._now = now
        seen = self._seen[name]
        before = seen.arm
        seen.arm = step(before, self._observation(name, trip, rearm), now)
        if seen.arm is before:
            return []
        after = seen.arm
        seen.detail = detail or self._figures(seen)
        return [Transition(now, name, before.state, after.state, after.reason, seen.detail)]

    def _step_all(self, now: float, detail: str = "") -> list[Transition]:
        names: Iterable[str] = list(self._seen)
        return [moved for name in names for moved in self._step(name, now, detail=detail)]

    def _figures(self, seen: _Seen) -> str:
        mean = self.mean_load
        text = f"offered {seen.load.offered_rps:.3g}/s, {seen.load.arm_rps:.3g}/s per replica"
        return text if mean is None else f"{text}, mean {mean:.3g}/s per replica"
