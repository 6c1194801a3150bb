"""Rules for header fields on their way through: what is hop-by-hop, what is rebuilt.

RFC 9110 section 7.6.1 (Connection and hop-by-hop fields), RFC 9112 section 6 (framing).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from http import HTTPStatus

import orjson

from breakeven.value import value
from breakeven_proxy.relay.incoming import Fault, Incoming
from breakeven_proxy.relay.seams import Arrival
from breakeven_wire import Headers, ResponseHead
from breakeven_wire.message import NO_BODY_STATUSES, only_chunked

HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"te",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""Meant for one hop only, whether or not Connection names them. Trailer is passed, for trailers
are passed too."""

REBUILT = frozenset({b"host", b"content-length"})
"""Written anew for the next hop from what was parsed, so that it cannot contradict the body."""

NOT_IN_TRAILERS = HOP_BY_HOP | REBUILT | {b"trailer", b"content-encoding", b"authorization"}
"""RFC 9110 section 6.5.1: framing, routing and authentication do not belong into trailers."""

OWN = b"x-breakeven-"
"""Prefix of the headers that are meant for this proxy and go no further."""


NONE: frozenset[bytes] = frozenset()


def connection_names(headers: Headers, first: Mapping[bytes, bytes]) -> frozenset[bytes]:
    """The lower-case field names that Connection lists; `first`: see `Incoming`."""
    told = first.get(b"connection")
    if told is None or (told.lower() == b"keep-alive" and len(first) == len(headers)):
        return NONE  # what nearly every client says; Keep-Alive goes no further anyway
    found: set[bytes] = set()
    for name, tokens in headers:
        if name.lower() == b"connection":
            found.update(token.strip().lower() for token in tokens.split(b","))
    return frozenset(found)


def request_lines(incoming: Incoming, *, keep_expect: bool, instead: Headers = ()) -> bytes:
    """The fields of a request that go on to the engine, encoded, without Host and framing.

    `instead` replaces those of its names.
    """
    headers = incoming.headers
    named = connection_names(headers, incoming.first)
    drop = _DROP_FROM_REQUEST if keep_expect else _DROP_WITH_EXPECT
    if named or instead:
        drop = drop | named | {name for name, _ in instead}
    passed = [
        b"%b: %b\r\n" % pair
        for pair in headers
        if (low := pair[0].lower()) not in drop and not low.startswith(OWN)
    ]
    passed += [b"%b: %b\r\n" % pair for pair in instead]
    return b"".join(passed)


_DROP_FROM_REQUEST = HOP_BY_HOP | REBUILT
_DROP_WITH_EXPECT = _DROP_FROM_REQUEST | {b"expect"}


def response_headers(head: ResponseHead) -> list[tuple[bytes, bytes]]:
    """The fields of a response that go on to the client."""
    headers = head.headers
    named = connection_names(headers, head.first)
    drop = HOP_BY_HOP | {b"content-length"} | named if named else _DROP_FROM_RESPONSE
    return [(name, value) for name, value in headers if name.lower() not in drop]


_DROP_FROM_RESPONSE = HOP_BY_HOP | {b"content-length"}


def passed_trailers(trailers: Headers) -> Headers:
    """The trailers that go on, in either direction."""
    return tuple(pair for pair in trailers if pair[0].lower() not in NOT_IN_TRAILERS)


def trailer_fields(trailers: Headers) -> bytes:
    """The trailer section that is passed on, without its closing empty line."""
    return b"".join(b"%b: %b\r\n" % pair for pair in passed_trailers(trailers))


def status_line(status: int, reason: bytes) -> bytes:
    """HTTP/1.1 status line; the version is the hop's, not the engine's."""
    return b"HTTP/1.1 %d %b\r\n" % (status, reason or _reason(status))


def _reason(status: int) -> bytes:
    try:
        return HTTPStatus(status).phrase.encode()
    except ValueError:
        return b""


@value
class AnswerHead:
    """A response head for the client, and how its body is framed."""

    data: bytes
    chunked: bool
    keep_alive: bool


def answer_head(
    head: ResponseHead, incoming: Incoming, *, keep_alive: bool, resized: bool
) -> AnswerHead:
    """The engine's response head as the client gets it.

    Args:
        keep_alive: whether the client's connection could go on.
        resized: the body is changed on its way, so the engine's Content-Length is not its length.
    """
    fields = response_headers(head)
    length = head.get(b"content-length")
    chunked = False
    if incoming.method == b"HEAD" or head.status in NO_BODY_STATUSES:
        if length is not None and not resized and head.status != 204:
            fields.append((b"Content-Length", length))
    elif length is not None and not resized:
        fields.append((b"Content-Length", length))
    elif incoming.http_version == "1.1":
        chunked = True
        fields.append((b"Transfer-Encoding", b"chunked"))
    else:
        keep_alive = False  # HTTP/1.0 knows no chunks: the end of the connection ends the body
    if is_event_stream(head):
        fields += _unbuffered(head)
    if not keep_alive:
        fields.append((b"Connection", b"close"))
    elif incoming.http_version == "1.0":
        fields.append((b"Connection", b"keep-alive"))
    return AnswerHead(_encode(head.status, head.reason, fields), chunked, keep_alive)


