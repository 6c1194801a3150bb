"""The policy cell's arithmetic: crossings, lateness, time in the wrong mode, who was running."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from breakeven.errors import InputError, NotReadyError
from breakeven.trace import read_trace
from breakeven_loadgen.grid.policy_cell import (
    PolicyCell,
    Watcher,
    _check,
    _write_profile,
    arrivals_of,
    levels_of,
    look,
)
from breakeven_loadgen.grid.policy_figures import (
    Level,
    Switch,
    crossings,
    lateness,
    running_at,
    waits,
    wrong_mode_s,
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
    _write_profile(CELL, path)
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


def routing(**changes: object) -> dict[str, object]:
    rules = {"enter_below": 4.0, "leave_above": 5.0}
    base = {"policy": "load_aware", "load_aware": rules, "load_aware_arm": "d",
            "candidates": {"d": {"replicas": 2}}}  # fmt: skip
    return base | changes


def test_break_even_in_total_rate() -> None:
    """Thresholds 4 and 5 per replica of two are 8 and 10 in total: break-even 9."""
    assert _check(CELL, routing()) == ("d", 9.0)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (routing(policy="split"), "not load_aware"),
        (routing(candidates={"d": {"replicas": 1}}), None),
        (routing(candidates={"d": {"replicas": 5}}), "either side"),  # 20 and 25 in total
    ],
)
def test_a_gateway_that_cannot_be_checked(found: dict[str, object], words: str | None) -> None:
    """Another policy, or rates that do not cross: refused before anything is sent."""
    if words is None:
        _check(CELL, found)
        return
    with pytest.raises(InputError, match=words):
        _check(CELL, found)


def test_no_gateway_answers() -> None:
    """A port where nobody listens is exit 3."""
    with pytest.raises(NotReadyError, match="no gateway answers"):
        look("http://127.0.0.1:9")


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


def test_levels_end_where_the_next_begins() -> None:
    """A level is a half-open interval."""
    assert Level(5, 2, 10).end_s == 15
