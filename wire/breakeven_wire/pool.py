"""The keep-alive pool of one engine, its clock, and the small awaitable `fetch`."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from dataclasses import dataclass

from breakeven.errors import EngineError, NotReadyError, ProtocolError
from breakeven_wire.clock import SO_TIMESTAMPNS, ClockWatch, Stamps, clock, kernel_stamps_work
from breakeven_wire.connection import Connection
from breakeven_wire.exchange import Exchange
from breakeven_wire.failure import Failure, FailureKind, describe, failure_kind
from breakeven_wire.handler import ExchangeHandler
from breakeven_wire.link import RECEIVE_BUFFER_BYTES, TransportLink
from breakeven_wire.message import Deadlines, Headers, Request, ResponseHead
from breakeven_wire.origin import Origin, tls_context
from breakeven_wire.readiness import ReadySet
from breakeven_wire.socket_link import SocketLink

IDLE_S = 4.0
"""Idle connections live no longer: uvicorn, and with it vLLM, closes after 5 s, and a request on
a connection that is just being closed fails."""


class EnginePool:
    """Connections to one origin. Must be used inside a running event loop.

    Args:
        origin: where the engine is.
        stamps: the kind wished for; `pool.stamps` says which is in use, `stamps_reason` why.
        retry_stale: send a request once more on a new connection when a *reused* one breaks
            before any response byte, while the whole request (≤ 64 KiB) is still held.
        idle_s: how long an unused connection is kept.
        ca_file, verify: TLS, for https origins.
    """

    def __init__(
        self,
        origin: Origin,
        *,
        stamps: Stamps = "loop",
        deadlines: Deadlines | None = None,
        retry_stale: bool = True,
        idle_s: float = IDLE_S,
        ca_file: str | None = None,
        verify: bool = True,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.origin = origin
        self.deadlines = deadlines or Deadlines()
        self.retry_stale = retry_stale
        self.stamps, self.stamps_reason = _usable(stamps, origin)
        self.now = clock(self.stamps)
        self.may_step = self.stamps == "kernel"
        """Whether the stamps' clock can be stepped."""
        self.authority = origin.authority.encode()
        self.prefix = origin.prefix.encode()
        self._idle_s = idle_s
        self._tls: ssl.SSLContext | None = (
            tls_context(ca_file=ca_file, verify=verify) if origin.tls else None
        )
        self._ready = ReadySet(self.loop, self.now, stamps=self.stamps == "loop")
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._running: set[Exchange] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._watch = ClockWatch()
        self._closed = False
        self.retries = 0
        """Requests sent a second time."""
        self.unstamped_reads = 0
        """Reads that fell back to the loop's stamp although kernel stamps are in use."""
        self.connects = 0
        """Connections made."""

    # -- exchanges
    def start(
        self,
        request: Request,
        handler: ExchangeHandler,
        *,
        deadlines: Deadlines | None = None,
    ) -> Exchange:
        """Sends a request on an idle connection, at once, or on a new one when there is none.

        Of the handler only `on_pause_writing` can be called before this returns.
        """
        exchange = Exchange(self, request, handler, deadlines or self.deadlines)
        self._running.add(exchange)
        connection = self._take()
        if connection is not None:
            connection.serve(exchange)
        else:
            exchange.begin_connecting()
            self._connect(exchange)
        return exchange

    async def fetch(
        self,
        method: str,
        path: str,
        headers: Headers = (),
        body: bytes = b"",
        *,
        limit_bytes: int = 16 * 1024 * 1024,
        deadlines: Deadlines | None = None,
    ) -> FetchedResponse:
        """One small request and its whole response.

        Raises:
            NotReadyError: no connection could be made, or nothing came in time.
            ProtocolError: no legal HTTP, or a body larger than `limit_bytes`.
            EngineError: the connection broke before the response was whole.
        """
        collector = _Collector(self.loop.create_future(), limit_bytes)
        request = Request(method.encode(), path.encode(), headers, body)
        exchange = self.start(request, collector, deadlines=deadlines)
        try:
            return await collector.future
        finally:
            exchange.abort()

    async def close(self) -> None:
        """Aborts what runs and closes every connection."""
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        for exchange in list(self._running):
            exchange.abort()
        for connection in list(self._open):
            connection.discard()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._ready.close()

    @property
    def idle_connections(self) -> int:
        """Connections that wait for a request."""
        return len(self._idle)

    @property
    def open_connections(self) -> int:
        """Connections that stand, idle or busy."""
        return len(self._open)

    # -- the clock
    @property
    def clock_steps(self) -> int:
        """Steps of the realtime clock noticed so far (always 0 with loop stamps)."""
        return self._watch.steps

    def check_clock(self) -> int:
        """Compares the clocks; the steps noticed so far."""
        if self.may_step:
            self._watch.check()
        return self._watch.steps

    # -- called by exchanges
    def forget(self, exchange: Exchange) -> None:
        """An exchange ended."""
        self._running.discard(exchange)
        self.unstamped_reads += exchange.unstamped_reads

    def adopt(self, exchange: Exchange) -> None:
        """Takes over an exchange that could not be connected elsewhere; on a new connection."""
        self._running.add(exchange)
        exchange.begin_connecting()
        self._connect(exchange)

    def reconnect(self, exchange: Exchange) -> None:
        """The one allowed retry, always on a new connection."""
        self.retries += 1
        exchange.begin_connecting()
        self._connect(exchange)

    # -- connections
    def _take(self) -> Connection | None:
        oldest = self.loop.time() - self._idle_s
        while self._idle:
            connection = self._idle.pop()
            if connection.idle_since >= oldest and not connection.closed:
                return connection
            connection.discard()
        return None

    def _release(self, connection: Connection) -> None:
        if self._closed or connection.closed:
            connection.discard()
            return
        connection.idle_since = self.loop.time()
        self._idle.append(connection)
        if self._sweeper is None:
            self._sweeper = self.loop.call_later(self._idle_s, self._sweep)

    def _gone(self, connection: Connection) -> None:
        self._open.discard(connection)
        with contextlib.suppress(ValueError):
            self._idle.remove(connection)

    def _sweep(self) -> None:
        self._sweeper = None
        oldest = self.loop.time() - self._idle_s
        for connection in [c for c in self._idle if c.idle_since <= oldest]:
            connection.discard()
        if self._idle:
            wait = max(self._idle[0].idle_since - oldest, 0.05)
            self._sweeper = self.loop.call_later(wait, self._sweep)

    def _connect(self, exchange: Exchange) -> None:
        task = self.loop.create_task(self._open_for(exchange))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        exchange.connecting(task)

    async def _open_for(self, exchange: Exchange) -> None:
        try:
            connection = await self._open_connection()
        except (OSError, ssl.SSLError) as error:
            exchange.fail(failure_kind(error, connecting=True), describe(error))
            return
        if exchange.done:  # aborted in the same step in which the connection stood
            connection.discard()
            return
        connection.serve(exchange)

    async def _open_connection(self) -> Connection:
        connection = Connection(self.loop, self._release, self._gone)
        self.connects += 1
        if self._tls is None:
            sock = await self._connect_socket()
            try:
                connection.link = SocketLink(
                    self.loop, self._ready, sock, connection,
                    stamped=self.stamps == "kernel",
                )  # fmt: skip
            except OSError:  # no room in the set of ready sockets
                sock.close()
                raise
        else:
            link = TransportLink(connection, self.now)
            connection.link = link
            await self.loop.create_connection(
                lambda: link, self.origin.host, self.origin.port, ssl=self._tls
            )
        self._open.add(connection)
        return connection

    async def _connect_socket(self) -> socket.socket:
        """A connected socket, stamping if meant to, to the first address that answers."""
        found = await self.loop.getaddrinfo(
            self.origin.host, self.origin.port, type=socket.SOCK_STREAM
        )
        last: OSError | None = None
        for family, kind, proto, _, address in found:
            sock = socket.socket(family, kind, proto)
            try:
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self.stamps == "kernel":
                    sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
                await self.loop.sock_connect(sock, address)
            except OSError as error:
                sock.close()
                last = error
            except BaseException:
                sock.close()
                raise
            else:
                return sock
        raise last or OSError(f"no address for {self.origin.host}")


