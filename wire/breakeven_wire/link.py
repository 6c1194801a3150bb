"""Links: one TCP (or TLS) connection that delivers stamped reads and takes bytes to write.

`TransportLink` rides on an asyncio transport and is there for TLS; `socket_link.SocketLink` reads
a socket of its own. Both call the same owner.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Protocol, cast

READ_BYTES = 65536
"""Most bytes of one read: a slow reader's connection holds no more than this and the kernel's."""

RECEIVE_BUFFER_BYTES = 262144
"""SO_RCVBUF of an engine's connection. The kernel would let it grow to megabytes: with thousands
of slow clients that is memory nobody bounds, and bytes an engine believes delivered."""

WRITE_HIGH_BYTES = 65536
"""Unsent bytes above which the owner is asked to stop writing."""


class LinkOwner(Protocol):
    """Who hears what a link reads."""

    def data_received(self, data: bytes, stamp: float) -> None: ...
    def eof_received(self) -> None: ...
    def connection_lost(self, error: BaseException | None) -> None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...
    def flushed(self) -> None: ...
    def unstamped(self) -> None: ...


class Link(Protocol):
    """What an owner may do with a connection."""

    def write(self, data: bytes | memoryview) -> None: ...
    @property
    def unsent(self) -> int: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...


class TransportLink(asyncio.Protocol):
    """A link over an asyncio transport; stamps are taken when the loop hands the bytes over."""

    __slots__ = ("_full", "_lost", "_now", "_owner", "_received", "_transport")

    def __init__(self, owner: LinkOwner, now: Callable[[], float]) -> None:
        self._owner = owner
        self._received = owner.data_received
        self._now = now
        self._transport: asyncio.Transport | None = None
        self._lost = False
        self._full = False  # the owner was asked to stop writing

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        # High water 0: the transport writes at once, and resume_writing means "all is sent".
        transport.set_write_buffer_limits(high=0)
        self._transport = transport
        sock = transport.get_extra_info("socket")
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)

    def data_received(self, data: bytes) -> None:
        self._received(data, self._now())

    def eof_received(self) -> bool:
        self._owner.eof_received()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._owner.connection_lost(exc)

    def pause_writing(self) -> None:
        """Some of a write waits: `write` looks how much."""

    def resume_writing(self) -> None:
        self._full = False
        self._owner.flushed()
        self._owner.resume_writing()

    @property
    def unsent(self) -> int:
        """Bytes written that the kernel has not taken."""
        return self._transport.get_write_buffer_size() if self._transport else 0

    def write(self, data: bytes | memoryview) -> None:
        transport = self._transport
        if transport is None or self._lost or transport.is_closing():
            return
        transport.write(data)
        if not self._full and transport.get_write_buffer_size() > WRITE_HIGH_BYTES:
            self._full = True
            self._owner.pause_writing()

    def pause_reading(self) -> None:
        if self._transport and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport and not self._transport.is_closing():
            self._transport.resume_reading()

    def abort(self) -> None:
        if self._transport:
            self._transport.abort()

    def close(self) -> None:
        if self._transport:
            self._transport.close()
