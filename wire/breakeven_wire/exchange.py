"""One request and its response: the states, the deadlines and the callbacks of an exchange."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from breakeven_wire.alarm import Alarm
from breakeven_wire.failure import Failure, FailureKind, Phase
from breakeven_wire.handler import ExchangeHandler
from breakeven_wire.lane import Lane, Observe
from breakeven_wire.link import WRITE_HIGH_BYTES
from breakeven_wire.message import Deadlines, Headers, Request, encode_head
from breakeven_wire.socket_link import SocketLink

if TYPE_CHECKING:
    from breakeven_wire.connection import Connection
    from breakeven_wire.pool import EnginePool

REPLAY_BYTES = 65536
"""A request may be sent once more only while all of it is still held here: 64 KiB."""


class Exchange:
    """One request in flight; made by `EnginePool.start`.

    Attributes:
        started, connected, sent: seconds on the pool's clock (None until they happen).
        more: during `on_head` and `on_body`, whether a further callback comes from the same read.
        reused: whether the connection had served an earlier request.
        retried: whether the request was sent a second time (see `EnginePool.retry_stale`).
        unstamped_reads: reads of this exchange that had no kernel stamp.
        clock_stepped: whether the stamps' clock was stepped while the exchange ran.
    """

    __slots__ = (
        "_alarm", "_asked_to_pause", "_body_ended", "_clock_steps", "_connecting", "_connection",
        "_limit", "_paused", "_phase", "_pool", "_replayable", "_request", "_stamp_seen",
        "_steps_seen", "_stream", "_total_timer", "_written", "_written_bytes", "clock_stepped",
        "connected", "deadlines", "done", "handler", "head_only", "head_received", "last", "more",
        "retried", "reused", "sent", "started", "unstamped_reads",
    )  # fmt: skip

    def __init__(
        self, pool: EnginePool, request: Request, handler: ExchangeHandler, deadlines: Deadlines
    ) -> None:
        self._pool = pool
        self._request: Request | None = request
        self._stream = request.stream
        self.head_only = request.method == b"HEAD"
        self.handler = handler
        self.deadlines = deadlines
        self.started = pool.now()
        self.connected: float | None = None
        self.sent: float | None = None
        self.reused = False
        self.retried = False
        self.head_received = False
        self.clock_stepped = False
        self.unstamped_reads = 0
        self.done = False
        self.more = False
        self.last = 0.0
        """The loop's time of the last progress that is known; reads are looked up when needed."""
        self._stamp_seen = 0.0
        self._steps_seen = pool.clock_steps
        self._clock_steps = pool.clock_steps
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._phase = Phase.CONNECT
        self._alarm: Alarm | None = None  # while connecting its own, then its connection's
        self._total_timer: asyncio.TimerHandle | None = None
        self._limit: float | None = None
        self._paused = False
        self._body_ended = self._stream is None
        self._written: list[bytes | memoryview] = []
        self._written_bytes = 0
        self._replayable = True
        self._asked_to_pause = False
        if deadlines.total_s is not None:
            self._total_timer = pool.loop.call_later(deadlines.total_s, self._total_passed)

    # -- what the caller may do
    def write(self, data: bytes) -> None:
        """Sends a part of a streamed request body (chunk framing is added where it applies)."""
        if self.done or self._body_ended or not data:
            return
        if self._stream == "chunked":
            data = b"%x\r\n%b\r\n" % (len(data), data)
        self._put(data)

    def end(self, trailers: Headers = ()) -> None:
        """Ends a streamed request body."""
        if self.done or self._body_ended:
            return
        self._body_ended = True
        if self._stream == "chunked":
            fields = b"".join(b"%b: %b\r\n" % pair for pair in trailers)
            self._put(b"0\r\n" + fields + b"\r\n")
        if self._connection is not None:
            self._note_sent()

    def pause_reading(self) -> None:
        """Stops reading the response: the engine meets TCP's back-pressure."""
        self._paused = True
        if self._connection is not None:
            self._connection.link.pause_reading()

    def resume_reading(self) -> None:
        """Reads on after `pause_reading`."""
        self._paused = False
        self.last = self._pool.loop.time()
        if self._connection is not None:
            self._connection.link.resume_reading()

    def open_lane(
        self, sink: SocketLink, observe: Observe, failed: Callable[[], None]
    ) -> Lane | None:
        """Lets reads that are exactly one HTTP chunk go on to `sink`, framing and all.

        `observe` hears them, several together (see `Lane`), and `failed` that it raised. From the
        next read on, until `close_lane` or a pause; None where there is no such way (TLS).
        """
        connection = self._connection
        if connection is None or not isinstance(connection.link, SocketLink):
            return None
        connection.lane = Lane(connection, connection.link, sink, observe, failed)
        return connection.lane

    def close_lane(self) -> None:
        """All reads go to `on_body` again."""
        connection = self._connection
        if connection is not None and connection.lane is not None:
            connection.lane.stop()
            connection.lane = None

    def abort(self) -> None:
        """Closes the connection at once, in any phase; no callback comes afterwards."""
        if not self.done:
            self._finish()
            self._drop_connection()

    @property
    def phase(self) -> Phase:
        """How far the exchange has come."""
        return self._phase

    # -- called by the pool and the connection
    def attach(self, connection: Connection) -> None:
        """The connection stands: writes the head and what waits of the body."""
        pool = self._pool
        self._connecting = None
        if self._alarm is not None:
            self._alarm.close()
        self._alarm = connection.alarm
        self._connection = connection
        self._stamp_seen = connection.newest_stamp
        self.reused = connection.served > 0
        self.connected = pool.now()
        self._phase = Phase.SEND
        request = self._request
        assert request is not None  # let go of only when it can no longer be sent
        head = encode_head(request, pool.authority, pool.prefix)
        body = request.body
        link = connection.link
        if len(body) > REPLAY_BYTES:
            self._replayable = False
            link.write(head)
            link.write(memoryview(body))
        elif self._written:
            link.write(b"".join((head, body, *self._written)))
        else:
            link.write(head + body)
        if not self._replayable:
            self._written.clear()
        if self._paused:
            link.pause_reading()
        if self.done:
            return
        if self._asked_to_pause and link.unsent <= WRITE_HIGH_BYTES:
            self.resume_writing()  # the link itself asks for a pause only when it holds more
        if self._body_ended:
            self._note_sent()
        if self.sent is None:
            self._enter(Phase.SEND, self.deadlines.idle_s)

    def data_began(self) -> None:
        """The response began."""
        self._replayable = False
        self._request = None  # a prompt need not be held while its answer streams
        self._written.clear()

    def head_came(self) -> None:
        """The final head came: from here on the idle deadline holds."""
        self.head_received = True
        if self.sent is not None:
            self._enter(Phase.BODY, self.deadlines.idle_s)

    def flushed(self) -> None:
        """The kernel took all that was written."""
        self.last = self._pool.loop.time()
        if self._body_ended:
            self._note_sent()

    def pause_writing(self) -> None:
        """The link holds too much."""
        if not self._asked_to_pause and self._stream is not None:
            self._asked_to_pause = True
            self.handler.on_pause_writing()

    def resume_writing(self) -> None:
        """The link has room again."""
        self.last = self._pool.loop.time()
        if self._asked_to_pause:
            self._asked_to_pause = False
            self.handler.on_resume_writing()

    def succeed(self, trailers: Headers, stamp: float) -> None:
        """The response is whole."""
        if not self.done:
            self._finish().on_end(trailers, stamp)

    def detach(self) -> None:
        """The connection goes back to the pool; the response is whole."""
        self._connection = None

    def fail(self, kind: FailureKind, detail: str) -> None:
        """The exchange failed; tried once more where the rule allows, else told."""
        if self.done:
            return
        connection, self._connection = self._connection, None
        started = connection is not None and connection.response_started
        if connection is not None:
            connection.discard()
        stale = self.reused and not started and kind in _STALE_KINDS
        if stale and self._replayable and not self.retried and self._pool.retry_stale:
            self.retried = True
            self._pool.reconnect(self)
            return
        failure = Failure(kind, self._phase, detail, self.reused, started)
        if self._phase is Phase.CONNECT and self._replayable:
            elsewhere = self.handler.on_unreachable(failure)
            if elsewhere is not None:
                self._move(elsewhere)
                return
        self._finish().on_failure(failure)

    @property
    def whole_request_sent(self) -> bool:
        """Whether the connection could serve another request once the response is whole."""
        return self.sent is not None

    def connecting(self, task: asyncio.Task[None]) -> None:
        """Remembers the task that connects, so that abort can cancel it."""
        self._connecting = task

    def begin_connecting(self) -> None:
        """A new connection is to be made: at first, or again (the one allowed retry)."""
        self.sent = None
        if self._alarm is not None:
            self._alarm.close()
        self._alarm = Alarm(self._pool.loop, self.check_deadline)
        self._enter(Phase.CONNECT, self.deadlines.connect_s)

    # -- inside
    def _move(self, pool: EnginePool) -> None:
        """Goes on at another engine. Nothing was sent to this one since the last (stale) send."""
        self._pool.forget(self)
        self._pool = pool
        self._clock_steps = pool.clock_steps
        self.started = pool.now()
        pool.adopt(self)

    def _put(self, data: bytes) -> None:
        if self._replayable:
            self._written.append(data)
            self._written_bytes += len(data)
        if self._connection is not None:
            if self._written_bytes > REPLAY_BYTES:  # a streamed request has no other body
                self._replayable = False
                self._written.clear()
            self._connection.link.write(data)
            self.last = self._pool.loop.time()
        elif self._written_bytes > REPLAY_BYTES:
            self.pause_writing()

    def _note_sent(self) -> None:
        connection = self._connection
        if connection is not None and self.sent is None and not connection.link.unsent:
            self.sent = self._pool.now()
            if self.head_received:
                self._enter(Phase.BODY, self.deadlines.idle_s)
            else:
                self._enter(Phase.HEAD, self.deadlines.first_byte_s)

    def _enter(self, phase: Phase, limit: float | None) -> None:
        """Sets the phase's deadline."""
        self._phase = phase
        self._limit = limit
        self.last = self._pool.loop.time()
        if limit is not None and self._alarm is not None:
            self._alarm.by(self.last + limit)

    def check_deadline(self) -> None:
        """The alarm rang; reads since it was set have moved the deadline, but no timer."""
        if self._limit is None or self.done:
            return
        now = self._pool.loop.time()
        if self._paused and self._phase is Phase.BODY:
            self.last = now
        else:
            self._look_up_reads(now)
        due = self.last + self._limit
        if due - now <= 0.001:
            self._timed_out(f"nothing came for {self._limit:g} s")
        elif self._alarm is not None:
            self._alarm.by(due)

    def _look_up_reads(self, now: float) -> None:
        """Reads since the last look move the deadline; the stamp says when the newest came."""
        connection = self._connection
        if connection is None or connection.newest_stamp == self._stamp_seen:
            return
        self._stamp_seen = connection.newest_stamp
        quiet = max(self._pool.now() - self._stamp_seen, 0.0)
        steps = self._pool.check_clock()
        if steps != self._steps_seen:
            self._steps_seen, quiet = steps, 0.0  # the clock was stepped: nobody knows when
        self.last = max(self.last, now - quiet)

    def _total_passed(self) -> None:
        self._total_timer = None
        self._timed_out(f"not finished after {self.deadlines.total_s:g} s")

    def _timed_out(self, detail: str) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        self.fail(FailureKind.TIMEOUT, detail)

    def _drop_connection(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.discard()

    def _finish(self) -> ExchangeHandler:
        """Ends it; who is to hear of that, and nothing ever after."""
        # Handler and exchange know each other: apart, both are freed without the collector.
        handler, self.handler = self.handler, _NOBODY
        self.done = True
        self._written.clear()
        if self._phase is Phase.CONNECT and self._alarm is not None:
            self._alarm.close()
        if self._total_timer is not None:
            self._total_timer.cancel()
            self._total_timer = None
        if self._pool.may_step:
            self.clock_stepped = self._pool.check_clock() != self._clock_steps
        self._pool.forget(self)
        return handler


class _Nobody(ExchangeHandler):
    """Hears nothing more."""


_NOBODY = _Nobody()  # type: ignore[abstract]  # its methods do nothing, as meant
_STALE_KINDS = frozenset({FailureKind.RESET, FailureKind.CLOSED_EARLY})
"""How a keep-alive connection that the engine closed meanwhile shows itself."""
