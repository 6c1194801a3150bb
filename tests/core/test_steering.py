"""The fold of health, load, range and guard, and the arm that a request gets."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from breakeven.guard import ArmCounters, GuardBudget, Idle
from breakeven.health import Health, HealthRules, Signal
from breakeven.load import LoadClasses
from breakeven.policy import LoadAwareRules
from breakeven.proven import ProvenRange
from breakeven.routing import Reason, State
from breakeven.steering import Candidate, Plan, Steering, Traffic, Transition

PROVEN = ProvenRange(
    min_rps=0, max_rps=20, headroom_rps=50, expires_s=1000, denied_cohorts=frozenset({"code"})
)
SINGLE = Plan(
    baseline="base",
    policy="single",
    arm="draft",
    candidates={"draft": Candidate(proven=PROVEN)},
    health=HealthRules(fail_after=3, rise_after=2, hold_s=5),
    budget=GuardBudget(min_requests=10),
    load_classes=LoadClasses(4, 12),
)
AWARE = replace(
    SINGLE, policy="load_aware", load_aware=LoadAwareRules(8, 10, window_s=30, dwell_s=60)
)
SPLIT = replace(SINGLE, policy="split", weights={"base": 1, "draft": 1})


def ready(plan: Plan, at: float = 0.0) -> Steering:
    steering = Steering(plan, at)
    for arm in ("base", "draft"):
        steering.saw(arm, Signal.READY, at)
    return steering


def short(moves: list[Transition]) -> list[tuple[State, Reason]]:
    return [(move.after, move.reason) for move in moves]


def idle(offered: float = 5.0) -> Traffic:
    return Traffic(offered_rps=offered)


def test_candidate_waits_until_it_was_seen_ready() -> None:
    """Before the first good probe every request goes to the baseline."""
    steering = Steering(SINGLE, 0.0)
    assert steering.arm_for("other", b"") == "base"
    assert short(steering.saw("draft", Signal.READY, 1.0)) == [(State.SERVING, Reason.HEALTH_UP)]
    assert steering.arm_for("other", b"") == "draft"


def test_a_refused_connection_takes_the_candidate_out_in_the_same_call() -> None:
    """No request after that one is sent there; two good probes after the hold bring it back."""
    steering = ready(SINGLE)
    assert short(steering.saw("draft", Signal.NOT_READY, 1.0)) == [
        (State.UNHEALTHY, Reason.HEALTH_DOWN)
    ]
    assert steering.arm_for("other", b"") == "base"
    assert steering.saw("draft", Signal.READY, 5.0) == []
    assert short(steering.saw("draft", Signal.READY, 6.0)) == [(State.SERVING, Reason.HEALTH_UP)]


def test_denied_cohort_stays_on_the_baseline() -> None:
    """A cohort with baseline_for_cohort never meets the candidate, baseline down or not."""
    steering = ready(SINGLE)
    assert steering.arm_for("code", b"") == "base"
    steering.saw("base", Signal.NOT_READY, 1.0)
    assert steering.arm_for("code", b"") == "base"


def test_split_falls_back_to_the_baseline_and_is_sticky() -> None:
    """Each key keeps its arm; with the candidate out all keys are the baseline's."""
    steering = ready(SPLIT)
    first = [steering.arm_for("other", b"%d" % i) for i in range(200)]
    assert first == [steering.arm_for("other", b"%d" % i) for i in range(200)]
    assert set(first) == {"base", "draft"}
    steering.saw("draft", Signal.NOT_READY, 1.0)
    assert {steering.arm_for("other", b"%d" % i) for i in range(200)} == {"base"}


def test_load_moves_the_traffic_after_the_window_with_dwell() -> None:
    """5/s for 30 s: candidate; then 12/s: back, no sooner than 60 s after."""
    steering = ready(AWARE)
    moves: list[Transition] = []
    for now in range(200):
        moves += steering.tick(now, 0, idle(5.0 if now < 40 else 12.0), {})
    assert short(moves) == [(State.SERVING, Reason.LOAD_BELOW), (State.STANDBY, Reason.LOAD_ABOVE)]
    assert [move.at_s for move in moves] == [30, 90]
    assert "mean 12/s" in moves[1].detail


