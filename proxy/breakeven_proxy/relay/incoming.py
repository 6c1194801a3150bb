"""The request side's parser: bytes of one client connection → requests, in order.

Strict llhttp (no lenient flag is ever set). What is wrong becomes a `Fault` in the same order as
the requests, so that pipelined requests before it are still answered.
"""

from __future__ import annotations

from dataclasses import dataclass

import httptools

from breakeven_wire import Headers
from breakeven_wire.message import first_values


@dataclass(frozen=True, slots=True)
class Fault:
    """A request that cannot be served: the status and the words of the answer."""

    status: int
    message: str


class Incoming:
    """A request as far as it has come. `parts` holds body bytes that were not taken yet.

    `first` has the first value of each field by its lower-case name.
    """

    __slots__ = (
        "body_bytes", "complete", "fault", "first", "headers", "http_version", "keep_alive",
        "method", "parts", "target", "trailers", "waiting_bytes",
    )  # fmt: skip

    def __init__(
        self, method: bytes, target: bytes, headers: Headers, http_version: str, keep_alive: bool
    ) -> None:
        self.method = method
        self.target = target
        self.headers = headers
        self.http_version = http_version
        self.keep_alive = keep_alive
        self.first = first_values(headers)
        self.parts: list[bytes] = []
        self.waiting_bytes = 0
        self.body_bytes = 0
        self.trailers: Headers = ()
        self.complete = False
        self.fault: Fault | None = None

    def get(self, name: bytes) -> bytes | None:
        """The first value of a header (name in lower case), or None."""
        return self.first.get(name)

    def take_body(self) -> bytes:
        """The body bytes that came since the last call."""
        parts, self.parts, self.waiting_bytes = self.parts, [], 0
        return parts[0] if len(parts) == 1 else b"".join(parts)


def _failed(fault: Fault) -> Incoming:
    incoming = Incoming(b"", b"", (), "1.1", False)
    incoming.complete, incoming.fault = True, fault
    return incoming


class IncomingParser:
    """Feeds httptools; `requests` is the queue of what came, oldest first.

    Args:
        head_limit: largest request line plus header section, bytes.
        body_limit: largest body, bytes.
    """

    __slots__ = (
        "_body_limit", "_current", "_head_bytes", "_head_limit", "_headers", "_parser", "_told",
        "_unparsed_bytes", "_url", "broken", "in_head", "requests",
    )  # fmt: skip

    def __init__(self, head_limit: int, body_limit: int) -> None:
        self.requests: list[Incoming] = []
        self.broken = False
        self.in_head = False
        self._head_limit = head_limit
        self._body_limit = body_limit
        self._parser = httptools.HttpRequestParser(self)
        self._current: Incoming | None = None
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0
        self._unparsed_bytes = 0  # since the parser last told something
        self._told = False

    def feed(self, data: bytes) -> None:
        """Parses one read. After a fault everything is ignored."""
        if self.broken:
            return
        self._told = False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fault(Fault(501, "this proxy speaks HTTP/1.1 only and switches no protocols"))
        except httptools.HttpParserError as error:
            self._fault(Fault(400, f"not a valid HTTP/1.1 request: {error}"))
        self._unparsed_bytes = 0 if self._told else self._unparsed_bytes + len(data)
        if self._unparsed_bytes > self._head_limit:
            self._head_too_large()  # one endless field, chunk size line or trailer

    def _fault(self, fault: Fault) -> None:
        if self.broken:
            return
        self.broken = True
        self.in_head = False
        current = self._current
        if current is not None and not current.complete:
            current.fault = fault
        elif current is not None and fault.status == 501:
            current.fault = fault  # llhttp ended the message early: it is an upgrade
        else:
            self.requests.append(_failed(fault))

    def _head_too_large(self) -> None:
        limit = self._head_limit
        status = 414 if len(self._url) > limit else 431
        self._fault(Fault(status, f"request line and headers are larger than {limit} bytes"))

    # -- httptools callbacks
    def on_message_begin(self) -> None:
        self._current = None
        self._url = b""
        self._headers = []
        self._head_bytes = 0
        self._told = True
        self.in_head = True

    def on_url(self, url: bytes) -> None:
        self._told = True
        self._url += url
        self._head_bytes += len(url)
        if self._head_bytes > self._head_limit:
            self._head_too_large()

    def on_header(self, name: bytes, value: bytes | None) -> None:
        self._told = True
        value = value or b""
        self._headers.append((name, value))
        self._head_bytes += len(name) + len(value) + 4
        if self._head_bytes > self._head_limit:
            self._head_too_large()

    def on_headers_complete(self) -> None:
        if self.broken:
            return
        self.in_head = False
        parser = self._parser
        self._current = Incoming(
            parser.get_method(),
            self._url,
            tuple(self._headers),
            parser.get_http_version(),
            parser.should_keep_alive(),
        )
        self._headers = []  # what comes now are trailers
        self._head_bytes = 0
        self.requests.append(self._current)

    def on_chunk_header(self) -> None:
        self._told = True

    def on_body(self, body: bytes) -> None:
        self._told = True
        current = self._current
        if self.broken or current is None:
            return
        current.parts.append(body)
        size = len(body)
        current.waiting_bytes += size
        current.body_bytes += size
        if current.body_bytes > self._body_limit:
            self._fault(Fault(413, f"request body is larger than {self._body_limit} bytes"))

    def on_message_complete(self) -> None:
        current = self._current
        if not self.broken and current is not None:
            if self._headers:
                current.trailers = tuple(self._headers)
            current.complete = True
