"""One request on its way: client → engine → client, and exactly one ending.

Waiting for a place → sending → answering → over. Every way out goes through `_over`, so that a
place is given back, an observation ended and the engine's connection freed exactly once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from breakeven_proxy.relay.heads import (
    arrival_of,
    head_problem,
    informational_head,
    origin_form,
    own_answer,
    passed_trailers,
    request_lines,
    trailer_fields,
    wants_continue,
)
from breakeven_proxy.relay.incoming import Fault, Incoming
from breakeven_proxy.relay.seams import Arrival, Close, Ending, Refusal, Transform, Visit
from breakeven_wire import (
    EnginePool,
    Exchange,
    ExchangeHandler,
    Failure,
    FailureKind,
    Headers,
    Lane,
    Request,
    ResponseHead,
)

if TYPE_CHECKING:
    from breakeven_proxy.relay.client import ClientConnection, RelayServer

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

LAST_CHUNK = b"0\r\n\r\n"

BACKLOG_READ_BYTES = 32768
"""After a pause, reads this large are still backlog: their gaps say nothing of the engine."""


class Splice(ExchangeHandler):
    """Relays one request; told by its client connection and by the engine's exchange."""

    __slots__ = (
        "_arrival", "_backlog", "_backpressured", "_body_ended", "_chunked", "_client",
        "_complete_at", "_done", "_exchange", "_held", "_incoming", "_keep_alive", "_lane",
        "_paused", "_problem", "_response_bytes", "_server", "_status", "_transform",
        "_visit", "_whole",
    )  # fmt: skip

    def __init__(self, client: ClientConnection, server: RelayServer, incoming: Incoming) -> None:
        self._client = client
        self._server = server
        self._incoming = incoming
        self._arrival: Arrival
        self._visit: Visit | None = None
        self._exchange: Exchange | None = None
        self._problem: Fault | None = None
        self._done = False
        # the request's way
        self._whole: bytearray | None = None  # a body that is changed once it is complete
        self._body_ended = False
        self._complete_at: float | None = None
        # the response's way
        self._status: int | None = None
        self._keep_alive = incoming.keep_alive
        self._chunked = False
        self._lane: Lane | None = None
        self._transform: Transform | None = None
        self._held = b""  # bytes for the client that wait for those of the same read behind them
        self._paused = False
        self._backlog = False
        self._backpressured = False
        self._response_bytes = 0

    # -- the request's way
    def start(self) -> None:
        """Checks the head and enters at the desk."""
        incoming = self._incoming
        target = origin_form(incoming.target)
        problem = head_problem(incoming, target)
        if problem is not None:
            self._done = True
            self._client.count_bad_request(problem.status)
            self._keep_alive = False
            self._answer(problem.status, problem.message)
            self._client.request_done(keep_alive=False)
            return
        self._arrival = arrival = arrival_of(incoming, target)
        server = self._server
        length, limit = arrival.content_length, server.limits.body_bytes
        if length is not None and length > limit:
            self._problem = Fault(413, f"request body is larger than {limit} bytes")
        visit = server.desk.enter(arrival, self)
        if not self._done:
            self._visit = visit
            if self._problem is not None:
                self._bad_request(self._problem)

    def admitted(self, visit: Visit) -> None:
        """There is room: the request goes to the engine."""
        self._visit = visit
        if self._problem is not None:
            self._bad_request(self._problem)
            return
        transform = visit.transform
        if transform is not None and self._fits(transform):
            self._transform, self._whole = transform, bytearray()
            if wants_continue(self._incoming) and not self._incoming.complete:
                self._client.write(CONTINUE)
        else:
            self._begin(None)
        if not self._body_ended or self._incoming.fault is not None:
            self.request_came()
        if self._client.paused_for or not self._incoming.complete:
            self._client.body_was_taken()  # one that waited in the queue may have been paused

    def refused(self, visit: Visit, refusal: Refusal) -> None:
        """There is no room."""
        self._visit = visit
        if self._problem is not None:
            self._bad_request(self._problem)
            return
        self._answer(refusal.status, refusal.message, retry_after_s=refusal.retry_after_s)
        self._over(Close.REFUSED)
        self._client.request_done(keep_alive=self._keep_alive)

    def request_came(self) -> None:
        """More of the request was parsed."""
        incoming, exchange = self._incoming, self._exchange
        if self._done:
            return
        if incoming.fault is not None:
            self._bad_request(incoming.fault)
        elif self._whole is not None:
            self._whole += self._take_body()
            if incoming.complete:
                self._begin_changed(bytes(self._whole))
        elif exchange is not None and not self._body_ended:
            data = self._take_body()
            if data:
                exchange.write(data)
            if incoming.complete and not self._done:
                self._note_complete()
                exchange.end(passed_trailers(incoming.trailers))

    def _take_body(self) -> bytes:
        data = self._incoming.take_body()
        if data and self._visit is not None:
            try:
                self._visit.observation.request_body(data)
            except Exception:  # noqa: BLE001 - metering never breaks a stream; it is counted
                self._telemetry_failed()
        return data

    def _fits(self, transform: Transform) -> bool:
        length = self._arrival.content_length
        return self._incoming.complete or (length is not None and length <= transform.max_bytes)

    def _begin_changed(self, body: bytes) -> None:
        assert self._transform is not None
        self._whole = None
        changed = self._transform.request(body)
        if changed is None:
            self._transform, changed = None, body
        self._begin(changed)

    def _begin(self, body: bytes | None) -> None:
        """Sends the head and what there is of the body; the rest follows in `request_came`."""
        visit, incoming, arrival = self._visit, self._incoming, self._arrival
        assert visit is not None
        stream: int | Literal["chunked"] | None = None
        if body is None and incoming.complete and not incoming.trailers:
            body = self._take_body()
        elif body is None:
            stream = "chunked" if arrival.content_length is None else arrival.content_length
        if stream is None:
            self._note_complete()
        lines = request_lines(incoming, keep_expect=stream is not None, instead=visit.extra_headers)
        request = Request(arrival.method, arrival.target, (), body or b"", stream, lines)
        self._exchange = visit.pool.start(request, self)
        if self._paused:
            self._exchange.pause_reading()

    def _note_complete(self) -> None:
        self._body_ended = True
        if self._visit is not None:
            self._complete_at = self._visit.pool.now()

    # -- told by the client connection
    def client_left(self) -> None:
        """The client is gone, in whatever phase: the engine's connection is aborted."""
        self._over(Close.CANCELLED)

    def client_stalled(self) -> None:
        """The request's body did not come in time."""
        if self._status is None:
            self._answer(408, "the request body did not come in time")
            self._over(Close.TIMEOUT)
            self._client.request_done(keep_alive=False)
        else:
            self._over(Close.TIMEOUT)
            self._client.break_off()

    def client_stopped_reading(self) -> None:
        """The client has not taken a byte for the idle time."""
        self._over(Close.CANCELLED)

    def client_is_slow(self) -> None:
        """Enough waits for the client: the engine's side is not read any more."""
        self._paused = self._backlog = self._backpressured = True
        if self._exchange is not None:
            self._exchange.pause_reading()
            self._close_lane()

    def client_caught_up(self) -> None:
        """The client took what waited."""
        self._paused = False
        if self._exchange is not None and not self._done:
            self._exchange.resume_reading()

    # -- told by the exchange
    def on_pause_writing(self) -> None:
        self._client.pause_reading("engine")

    def on_resume_writing(self) -> None:
        self._client.resume_reading("engine")

    def on_unreachable(self, failure: Failure) -> EnginePool | None:
        if self._visit is None:
            return None
        try:
            pool = self._visit.divert(failure)
        except Exception:  # noqa: BLE001 - routing never breaks what the relay can still answer
            self._telemetry_failed()
            return None
        if pool is not None and self._complete_at is not None:
            self._complete_at = pool.now()  # the other pool may read another clock
        return pool

    def on_informational(self, head: ResponseHead) -> None:
        if self._incoming.http_version == "1.1":
            self._client.write(informational_head(head))

    def on_head(self, head: ResponseHead, stamp: float) -> None:
        visit, exchange, incoming = self._visit, self._exchange, self._incoming
        assert visit is not None
        assert exchange is not None
        try:
            visit.observation.head(head, stamp)
            if self._complete_at is not None and exchange.sent is not None:
                visit.observation.request_sent(self._complete_at, exchange.sent)
        except Exception:  # noqa: BLE001 - metering never breaks a stream; it is counted
            self._telemetry_failed()
        if self._transform is not None and not self._transform.response_head(head):
            self._transform = None
        if not incoming.complete or self._server.draining:
            self._keep_alive = False
        answer = self._server.answers.answer(
            head, incoming, keep_alive=self._keep_alive, resized=self._transform is not None
        )
        self._status, self._chunked = head.status, answer.chunked
        self._keep_alive = answer.keep_alive
        if exchange.more:
            self._held = answer.data
        else:
            self._client.write(answer.data)

    def on_body(self, data: bytes, stamp: float) -> None:
        more = self._exchange.more  # type: ignore[union-attr]
        self._send(data if self._transform is None else self._transform.response(data), more=more)
        backlog = self._backlog
        try:
            self._visit.observation.body(data, stamp, backlog)  # type: ignore[union-attr]
        except Exception:  # noqa: BLE001 - metering never breaks a stream; it is counted
            self._telemetry_failed()
        if backlog and not self._paused and len(data) < BACKLOG_READ_BYTES:
            self._backlog = False
        if not more and self._lane is None:
            self._open_lane()

    def _open_lane(self) -> None:
        """The engine's chunks go on as they are, where nothing is changed and nothing waits.

        From the second read of a body on: a response that comes in one needs no lane.
        """
        if self._chunked and self._transform is None and not self._backlog:
            self._lane = self._exchange.open_lane(  # type: ignore[union-attr]
                self._client.link,
                self._visit.observation.bodies,  # type: ignore[union-attr]
                self._telemetry_failed,
            )

    def _close_lane(self) -> None:
        lane, self._lane = self._lane, None
        if lane is not None:
            self._exchange.close_lane()  # type: ignore[union-attr]
            lane.flush()
            self._response_bytes += lane.data_bytes

    def _send(self, data: bytes, *, more: bool) -> None:
        """Body bytes for the client, behind what is held; `more` of the same read follows."""
        out = self._held
        if data:
            self._response_bytes += len(data)
            out += b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data
        self._held = out if more else b""
        if out and not more:
            self._client.write(out)

    def on_end(self, trailers: Headers, stamp: float) -> None:
        if self._transform is not None:
            self._send(self._transform.response_end(), more=True)
        out = self._held
        if self._chunked:
            out += b"0\r\n" + trailer_fields(trailers) + b"\r\n" if trailers else LAST_CHUNK
        if out:
            self._client.write(out)
        self._over(Close.COMPLETE, stamp=stamp)
        self._client.request_done(keep_alive=self._keep_alive)

    def on_failure(self, failure: Failure) -> None:
        timeout = failure.kind is FailureKind.TIMEOUT
        close = Close.TIMEOUT if timeout else Close.BROKEN
        if self._status is None:
            # The detail may name addresses of the inside: it is for metrics, not for clients.
            words = f"the engine did not answer ({failure.kind.value}, in {failure.phase.value})"
            self._answer(504 if timeout else 502, words)
            self._over(close, failure)
            self._client.request_done(keep_alive=self._keep_alive)
        else:
            self._over(close, failure)
            self._client.break_off()

    # -- endings
    def _bad_request(self, fault: Fault) -> None:
        self._client.count_bad_request(fault.status)
        self._keep_alive = False
        if self._status is None:
            self._answer(fault.status, fault.message)
            self._over(Close.BAD_REQUEST)
            self._client.request_done(keep_alive=False)
        else:
            self._over(Close.BAD_REQUEST)
            self._client.break_off()

    def _answer(self, status: int, message: str, *, retry_after_s: int | None = None) -> None:
        self._status = status
        if not self._incoming.complete or self._server.draining:
            self._keep_alive = False
        self._client.write(
            own_answer(
                status,
                message,
                head_only=self._incoming.method == b"HEAD",
                close=not self._keep_alive,
                retry_after_s=retry_after_s,
            )
        )

    def _over(
        self, close: Close, failure: Failure | None = None, *, stamp: float | None = None
    ) -> None:
        if self._done:
            return
        self._done = True
        self._close_lane()
        exchange, visit = self._exchange, self._visit
        if exchange is not None:
            exchange.abort()  # nothing, when it has ended itself
        if visit is None:
            return
        if stamp is None:
            stamp = visit.pool.now()
        try:
            visit.observation.end(
                Ending(
                    close,
                    self._status,
                    stamp,
                    failure,
                    exchange,
                    self._backpressured,
                    self._incoming.body_bytes,
                    self._response_bytes,
                )
            )
        except Exception:  # noqa: BLE001 - metering never breaks a stream; it is counted
            self._telemetry_failed()
        finally:
            visit.leave()

    def _telemetry_failed(self) -> None:
        self._server.count_telemetry_error()