@dataclass(frozen=True, slots=True)
class FetchedResponse:
    """A whole small response."""

    head: ResponseHead
    body: bytes

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self.head.status


class _Collector(ExchangeHandler):
    """Gathers one response for `fetch`."""

    def __init__(self, future: asyncio.Future[FetchedResponse], limit_bytes: int) -> None:
        self.future = future
        self._limit = limit_bytes
        self._head: ResponseHead | None = None
        self._body = bytearray()

    def on_head(self, head: ResponseHead, stamp: float) -> None:  # noqa: ARG002 - the protocol's
        self._head = head

    def on_body(self, data: bytes, stamp: float) -> None:  # noqa: ARG002 - the protocol's
        self._body += data
        if len(self._body) > self._limit and not self.future.done():
            self.future.set_exception(
                ProtocolError(f"response body larger than {self._limit} bytes")
            )

    def on_end(self, trailers: Headers, stamp: float) -> None:  # noqa: ARG002 - the protocol's
        if not self.future.done():
            assert self._head is not None
            self.future.set_result(FetchedResponse(self._head, bytes(self._body)))

    def on_failure(self, failure: Failure) -> None:
        if not self.future.done():
            self.future.set_exception(_ERRORS.get(failure.kind, EngineError)(str(failure)))


_ERRORS: dict[FailureKind, type[EngineError]] = {
    FailureKind.REFUSED: NotReadyError,
    FailureKind.UNREACHABLE: NotReadyError,
    FailureKind.TLS: NotReadyError,
    FailureKind.TIMEOUT: NotReadyError,
    FailureKind.PROTOCOL: ProtocolError,
}


def _usable(wished: Stamps, origin: Origin) -> tuple[Stamps, str]:
    """The kind of stamp that can be had, and why."""
    if wished == "loop":
        return "loop", "asked for"
    if origin.tls:
        return "loop", "TLS hides the segments from the kernel's stamps"
    if not kernel_stamps_work():
        return "loop", "this system does not stamp TCP reads (SO_TIMESTAMPNS)"
    return "kernel", "asked for"