class AnswerHeads:
    """Makes answer heads; an engine's heads of one second are mostly equal, so the last is kept."""

    __slots__ = ("_answer", "_key")

    def __init__(self) -> None:
        self._key: object = None
        self._answer: AnswerHead

    def answer(
        self, head: ResponseHead, incoming: Incoming, *, keep_alive: bool, resized: bool
    ) -> AnswerHead:
        """See `answer_head`."""
        key = (
            head.headers, head.status, head.reason, incoming.method == b"HEAD",
            incoming.http_version, keep_alive, resized,
        )  # fmt: skip
        if key != self._key:
            self._answer = answer_head(head, incoming, keep_alive=keep_alive, resized=resized)
            self._key = key
        return self._answer


def is_event_stream(head: ResponseHead) -> bool:
    """Whether the response is server-sent events."""
    kind = head.first.get(b"content-type")
    return kind is not None and kind.lower().startswith(b"text/event-stream")


def _unbuffered(head: ResponseHead) -> list[tuple[bytes, bytes]]:
    """Asks proxies in front of us not to hold back a stream (nginx: X-Accel-Buffering)."""
    fields = []
    if head.get(b"x-accel-buffering") is None:
        fields.append((b"X-Accel-Buffering", b"no"))
    if head.get(b"cache-control") is None:
        fields.append((b"Cache-Control", b"no-cache"))
    return fields


def informational_head(head: ResponseHead) -> bytes:
    """A 1xx head, passed on."""
    return _encode(head.status, head.reason, response_headers(head))


def _encode(status: int, reason: bytes, fields: list[tuple[bytes, bytes]]) -> bytes:
    lines = b"".join([b"%b: %b\r\n" % field for field in fields])
    return status_line(status, reason) + lines + b"\r\n"


def head_problem(incoming: Incoming, target: bytes) -> Fault | None:
    """What makes a parsed head unservable (RFC 9112 sections 2.3, 3.2, 6.1); target: origin-form"""
    version, first = incoming.http_version, incoming.first
    if version not in ("1.0", "1.1"):
        return Fault(505, "this proxy speaks HTTP/1.1")
    hosts = int(b"host" in first)
    if hosts and len(first) != len(incoming.headers):  # some field came twice
        hosts = sum(name.lower() == b"host" for name, _ in incoming.headers)
    if hosts > 1 or (hosts == 0 and version == "1.1"):
        return Fault(400, "exactly one Host header is needed")
    if b"transfer-encoding" in first:
        if version == "1.0":
            return Fault(400, "HTTP/1.0 knows no Transfer-Encoding")
        if not only_chunked(incoming.headers):
            return Fault(501, "the only transfer coding known is chunked")
    expect = first.get(b"expect")
    if expect is not None and expect.lower() != b"100-continue":
        return Fault(417, "only Expect: 100-continue is known")
    if target[:1] != b"/" and not (target == b"*" and incoming.method == b"OPTIONS"):
        return Fault(400, "the request target must be a path or an http URL")
    return None


def arrival_of(incoming: Incoming, target: bytes) -> Arrival:
    """A request whose head came now; target: origin-form."""
    length = incoming.get(b"content-length")
    return Arrival(
        incoming.method,
        target,
        target.partition(b"?")[0],
        incoming.headers,
        time.time(),
        time.monotonic(),
        int(length) if length is not None else None,
        incoming.first,
    )


def wants_continue(incoming: Incoming) -> bool:
    """Whether the client waits for 100 Continue; HTTP/1.0 knows none (RFC 9110 10.1.1)."""
    return incoming.get(b"expect") is not None and incoming.http_version == "1.1"


def origin_form(target: bytes) -> bytes:
    """The path and query of a request target; an absolute URL loses its authority."""
    if target[:1] == b"/":
        return target if b"#" not in target else target.partition(b"#")[0]
    low = target[:8].lower()
    if low.startswith((b"http://", b"https://")):
        rest = target.split(b"://", 1)[1]
        slash = min((i for i in (rest.find(b"/"), rest.find(b"?")) if i >= 0), default=-1)
        target = b"/" if slash < 0 else rest[slash:]
        if target.startswith(b"?"):
            target = b"/" + target
    return target.partition(b"#")[0]


ERROR_TYPES = {
    400: "invalid_request_error",
    408: "request_timeout",
    413: "invalid_request_error",
    414: "invalid_request_error",
    417: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
    501: "not_implemented",
    502: "bad_gateway",
    503: "service_unavailable",
    504: "gateway_timeout",
    505: "invalid_request_error",
}
"""`error.type` of the proxy's own answers, in the shape that OpenAI clients parse."""


def own_answer(
    status: int, message: str, *, head_only: bool, close: bool, retry_after_s: int | None = None
) -> bytes:
    """A whole response of the proxy's own: JSON in OpenAI's error shape."""
    error = {"message": message, "type": ERROR_TYPES[status], "code": status, "param": None}
    body = orjson.dumps({"error": error})
    fields = b"Content-Type: application/json\r\nContent-Length: %d\r\n" % len(body)
    if retry_after_s is not None:
        fields += b"Retry-After: %d\r\n" % retry_after_s
    if close:
        fields += b"Connection: close\r\n"
    head = status_line(status, b"") + b"X-Breakeven-Error: proxy\r\n" + fields + b"\r\n"
    return head if head_only else head + body
