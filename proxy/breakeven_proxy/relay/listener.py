"""The listening sockets: new connections are handed over as they come."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable

BACKLOG = 1024
ACCEPTS_A_TURN = 64
"""Connections taken before the loop looks at everything else again."""

REST_S = 1.0
"""Pause after the system had no descriptor or memory for another connection."""

_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_ABSENT = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL})


class Listener:
    """Accepts on every address of a host; must be closed.

    Args:
        accepted: takes over a connected, non-blocking socket.
    """

    def __init__(self, accepted: Callable[[socket.socket], None]) -> None:
        self._accepted = accepted
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self._resting: dict[int, asyncio.TimerHandle] = {}

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Binds and listens; the first address (port 0 lets the system choose).

        An address that this machine has not (a name may have one of IPv6) is left out, as long
        as there is another.

        Raises:
            OSError: the address cannot be bound; says which.
        """
        found = await self._loop.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        absent: OSError | None = None
        try:
            for family, kind, proto, _, address in dict.fromkeys(found):
                try:
                    self._sockets.append(_bound(family, kind, proto, address))
                except OSError as error:
                    if error.errno not in _ABSENT:
                        raise
                    absent = error
            if absent is not None and not self._sockets:
                raise absent
        except OSError:
            self.close()
            raise
        for sock in self._sockets:
            self._loop.add_reader(sock.fileno(), self._accept, sock)
        name = self._sockets[0].getsockname()
        return name[0], name[1]

    def close(self) -> None:
        """Accepts no more."""
        for timer in self._resting.values():
            timer.cancel()
        self._resting.clear()
        for sock in self._sockets:
            self._loop.remove_reader(sock.fileno())
            sock.close()
        self._sockets.clear()

    def _accept(self, sock: socket.socket) -> None:
        for _ in range(ACCEPTS_A_TURN):
            try:
                accepted, _ = sock.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._rest(sock, error)
                    return
                continue  # this one went away before it was accepted
            accepted.setblocking(False)
            try:
                self._accepted(accepted)
            except OSError as error:  # the set of ready sockets has no room for it
                accepted.close()
                self._rest(sock, error)
                return

    def _rest(self, sock: socket.socket, error: OSError) -> None:
        self._loop.call_exception_handler(
            {"message": f"no connection is accepted for {REST_S:g} s", "exception": error}
        )
        number = sock.fileno()
        self._loop.remove_reader(number)
        self._resting[number] = self._loop.call_later(REST_S, self._again, sock)

    def _again(self, sock: socket.socket) -> None:
        self._resting.pop(sock.fileno(), None)
        self._loop.add_reader(sock.fileno(), self._accept, sock)


def _bound(family: int, kind: int, proto: int, address: tuple[object, ...]) -> socket.socket:
    sock: socket.socket | None = None
    try:
        sock = socket.socket(family, kind, proto)
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError as error:
        if sock is not None:
            sock.close()
        reason = errno.errorcode.get(error.errno or 0, "")
        words = f"cannot listen on {address[0]}:{address[1]}: {error.strerror or reason}"
        raise OSError(error.errno, words) from error
    return sock
