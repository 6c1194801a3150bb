"""A deadline that is cheap to move: one timer, re-armed only when it fires too early."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Deadline:
    """Calls `passed` once when a set deadline is over. Setting it again costs no timer."""

    __slots__ = ("_due", "_loop", "_passed", "_timer", "_timer_due")

    def __init__(self, loop: asyncio.AbstractEventLoop, passed: Callable[[], None]) -> None:
        self._loop = loop
        self._passed = passed
        self._due: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0

    def set(self, seconds: float) -> None:
        """The deadline is `seconds` from now."""
        self._due = self._loop.time() + seconds
        if self._timer is not None and self._timer_due > self._due:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._arm()

    def clear(self) -> None:
        """No deadline any more; a timer that runs on does nothing."""
        self._due = None

    def close(self) -> None:
        """No deadline, and no timer that keeps its owner alive."""
        self._due = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        assert self._due is not None
        self._timer_due = self._due
        self._timer = self._loop.call_at(self._due, self._fire)

    def _fire(self) -> None:
        self._timer = None
        if self._due is None:
            return
        if self._due - self._loop.time() > 0.001:
            self._arm()
        else:
            self._due = None
            self._passed()
