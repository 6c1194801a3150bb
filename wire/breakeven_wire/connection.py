"""One connection: feeds its reads to httptools and tells the exchange it serves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import httptools

from breakeven_wire.alarm import Alarm
from breakeven_wire.failure import FailureKind, describe, failure_kind
from breakeven_wire.lane import Lane, size_line
from breakeven_wire.message import NO_BODY_STATUSES, Headers, ResponseHead, only_chunked

if TYPE_CHECKING:
    from breakeven_wire.exchange import Exchange
    from breakeven_wire.link import Link

HEAD_BYTES = 65536
"""Largest response head (and largest trailer section) that is taken."""


class Connection:
    """The owner of a link: one exchange at a time, no pipelining.

    `link` is set by the pool once the connection stands. The parser's callbacks only take notes;
    the exchange's handler is called after the parser has returned, so that a handler's exception
    is not wrapped and it may abort at any point.
    """

    __slots__ = (
        "_between_chunks", "_complete", "_exchange", "_extra", "_field_bytes", "_gone", "_headers",
        "_heads", "_in_body", "_keep_alive", "_parser", "_parts", "_reason", "_refused",
        "_release", "_told", "_unparsed_bytes", "_until_close", "alarm", "closed", "idle_since",
        "lane", "last_stamp", "link", "response_started", "served",
    )  # fmt: skip

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        release: Callable[[Connection], None],
        gone: Callable[[Connection], None],
    ) -> None:
        self.link: Link
        self.alarm = Alarm(loop, self._alarm_rang)
        self.served = 0
        self.response_started = False
        self.idle_since = 0.0
        self.closed = False
        self.last_stamp = 0.0
        """Of the newest read."""
        self.lane: Lane | None = None
        """See `Exchange.open_lane`."""
        self._release = release
        self._gone = gone
        self._exchange: Exchange | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._expect_response()

    def _expect_response(self) -> None:
        self._headers: list[tuple[bytes, bytes]] = []
        self._reason = b""
        self._heads: list[ResponseHead] = []
        self._parts: list[bytes] = []
        self._in_body = False
        self._until_close = False
        self._complete = False
        self._keep_alive = False
        self._extra = False
        self._between_chunks = False  # the parser stands between two chunks of a body
        self._refused: str | None = None  # a head that must not be passed on, and why
        self._field_bytes = 0  # of the head, or of the trailers
        self._unparsed_bytes = 0  # since the parser last told something: one endless field
        self._told = False

    @property
    def newest_stamp(self) -> float:
        """Of the newest read, whichever way it took."""
        waiting = self.lane.last_stamp if self.lane is not None else None
        return self.last_stamp if waiting is None else waiting

    @property
    def idle(self) -> bool:
        """Whether no exchange is served."""
        return self._exchange is None

    def serve(self, exchange: Exchange) -> None:
        """Takes an exchange: its request is written and the response goes to its handler."""
        self._exchange = exchange
        self.response_started = False
        self._complete = False
        exchange.attach(self)

    def discard(self) -> None:
        """Closes for good; nothing is told to an exchange any more."""
        self._exchange = self.lane = None
        self._between_chunks = False
        if not self.closed:
            self.closed = True
            self.alarm.close()
            self.link.abort()
            self._gone(self)

    # -- link owner
    def data_received(self, data: bytes, stamp: float) -> None:
        if self.lane is not None:
            self.lane.stop()  # what waits there came before, however this read was heard of
        self.last_stamp = stamp
        if self._between_chunks:
            # Most reads of a stream are exactly one chunk, and the parser need not see those: it
            # would stand between two chunks again. The size line has one spelling here.
            line = size_line(len(data))
            if data.startswith(line) and data.endswith(b"\r\n"):
                if self._exchange is not None:
                    self._exchange.handler.on_body(data[len(line) : -2], stamp)
                if self.lane is not None:
                    self.lane.start()
                return
        exchange = self._exchange
        if exchange is None:
            self.discard()  # bytes that no request asked for
            return
        if not self.response_started:
            self.response_started = True
            exchange.data_began()
        self._told = False
        error: str | None = None
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            error = _SWITCHED
        except httptools.HttpParserError as problem:
            error = str(problem)
        if self._refused is not None:
            exchange.fail(FailureKind.PROTOCOL, self._refused)
            return
        if self._complete and error is not None:
            self._keep_alive, error = False, None  # the response is whole, its tail is not
        else:
            self._unparsed_bytes = 0 if self._told else self._unparsed_bytes + len(data)
            if self._unparsed_bytes > HEAD_BYTES or self._field_bytes > HEAD_BYTES:
                error = f"response head or trailers larger than {HEAD_BYTES} bytes"
        if self._between_chunks:
            self._between_chunks = error is None and data[-2:] == b"\r\n"
        self._deliver(exchange, stamp, error)
        if self._between_chunks and self.lane is not None:
            self.lane.start()

    def unstamped(self) -> None:
        if self._exchange is not None:
            self._exchange.unstamped_reads += 1

    def eof_received(self) -> None:
        exchange = self._exchange
        if exchange is not None and self._until_close:
            self._complete, self._keep_alive = True, False
            self._deliver(exchange, self.last_stamp, None)

    def connection_lost(self, error: BaseException | None) -> None:
        exchange = self._exchange
        if exchange is None:
            self.discard()
            return
        exchange.fail(failure_kind(error, connecting=False), describe(error))

    def pause_writing(self) -> None:
        if self._exchange is not None:
            self._exchange.pause_writing()

    def resume_writing(self) -> None:
        if self._exchange is not None:
            self._exchange.resume_writing()

    def flushed(self) -> None:
        if self._exchange is not None:
            self._exchange.flushed()

    def _alarm_rang(self) -> None:
        if self._exchange is not None:
            self._exchange.check_deadline()

    # -- deliver what the parser noted
    def _deliver(self, exchange: Exchange, stamp: float, error: str | None) -> None:
        if self._heads:
            heads, self._heads = self._heads, []
            exchange.more = bool(self._parts) or self._complete
            for head in heads:
                if head.status < 200:
                    exchange.handler.on_informational(head)
                else:
                    exchange.head_came()
                    exchange.handler.on_head(head, stamp)
                if exchange.done:
                    return
        if self._parts:
            parts, self._parts = self._parts, []
            exchange.more = self._complete
            exchange.handler.on_body(parts[0] if len(parts) == 1 else b"".join(parts), stamp)
            if exchange.done:
                return
        if self._complete:
            self._end(exchange, stamp)
        elif error is not None:
            exchange.fail(FailureKind.PROTOCOL, error)

    def _end(self, exchange: Exchange, stamp: float) -> None:
        trailers: Headers = tuple(self._headers)
        reusable = self._keep_alive and not self._extra and exchange.whole_request_sent
        self._exchange = self.lane = None
        exchange.detach()
        self.served += 1
        if reusable:
            if exchange.head_only:  # the parser still waits for the body that does not come
                self._parser = httptools.HttpResponseParser(self)
            self._expect_response()
            self.link.resume_reading()
            self._release(self)
        else:
            self.discard()
        exchange.succeed(trailers, stamp)

    # -- httptools callbacks
    def on_message_begin(self) -> None:
        self._told = True
        if self._complete:
            self._extra = True
            return
        self._headers = []
        self._reason = b""
        self._in_body = False

    def on_status(self, status: bytes) -> None:
        if not self._extra:
            self._reason += status

    def on_header(self, name: bytes, value: bytes | None) -> None:
        self._told = True
        if not self._extra:
            value = value or b""
            self._headers.append((name, value))
            self._field_bytes += len(name) + len(value) + 4

    def on_headers_complete(self) -> None:
        if self._extra or self._refused is not None:
            return
        exchange = self._exchange
        status = self._parser.get_status_code()
        head = ResponseHead(
            status, self._reason, tuple(self._headers), self._parser.get_http_version()
        )
        self._refused = _refused(head)
        if self._refused is not None:
            return
        self._heads.append(head)
        self._headers = []  # what comes now are trailers
        self._field_bytes = 0
        if status < 200:
            return
        self._in_body = True
        if exchange is not None and exchange.head_only:
            # llhttp does not know that this was HEAD and would wait for a body.
            self._complete = True
            connection = head.get(b"connection") or b""
            self._keep_alive = head.http_version == "1.1" and b"close" not in connection.lower()
            return
        if b"content-length" not in head.first and not _chunked(head):
            self._until_close = status not in NO_BODY_STATUSES

    def on_chunk_header(self) -> None:
        self._told = True
        self._between_chunks = False

    def on_chunk_complete(self) -> None:
        self._between_chunks = True

    def on_body(self, body: bytes) -> None:
        self._told = True
        if self._complete:
            self._extra = True
        else:
            self._parts.append(body)

    def on_message_complete(self) -> None:
        if self._in_body and not self._complete:
            self._complete = True
            self._keep_alive = self._parser.should_keep_alive()


_SWITCHED = "the engine switched protocols without being asked"


def _refused(head: ResponseHead) -> str | None:
    """Why a head is no answer that a client may see, or None."""
    if head.status == 101:
        return _SWITCHED
    if not 100 <= head.status <= 999:
        return "the engine's status is no HTTP status"
    coding = head.first.get(b"transfer-encoding")
    if coding is None or (coding == b"chunked" and len(head.first) == len(head.headers)):
        return None
    if not only_chunked(head.headers):
        return "the engine used a transfer coding that was not asked for"
    return None


def _chunked(head: ResponseHead) -> bool:
    coding = head.first.get(b"transfer-encoding")
    return coding is not None and coding.lower().rstrip().endswith(b"chunked")
