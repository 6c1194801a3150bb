"""One client connection: its socket, its deadlines, its requests one after another."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from dataclasses import dataclass

from breakeven_proxy.relay.deadline import Deadline
from breakeven_proxy.relay.heads import AnswerHeads, own_answer
from breakeven_proxy.relay.incoming import Fault, Incoming, IncomingParser
from breakeven_proxy.relay.seams import Desk
from breakeven_proxy.relay.splice import Splice
from breakeven_wire.readiness import ReadySet
from breakeven_wire.socket_link import SocketLink

SEND_BUFFER_BYTES = 262144
"""SO_SNDBUF of a client's connection: what the kernel holds for a slow one beside that."""

UPLOAD_HIGH_BYTES = 65536
"""Request bytes that wait (for a place, an arm, a slow engine) before the client is paused."""

MIN_UPLOAD_RATE = 65536
"""Bytes/s that extend the body deadline: body_s bounds a stalled upload, not a large one."""

LINGER_S = 2.0
"""How long an answered client may go on sending a body nobody wants: closing at once would
reset the connection, and the reset can destroy the answer before the client read it."""


@dataclass(frozen=True, slots=True)
class RelayLimits:
    """Bounds of one client connection: bytes and seconds."""

    head_bytes: int = 65536
    body_bytes: int = 134217728
    head_s: float = 10.0
    body_s: float = 60.0
    idle_s: float = 300.0
    keepalive_s: float = 75.0
    connections: int = 16384


class RelayServer:
    """What the client connections share: the desk, the limits, who is there, drain."""

    def __init__(self, desk: Desk, limits: RelayLimits) -> None:
        self.desk = desk
        self.limits = limits
        self.loop = asyncio.get_running_loop()
        self.ready = ReadySet(self.loop)
        self.answers = AnswerHeads()
        self.connections: set[ClientConnection] = set()
        self.draining = False
        self.telemetry_errors = 0
        self.bad_requests: dict[int, int] = {}
        """Answers to requests that were no valid HTTP for us, by status."""

    def accept(self, sock: socket.socket) -> None:
        """A client connected."""
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        ClientConnection(self, sock)

    def count_telemetry_error(self) -> None:
        """An observation failed; the stream went on."""
        self.telemetry_errors += 1

    @property
    def active(self) -> int:
        """Requests that are in the relay now."""
        return sum(connection.busy for connection in self.connections)

    @property
    def unfinished(self) -> int:
        """Connections with a request in service, or with an answer that is not all sent."""
        return sum(connection.busy or connection.unsent > 0 for connection in self.connections)

    def drain(self) -> None:
        """Idle connections close; busy ones close after their answer."""
        self.draining = True
        for connection in list(self.connections):
            connection.close_if_idle()

    def abort(self) -> None:
        """Ends everything at once."""
        for connection in list(self.connections):
            connection.break_off()

    def close(self) -> None:
        """After `abort`, when the connections have heard of it."""
        self.ready.close()


