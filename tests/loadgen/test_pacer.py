"""The pacer: absolute times, never early, no drift, no re-anchoring."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest
import uvloop

from breakeven_loadgen.traffic.pacer import LoopAlarm, Pacer, TimerfdAlarm, best_alarm


class FakeAlarm:
    """Remembers the time it was set to; the test turns the clock."""

    def __init__(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        self.wake = wake
        self.at_s: float | None = None
        self.closed = False

    def set(self, at_s: float) -> None:
        self.at_s = at_s

    def close(self) -> None:
        self.closed = True


def drive(offsets: list[float], lateness: Callable[[int], float]) -> list[tuple[int, float, float]]:
    """Run a schedule on a fake clock; each wake-up comes `lateness(n)` after its time.

    Returns (index, intended, fired at).
    """
    fired: list[tuple[int, float, float]] = []

    async def main() -> None:
        now = 100.0
        alarm: list[FakeAlarm] = []

        def make(loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> FakeAlarm:
            alarm.append(FakeAlarm(loop, wake))
            return alarm[0]

        pacer = Pacer(
            100.0, offsets, lambda i, at: fired.append((i, at, now)), clock=lambda: now, alarm=make
        )
        pacer.start()
        n = 0
        while not pacer.done.done():
            at_s = alarm[0].at_s
            assert at_s is not None
            now = max(now, at_s + lateness(n))
            alarm[0].wake()
            n += 1
        assert alarm[0].closed

    asyncio.run(main())
    return fired


def test_fires_each_index_once_at_its_absolute_time() -> None:
    """Every index once, in order, with the intended time of the schedule."""
    fired = drive([0.0, 0.5, 0.5, 2.0], lambda n: 0.0)
    assert [(i, at) for i, at, _ in fired] == [(0, 100.0), (1, 100.5), (2, 100.5), (3, 102.0)]


def test_lateness_does_not_add_up() -> None:
    """3 ms late at each of 12,000 wake-ups of a 10-minute schedule: the last is 3 ms late."""
    fired = drive([i * 0.05 for i in range(12_000)], lambda n: 0.003)
    assert fired[-1][2] - fired[-1][1] == pytest.approx(0.003)
    assert max(at - intended for _, intended, at in fired) == pytest.approx(0.003)


def test_after_a_stall_everything_due_fires_with_its_own_time() -> None:
    """A stall of 3 s at 20/s: the 60 missed arrivals fire at once, intended times unchanged."""
    fired = drive([i * 0.05 for i in range(100)], lambda n: 3.0 if n == 10 else 0.0)
    assert [intended for _, intended, _ in fired] == [100.0 + i * 0.05 for i in range(100)]
    assert sum(at == fired[10][2] for _, _, at in fired) == 61


def test_an_early_wake_up_fires_nothing() -> None:
    """A spurious wake-up before the time arms again: no send is early, no latency negative."""
    fired = drive([0.0, 1.0], lambda n: -0.4 if n == 1 else 0.0)
    assert all(at >= intended for _, intended, at in fired)
    assert len(fired) == 2


def test_a_poke_fires_what_is_due_before_the_alarm_is_heard() -> None:
    """Called between two reads: due arrivals fire once, the alarm finds nothing left to do."""
    fired: list[int] = []
    now = 100.0

    async def main() -> None:
        nonlocal now
        alarms: list[FakeAlarm] = []

        def make(loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> FakeAlarm:
            alarms.append(FakeAlarm(loop, wake))
            return alarms[0]

        pacer = Pacer(
            100.0, [0.5, 1.0, 9.0], lambda i, _: fired.append(i), clock=lambda: now, alarm=make
        )
        pacer.poke()
        assert fired == [], "not started: nothing is due"
        pacer.start()
        now = 100.4
        pacer.poke()
        assert fired == []
        now = 101.2
        pacer.poke()
        assert fired == [0, 1]
        assert alarms[0].at_s == 109.0, "armed for the one after"
        alarms[0].wake()
        assert fired == [0, 1]
        now = 110.0
        pacer.stop()
        pacer.poke()
        assert fired == [0, 1], "stopped"
        assert pacer.done.done()

    asyncio.run(main())


@pytest.mark.parametrize("alarm", [LoopAlarm, TimerfdAlarm, best_alarm])
def test_real_alarms_never_wake_early(alarm: Callable[..., object]) -> None:
    """Timerfd and spinning timer on uvloop: fired at or after the intended time, all of them."""
    fired: list[tuple[float, float]] = []

    async def main() -> None:
        pacer = Pacer(
            time.monotonic() + 0.01,
            [0.0, 0.0005, 0.003, 0.02],
            lambda _, at: fired.append((at, time.monotonic())),
            alarm=alarm,  # type: ignore[arg-type]  # a class or a function that makes an Alarm
        )
        pacer.start()
        await pacer.done

    uvloop.run(main())
    assert len(fired) == 4
    assert all(now >= at for at, now in fired)


def test_stop_fires_nothing_more() -> None:
    """After stop() the schedule is over and `done` is resolved."""

    async def main() -> int:
        fired: list[int] = []
        pacer = Pacer(time.monotonic() + 60.0, [0.0, 1.0], lambda i, _: fired.append(i))
        pacer.start()
        assert pacer.until_next_s() > 0
        pacer.stop()
        await pacer.done
        assert pacer.until_next_s() == float("inf")
        return len(fired)

    assert uvloop.run(main()) == 0
