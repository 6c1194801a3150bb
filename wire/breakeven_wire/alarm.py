"""An alarm that is cheap to set: one timer, moved only when it rings too early."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Alarm:
    """Calls `ring` at the set time or before; who is rung too early sets it again.

    A deadline that is moved with every read or every request would otherwise cost a timer each
    time. Must be closed: its timer keeps the owner of `ring` alive.
    """

    __slots__ = ("_due", "_loop", "_ring", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop = loop
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def by(self, due: float) -> None:
        """Rings at `due` (the loop's time) at the latest."""
        timer = self._timer
        if timer is not None:
            if self._due <= due:
                return
            timer.cancel()
        self._due = due
        self._timer = self._loop.call_at(due, self._fire)

    def _fire(self) -> None:
        self._timer = None
        self._ring()

    def close(self) -> None:
        """Rings no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
