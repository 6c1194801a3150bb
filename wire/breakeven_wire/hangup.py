"""Hears of connections that broke, beside the readers of their sockets.

libuv ends a poll handle at its first POLLERR, and uvloop then calls the reader exactly once. When
the engine's last bytes and its reset wait together, that one call reads the bytes; nothing ever
calls again, and the request would hang until its deadline. So every socket also stands in an epoll
set of its own, for errors and hang-ups only, and that set's descriptor is what the loop watches:
no cost per read, one system call per connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
from collections.abc import Callable

_EVENTS_A_TURN = 64


class HangupWatch:
    """Calls `heard` of each watched descriptor once its connection broke. Must be closed."""

    __slots__ = ("_epoll", "_heard", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._heard: dict[int, Callable[[], None]] = {}
        self._epoll: select.epoll | None = None

    def watch(self, fd: int, heard: Callable[[], None]) -> None:
        """Watches a connected socket until it is closed or forgotten."""
        if self._epoll is None:
            self._epoll = select.epoll()
            self._loop.add_reader(self._epoll.fileno(), self._ready)
        # Errors and hang-ups are always reported; edge-triggered, so that a broken connection
        # whose reading is paused does not wake the loop again and again.
        self._epoll.register(fd, select.EPOLLET)
        self._heard[fd] = heard

    def forget(self, fd: int) -> None:
        """Stops watching; called before the descriptor is closed, since its number comes again."""
        if self._heard.pop(fd, None) is not None and self._epoll is not None:
            with contextlib.suppress(OSError):
                self._epoll.unregister(fd)

    def close(self) -> None:
        """Stops watching all."""
        self._heard.clear()
        if self._epoll is not None:
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._epoll = None

    def _ready(self) -> None:
        if self._epoll is None:
            return
        for fd, _ in self._epoll.poll(0, _EVENTS_A_TURN):
            heard = self._heard.get(fd)
            if heard is not None:
                heard()
