"""Control: core's table with a clock, counters, a journal and a trip file around it."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from breakeven.guard import ArmCounters, GuardBudget
from breakeven.health import Signal
from breakeven.policy import LoadAwareRules
from breakeven.proven import ProvenRange
from breakeven.routing import Reason, State
from breakeven.slo import SLO
from breakeven.steering import Candidate, Plan, Steering
from breakeven_proxy.control.journal import KEPT, MAX_DETAIL
from breakeven_proxy.control.steer import Control
from breakeven_proxy.observe.bound import bounds_of
from breakeven_proxy.observe.log import Log, make_logger
from breakeven_proxy.observe.metrics import Metrics

PLAN = Plan(
    baseline="base",
    arm="draft",
    candidates={"draft": Candidate(proven=ProvenRange(0, 20, 50, expires_s=5000))},
    budget=GuardBudget(min_requests=10),
)


@dataclass
class FakeArm:
    rate: float = 0.0
    up: bool | None = None

    def rate_total(self, now: float) -> float:
        return self.rate


@dataclass
class Room:
    """A Control whose clock and counters the test holds."""

    now: float = 0.0
    arms: dict[str, FakeArm] = field(
        default_factory=lambda: {"base": FakeArm(), "draft": FakeArm()}
    )
    counts: dict[str, ArmCounters] = field(default_factory=dict)
    lines: io.StringIO = field(default_factory=io.StringIO)
    metrics: Metrics = field(default_factory=lambda: Metrics(bounds_of(SLO(ttft_s=0.5))))

    def control(self, plan: Plan = PLAN, **options: Any) -> Control:
        return Control(
            plan, arms=self.arms, counters=self.counts.get, metrics=self.metrics,
            log=Log(make_logger(self.lines)), clock=lambda: self.now,
            wall=lambda: 1000 + self.now, **options,
        )  # fmt: skip

    def ready(self, plan: Plan = PLAN, **options: Any) -> Control:
        control = self.control(plan, **options)
        for arm in self.arms:
            control.saw(arm, Signal.READY)
        return control

    def sample(self, name: str, **labels: str) -> float | None:
        """One sample as a scraper sees it."""
        from prometheus_client import CollectorRegistry

        registry = CollectorRegistry()
        registry.register(self.metrics)
        for family in text_string_to_metric_families(generate_latest(registry).decode()):
            for sample in family.samples:
                if sample.name == f"breakeven_{name}" and sample.labels == labels:
                    return float(sample.value)
        return None

    def events(self, name: str) -> list[dict[str, Any]]:
        rows = [json.loads(line) for line in self.lines.getvalue().splitlines()]
        return [row for row in rows if row["event"] == name]


def test_a_transition_is_a_counter_a_log_line_and_a_row_in_status() -> None:
    """A trip by hand shows with its reason in all three, and as the state's gauge."""
    room = Room()
    control = room.ready()
    assert control.arm_for("other", None) == "draft"
    control.trip("draft", "quality floor chat/en broken")
    assert control.arm_for("other", None) == "base"
    labels = {"arm": "draft", "reason": "tripped_by_hand"}
    assert room.sample("route_transitions_total", **labels) == 1
    assert room.sample("route_state", arm="draft", state="tripped") == 1
    assert room.sample("route_state", arm="draft", state="serving") == 0
    line = room.events("route transition")[-1]
    assert line["level"] == "warning"
    row = {
        "at": "1970-01-01T00:16:40.000+00:00", "arm": "draft", "from": "serving", "to": "tripped",
        "reason": "tripped_by_hand", "detail": "quality floor chat/en broken",
    }  # fmt: skip
    assert row.items() <= line.items()
    status = control.status()
    assert status["transitions"][-1] == row
    because = status["candidates"]["draft"]["tripped_because"]
    assert because == "tripped_by_hand: quality floor chat/en broken"
    json.dumps(status)