class ClientConnection:
    """Parses requests, serves them in order through a `Splice`, writes what it is given.

    `write(data)` sends to the client; nothing happens when it is gone or going.
    """

    __slots__ = (
        "_deadline", "_gone", "_limits", "_lingering", "_parser", "_server", "_splice",
        "_stall", "_upload_due", "link", "paused_for", "write",
    )  # fmt: skip

    def __init__(self, server: RelayServer, sock: socket.socket) -> None:
        self._server = server
        self._limits = server.limits
        self._parser = IncomingParser(self._limits.head_bytes, self._limits.body_bytes)
        self._deadline = Deadline(server.loop, self._deadline_passed)
        self._stall = Deadline(server.loop, self._write_stalled)
        self._splice: Splice | None = None
        self._lingering = False
        self._gone = False
        self.paused_for: tuple[str, ...] = ()  # an empty set would be 216 bytes a connection
        """Why the client is not read, if it is not."""
        self._upload_due = 0.0
        self.link = SocketLink(server.loop, server.ready, sock, self, serving=True)
        self.write = self.link.write
        server.connections.add(self)
        if len(server.connections) > self._limits.connections:
            self._refuse(Fault(503, "too many connections"))
            return
        self._deadline.set(self._limits.head_s)

    # -- owner of the link
    def data_received(self, data: bytes, stamp: float) -> None:  # noqa: ARG002 - the owner's
        if self._lingering:
            return
        parser = self._parser
        idle = self._splice is None and not parser.in_head
        parser.feed(data)
        if idle and parser.in_head:
            self._deadline.set(self._limits.head_s)
        self._advance()

    def eof_received(self) -> None:
        """A half-close is taken for leaving, as nginx, Envoy and uvicorn do: the link closes."""
        self._leave()
        if not self._lingering:
            self._deadline.set(self._limits.idle_s)  # for what is unsent, if it never goes

    def flushed(self) -> None:
        """The kernel took all that was written."""

    def unstamped(self) -> None:
        """A client's reads need no stamps."""

    def connection_lost(self, error: BaseException | None) -> None:  # noqa: ARG002 - the owner's
        self._gone = True
        self._deadline.close()
        self._stall.close()
        self._server.connections.discard(self)
        self._leave()

    def _leave(self) -> None:
        """Nobody waits for an answer any more."""
        self._parser.requests.clear()
        if self._splice is not None:
            splice, self._splice = self._splice, None
            splice.client_left()

    def pause_writing(self) -> None:
        self._stall.set(self._limits.idle_s)
        if self._splice is not None:
            self._splice.client_is_slow()

    def resume_writing(self) -> None:
        self._stall.clear()
        if self._splice is not None:
            self._splice.client_caught_up()

    # -- requests, one at a time
    @property
    def busy(self) -> bool:
        """Whether a request is being served."""
        return self._splice is not None

    @property
    def unsent(self) -> int:
        """Bytes written that the kernel has not taken."""
        return self.link.unsent

    @property
    def reading_body(self) -> bool:
        """Whether the request in service is still coming in."""
        requests = self._parser.requests
        return bool(requests) and not requests[0].complete

    def _advance(self) -> None:
        requests = self._parser.requests
        if requests and self._splice is None:
            first, alone = requests[0], len(requests) == 1
            self._serve(first)
            if alone and first.complete and not first.waiting_bytes and not self.paused_for:
                return  # it came whole and is on its way: nothing to balance
        elif requests and self._splice is not None:
            self._splice.request_came()
        self._balance()

    def _serve(self, incoming: Incoming) -> None:
        self._deadline.clear()
        if not incoming.complete:
            self._upload_due = self._server.loop.time() + self._limits.body_s
        if incoming.fault is not None:
            self._refuse(incoming.fault, head_only=incoming.method == b"HEAD")
            return
        self._splice = Splice(self, self._server, incoming)
        self._splice.start()

    def request_done(self, *, keep_alive: bool) -> None:
        """The splice is through with its request; the response was written."""
        self._splice = None
        if self._gone:
            return
        incoming = self._parser.requests.pop(0)
        self._drop_pause("engine")
        if not incoming.complete:
            self.linger()
        elif not keep_alive:
            # The client was told that this was the last answer (and to an HTTP/1.0 client the
            # close is what ends its body): what it pipelined behind is not served.
            if self._parser.requests:
                self._parser.requests.clear()
                self.linger()
            else:
                self.close()
        elif self._server.draining or self._parser.broken:
            if self._parser.requests:
                self._server.loop.call_soon(self._advance)  # a fault that still wants an answer
            else:
                self.close()
        else:
            self._deadline.set(self._limits.keepalive_s)
            if self._parser.in_head:
                self._deadline.set(self._limits.head_s)
            if self._parser.requests:
                self._server.loop.call_soon(self._advance)
        if self.paused_for:
            self._balance()

    def _balance(self) -> None:
        """Pauses the client while it is ahead of us, resumes it when it is not."""
        if self._gone or self._lingering:
            return
        requests = self._parser.requests
        waiting = sum(request.waiting_bytes for request in requests)
        ahead = waiting > UPLOAD_HIGH_BYTES or len(requests) > 1 + MAX_PIPELINED
        if ahead:
            self.pause_reading("ahead")
        else:
            self.resume_reading("ahead")
        if self._splice is not None and self.reading_body and not self.paused_for:
            # The client's turn: its deadline moves with what it sends.
            grown = self._upload_due + requests[0].body_bytes / MIN_UPLOAD_RATE
            self._deadline.set(max(grown - self._server.loop.time(), 0.01))
        elif self._splice is not None:
            self._deadline.clear()

    def body_was_taken(self) -> None:
        """What waited of the request's body was taken: the client may go on sending."""
        self._balance()

    def pause_reading(self, reason: str) -> None:
        """Stops reading from the client, for a named reason."""
        if not self.paused_for and not self._gone:
            self.link.pause_reading()
        if reason not in self.paused_for:
            self.paused_for += (reason,)
        self._deadline.clear()

    def resume_reading(self, reason: str) -> None:
        """Reads on once no reason to pause is left."""
        if reason in self.paused_for:
            self._drop_pause(reason)
            if not self.paused_for and not self._gone:
                self._upload_due = self._server.loop.time() + self._limits.body_s
                self.link.resume_reading()

    def _drop_pause(self, reason: str) -> None:
        if reason in self.paused_for:
            self.paused_for = tuple([other for other in self.paused_for if other != reason])

    # -- writing and closing
    def close(self) -> None:
        """Closes after what was written is sent, or when the client has not taken it in time."""
        self.link.close()
        if self.link.unsent:
            self._deadline.set(self._limits.idle_s)

    def close_if_idle(self) -> None:
        """Closes when no request is being served or coming in."""
        if self._splice is None and not self._parser.in_head and not self._parser.requests:
            self.close()

    def break_off(self) -> None:
        """Breaks the connection so that the client cannot take it for a clean end: RST."""
        self.link.reset()

    def linger(self) -> None:
        """Sends what was written and our end, then discards what the client still sends."""
        if self.link.is_closing:
            return
        self._lingering = True
        self._parser.broken = True
        if self.paused_for:
            self.paused_for = ()
            self.link.resume_reading()
        self.link.write_eof()
        self._deadline.set(LINGER_S)

    def _refuse(self, fault: Fault, *, head_only: bool = False) -> None:
        self.count_bad_request(fault.status)
        self.write(own_answer(fault.status, fault.message, head_only=head_only, close=True))
        self.linger()

    def count_bad_request(self, status: int) -> None:
        """A request was no valid HTTP for us; counted by the status of our answer."""
        counts = self._server.bad_requests
        counts[status] = counts.get(status, 0) + 1

    # -- deadlines
    def _deadline_passed(self) -> None:
        if self._lingering or self.link.is_closing:
            self.link.abort()
        elif self._splice is not None:
            self._splice.client_stalled()
        elif self._parser.in_head:
            self._refuse(Fault(408, f"no complete request within {self._limits.head_s:g} s"))
        else:
            self.close()

    def _write_stalled(self) -> None:
        if self._splice is not None:
            self._splice.client_stopped_reading()
        self.break_off()


MAX_PIPELINED = 16
"""Requests that may wait behind the one in service; then the client is paused."""
