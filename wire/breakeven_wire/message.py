"""What goes over the wire: a request as it is written, a response head as it is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from breakeven.value import value

Headers = tuple[tuple[bytes, bytes], ...]
"""Name and value pairs in the order of the wire; names keep their case."""


@value
class Request:
    """A request to write.

    Args:
        method: b"POST".
        target: origin-form, b"/v1/completions?x=1"; the origin's prefix is put before it.
        headers: without Host (added when absent), Content-Length and Transfer-Encoding: those
            are built here, so that they cannot contradict the body.
        body: the whole body, unless `stream` is given; sent without a copy.
        stream: an int (the body's length) or "chunked": the body follows by `Exchange.write`.
        lines: more header lines, each encoded and ended by CRLF; none of them Host or framing.
    """

    method: bytes
    target: bytes
    headers: Headers = ()
    body: bytes = b""
    stream: int | Literal["chunked"] | None = None
    lines: bytes = b""


def first_values(headers: Headers) -> dict[bytes, bytes]:
    """Lower-case name → the first value of that name."""
    # Backwards, so that the first of two equal names is the one that stays.
    return {name.lower(): told for name, told in reversed(headers)}


def only_chunked(headers: Headers) -> bool:
    """Whether the transfer codings that are named are chunked and nothing else.

    The parser undoes chunked. Another coding before it (RFC 9112 section 6.1: "gzip, chunked")
    would stay on the body while its name, being meant for one hop, does not go on with it.
    """
    named = [value for name, value in headers if name.lower() == b"transfer-encoding"]
    return b",".join(named).strip().lower() == b"chunked"


class ResponseHead:
    """Status line and headers of a response, as received. Not to be changed.

    `first` has the first value of each field by its lower-case name.
    """

    __slots__ = ("first", "headers", "http_version", "reason", "status")

    def __init__(
        self, status: int, reason: bytes, headers: Headers, http_version: str = "1.1"
    ) -> None:
        self.status = status
        self.reason = reason
        self.headers = headers
        self.http_version = http_version
        self.first = first_values(headers)

    def __repr__(self) -> str:
        return f"ResponseHead({self.status}, {len(self.headers)} headers)"

    def get(self, name: bytes) -> bytes | None:
        """The first value of a header (name in lower case), or None."""
        return self.first.get(name)


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds; None waits without end.

    connect_s: until the connection (and TLS) stands. first_byte_s: from the request's last byte
    to the final response head. idle_s: between two reads of a body (and of an upload's progress).
    total_s: the whole exchange. Time in which the caller paused reading does not count as idle.
    """

    connect_s: float | None = 5.0
    first_byte_s: float | None = 300.0
    idle_s: float | None = 300.0
    total_s: float | None = None


NO_BODY_STATUSES = frozenset({204, 304})
_BODYLESS_METHODS = frozenset({b"GET", b"HEAD", b"DELETE", b"OPTIONS", b"TRACE", b"CONNECT"})


def encode_head(request: Request, authority: bytes, prefix: bytes) -> bytes:
    """The bytes of a request's head, with Host and the one framing header it needs."""
    host: bytes = b"Host: %b\r\n" % authority
    lines = request.lines
    if request.headers:
        lines += b"".join([b"%b: %b\r\n" % pair for pair in request.headers])
        if any(name.lower() == b"host" for name, _ in request.headers):
            host = b""
    stream = request.stream
    if stream is None:
        if request.body or request.method not in _BODYLESS_METHODS:
            framing = b"Content-Length: %d\r\n" % len(request.body)
        else:
            framing = b""
    elif stream == "chunked":
        framing = b"Transfer-Encoding: chunked\r\n"
    else:
        framing = b"Content-Length: %d\r\n" % stream
    return b"%b %b%b HTTP/1.1\r\n%b%b%b\r\n" % (
        request.method, prefix, request.target, lines, host, framing,
    )  # fmt: skip