def test_every_series_stands_before_anything_happened() -> None:
    """Each reason of the counter and each state of the gauge is there, at 0 or 1."""
    room = Room()
    room.control()
    for reason in Reason:
        assert room.sample("route_transitions_total", arm="draft", reason=reason) == 0
    assert sum(room.sample("route_state", arm="draft", state=s) or 0 for s in State) == 1


def test_journal_keeps_the_last_fifty_and_cuts_what_is_posted() -> None:
    """60 trips and 60 re-arms leave 50 rows; a detail is one printable line of 200 signs."""
    room = Room()
    control = room.ready()
    for _ in range(60):
        control.trip("draft", "x\n\x1b[31m" + "y" * 1000)
        control.rearm("draft")
    rows = control.status()["transitions"]
    assert len(rows) == KEPT
    detail = next(row["detail"] for row in rows if row["to"] == "tripped")
    assert len(detail) == MAX_DETAIL
    assert detail.isprintable()


@pytest.mark.parametrize("method", ["arm_for", "tick", "saw"])
def test_a_fault_of_the_machinery_means_baseline(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever raises inside, requests go to the baseline, the fault is counted and logged."""
    room = Room()
    control = room.ready()

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("prompt text that must not be logged")

    with monkeypatch.context() as patch:
        patch.setattr(Steering, method, broken)
        if method == "tick":
            control.tick()
        elif method == "saw":
            control.saw("draft", Signal.READY)
        assert control.arm_for("other", None) == "base"
    assert control.arm_for("other", None) == "base"  # until a good tick
    assert room.sample("route_errors_total") == 1
    (line,) = room.events("control failed: the baseline serves")
    assert line["exception"] == "ZeroDivisionError"
    assert "prompt text" not in room.lines.getvalue()
    assert control.status()["control_failed"] is True
    control.tick()
    assert control.arm_for("other", None) == "draft"


def test_a_fault_with_every_request_does_not_flood_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """500 failing ticks within 5 s are 500 counts and one line."""
    room = Room()
    control = room.ready()
    monkeypatch.setattr(Steering, "tick", lambda *_: 1 / 0)
    for i in range(500):
        room.now = i / 100
        control.tick()
    assert room.sample("route_errors_total") == 500
    assert len(room.events("control failed: the baseline serves")) == 1


def test_tick_feeds_load_and_guard() -> None:
    """30 errors of 40 trip; the reason is the guard's and the figures stand in the detail."""
    room = Room()
    control = room.ready()
    room.counts["draft"] = ArmCounters()
    control.tick()
    room.now = 1.0
    room.counts["draft"] = ArmCounters(requests=40, errors=30, good=10)
    control.tick()
    draft = control.status()["candidates"]["draft"]
    assert (draft["state"], draft["reason"]) == ("tripped", "guard_error_share")
    assert draft["tripped_because"] == "guard_error_share: 0.75 above 0.05 (budget)"
    assert room.sample("route_transitions_total", arm="draft", reason="guard_error_share") == 1
    # At the look that tripped it the budget acted; the baseline had nothing to compare with.
    assert draft["guard"]["against_budget"] == "acts"
    assert draft["guard"]["against_live_baseline"] != "acts"
    room.now = 2.0
    control.tick()
    assert control.status()["candidates"]["draft"]["guard"] == {
        "against_budget": "tripped", "against_live_baseline": "tripped",
    }  # fmt: skip


def test_guard_can_be_switched_off() -> None:
    """Without guard the same errors change nothing."""
    room = Room()
    control = room.ready(guard_enabled=False)
    for room.now in (0.0, 1.0):
        control.tick()
        room.counts["draft"] = ArmCounters(requests=40, errors=30, good=10)
    assert control.arm_for("other", None) == "draft"


def test_rate_of_all_arms_is_held_against_the_range() -> None:
    """12/s on one arm and 9/s on the other are 21/s for a candidate that gets all: above 20."""
    room = Room()
    control = room.ready()
    room.arms["base"].rate, room.arms["draft"].rate = 12, 9
    control.tick()
    assert control.status()["candidates"]["draft"]["reason"] == "above_range"


def test_never_means_never() -> None:
    """With rearm: never an order to arm again is refused, and the arm stays out."""
    room = Room()
    control = room.ready(rearm="never")
    control.trip("draft", "x")
    assert control.rearm("draft") is False
    assert control.arm_for("other", None) == "base"
    with pytest.raises(KeyError):
        control.rearm("base")


def test_split_is_sticky_by_key_and_spreads_the_rest() -> None:
    """A value has one arm; requests without one are spread by a running number."""
    room = Room()
    control = room.ready(
        Plan(baseline="base", policy="split", weights={"base": 1, "draft": 1},
             candidates={"draft": Candidate()})
    )  # fmt: skip
    assert len({control.arm_for("other", b"user-7") for _ in range(50)}) == 1
    drafts = sum(control.arm_for("other", None) == "draft" for _ in range(400))
    assert 140 < drafts < 260  # sd 10


def test_health_shows_on_the_arm() -> None:
    """`up` follows the health state, hysteresis included: it is what /readyz asks."""
    room = Room()
    control = room.control()
    assert room.arms["draft"].up is None
    control.saw("draft", Signal.READY)
    assert room.arms["draft"].up is True
    control.saw("draft", Signal.NOT_READY)
    control.saw("draft", Signal.READY)
    assert room.arms["draft"].up is False


def test_load_aware_shows_its_figures() -> None:
    """Mean load and thresholds are gauges, the mean also in /status."""
    room = Room()
    plan = Plan(baseline="base", policy="load_aware", arm="draft",
                candidates={"draft": Candidate(replicas=2)},
                load_aware=LoadAwareRules(4, 6, window_s=10, dwell_s=10))  # fmt: skip
    control = room.ready(plan)
    room.arms["base"].rate = 5.0
    for now in range(12):
        room.now = float(now)
        control.tick()
    assert room.sample("route_load_requests_per_second") == 2.5
    assert room.sample("route_threshold_requests_per_second", bound="leave_above") == 6
    assert control.status()["mean_load_rps"] == 2.5
    assert control.arm_for("other", None) == "draft"


def test_a_trip_outlives_a_restart(tmp_path: Path) -> None:
    """Another process with the same state file starts tripped; after a re-arm it does not."""
    path = str(tmp_path / "trips.json")
    Room().ready(state_file=path).trip("draft", "p99 broke")
    second = Room()
    control = second.ready(state_file=path)
    assert control.arm_for("other", None) == "base"
    because = control.status()["candidates"]["draft"]["tripped_because"]
    assert because == "tripped_by_hand: p99 broke"
    control.rearm("draft")
    assert Room().ready(state_file=path).arm_for("other", None) == "draft"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"tripped": {"draft": {}}}', '{"tripped": 3}'])
def test_a_trip_file_that_cannot_be_read_trips(tmp_path: Path, text: str) -> None:
    """What it said is unknown, so every candidate is out until somebody arms it."""
    path = tmp_path / "trips.json"
    path.write_text(text)
    room = Room()
    control = room.ready(state_file=str(path))
    assert control.status()["candidates"]["draft"]["state"] == "tripped"
    assert control.arm_for("other", None) == "base"


def test_a_trip_file_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    """The arm is out all the same; the fault is logged."""
    room = Room()
    control = room.ready(state_file=str(tmp_path / "no" / "such" / "dir.json"))
    control.trip("draft", "x")
    assert control.arm_for("other", None) == "base"
    assert room.events("trip file cannot be written")


def test_connection_failure_names_another_arm() -> None:
    """From a candidate to the baseline; from a baseline that is down to a serving candidate."""
    room = Room()
    control = room.ready()
    control.saw("draft", Signal.NOT_READY)
    assert control.other_arm("draft", "other") == "base"
    assert control.other_arm("base", "other") is None
    healthy = room.ready()
    healthy.saw("base", Signal.NOT_READY)
    assert healthy.other_arm("base", "other") == "draft"