def test_baseline_down_sends_traffic_to_a_candidate_that_nothing_forbids() -> None:
    """Standby serves while the baseline is down, and gives way when it is back."""
    steering = ready(AWARE)
    assert steering.state("draft").state is State.STANDBY
    assert short(steering.saw("base", Signal.NOT_READY, 1.0)) == [
        (State.SERVING, Reason.BASELINE_DOWN)
    ]
    assert steering.arm_for("other", b"") == "draft"
    steering.saw("base", Signal.READY, 7.0)
    moves = steering.saw("base", Signal.READY, 8.0)
    assert [move.after for move in moves] == [State.STANDBY]


def test_the_baseline_is_not_taken_out_by_answers_nor_kept_out_by_a_hold() -> None:
    """A hundred 5xx change nothing; a refused connection does, for two good probes only."""
    steering = ready(SINGLE)
    for _ in range(100):
        steering.saw("base", Signal.FAULT, 1.0)
    assert steering.baseline_health is Health.UP
    for now in (2.0, 3.0, 4.0):
        steering.saw("base", Signal.NOT_READY, now)
        assert steering.baseline_health is Health.DOWN
        steering.saw("base", Signal.READY, now)
        steering.saw("base", Signal.READY, now)
        assert steering.baseline_health is Health.UP


def test_out_of_range_and_back() -> None:
    """21/s is above the proven 20; 17/s for a minute brings it back."""
    steering = ready(SINGLE)
    moves = steering.tick(1, 0, idle(21), {})
    for now in range(2, 70):
        moves += steering.tick(now, 0, idle(17), {})
    assert short(moves) == [
        (State.OUT_OF_RANGE, Reason.ABOVE_RANGE), (State.SERVING, Reason.IN_RANGE),
    ]  # fmt: skip
    assert moves[1].at_s == 62


def test_skewed_split_is_held_to_what_the_candidate_really_gets() -> None:
    """Half of 30/s is in range, but the candidate really gets 25/s."""
    steering = ready(SPLIT)
    assert steering.tick(1, 0, Traffic(30, {"draft": 15, "base": 15}), {}) == []
    moves = steering.tick(2, 0, Traffic(30, {"draft": 25, "base": 5}), {})
    assert short(moves) == [(State.OUT_OF_RANGE, Reason.ABOVE_RANGE)]


def test_expiry_is_final_until_another_certificate() -> None:
    """At the second of expiry the candidate is refused; a new certificate lets it serve."""
    steering = ready(SINGLE)
    assert steering.tick(1, 999.9, idle(), {}) == []
    assert short(steering.tick(2, 1000, idle(), {})) == [
        (State.REFUSED, Reason.CERTIFICATE_EXPIRED)
    ]
    fresh = replace(PROVEN, expires_s=9999)
    plan = replace(SINGLE, candidates={"draft": Candidate(proven=fresh)})
    assert short(steering.replan(plan, 3, epoch_s=1001)) == [
        (State.SERVING, Reason.CERTIFICATE_VALID)
    ]


def test_an_engine_that_contradicts_its_certificate_is_refused() -> None:
    """Another k or version than was proven: out, and back when the engine is the right one."""
    steering = ready(SINGLE)
    assert short(steering.mismatch("draft", True, 1, "k 5, proven 4")) == [
        (State.REFUSED, Reason.CERTIFICATE_MISMATCH)
    ]
    assert steering.mismatch("draft", True, 2, "again") == []
    assert short(steering.mismatch("draft", False, 3, "")) == [
        (State.SERVING, Reason.CERTIFICATE_VALID)
    ]


def test_expired_at_start_never_serves() -> None:
    """A certificate that is over when the proxy starts refuses before the first tick."""
    steering = Steering(SINGLE, 0.0, epoch_s=2000)
    steering.saw("draft", Signal.READY, 0.0)
    assert steering.state("draft").state is State.REFUSED


def test_guard_trips_and_only_a_rearm_brings_back() -> None:
    """30 errors of 40; recovery does not help; after the re-arm the old errors are forgotten."""
    steering = ready(SINGLE)
    steering.tick(1, 0, idle(), {"draft": ArmCounters()})
    bad = {"draft": ArmCounters(requests=40, errors=30, good=10)}
    moves = steering.tick(2, 0, idle(), bad)
    assert short(moves) == [(State.TRIPPED, Reason.GUARD_ERROR_SHARE)]
    assert moves[0].detail == "0.75 above 0.05 (budget)"
    assert steering.arm_for("other", b"") == "base"
    for now in range(3, 900):
        assert steering.tick(now, 0, idle(), bad) == []
    assert short(steering.rearm("draft", 900, "by hand")) == [(State.SERVING, Reason.REARMED)]
    assert steering.tick(901, 0, idle(), bad) == []
    assert steering.arm_for("other", b"") == "draft"


