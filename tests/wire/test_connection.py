"""`breakeven_wire.connection`: reads that are one chunk pass the parser by, and nobody can tell."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven_wire.connection import Connection

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class Clock:
    """A loop that only tells the time."""

    def time(self) -> float:
        return 1.0


class Heard:
    """An exchange, its handler and its link in one: keeps what it is told."""

    head_only = False
    whole_request_sent = True
    done = False

    def __init__(self) -> None:
        self.handler = self
        self.last = 0.0
        self.more = False
        self.reads: list[tuple[bytes, bool]] = []
        self.trailers: Any = None
        self.failed: str | None = None
        self.connection: Any = Connection(Clock(), lambda _: None, lambda _: None)  # type: ignore[arg-type]
        self.connection.link = self
        self.connection.serve(self)

    def on_head(self, head: object, stamp: float) -> None: ...
    def on_body(self, data: bytes, stamp: float) -> None:
        self.reads.append((data, self.more))

    def succeed(self, trailers: object, stamp: float) -> None:
        self.trailers = trailers

    def fail(self, kind: object, detail: str) -> None:
        self.failed = detail
        self.connection.discard()

    def nothing(self, *_: object) -> None: ...

    attach = data_began = head_came = detach = abort = resume_reading = nothing

    def read(self, data: bytes) -> None:
        self.connection.data_received(data, 2.0)

    @property
    def body(self) -> bytes:
        return b"".join(data for data, _ in self.reads)


def chunk(data: bytes, spelling: str) -> bytes:
    """One HTTP chunk, its size written in one of the ways that RFC 9112 section 7.1 allows."""
    size = {"hex": "%x", "upper": "%X", "zeros": "00%x", "extension": "%x;a=b"}[spelling]
    return (size % len(data)).encode() + b"\r\n" + data + b"\r\n"


SPELLINGS = st.sampled_from(["hex", "upper", "zeros", "extension"])
PIECES = st.one_of(st.binary(min_size=1, max_size=40), st.just(b"\r\n"), st.just(b"5\r\nhello\r\n"))


@given(
    chunks=st.lists(st.tuples(PIECES, SPELLINGS), max_size=12),
    cuts=st.sets(st.integers(0, 400), max_size=10),
    whole=st.booleans(),
)
def test_chunks_come_out_the_same_however_they_are_cut(
    chunks: list[tuple[bytes, str]], cuts: set[int], whole: bool
) -> None:
    """The body is what was sent, for cuts anywhere and for one read a chunk."""
    parts = [chunk(data, spelling) for data, spelling in chunks]
    heard = Heard()
    if whole:
        reads = [HEAD, *parts, b"0\r\nx: y\r\n\r\n"]
    else:
        stream = HEAD + b"".join(parts) + b"0\r\nx: y\r\n\r\n"
        edges = [0, *sorted(cut for cut in cuts if 0 < cut < len(stream)), len(stream)]
        reads = [stream[a:b] for a, b in itertools.pairwise(edges)]
    for read in reads:
        heard.read(read)
    assert heard.failed is None
    assert heard.body == b"".join(data for data, _ in chunks)
    assert heard.trailers == ((b"x", b"y"),)
    if whole:
        assert heard.reads == [(data, False) for data, _ in chunks]


@pytest.mark.parametrize(
    "read",
    [b"+5\r\nhello\r\n", b"0x5\r\nhello\r\n", b" 5\r\nhello\r\n", b"5\r\nhelloXX", b"5\nhello\r\n",
     b"5_\r\nhello\r\n", b"-5\r\nhello\r\n", b"\r\nhello\r\n"],
)  # fmt: skip
def test_what_is_no_chunk_is_refused_between_chunks_too(read: bytes) -> None:
    """A size line with one wrong byte ends the exchange as the parser would end it."""
    heard = Heard()
    heard.read(HEAD)
    heard.read(b"3\r\nabc\r\n")
    heard.read(read)
    assert heard.failed is not None
    assert heard.body in (b"abc", b"abchello")


def test_the_head_and_the_end_tell_what_else_the_read_holds() -> None:
    """`more` holds back what can be written together with what follows, and nothing else."""
    heard = Heard()
    seen: list[bool] = []
    heard.on_head = lambda *_: seen.append(heard.more)  # type: ignore[method-assign]
    heard.read(HEAD + b"1\r\na\r\n")
    heard.read(b"1\r\nb\r\n")
    heard.read(b"1\r\nc\r\n0\r\n\r\n")
    assert seen == [True]
    assert heard.reads == [(b"a", False), (b"b", False), (b"c", True)]
    assert heard.trailers == ()
