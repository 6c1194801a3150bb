"""Which sockets are ready: one epoll set of our own, and its one descriptor in the event loop.

A turn of the loop serves everything that is ready in it, without a handle, a context switch and
a queue for each. And libuv ends a poll handle at its first POLLERR, after one call: when an
engine's last bytes and its reset wait together, that call reads the bytes and nothing ever calls
again. Here a broken socket is told of until it has been read to its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import time
from collections import deque
from collections.abc import Callable

READABLE = select.EPOLLIN
WRITABLE = select.EPOLLOUT
BROKEN = select.EPOLLERR | select.EPOLLHUP

EVENTS_A_TURN = 256
"""Sockets served before the loop looks at everything else again: the batch of an engine's step."""
TURN_S = 0.004
"""Or after so long: requests take longer than a stream's reads."""
EVENTS_A_LOOK = 64
"""Sockets served before it is looked again which are ready."""
STAMPS_A_LOOK = 16
"""The same in a set that stamps, so that what comes meanwhile is not said to have come when all of
them had been served."""


class ReadySet:
    """Calls `heard(events)` of each socket that is ready. Must be closed.

    `now` is the clock of `polled`: when the sockets that are served now were found ready. What they
    hold came before; the hundredth would else be said to come after 99 others were relayed.
    `stamps`: `polled` is when the socket that is served was *first* found ready, and they are
    looked for more often.

    `events` is epoll's mask. Errors and hang-ups are always reported: again and again while
    anything is awaited, once while nothing is (reading paused: nobody would take them away).
    """

    __slots__ = ("_epoll", "_failed", "_heard", "_later", "_loop", "_now", "_since", "polled")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        now: Callable[[], float] = time.monotonic,
        *,
        stamps: bool = False,
    ) -> None:
        self._loop = loop
        self._now = now
        self.polled = now()
        # Where stamps count: since when the sockets have been ready that are not served yet.
        self._since: dict[int, float] | None = {} if stamps else None
        self._heard: dict[int, Callable[[int], None]] = {}
        self._failed: dict[int, Callable[[Exception], None]] = {}
        self._later: deque[Callable[[], None]] = deque()
        self._epoll: select.epoll | None = None

    def add(
        self,
        fd: int,
        wanted: int,
        heard: Callable[[int], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """Watches a socket until it is forgotten.

        `wanted`: READABLE | WRITABLE, or 0. `failed`: hears what `heard` raised, and must end it:
        a socket that is ready and that nobody serves would be told of for ever.
        """
        if self._epoll is None:
            self._epoll = select.epoll()
            self._loop.add_reader(self._epoll.fileno(), self._ready)
        self._epoll.register(fd, wanted or select.EPOLLET)
        self._heard[fd], self._failed[fd] = heard, failed

    def want(self, fd: int, wanted: int) -> None:
        """Changes what is awaited of a socket."""
        if self._epoll is not None:
            self._epoll.modify(fd, wanted or select.EPOLLET)

    def heard_by(self, fd: int, heard: Callable[[int], None]) -> None:
        """Another one hears of a watched socket from now on."""
        if fd in self._heard:
            self._heard[fd] = heard

    def forget(self, fd: int) -> None:
        """Stops watching; called before the descriptor is closed, since its number comes again."""
        self._failed.pop(fd, None)
        if self._since:
            self._since.pop(fd, None)
        if self._heard.pop(fd, None) is not None and self._epoll is not None:
            with contextlib.suppress(OSError):
                self._epoll.unregister(fd)

    def close(self) -> None:
        """Stops watching all."""
        self._heard.clear()
        self._failed.clear()
        self._later.clear()
        if self._epoll is not None:
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._epoll = None

    def later(self, call: Callable[[], None]) -> None:
        """Calls once no socket is ready, from within `heard`: what nobody on the wire waits for.

        It must not raise. While sockets are ready without end it is not called, so the caller
        bounds what it puts off.
        """
        self._later.append(call)

    def _ready(self) -> None:
        epoll, heards, left = self._epoll, self._heard, EVENTS_A_TURN
        if epoll is None:
            return
        poll, now, since = epoll.poll, self._now, self._since
        most = EVENTS_A_LOOK if since is None else EVENTS_A_TURN
        until = now() + TURN_S
        # Looked again at once: another turn of the loop costs several times as much.
        while left > 0:
            found = poll(0, most)
            if not found:
                if not self._later:
                    return
                self._later.popleft()()
                continue  # one at a time: a socket that has become ready meanwhile goes first
            self.polled = at = now()
            if at > until:
                left = 0
            if since is not None:
                if len(found) > STAMPS_A_LOOK or since:
                    # Only those that are ready still: an old entry is no answer to the next read.
                    since = self._since = {fd: since.get(fd, at) for fd, _ in found}
                found = found[:STAMPS_A_LOOK]
            left -= len(found)
            for fd, events in found:
                if since:
                    self.polled = since.pop(fd, at)
                try:
                    heard = heards[fd]
                except KeyError:
                    continue  # forgotten by one before it in this turn
                try:
                    heard(events)
                except Exception as error:  # noqa: BLE001 - the others are no part of it
                    self._loop.call_exception_handler(
                        {"message": "a socket's owner failed", "exception": error}
                    )
                    if fd in self._failed:
                        self._failed[fd](error)
            if self._epoll is not epoll:
                return  # closed by one of them
        if self._later:
            self._loop.call_soon(self._ready)  # or nobody would look until a socket is ready