def test_guard_waits_while_the_baseline_is_down() -> None:
    """A candidate that is bad is kept while there is nothing else, and tripped when there is."""
    steering = ready(SINGLE)
    steering.tick(1, 0, idle(), {"draft": ArmCounters()})
    steering.saw("base", Signal.NOT_READY, 1.5)
    bad = {"draft": ArmCounters(requests=40, errors=30, good=10)}
    assert steering.tick(2, 0, idle(), bad) == []
    assert steering.arm_for("other", b"") == "draft"
    steering.saw("base", Signal.READY, 7)
    steering.saw("base", Signal.READY, 8)
    assert short(steering.tick(9, 0, idle(), bad)) == [(State.TRIPPED, Reason.GUARD_ERROR_SHARE)]


def test_a_quality_job_can_trip() -> None:
    """trip() from outside is as final as the guard; unknown arms and the baseline are refused."""
    steering = ready(SINGLE)
    moves = steering.trip("draft", 1, "quality floor")
    assert (moves[0].reason, moves[0].detail) == (Reason.TRIPPED_BY_HAND, "quality floor")
    for arm in ("base", "nobody"):
        with pytest.raises(KeyError):
            steering.trip(arm, 2, "x")
        with pytest.raises(KeyError):
            steering.rearm(arm, 2, "x")


def test_reload_keeps_trips_even_of_an_arm_that_left_and_came_back() -> None:
    """A reload is no re-arm."""
    steering = ready(SINGLE)
    steering.trip("draft", 1, "x")
    steering.replan(replace(SINGLE, candidates={}, arm="base"), 2, epoch_s=0)
    assert steering.arm_for("other", b"") == "base"
    steering.replan(SPLIT, 3, epoch_s=0)
    steering.saw("draft", Signal.READY, 3)
    assert steering.state("draft").state is State.TRIPPED


def test_reload_keeps_health_and_moves_by_new_weights() -> None:
    """Weight 0 puts the candidate on standby at once; nobody has to probe again."""
    steering = ready(SPLIT)
    moves = steering.replan(replace(SPLIT, weights={"base": 1, "draft": 0}), 1, epoch_s=0)
    assert [(m.after, m.reason, m.detail) for m in moves] == [
        (State.STANDBY, Reason.POLICY, "configuration reloaded")
    ]
    assert steering.health("draft") is Health.UP


def test_another_engine_behind_an_arm_has_to_be_seen_ready() -> None:
    """Renewed: no traffic before its first good probe; a trip stays a trip."""
    steering = ready(SINGLE)
    moves = steering.replan(SINGLE, 1, epoch_s=0, renewed=frozenset({"draft", "base"}))
    assert [move.after for move in moves] == [State.UNHEALTHY]
    assert short(steering.saw("draft", Signal.READY, 2)) == [(State.SERVING, Reason.HEALTH_UP)]
    steering.trip("draft", 3, "x")
    steering.replan(SINGLE, 4, epoch_s=0, renewed=frozenset({"draft"}))
    steering.saw("draft", Signal.READY, 5)
    assert steering.state("draft").state is State.TRIPPED


def test_reload_applies_the_range_to_the_new_share_at_once() -> None:
    """30/s split in halves is in range; the same load undivided is not, before any tick."""
    steering = ready(SPLIT)
    assert steering.tick(1, 0, idle(30), {}) == []
    moves = steering.replan(SINGLE, 1.5, epoch_s=0)
    assert [move.after for move in moves] == [State.OUT_OF_RANGE]


def test_live_baseline_is_compared_only_in_the_same_load_class() -> None:
    """2 % above the baseline's error share trips at equal load, not when one arm is at peak."""
    plan = replace(SPLIT, budget=GuardBudget(min_requests=10, error_share=None))
    bad = {"draft": ArmCounters(1000, 100, 900), "base": ArmCounters(1000, 0, 1000)}
    none = {"draft": ArmCounters(), "base": ArmCounters()}
    for rates, tripped in (
        ({"draft": 3.0, "base": 3.0}, True),
        ({"draft": 3.0, "base": 15}, False),
    ):
        steering = ready(plan)
        steering.tick(1, 0, Traffic(18, rates), none)
        moves = steering.tick(2, 0, Traffic(18, rates), bad)
        assert bool(moves) is tripped
        why = None if tripped else "other load class: draft low, base peak"
        assert steering.idle("draft") == Idle(None, why)


