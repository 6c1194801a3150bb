"""Wakes the event loop at absolute times of the monotonic clock, to a fraction of a millisecond.

uvloop's own timers count whole milliseconds, so the wake-up comes from a timerfd (a high
resolution kernel timer) that the loop watches. Where there is no timerfd, the loop's timer wakes
early and a short spin covers the rest.
Here: the clock and the wake-up. Not here: what is done at each time.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Protocol

SPIN_S = 0.0015
"""Fallback only: wake this much early, because the loop's timers are a millisecond coarse."""

_CLOCK_MONOTONIC = 1
_TFD_NONBLOCK_CLOEXEC = os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0)
_TFD_TIMER_ABSTIME = 1


class Alarm(Protocol):
    """One pending wake-up; setting it again replaces it."""

    def set(self, at_s: float) -> None: ...
    def close(self) -> None: ...


class Pacer:
    """Calls `fire(i)` for i = 0, 1, … when `start_s + offsets[i]` has come.

    The schedule is absolute and never re-anchored: when the loop was late, everything that is due
    fires at once, each with its own intended time. Nothing here waits for a slot or a response.
    """

    def __init__(
        self,
        start_s: float,
        offsets: Sequence[float],
        fire: Callable[[int, float], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        alarm: Callable[[asyncio.AbstractEventLoop, Callable[[], None]], Alarm] | None = None,
    ) -> None:
        """`fire(index, intended_s)` gets the absolute intended time on `clock`."""
        self._start_s = start_s
        self._offsets = offsets
        self._fire = fire
        self._clock = clock
        self._next = 0
        self._due_s = math.inf
        self._stopped = False
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._alarm = (alarm or best_alarm)(asyncio.get_running_loop(), self._wake)

    def start(self) -> None:
        """Arm the first wake-up; what is already due fires from the loop, not from here."""
        self._arm()

    def poke(self) -> None:
        """Fire what has fallen due, without waiting for the alarm.

        For callbacks of the loop that run in crowds: a loop hears its alarm only when it has gone
        through every socket that was readable, and a batch of streams ticks together.
        """
        if self._due_s <= self._clock() and not self._stopped:
            self._wake()

    def stop(self) -> None:
        """No arrival fires any more. `done` is resolved."""
        self._stopped = True
        self._finish()

    @property
    def fired(self) -> int:
        """How many arrivals have fallen due and were fired."""
        return self._next

    def until_next_s(self) -> float:
        """Seconds to the next intended time; infinite after the last."""
        if self._stopped or self._next >= len(self._offsets):
            return float("inf")
        return self._start_s + self._offsets[self._next] - self._clock()

    def _wake(self) -> None:
        while not self._stopped and self._next < len(self._offsets):
            intended_s = self._start_s + self._offsets[self._next]
            if intended_s > self._clock():
                break
            index = self._next
            self._next += 1
            self._fire(index, intended_s)
        self._arm()

    def _arm(self) -> None:
        if self._stopped or self._next >= len(self._offsets):
            self._finish()
        else:
            self._due_s = self._start_s + self._offsets[self._next]
            self._alarm.set(self._due_s)

    def _finish(self) -> None:
        self._due_s = math.inf
        self._alarm.close()
        if not self.done.done():
            self.done.set_result(None)


class LoopAlarm:
    """The loop's timer, woken early by `SPIN_S` and spun to the exact time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        self._loop = loop
        self._wake = wake
        self._handle: asyncio.TimerHandle | None = None
        self._at_s = 0.0

    def set(self, at_s: float) -> None:
        self.close()
        self._at_s = at_s
        delay_s = at_s - time.monotonic() - SPIN_S
        # call_at would be on the loop's clock, which uvloop caches once per iteration.
        self._handle = self._loop.call_later(max(0.0, delay_s), self._spin)

    def _spin(self) -> None:
        while time.monotonic() < self._at_s:
            pass
        self._wake()

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


class _Timespec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("it_interval", _Timespec), ("it_value", _Timespec))


class TimerfdAlarm:
    """Linux timerfd on CLOCK_MONOTONIC, watched by the loop (man 2 timerfd_create)."""

    def __init__(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_NONBLOCK_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._loop = loop
        self._wake = wake
        self._spec = _Itimerspec()
        loop.add_reader(self._fd, self._readable)

    def set(self, at_s: float) -> None:
        at_ns = max(1, round(at_s * 1e9))  # 0 would disarm the timer
        self._spec.it_value.tv_sec, self._spec.it_value.tv_nsec = divmod(at_ns, 1_000_000_000)
        failed = self._libc.timerfd_settime(
            self._fd, _TFD_TIMER_ABSTIME, ctypes.byref(self._spec), None
        )
        if failed:
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def _readable(self) -> None:
        # Set again meanwhile: nothing to read, the new time wakes us.
        with contextlib.suppress(BlockingIOError):
            os.read(self._fd, 8)
        self._wake()

    def close(self) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1


def best_alarm(loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> Alarm:
    """A timerfd where the system has one, else the loop's timer with a spin."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            return TimerfdAlarm(loop, wake)
    return LoopAlarm(loop, wake)
