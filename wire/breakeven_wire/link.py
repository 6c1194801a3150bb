"""Links: one TCP (or TLS) connection that delivers stamped reads and takes bytes to write.

`TransportLink` rides on an asyncio transport and stamps in the loop; `KernelLink` reads its own
socket with recvmsg and takes the kernel's receive stamp. Both call the same owner.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable
from typing import Protocol, cast

from breakeven_wire.clock import SO_TIMESTAMPNS, TIMESPEC
from breakeven_wire.hangup import HangupWatch

READ_BYTES = 65536
"""Most bytes of one read: a slow reader's connection holds no more than this and the kernel's."""

RECEIVE_BUFFER_BYTES = 262144
"""SO_RCVBUF of an engine's connection. The kernel would let it grow to megabytes: with thousands
of slow clients that is memory nobody bounds, and bytes an engine believes delivered."""

WRITE_HIGH_BYTES = 65536
"""Unsent bytes above which the owner is asked to stop writing."""

_ANCILLARY_BYTES = socket.CMSG_SPACE(TIMESPEC.size)
_timespec = TIMESPEC.unpack


class LinkOwner(Protocol):
    """Who hears what a link reads. `data` is valid only during the call."""

    def data_received(self, data: bytes | memoryview, stamp: float) -> None: ...
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


class KernelLink:
    """A link over its own socket: recvmsg gives each read the kernel's stamp of its last segment.

    A read without a control message takes the realtime clock instead; the owner is told.
    """

    __slots__ = (
        "_broken", "_buffers", "_closed", "_closing", "_fd", "_hangups", "_loop", "_owner",
        "_paused_owner", "_reading", "_received", "_recvmsg_into", "_sock", "_unsent",
        "_unsent_bytes", "_view",
    )  # fmt: skip

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        owner: LinkOwner,
        buffer: bytearray,
        hangups: HangupWatch,
    ) -> None:
        self._loop = loop
        self._hangups = hangups
        self._sock = sock
        self._recvmsg_into = sock.recvmsg_into
        self._fd = sock.fileno()
        self._owner = owner
        self._received = owner.data_received
        self._buffers = [buffer]
        self._view = memoryview(buffer)
        self._unsent: list[memoryview] = []
        self._unsent_bytes = 0
        self._paused_owner = False
        self._reading = False
        self._closed = False
        self._closing = False
        self._broken = False
        hangups.watch(self._fd, self._hung_up)
        self.resume_reading()

    # -- reading
    def _readable(self) -> bool:
        """One read; whether there may be more to read."""
        try:
            size, ancillary, _, _ = self._recvmsg_into(self._buffers, _ANCILLARY_BYTES)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            self._lose(error)
            return False
        if size == 0:
            self.pause_reading()
            self._owner.eof_received()
            self._lose(None)
            return False
        for _, kind, told in ancillary:
            if kind == SO_TIMESTAMPNS:
                seconds, nanoseconds = _timespec(told)
                self._received(self._view[:size], seconds + nanoseconds * 1e-9)
                return True
        self._owner.unstamped()
        self._received(self._view[:size], time.time())
        return True

    def pause_reading(self) -> None:
        if self._reading:
            self._loop.remove_reader(self._fd)
            self._reading = False

    def resume_reading(self) -> None:
        if not self._reading and not self._closed:
            self._loop.add_reader(self._fd, self._readable)
            self._reading = True
            if self._broken:
                self._loop.call_soon(self._read_out)

    def _hung_up(self) -> None:
        """The connection broke: no reader may ever be called again (see `hangup`)."""
        self._broken = True
        self._read_out()

    def _read_out(self) -> None:
        """Reads what came before the break, a read a turn, up to the error that ends the link."""
        if self._reading and not self._closed and self._readable():
            self._loop.call_soon(self._read_out)

    # -- writing
    @property
    def unsent(self) -> int:
        """Bytes written that the kernel has not taken."""
        return self._unsent_bytes

    def write(self, data: bytes | memoryview) -> None:
        if self._closed or self._closing or not data:
            return
        view = memoryview(data)
        if not self._unsent:
            view = self._send(view)
            if not view:
                return
            self._loop.add_writer(self._fd, self._writable)
        self._unsent.append(view)
        self._unsent_bytes += len(view)
        if self._unsent_bytes > WRITE_HIGH_BYTES and not self._paused_owner:
            self._paused_owner = True
            self._owner.pause_writing()

    def _send(self, view: memoryview) -> memoryview:
        """Hands bytes to the kernel; what it did not take. An error ends the link."""
        try:
            return view[self._sock.send(view) :]
        except (BlockingIOError, InterruptedError):
            return view
        except OSError as error:
            # The engine may have answered before it broke the connection: read that first.
            self._loop.call_soon(self._lose_after_reading, error)
            self._closing = True
            return view[:0]

    def _lose_after_reading(self, error: OSError) -> None:
        for _ in range(16):
            if self._closed or not self._reading:
                break
            self._readable()
        self._lose(error)

    def _writable(self) -> None:
        while self._unsent:
            view = self._unsent[0]
            rest = self._send(view)
            self._unsent_bytes -= len(view) - len(rest)
            if self._closing:
                self._drop_writer()
                return
            if rest:
                self._unsent[0] = rest
                break
            del self._unsent[0]
        if not self._unsent:
            self._loop.remove_writer(self._fd)
            self._owner.flushed()
        if self._paused_owner and self._unsent_bytes <= WRITE_HIGH_BYTES // 4:
            self._paused_owner = False
            self._owner.resume_writing()

    def _drop_writer(self) -> None:
        if self._unsent:
            self._loop.remove_writer(self._fd)
            self._unsent.clear()
            self._unsent_bytes = 0

    # -- ending
    def _lose(self, error: BaseException | None) -> None:
        if not self._closed:
            self._shut()
            self._owner.connection_lost(error)

    def _shut(self) -> None:
        self._closed = True
        self.pause_reading()
        self._drop_writer()
        self._hangups.forget(self._fd)
        self._sock.close()

    def abort(self) -> None:
        """Closes at once; unsent bytes are dropped and the engine sees the end."""
        if not self._closed:
            self._shut()
            self._loop.call_soon(self._owner.connection_lost, None)

    def close(self) -> None:
        self.abort()