def test_it_is_said_why_rules_of_the_guard_rest() -> None:
    """Off, too few requests, no load classes, baseline down, tripped: each in words."""
    few = {"draft": ArmCounters(9, 0, 9), "base": ArmCounters(9, 0, 9)}
    many = {"draft": ArmCounters(40, 0, 40), "base": ArmCounters(9, 0, 9)}
    steering = ready(SINGLE)
    assert steering.idle("draft") == Idle("not looked at yet", "not looked at yet")
    steering.tick(1, 0, idle(), {})
    assert steering.idle("draft") == Idle("the guard is off", "the guard is off")
    steering.tick(2, 0, idle(), {"draft": ArmCounters(), "base": ArmCounters()})
    steering.tick(3, 0, idle(), few)
    assert steering.idle("draft") == Idle(*["9 of 10 requests in the window"] * 2)
    steering.tick(4, 0, idle(), many)
    had = "the baseline had 9 of 10 requests in the window"
    assert steering.idle("draft") == Idle(None, had)
    steering.saw("base", Signal.NOT_READY, 5)
    steering.tick(5, 0, idle(), many)
    assert steering.idle("draft") == Idle("the baseline is down", "the baseline is down")
    steering.saw("base", Signal.READY, 6)
    steering.saw("base", Signal.READY, 6)
    steering.trip("draft", 7, "x")
    steering.tick(8, 0, idle(), many)
    assert steering.idle("draft") == Idle("tripped", "tripped")
    steering = ready(replace(SINGLE, load_classes=None))
    steering.tick(1, 0, idle(), {"draft": ArmCounters(), "base": ArmCounters()})
    steering.tick(2, 0, idle(), many)
    assert steering.idle("draft") == Idle(None, "no load_classes are configured")


class Gateway(RuleBasedStateMachine):
    """Random traffic, health, breaches, orders and reloads; a plain model says what is banned."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.epoch, self.offered = 0.0, 0.0, 0.0
        self.steering = ready(SINGLE)
        self.tripped = False
        self.count = ArmCounters()

    @rule(
        arm=st.sampled_from(["base", "draft"]),
        seen=st.sampled_from([*Signal, *[Signal.READY] * 6]),  # bans are met while serving
    )
    def signal(self, arm: str, seen: Signal) -> None:
        self.steering.saw(arm, seen, self.now)

    @rule(
        pause=st.sampled_from([0.5, 1.0, 30.0, 61.0, 500.0]),
        offered=st.sampled_from([0, 5, 9, 18, 21, 51]),
        bad=st.sampled_from([False] * 7 + [True]),
    )
    def tick(self, pause: float, offered: float, bad: bool) -> None:
        self.now += pause
        self.epoch += pause
        self.offered = offered
        c = self.count
        self.count = replace(c, requests=c.requests + 50, errors=c.errors + (50 if bad else 0))
        self.steering.tick(self.now, self.epoch, Traffic(offered), {"draft": self.count})

    @rule(rearm=st.sampled_from([True] * 3 + [False]))
    def order(self, rearm: bool) -> None:
        if rearm:
            self.steering.rearm("draft", self.now, "")
        else:
            self.steering.trip("draft", self.now, "")
        self.tripped = not rearm

    @rule(plan=st.sampled_from([SINGLE, SPLIT, AWARE]))
    def reload(self, plan: Plan) -> None:
        self.steering.replan(plan, self.now, epoch_s=self.epoch)

    @invariant()
    def never_serves_under_a_ban(self) -> None:
        s = self.steering
        keys = [b"%d" % i for i in range(8)]
        served = {s.arm_for(cohort, key) for cohort in ("other", "code") for key in keys}
        assert "draft" not in {s.arm_for("code", key) for key in keys}
        share = s.plan.share("draft")
        if (
            self.tripped
            or s.state("draft").state is State.TRIPPED
            or self.epoch >= PROVEN.expires_s
            or s.health("draft") is not Health.UP
            or self.offered * share > PROVEN.max_rps
            or self.offered > (PROVEN.headroom_rps or 0)
        ):  # fmt: skip
            assert "draft" not in served


Gateway.TestCase.settings = settings(max_examples=100, stateful_step_count=30)
TestGateway = Gateway.TestCase
