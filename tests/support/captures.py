"""Reads the recordings of the real engine in tests/data/vllm (SOURCE.md there says what they are).

Independent of the wire room on purpose: it is what the wire's parser can be checked against.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path

DATA = Path(__file__).resolve().parents[1] / "data" / "vllm"


@dataclass(frozen=True)
class Response:
    """A recorded HTTP response: status, lower-case header names, body without chunk framing."""

    status: int
    headers: dict[str, str]
    body: bytes
    complete: bool

    @property
    def is_stream(self) -> bool:
        return self.headers.get("content-type", "").startswith("text/event-stream")


class Dechunker:
    """Takes the bytes of one HTTP/1.1 response as they came; gives body bytes and the head."""

    def __init__(self) -> None:
        self._buffer = b""
        self._head: bytes | None = None
        self._left: int | None = None  # bytes left of the chunk at hand; None: a size line is due
        self._chunked = False
        self.complete = False

    @property
    def head(self) -> bytes:
        return self._head or b""

    def receive(self, data: bytes) -> bytes:
        """The body bytes that this read adds."""
        self._buffer += data
        if self._head is None:
            head, blank, rest = self._buffer.partition(b"\r\n\r\n")
            if not blank:
                return b""
            self._head, self._buffer = head, rest
            self._chunked = b"transfer-encoding: chunked" in head.lower()
        if not self._chunked:
            body, self._buffer = self._buffer, b""
            return body
        return self._dechunk()

    def _dechunk(self) -> bytes:
        out = bytearray()
        while True:
            if self._left is None:
                size, newline, rest = self._buffer.partition(b"\r\n")
                if not newline:
                    return bytes(out)
                self._buffer, self._left = rest, int(size.split(b";")[0], 16)
                if self._left == 0:
                    self.complete = True
                    return bytes(out)
            part = self._buffer[: self._left]
            out += part
            self._buffer, self._left = self._buffer[len(part) :], self._left - len(part)
            if self._left or len(self._buffer) < 2:
                return bytes(out)
            assert self._buffer[:2] == b"\r\n", "a chunk must end in CRLF"
            self._buffer, self._left = self._buffer[2:], None


def request(path: Path) -> dict[str, object]:
    """The JSON body that was sent for a recording (path of the .req or .raw)."""
    return dict(json.loads(path.with_suffix(".req").read_bytes().partition(b"\r\n\r\n")[2]))


@functools.cache
def response(path: Path) -> Response:
    """A recorded response (.raw, or .txt with its head)."""
    raw = path.read_bytes()
    parser = Dechunker()
    head, _, rest = raw.partition(b"\r\n\r\n")
    if raw.startswith(b"HTTP/") and _is_unframed(head, rest):
        body, complete = rest, True  # recorded by a client that took the framing off already
    else:
        body = parser.receive(raw)
        complete = parser.complete
    lines = head.decode("latin-1").split("\r\n")
    headers = {n.strip().lower(): v.strip() for n, _, v in (ln.partition(":") for ln in lines[1:])}
    if "content-length" in headers:
        complete = len(body) == int(headers["content-length"])
    return Response(int(lines[0].split()[1]), headers, body, complete)


@functools.cache
def reads(path: Path) -> tuple[tuple[float, bytes], ...]:
    """(seconds since the request, body bytes of the read) of a recording, chunk framing removed.

    A read that brought the head or framing only is listed with b"".
    """
    parser = Dechunker()
    found = []
    for line in path.with_suffix("").with_suffix(".reads.jsonl").read_text("utf-8").splitlines():
        row = json.loads(line)
        data = row.get("data", "").encode("utf-8")  # none: end of file, or the client closed
        assert len(data) == row.get("n", len(data)), f"{path}: the recording is not plain UTF-8"
        found.append((float(row["t"]), parser.receive(data)))
    return tuple(found)


def streams(*arms: str) -> list[Path]:
    """Every recorded .raw of these arms that is an event stream."""
    paths = [path for arm in arms for path in sorted((DATA / arm).glob("*.raw"))]
    return [path for path in paths if b"content-type: text/event-stream" in path.read_bytes()[:400]]


def _is_unframed(head: bytes, rest: bytes) -> bool:
    """The head says chunked, but the body starts with an event: the framing was taken off."""
    return b"transfer-encoding: chunked" in head.lower() and rest.startswith(b"data:")
