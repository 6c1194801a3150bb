"""What goes over the wire: a request as it is written, a response head as it is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Headers = tuple[tuple[bytes, bytes], ...]
"""Name and value pairs in the order of the wire; names keep their case."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request to write.

    Args:
        method: b"POST".
        target: origin-form, b"/v1/completions?x=1"; the origin's prefix is put before it.
        headers: without Host (added when absent), Content-Length and Transfer-Encoding: those
            are built here, so that they cannot contradict the body.
        body: the whole body, unless `stream` is given; sent without a copy.
        stream: an int (the body's length) or "chunked": the body follows by `Exchange.write`.
    """

    method: bytes
    target: bytes
    headers: Headers = ()
    body: bytes = b""
    stream: int | Literal["chunked"] | None = None


def first_values(headers: Headers) -> dict[bytes, bytes]:
    """Lower-case name → the first value of that name."""
    found: dict[bytes, bytes] = {}
    for name, value in headers:
        found.setdefault(name.lower(), value)
    return found


def only_chunked(headers: Headers) -> bool:
    """Whether the transfer codings that are named are chunked and nothing else.

    The parser undoes chunked. Another coding before it (RFC 9112 section 6.1: "gzip, chunked")
    would stay on the body while its name, being meant for one hop, does not go on with it.
    """
    named = [value for name, value in headers if name.lower() == b"transfer-encoding"]
    return b",".join(named).strip().lower() == b"chunked"


class ResponseHead:
    """Status line and headers of a response, as received. Not to be changed."""

    __slots__ = ("_first", "headers", "http_version", "reason", "status")

    def __init__(
        self, status: int, reason: bytes, headers: Headers, http_version: str = "1.1"
    ) -> None:
        self.status = status
        self.reason = reason
        self.headers = headers
        self.http_version = http_version
        self._first = first_values(headers)

    def __repr__(self) -> str:
        return f"ResponseHead({self.status}, {len(self.headers)} headers)"

    def get(self, name: bytes) -> bytes | None:
        """The first value of a header (name in lower case), or None."""
        return self._first.get(name)


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
    parts = [request.method, b" ", prefix, request.target, b" HTTP/1.1\r\n"]
    has_host = False
    for name, value in request.headers:
        has_host = has_host or name.lower() == b"host"
        parts += (name, b": ", value, b"\r\n")
    if not has_host:
        parts += (b"Host: ", authority, b"\r\n")
    if request.stream == "chunked":
        parts.append(b"Transfer-Encoding: chunked\r\n")
    elif request.stream is not None:
        parts.append(b"Content-Length: %d\r\n" % request.stream)
    elif request.body or request.method not in _BODYLESS_METHODS:
        parts.append(b"Content-Length: %d\r\n" % len(request.body))
    parts.append(b"\r\n")
    return b"".join(parts)
