"""The steering at work: core's state table with a clock, counters and a log around it.

Whatever fails in here, a request still gets an arm: the baseline. A failure is counted and
logged, and until the next good tick every request goes there.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any, Literal, Protocol

from breakeven.guard import ArmCounters, Idle
from breakeven.health import Health, Signal
from breakeven.routing import Reason, State
from breakeven.steering import Plan, Steering, Traffic, Transition
from breakeven_proxy.control.journal import Journal, TripFile
from breakeven_proxy.observe.log import Log
from breakeven_proxy.observe.metrics import Metrics

LOG_FAULT_EVERY_S = 10.0
"""A fault that comes with every request is logged this often, and counted each time."""


class ArmLike(Protocol):
    """What is read of an arm at each tick."""

    up: bool | None

    def rate_total(self, now: float) -> float:
        """Metered arrivals per second over 30 s, all replicas together."""


class Control:
    """Which arm a request gets. One per process; made anew by nobody, replanned by a reload.

    Args:
        arms: every arm by name; read at each tick, so a reload may change it in place.
        counters: an arm's cumulative counts, or None when it has none yet.
        contradiction: arm and words, when that arm's engine is not what its certificate proved.
        rearm: `never` refuses re-arms while this process lives.
        clock, wall: monotonic and Unix seconds.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        arms: Mapping[str, ArmLike],
        counters: Callable[[str], ArmCounters | None],
        contradiction: Callable[[], tuple[str, str] | None] = lambda: None,
        metrics: Metrics,
        log: Log,
        guard_enabled: bool = True,
        rearm: Literal["manual", "never"] = "manual",
        state_file: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._arms = arms
        self._counters = counters
        self._contradiction = contradiction
        self._metrics = metrics
        self._log = log
        self._clock = clock
        self._wall = wall
        self.guard_enabled = guard_enabled
        self.rearm_rule = rearm
        self.journal = Journal(log)
        self._file = TripFile(state_file, log)
        self._why_tripped: dict[str, tuple[Reason, str]] = {}
        self._numbers = itertools.count()
        self._failed = False
        self._logged_at = -LOG_FAULT_EVERY_S
        self._errors = metrics["route_errors_total"].cell()
        self._steering = Steering(plan, clock(), epoch_s=wall())
        self._show_plan()
        for arm, (why, detail) in self._file.load(plan.candidates).items():
            if arm in plan.candidates:
                self._note(self._steering.trip(arm, clock(), detail, why=why))

    # -- the relay's questions
    @property
    def plan(self) -> Plan:
        """What is in force."""
        return self._steering.plan

    @property
    def baseline(self) -> str:
        """The arm that everything falls back to."""
        return self._steering.plan.baseline

    def arm_for(self, cohort: str, sticky: bytes | None) -> str:
        """The arm of a metered request. `sticky`: the configured header's value, if it has one."""
        if self._failed:
            return self.baseline
        try:
            key = b"#%d" % next(self._numbers) if sticky is None else sticky
            return self._steering.arm_for(cohort, key)
        except Exception as error:  # noqa: BLE001 - routing is never the cause of an outage
            self._fault("choice of an arm", error)
            return self.baseline

    def other_arm(self, failed: str, cohort: str) -> str | None:
        """Where a request may go that could not be connected to `failed`; None: nowhere."""
        if failed == self.baseline:
            arm = self.arm_for(cohort, b"")
            return arm if arm != failed else None
        return self.baseline

    # -- what is seen
    def saw(self, arm: str, signal: Signal) -> None:
        """One health signal of an arm, from a probe or from its traffic."""
        try:
            if signal is Signal.ANSWERED and self._steering.steady(arm):
                return  # nearly every request
            self._note(self._steering.saw(arm, signal, self._clock()))
            self._show_health(arm)
        except Exception as error:  # noqa: BLE001 - see above
            self._fault("health", error)

    def tick(self) -> None:
        """Once a second: load, proven range, expiry, guard."""
        try:
            now, wall = self._clock(), self._wall()
            rates = {name: arm.rate_total(now) for name, arm in self._arms.items()}
            traffic = Traffic(sum(rates.values()), rates)
            counters = self._counts() if self.guard_enabled else {}
            self._check_identity(now)
            self._note(self._steering.tick(now, wall, traffic, counters))
            mean = self._steering.mean_load
            if mean is not None:
                self._metrics["route_load_requests_per_second"].set(mean)
            self._failed = False
        except Exception as error:  # noqa: BLE001 - see above
            self._fault("tick", error)

    def _check_identity(self, now: float) -> None:
        found = self._contradiction()
        for name in self._steering.plan.candidates:
            wrong = found is not None and found[0] == name
            detail = found[1] if found is not None else "the engine is the proven one"
            self._note(self._steering.mismatch(name, wrong, now, detail))

    def _counts(self) -> dict[str, ArmCounters]:
        names = [self.baseline, *self._steering.plan.candidates]
        found = ((name, self._counters(name)) for name in names)
        return {name: counts for name, counts in found if counts is not None}

    # -- orders
    def trip(self, arm: str, reason: str) -> None:
        """Takes a candidate out until it is armed again. KeyError: no such candidate."""
        self._note(self._steering.trip(arm, self._clock(), reason))

    def rearm(self, arm: str) -> bool:
        """Arms a candidate again; False where the configuration says never. KeyError as above."""
        self._steering.state(arm)
        if self.rearm_rule == "never":
            return False
        self._note(self._steering.rearm(arm, self._clock(), "armed again by hand"))
        self._log.info("arm armed again", arm=arm, state=self._steering.state(arm).state)
        return True

    def replan(self, plan: Plan, renewed: frozenset[str] = frozenset()) -> None:
        """Goes on under another plan; trips stay, and health but of `renewed` arms."""
        now, wall = self._clock(), self._wall()
        self._note(self._steering.replan(plan, now, epoch_s=wall, renewed=renewed))
        self._show_plan()

    def candidate(self, arm: str) -> bool:
        """Whether the arm is one that can be tripped."""
        return arm in self._steering.plan.candidates

    # -- what people see
    def _note(self, moves: Iterable[Transition]) -> None:
        for move in moves:
            self.journal.note(move, self._wall())
            self._metrics["route_transitions_total"].cell(move.arm, move.reason).inc()
            self._show_state(move.arm, move.after)
            if State.TRIPPED in (move.before, move.after):
                self._why_tripped.pop(move.arm, None)
                if move.after is State.TRIPPED:
                    self._why_tripped[move.arm] = (move.reason, move.detail)
                self._file.save(self._why_tripped)

    def _show_plan(self) -> None:
        """Every series that can occur stands from the start, at 0."""
        m, plan = self._metrics, self._steering.plan
        for name in plan.candidates:
            for reason in Reason:
                m["route_transitions_total"].cell(name, reason)
            self._show_state(name, self._steering.state(name).state)
        for labels in list(m["route_state"].cells):
            if labels[0] not in plan.candidates:
                m["route_state"].remove(*labels)
        for name in self._arms:
            m["route_share"].set(plan.share(name), name)
        threshold = m["route_threshold_requests_per_second"]
        if plan.load_aware is None:
            threshold.cells.clear()
            m["route_load_requests_per_second"].cells.clear()
        else:
            threshold.set(plan.load_aware.enter_below, "enter_below")
            threshold.set(plan.load_aware.leave_above, "leave_above")

    def _show_state(self, arm: str, now_in: State) -> None:
        for state in State:
            self._metrics["route_state"].set(1 if state is now_in else 0, arm, state)

    def _show_health(self, name: str) -> None:
        arm = self._arms.get(name)
        if arm is None or not (name == self.baseline or self.candidate(name)):
            return
        health = self._steering.health(name)
        up = None if health is Health.UNKNOWN else health is Health.UP
        if up is not arm.up:
            (self._log.info if up else self._log.warning)("arm health", arm=name, up=up)
            arm.up = up

    def status(self) -> dict[str, Any]:
        """The `routing` part of /status."""
        steering, plan, now = self._steering, self._steering.plan, self._clock()
        candidates = {}
        for name, held_to in plan.candidates.items():
            arm = steering.state(name)
            recent = steering.recent(name)
            candidates[name] = {
                "state": arm.state,
                "reason": arm.reason,
                "for_s": round(now - arm.since_s, 1),
                "health": steering.health(name),
                "replicas": held_to.replicas,
                "share_while_serving": plan.share(name),
                "window_requests": None if recent is None else recent.counters.requests,
                "window_s": None if recent is None else round(recent.seconds, 1),
                "guard": _guard(steering.idle(name)),
                "proven": _range(held_to.proven),
            }
            if name in self._why_tripped:
                why, detail = self._why_tripped[name]
                candidates[name]["tripped_because"] = f"{why}: {detail}" if detail else why
        return {
            "policy": plan.policy,
            "baseline": plan.baseline,
            "baseline_health": steering.baseline_health,
            "mean_load_rps": steering.mean_load,
            "load_aware": None if plan.load_aware is None else asdict(plan.load_aware),
            "load_aware_arm": None if plan.load_aware is None else plan.arm,
            "control_failed": self._failed,
            "control_errors": int(self._errors.value),
            "candidates": candidates,
            "transitions": self.journal.entries(),
        }

    def _fault(self, where: str, error: Exception) -> None:
        self._failed = True
        self._errors.inc()
        now = self._clock()
        if now - self._logged_at >= LOG_FAULT_EVERY_S:
            self._logged_at = now
            self._log.error("control failed: the baseline serves", error, where=where)


def _guard(idle: Idle) -> dict[str, str]:
    """Of each group of the guard's rules, that it acts, or why it rests."""
    return {
        "against_budget": idle.budget or "acts",
        "against_live_baseline": idle.baseline or "acts",
    }


def _range(proven: Any) -> dict[str, Any] | None:
    if proven is None:
        return None
    return {
        "min_rps_per_replica": proven.min_rps,
        "max_rps_per_replica": proven.max_rps,
        "rollback_headroom_rps": proven.headroom_rps,
        "denied_cohorts": sorted(proven.denied_cohorts),
        "expires_timestamp_s": proven.expires_s,
    }
