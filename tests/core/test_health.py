"""Health table: quick to leave, slow to come back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.health import Health, HealthRules, HealthState, Signal, observe

RULES = HealthRules(fail_after=3, rise_after=2, hold_s=5, max_hold_s=20)
READY, FAILED, GONE = Signal.READY, Signal.PROBE_FAILED, Signal.NOT_READY
OK, FAULT = Signal.ANSWERED, Signal.FAULT
UP, DOWN, UNKNOWN = Health.UP, Health.DOWN, Health.UNKNOWN


def walk(script: list[tuple[float, Signal]], state: HealthState | None = None) -> HealthState:
    state = state or HealthState()
    for now, seen in script:
        state = observe(state, seen, now, RULES)
    return state


@pytest.mark.parametrize(
    ("script", "health"),
    [
        ([], UNKNOWN),
        ([(0, READY)], UP),  # the first good probe suffices at the start
        ([(0, OK)], UNKNOWN),  # an answer alone does not show that it is ready
        ([(0, READY), (1, GONE)], DOWN),  # nobody listens: at once
        ([(0, GONE)], DOWN),
        ([(0, READY), (1, FAULT), (1, FAULT)], UP),
        ([(0, READY), (1, FAULT), (1, FAULT), (1, FAULT)], DOWN),
        ([(0, READY), (1, FAULT), (1, FAULT), (1, OK), (1, FAULT), (1, FAULT)], UP),
        ([(0, READY), (1, FAULT), (1, READY), (1, FAULT), (1, READY), (1, FAULT)], DOWN),
        ([(0, READY), (1, FAILED), (2, FAILED), (3, READY), (4, FAILED)], UP),
        ([(0, READY), (1, FAILED), (2, FAILED), (3, FAILED)], DOWN),
        ([(0, READY), (1, GONE), (2, READY), (3, READY)], DOWN),  # 2 passes, hold until 6
        ([(0, READY), (1, GONE), (2, READY), (3, READY), (6, READY)], UP),
        ([(0, READY), (1, GONE), (6, READY)], DOWN),  # hold over, one pass of two
        ([(0, READY), (1, GONE), (5, READY), (6, GONE), (7, READY)], DOWN),
    ],
)
def test_table(script: list[tuple[float, Signal]], health: Health) -> None:
    """Each script of signals ends in the health of its row."""
    assert walk(script).health is health


def test_hold_doubles_with_each_fall_and_starts_afresh_after_steady_time() -> None:
    """5, 10, 20, 20 s (the maximum); after 20 s up it is 5 s again."""
    state, now, holds = HealthState(), 0.0, []
    for _ in range(4):
        state = observe(state, GONE, now, RULES)
        holds.append(state.hold_until_s - now)
        now = state.hold_until_s
        state = walk([(now, READY), (now, READY)], state)
        assert state.health is UP
    assert holds == [5, 10, 20, 20]
    state = observe(state, GONE, now + 20, RULES)
    assert state.hold_until_s == now + 20 + 5


def test_signals_while_down_do_not_stretch_the_hold() -> None:
    """Ten more refusals are still the same fall."""
    state = walk([(0, READY), *[(float(t), GONE) for t in range(1, 11)]])
    assert (state.falls, state.hold_until_s) == (1, 6)


@given(st.lists(st.tuples(st.floats(0, 5), st.sampled_from(Signal)), max_size=80))
def test_never_up_before_the_hold_or_after_too_many_faults(
    steps: list[tuple[float, Signal]],
) -> None:
    """Whatever the order: up only by READY, never inside a hold, and each count stays bounded."""
    state, now = HealthState(), 0.0
    for pause, seen in steps:
        now += pause
        before, state = state, observe(state, seen, now, RULES)
        if state.health is UP and before.health is not UP:
            assert seen is READY
            assert now >= before.hold_until_s
        assert state.faults < RULES.fail_after
        assert state.failed_probes < RULES.fail_after
        if seen is GONE:
            assert state.health is DOWN
