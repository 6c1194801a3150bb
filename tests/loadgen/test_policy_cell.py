"""The policy cell: arithmetic, what it refuses to judge, its profile against pure steering."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pyarrow as pa
import pytest

from breakeven.errors import InputError, NotReadyError
from breakeven.health import Signal
from breakeven.load import ArrivalWindow
from breakeven.policy import LoadAwareRules
from breakeven.routing import State
from breakeven.steering import Candidate, Plan, Steering, Traffic
from breakeven.trace import read_trace
from breakeven_loadgen.grid.policy_figures import (
    Level,
    Switch,
    crossings,
    lateness,
    running_at,
    waits,
    wrong_mode_s,
)
from breakeven_loadgen.grid.policy_gateway import Watcher, look, unsettled
from breakeven_loadgen.grid.policy_profile import (
    PolicyCell,
    Rules,
    arrivals_of,
    check_profile,
    least_holds_s,
    levels_of,
    noise_rps,
    write_profile,
)
from breakeven_loadgen.replay.columns import Columns

CELL = PolicyCell(
    url="http://127.0.0.1:1", admin="http://127.0.0.1:1", out="out",
    low_rps=2, high_rps=20, hold_s=100, high_hold_s=50, cycles=2, seed=7,
)  # fmt: skip
LEVELS = levels_of(CELL)
ON, OFF = True, False


def test_levels() -> None:
    """high 0-50, low 50-150, high 150-200, low 200-300, high 300-350."""
    rows = [(level.start_s, level.end_s, level.rps) for level in LEVELS]
    assert rows == [(0, 50, 20), (50, 150, 2), (150, 200, 20), (200, 300, 2), (300, 350, 20)]


def test_arrivals_keep_the_rates(tmp_path: Path) -> None:
    """About 1,000 in each high level, 200 in each low one; the same for a seed; from 0 on."""
    arrivals = arrivals_of(CELL)
    times = [arrival.t for arrival in arrivals]
    assert times[0] == 0.0
    assert times == sorted(times)
    assert arrivals == arrivals_of(CELL)
    for level in LEVELS:
        count = sum(level.start_s < t <= level.end_s for t in times)
        mean = level.rps * level.hold_s
        assert abs(count - mean) < 5 * mean**0.5
    path = tmp_path / "p.jsonl"
    write_profile(CELL, path)
    trace = read_trace(path.read_bytes().splitlines())
    assert [a.t for a in trace.arrivals] == pytest.approx(times)


@pytest.mark.parametrize(
    ("serving", "starts"), [(OFF, [50, 150, 200, 300]), (ON, [0, 50, 150, 200, 300])]
)
def test_crossings(serving: bool, starts: list[float]) -> None:
    """Four levels call for a switch; the first as well where the candidate served already."""
    assert [level.start_s for level in crossings(LEVELS, 10, serving)] == starts


@pytest.mark.parametrize(
    ("switches", "wrong"),
    [
        ([], 200.0),  # always baseline: wrong in both low levels
        ([(50, ON), (150, OFF), (200, ON), (300, OFF)], 0.0),
        # 10 s late each time
        ([(60, ON), (160, OFF), (210, ON), (310, OFF)], 40.0),
        # flaps once inside a low level: 5 s on the baseline
        ([(50, ON), (70, OFF), (75, ON), (150, OFF), (200, ON), (300, OFF)], 5.0),
        # never comes back: wrong in the high levels, 100 s
        ([(50, ON)], 100.0),
    ],
)
def test_time_in_the_wrong_mode(switches: list[tuple[float, bool]], wrong: float) -> None:
    """Seconds in which the mode was not the one that the offered rate asked for."""
    made = [Switch(at, mode, "load_below") for at, mode in switches]
    assert wrong_mode_s(LEVELS, 350, 10, OFF, made) == pytest.approx(wrong)


def test_lateness_is_per_crossing() -> None:
    """A crossing that was never answered has no lateness; a wrong switch does not count as one."""
    crossed = crossings(LEVELS, 10, OFF)
    made = [Switch(58, ON, "load_below"), Switch(59, OFF, "x"), Switch(160, OFF, "x"),
            Switch(203, ON, "load_below")]  # fmt: skip
    assert lateness(crossed, made, 10) == [8, 10, 3]


def columns() -> Columns:
    return Columns(
        pa.table(
            {
                "sent_s": [0.0, 5.0, 9.0, None],
                "end_s": [4.0, 12.0, 11.0, None],
                "gap_max_s": [0.01, 0.5, 0.02, None],
                "ttft_s": [0.1, 0.2, 0.3, None],
                "event_offset_s": [[0.0, 0.01], [0.0, 0.5, 0.501], [0.0], None],
                "event_tokens": [[1, 1], [1, 1, 1], [1], None],
            }
        )
    )


def test_rows_that_ran_at_a_switch_are_told_apart() -> None:
    """A switch at 10 s met the second and third request; a request never sent met none."""
    table = columns()
    busy = running_at(table, [10.0])
    assert busy.tolist() == [False, True, True, False]
    during = waits(table.where(busy))
    assert (during.requests, during.gap_max_s, during.gap_p99_s) == (2, 0.5, 0.5)
    assert waits(table.where(~busy)).gap_max_s == 0.01
    assert waits(table.where(running_at(table, []))).ttft_p95_s is None


# --- the gateway -------------------------------------------------------------------------------


def routing(**changes: object) -> dict[str, object]:
    rules = {"enter_below": 4.0, "leave_above": 5.0, "window_s": 20.0, "dwell_s": 10.0}
    base = {"policy": "load_aware", "load_aware": rules, "load_aware_arm": "d",
            "mean_load_rps": 0.0,
            "candidates": {"d": {"replicas": 2, "state": "serving", "reason": "load_below"}},
            }  # fmt: skip
    return base | changes


def test_break_even_in_total_rate() -> None:
    """Thresholds 4 and 5 per replica of two are 8 and 10 in total: break-even 9."""
    rules = Rules.of(routing())
    assert rules == Rules("d", 8.0, 10.0, 20.0, 10.0)
    assert rules.break_even_rps == 9.0


def test_another_policy_is_refused() -> None:
    """`split` has no thresholds to cross."""
    with pytest.raises(InputError, match="not load_aware"):
        Rules.of(routing(policy="split"))


def row(state: str, replicas: int = 2) -> dict[str, object]:
    return {"d": {"replicas": replicas, "state": state, "reason": "start"}}


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        ({}, None),
        ({"mean_load_rps": 3.9}, None),  # 7.8 req/s in total is below 8
        ({"mean_load_rps": None}, "not observed its load for 20 s"),
        ({"mean_load_rps": 4.1}, "other traffic: 8.2 req/s"),
        ({"candidates": row("standby")}, "d is standby"),
        ({"candidates": row("unhealthy")}, "d is unhealthy"),
        ({"candidates": row("tripped"), "mean_load_rps": None}, "d is tripped"),
    ],
)
def test_settled_is_idle_observed_and_serving(seen: dict[str, object], words: str | None) -> None:
    """Anything else would add a switch of its own, or not, by the second of the start."""
    why = unsettled(routing(**seen), Rules.of(routing()))
    assert why is None if words is None else words in str(why)


def test_no_gateway_answers() -> None:
    """A port where nobody listens is exit 3."""
    with pytest.raises(NotReadyError, match="no gateway answers"):
        look("http://127.0.0.1:9")


def test_an_admin_port_that_is_no_address_is_bad_input() -> None:
    """Exit 2, as for --url: waiting for it helps nobody."""
    with pytest.raises(InputError, match="write it as http://HOST:PORT"):
        look("nonsense")


def test_watcher_orders_and_filters() -> None:
    """Only this arm, only changes to or from serving, only after the start; each once."""
    watcher = Watcher("http://127.0.0.1:9", "d")
    for at, arm, was, now in (
        ("1970-01-01T00:01:45+00:00", "d", "serving", "standby"),
        ("1970-01-01T00:01:43+00:00", "d", "standby", "serving"),
        ("1970-01-01T00:01:44+00:00", "e", "standby", "serving"),
        ("1970-01-01T00:01:46+00:00", "d", "standby", "unhealthy"),
        ("1970-01-01T00:01:00+00:00", "d", "standby", "serving"),
    ):
        row = {"at": at, "arm": arm, "from": was, "to": now, "reason": "load_below"}
        watcher._take([row, row])
    assert [(s.at_s, s.serving) for s in watcher.switches(100)] == [(3, True), (5, False)]
    assert watcher.serving_at(50) is None
    assert watcher.serving_at(100) is True
    assert watcher.serving_at(106) is False


def test_levels_end_where_the_next_begins() -> None:
    """A level is a half-open interval."""
    assert Level(5, 2, 10).end_s == 15


# --- can the profile tell? ----------------------------------------------------------------------

RULES = Rules("d", 8.0, 10.0, 20.0, 10.0)


def cell(**changes: float) -> PolicyCell:
    return dataclasses.replace(CELL, **changes)


def test_noise_of_a_rate() -> None:
    """120 arrivals in 30 s have a standard deviation of 11: 4 req/s stray by 4 x 0.365."""
    assert noise_rps(4) == pytest.approx(1.4606, abs=1e-4)
    assert noise_rps(0) == 0.0


def test_least_holds() -> None:
    """Down: (20 - 8 + 1.03) / 18 of 30 s, up: (10 + 2.31 - 2) / 18 of it; then 20 + 10 + 2 s."""
    assert least_holds_s(CELL, RULES) == (
        pytest.approx(30 * 13.0328 / 18 + 32, abs=1e-3),
        pytest.approx(30 * 10.3094 / 18 + 32, abs=1e-3),
    )


@pytest.mark.parametrize(
    ("changes", "key", "words"),
    [
        ({}, None, ""),
        ({"low_rps": 9.0}, "--low/--high", "either side"),
        ({"high_rps": 10.0}, "--low/--high", "either side"),
        ({"low_rps": 6.5}, "--low", "strays by 1.9 req/s, which reaches the threshold at 8"),
        ({"high_rps": 12.0}, "--high", "strays by 2.5 req/s, which reaches the threshold at 10"),
        ({"hold_s": 50.0}, "--hold", "at least 54s"),
        ({"high_hold_s": 49.0}, "--high-hold", "at least 50s"),
        ({"hold_s": 1e99}, "--hold/--cycles", "longer than a year"),
        ({"cycles": 10**12}, "--hold/--cycles", "longer than a year"),
        ({"high_rps": 1e9}, "--high", "stay below 10000000"),
    ],
)
def test_a_profile_that_cannot_tell_is_refused(
    changes: dict[str, float], key: str | None, words: str
) -> None:
    """Before anything is sent, with what would do."""
    if key is None:
        check_profile(cell(**changes), RULES)
        return
    with pytest.raises(InputError, match=re.escape(words)) as raised:
        check_profile(cell(**changes), RULES)
    assert raised.value.key == key


def steered(made: PolicyCell, rules: Rules, start_s: float, late_s: float = 0.0) -> list[Switch]:
    """What pure steering does with the cell's arrivals, of a gateway that started `start_s` before.

    It looks once a second and `late_s` (a busy machine's ticks); times count from the cell's start.
    """
    given = LoadAwareRules(rules.enter_rps, rules.leave_rps, rules.window_s, rules.dwell_s)
    plan = Plan("b", policy="load_aware", arm="d", candidates={"d": Candidate()}, load_aware=given)
    window, steering = ArrivalWindow(0.0), Steering(plan, 0.0)
    steering.saw("d", Signal.READY, 0.01)
    times = iter([start_s + arrival.t for arrival in arrivals_of(made)])
    due = next(times)
    now, end_s, found = 0.0, start_s + levels_of(made)[-1].end_s, []
    while now <= end_s:
        while due is not None and due <= now:
            window.record(due)
            due = next(times, None)
        for moved in steering.tick(now, now, Traffic(window.rate(now)), {}):
            if State.SERVING in (moved.before, moved.after):
                serving = moved.after is State.SERVING
                found.append(Switch(now - start_s, serving, moved.reason.value))
        now += 1.0 + late_s
    return found


SHORT = dataclasses.replace(CELL, low_rps=1, high_rps=30, hold_s=35, high_hold_s=11, cycles=1)
SHORT_RULES = Rules("d", 3.0, 5.0, 1.0, 0.5)
"""Those of tests/e2e/test_policy_cell.py."""


def test_a_run_that_begins_before_the_gateway_settled_counts_a_switch_of_its_own() -> None:
    """Idle for less than its window at the look before the start: 4 switches where 2 were due."""
    odd = []
    for tenths in range(5, 40):
        start_s = tenths / 10
        made = steered(SHORT, SHORT_RULES, start_s)
        at_look = ([OFF] + [s.serving for s in made if s.at_s < -0.5])[-1]
        due = len(crossings(levels_of(SHORT), SHORT_RULES.break_even_rps, at_look))
        got = sum(s.at_s >= 0 for s in made)
        if got != due:
            odd.append((start_s, due, got))
    assert {(due, got) for _, due, got in odd} >= {(2, 4)}
    assert all(start_s < SHORT_RULES.window_s + 2 for start_s, _, _ in odd)


@pytest.mark.parametrize("late_s", [0.002, 0.4, 1.0])
def test_a_settled_gateway_switches_once_per_crossing(late_s: float) -> None:
    """Off, on, off for every seed and every phase of its looks: nothing is chance any more."""
    check_profile(SHORT, SHORT_RULES)
    for seed in range(25):
        made = dataclasses.replace(SHORT, seed=seed)
        start_s = 4.0 + 3 * SHORT_RULES.window_s + seed * 0.137
        found = [s for s in steered(made, SHORT_RULES, start_s, late_s) if s.at_s >= 0]
        assert [s.serving for s in found] == [OFF, ON, OFF], (seed, found)
        assert {s.reason for s in found} == {"load_above", "load_below"}


def test_rates_too_near_the_thresholds_flap() -> None:
    """What `check_profile` refuses does make more switches than crossings: it is no formality."""
    near = dataclasses.replace(SHORT, low_rps=4.5, high_rps=6, hold_s=200, high_hold_s=200)
    rules = Rules("d", 4.9, 5.1, 1.0, 0.5)
    counts = [
        sum(s.at_s >= 0 for s in steered(dataclasses.replace(near, seed=seed), rules, 10.0))
        for seed in range(5)
    ]
    assert max(counts) > 3
    with pytest.raises(InputError, match="would be chance"):
        check_profile(near, rules)
