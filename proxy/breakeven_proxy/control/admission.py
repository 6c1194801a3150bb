"""Room in an arm: requests in flight, and a bounded queue with a deadline. Nothing else waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


def _nothing() -> None:
    """Nobody waits any more."""


class Waiting:
    """One request at the desk; `leave` is guarded, so that no gauge can leak."""

    __slots__ = ("_admission", "granted", "left", "on_admitted", "on_expired", "timer")

    def __init__(
        self, admission: Admission, on_admitted: Callable[[], None], on_expired: Callable[[], None]
    ) -> None:
        self._admission = admission
        self.on_admitted = on_admitted
        self.on_expired = on_expired
        self.granted = False
        self.left = False
        self.timer: asyncio.TimerHandle | None = None

    def leave(self) -> None:
        """Gives back the place, in flight or in the queue; once."""
        self._admission.leave(self)


class Admission:
    """At most `max_inflight` at once and `max_queue` waiting, first come first served.

    Args:
        queue_timeout_s: how long one may wait.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        max_inflight: int,
        max_queue: int,
        queue_timeout_s: float,
    ) -> None:
        self._loop = loop
        self.max_inflight = max_inflight
        self.max_queue = max_queue
        self.queue_timeout_s = queue_timeout_s
        self.inflight = 0
        self._queue: dict[Waiting, None] = {}  # insertion order, and removal in one step

    @property
    def queued(self) -> int:
        """Requests that wait."""
        return len(self._queue)

    @property
    def has_room(self) -> bool:
        """Whether the next request is admitted at once."""
        return self.inflight < self.max_inflight and not self._queue

    def enter(
        self, on_admitted: Callable[[], None], on_expired: Callable[[], None]
    ) -> Waiting | None:
        """A place at once, or one in the queue; None when the queue is full.

        `on_admitted` is called later only if the request had to wait; a granted `Waiting` is
        returned with `granted` set.
        """
        if self.inflight < self.max_inflight and not self._queue:
            waiting = Waiting(self, _nothing, _nothing)  # nobody is called: let go of both at once
            waiting.granted = True
            self.inflight += 1
            return waiting
        if len(self._queue) >= self.max_queue:
            return None
        waiting = Waiting(self, on_admitted, on_expired)
        self._queue[waiting] = None
        waiting.timer = self._loop.call_later(self.queue_timeout_s, self._expire, waiting)
        return waiting

    def leave(self, waiting: Waiting) -> None:
        """Called by `Waiting.leave`."""
        if waiting.left:
            return
        waiting.left = True
        # They hold the request, which holds this: apart, all is freed without the collector.
        waiting.on_admitted = waiting.on_expired = _nothing
        if waiting.timer is not None:
            waiting.timer.cancel()
        if waiting.granted:
            self.inflight -= 1
            if self._queue:
                self._grant_next()
        else:
            self._queue.pop(waiting, None)

    def _grant_next(self) -> None:
        while self._queue and self.inflight < self.max_inflight:
            waiting = next(iter(self._queue))
            del self._queue[waiting]
            if waiting.timer is not None:
                waiting.timer.cancel()
            waiting.granted = True
            self.inflight += 1
            # Not from inside the leaving request's call: its fault must not become this one's.
            self._loop.call_soon(self._admit, waiting)

    @staticmethod
    def _admit(waiting: Waiting) -> None:
        if not waiting.left:
            waiting.on_admitted()

    def _expire(self, waiting: Waiting) -> None:
        if not waiting.left and not waiting.granted:
            self._queue.pop(waiting, None)
            waiting.on_expired()
