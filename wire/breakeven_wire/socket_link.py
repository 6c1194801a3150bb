"""A link over a socket of our own: reads with recvmsg (or recv), writes at once.

Used for engines (with the kernel's receive stamps, or the loop's) and for the proxy's clients.
A write goes to the kernel before `write` returns: a transport would keep it until every read of
the same turn has been handled, and the first of a hundred streams would wait for the last.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable
from typing import Any

from breakeven_wire.clock import SO_TIMESTAMPNS, TIMESPEC
from breakeven_wire.link import READ_BYTES, WRITE_HIGH_BYTES, LinkOwner
from breakeven_wire.readiness import BROKEN, READABLE, WRITABLE, ReadySet

SMALL_READ_BYTES = 4096
"""Room for a read after a small one: the kernel's answer is copied into a block of this size."""

ANCILLARY_BYTES = socket.CMSG_SPACE(TIMESPEC.size)
timespec = TIMESPEC.unpack
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: on, 0 s


class SocketLink:
    """A connected, non-blocking socket that tells its owner what it reads.

    Args:
        ready: where it is watched.
        sock: is closed by the link.
        owner: hears reads, the end, and when to stop writing.
        stamped: SO_TIMESTAMPNS is set: each read takes the kernel's stamp of its last segment. One
            without a control message takes `ready.polled` as all others do; the owner is told.
        serving: the other end is a client of ours. Its half-close ends the link once all is sent,
            and a failed write ends it at once; an engine may have answered before it broke the
            connection, so its last bytes are read first.
    """

    __slots__ = (
        "_closed", "_closing", "_eof_due", "_fd", "_loop", "_owner", "_paused_owner", "_reading",
        "_serving", "_sock", "_unsent", "_unsent_bytes", "direct", "ready", "receive", "room",
        "send", "stamped",
    )  # fmt: skip

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        ready: ReadySet,
        sock: socket.socket,
        owner: LinkOwner,
        *,
        stamped: bool = False,
        serving: bool = False,
    ) -> None:
        self._loop = loop
        self.ready = ready
        self._sock = sock
        self._fd = sock.fileno()
        self.receive: Callable[..., Any] = sock.recvmsg if stamped else sock.recv
        self.send = sock.send
        self._owner = owner
        self.stamped = stamped
        self._serving = serving
        self.room = SMALL_READ_BYTES
        self._unsent: list[memoryview] = []
        self._unsent_bytes = 0
        self.direct = True  # nothing waits and nothing closes: bytes may go to the socket itself
        self._paused_owner = False
        self._reading = True
        self._closing = False  # nothing is written any more, and soon it is closed
        self._eof_due = False
        self._closed = False
        ready.add(self._fd, READABLE, self.heard, self.lose)

    # -- reading
    def heard(self, events: int) -> None:
        """The socket is ready, or broken."""
        if events != READABLE:
            if events & WRITABLE and self._unsent:
                self._writable()
            if events == WRITABLE:
                return
        if not self._reading:
            # Paused by one before it in this turn, or broken while it is paused: an engine's last
            # bytes are read first, when reading goes on; a client that broke off wants nothing.
            if self._serving and events & BROKEN:
                self.lose(None)
            return
        try:
            if self.stamped:
                data, told, _, _ = self.receive(self.room, ANCILLARY_BYTES)
                if told and told[0][1] == SO_TIMESTAMPNS:
                    seconds, nanoseconds = timespec(told[0][2])
                    stamp = seconds + nanoseconds * 1e-9
                else:
                    stamp = self.unstamped() if data else 0.0  # the end has no stamp
            else:
                data = self.receive(self.room)
                stamp = self.ready.polled
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.lose(error)
            return
        self.take(data, stamp)

    def take(self, data: bytes, stamp: float) -> None:
        """What a read gave: to the owner; nothing is the end."""
        if not data:
            self._ended()
            return
        if len(data) == self.room:
            self.room = READ_BYTES
        elif len(data) < SMALL_READ_BYTES:
            self.room = SMALL_READ_BYTES
        self._owner.data_received(data, stamp)

    def unstamped(self) -> float:
        """The stamp of a read that the kernel did not stamp."""
        self._owner.unstamped()
        return self.ready.polled

    def heard_by(self, heard: Callable[[int], None] | None) -> None:
        """Another one (a `Lane`) reads; None: the link does."""
        self.ready.heard_by(self._fd, heard or self.heard)

    def _ended(self) -> None:
        """The other end sends no more."""
        self.pause_reading()
        self._owner.eof_received()
        if self._serving:
            self.close()
        else:
            self.lose(None)

    def pause_reading(self) -> None:
        if self._reading:
            self._reading = False
            self.heard_by(None)
            self._want()

    def resume_reading(self) -> None:
        if not self._reading and not self._closed:
            self._reading = True
            self._want()

    def _want(self) -> None:
        if not self._closed:
            wanted = READABLE if self._reading else 0
            self.ready.want(self._fd, wanted | WRITABLE if self._unsent else wanted)

    # -- writing
    @property
    def unsent(self) -> int:
        """Bytes written that the kernel has not taken."""
        return self._unsent_bytes

    def write(self, data: bytes | memoryview) -> None:
        """Sends; what the kernel does not take waits. Nothing once the link is closing."""
        sent = 0
        if self.direct:
            try:
                sent = self.send(data)
            except (BlockingIOError, InterruptedError):
                pass
            except OSError as error:
                self.write_failed(error)
                return
        if sent != len(data) and not self._closing:
            self.keep(memoryview(data)[sent:])

    def keep(self, view: memoryview) -> None:
        """Bytes that wait until the socket takes them."""
        self._unsent.append(view)
        self._unsent_bytes += len(view)
        if self.direct:
            self.direct = False
            self._want()
        if self._unsent_bytes > WRITE_HIGH_BYTES and not self._paused_owner:
            self._paused_owner = True
            self._owner.pause_writing()

    def _writable(self) -> None:
        while self._unsent:
            view = self._unsent[0]
            try:
                sent = self.send(view)
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                self.write_failed(error)
                return
            self._unsent_bytes -= sent
            if sent < len(view):
                self._unsent[0] = view[sent:]
                break
            del self._unsent[0]
        if not self._unsent:
            self._want()
            if self._closing:
                self.abort()
                return
            self.direct = True
            if self._eof_due:
                self._shut_down()
            self._owner.flushed()
        if self._paused_owner and self._unsent_bytes <= WRITE_HIGH_BYTES // 4:
            self._paused_owner = False
            self._owner.resume_writing()

    def write_failed(self, error: OSError) -> None:
        """The other end takes no more."""
        self._closing, self.direct = True, False
        self._drop_unsent()
        self._loop.call_soon(self._lose_after_write, error)

    def _lose_after_write(self, error: OSError) -> None:
        for _ in range(0 if self._serving else 16):
            if self._closed or not self._reading:
                break
            self.heard(READABLE)
        self.lose(error)

    def _drop_unsent(self) -> None:
        if self._unsent:
            self._unsent.clear()
            self._unsent_bytes = 0
            self._want()

    # -- ending
    @property
    def is_closing(self) -> bool:
        """Whether nothing can be written any more."""
        return self._closing

    def write_eof(self) -> None:
        """Ends our side once all is sent; reading goes on."""
        if self._unsent:
            self._eof_due = True
        else:
            self._shut_down()

    def _shut_down(self) -> None:
        with contextlib.suppress(OSError):  # gone already
            self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Closes after what was written is sent; reads no more."""
        if self._unsent:
            self._closing, self.direct = True, False
            self.pause_reading()
        else:
            self.abort()

    def abort(self) -> None:
        """Closes at once; unsent bytes are dropped and the other end sees the end."""
        if not self._closed:
            self._shut()
            self._loop.call_soon(self._owner.connection_lost, None)

    def reset(self) -> None:
        """Closes so that the other end cannot take it for a clean end: RST."""
        if not self._closed:
            with contextlib.suppress(OSError):
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self.abort()

    def lose(self, error: BaseException | None) -> None:
        """Broken, or ended by the other end."""
        if not self._closed:
            self._shut()
            self._owner.connection_lost(error)

    def _shut(self) -> None:
        self._closed = self._closing = True
        self._reading = self.direct = False
        self._unsent.clear()
        self._unsent_bytes = 0
        self.ready.forget(self._fd)
        self._sock.close()
