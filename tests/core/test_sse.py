"""`breakeven.sse`: the WHATWG stream rules, at every split, with bounded memory."""

from __future__ import annotations

import gc
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.captures import response, streams

from breakeven.errors import ProtocolError
from breakeven.sse import SSEDecoder, SSEEvent

# (name, stream, [(event name, data)]); the rules are those of the HTML Standard, 9.2.6
STREAMS: list[tuple[str, bytes, list[tuple[bytes | None, bytes]]]] = [
    ("one event", b"data: a\n\n", [(None, b"a")]),
    ("no space", b"data:a\n\n", [(None, b"a")]),
    ("only one space is taken off", b"data:  a\n\n", [(None, b" a")]),
    ("crlf", b"data: a\r\n\r\ndata: b\r\n\r\n", [(None, b"a"), (None, b"b")]),
    ("cr", b"data: a\r\rdata: b\r\r", [(None, b"a"), (None, b"b")]),
    ("mixed line ends", b"data: a\r\n\ndata: b\n\r\n", [(None, b"a"), (None, b"b")]),
    ("multi-line data", b"data: a\ndata:\ndata: b\n\n", [(None, b"a\n\nb")]),
    ("comment is no event", b": keep-alive\n\ndata: a\n\n", [(None, b"a")]),
    ("comment inside an event", b"data: a\n: ping\ndata: b\n\n", [(None, b"a\nb")]),
    ("named event", b"event: error\ndata: a\n\ndata: b\n\n", [(b"error", b"a"), (None, b"b")]),
    ("a name without data is dropped", b"event: x\n\ndata: a\n\n", [(None, b"a")]),
    ("id and retry", b"id: 7\nretry: 5\ndata: a\n\n", [(None, b"a")]),
    ("id alone dispatches nothing", b"id: 7\n\n", []),
    ("unknown field", b"dat: x\nDATA: y\ndata: a\n\n", [(None, b"a")]),
    ("field without colon", b"data\n\n", [(None, b"")]),
    ("two of those", b"data\ndata\n\n", [(None, b"\n")]),
    ("colon in the value", b"data: a:b\n\n", [(None, b"a:b")]),
    ("blank lines only", b"\n\n\r\n\r\r", []),
    ("byte order mark", b"\xef\xbb\xbfdata: a\n\n", [(None, b"a")]),
    ("a second mark is data", b"\xef\xbb\xbf\xef\xbb\xbfdata: a\n\n", []),
    ("part of a mark", b"\xef\xbbdata: a\n\ndata: b\n\n", [(None, b"b")]),
    ("a cut event is not dispatched", b"data: a\n\ndata: b\n", [(None, b"a")]),
    ("utf-8 is not decoded", "data: é€𝄞\n\n".encode(), [(None, "é€𝄞".encode())]),
    ("broken utf-8 passes", b"data: \xff\xc3\n\n", [(None, b"\xff\xc3")]),
    ("nul passes", b"data: a\x00b\n\n", [(None, b"a\x00b")]),
]


def pairs(events: list[SSEEvent]) -> list[tuple[bytes | None, bytes]]:
    return [(event.event, event.data) for event in events]


def decode(stream: bytes, *cuts: int) -> list[tuple[bytes | None, bytes]]:
    """Feed the stream cut at these offsets, as the observer does: whole events first."""
    decoder = SSEDecoder()
    found: list[tuple[bytes | None, bytes]] = []
    for start, end in zip((0, *cuts), (*cuts, len(stream)), strict=True):
        read = stream[start:end]
        payload = decoder.whole_event(read)
        payloads = decoder.whole_events(read) if payload is None else [payload]
        if payloads is None:
            found += pairs(decoder.receive_data(read))
        else:
            found += [(None, payload) for payload in payloads]
    return found


@pytest.mark.parametrize(("name", "stream", "expected"), STREAMS, ids=[row[0] for row in STREAMS])
def test_dispatch(name: str, stream: bytes, expected: list[tuple[bytes | None, bytes]]) -> None:
    """Events are dispatched as the standard says."""
    assert decode(stream) == expected


@pytest.mark.parametrize(("name", "stream", "expected"), STREAMS, ids=[row[0] for row in STREAMS])
def test_any_two_cuts(name: str, stream: bytes, expected: list[tuple[bytes | None, bytes]]) -> None:
    """No pair of cuts changes what is dispatched; nor does a byte at a time."""
    for first in range(len(stream) + 1):
        for second in range(first, len(stream) + 1):
            assert decode(stream, first, second) == expected, (first, second)
    assert decode(stream, *range(1, len(stream))) == expected


LINES = st.sampled_from(
    [b"data: a", b"data:b", b"data", b"event: e", b": c", b"id: 1", b"x", b"", b"", b"\xef\xbb\xbf"]
)
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])


def oracle(stream: bytes) -> list[tuple[bytes | None, bytes]]:
    """The standard's text, followed word by word on the whole stream at once."""
    text = stream.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    found: list[tuple[bytes | None, bytes]] = []
    data, event = b"", b""
    for line in text.split(b"\n")[:-1]:
        if not line:
            if data:
                found.append((event or None, data[:-1]))
            data, event = b"", b""
            continue
        field, _, value = line.partition(b":")
        value = value[1:] if value[:1] == b" " else value
        if field == b"data":
            data += value + b"\n"
        elif field == b"event":
            event = value
    return found


@given(st.lists(st.tuples(LINES, ENDS), max_size=12), st.data())
def test_against_the_standard(lines: list[tuple[bytes, bytes]], data: st.DataObject) -> None:
    """Any lines with any line ends, cut anywhere, give what the standard's text gives."""
    stream = b"".join(line + end for line, end in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5)))
    assert decode(stream, *cuts) == oracle(stream)


@pytest.mark.parametrize("path", streams("base", "ngram", "admission"), ids=lambda p: p.stem)
def test_recorded_streams(path: object) -> None:
    """Every recorded stream decodes to what the standard's text gives, in reads of 1 byte too."""
    body = response(path).body  # type: ignore[arg-type]
    expected = oracle(body)
    assert expected
    assert decode(body) == expected
    assert decode(body, *range(1, len(body))) == expected


def test_an_event_that_never_ends_is_refused() -> None:
    """Memory is bounded: more than max_event_bytes without a blank line is a ProtocolError."""
    for piece in (b"data: 1234\n", b"x" * 11, b": comment without end"):
        decoder = SSEDecoder(max_event_bytes=100)
        with pytest.raises(ProtocolError, match="100 bytes"):
            list(map(decoder.receive_data, [piece] * 20))
        assert decoder.pending_bytes == 0


def test_a_long_event_in_one_read_is_refused_too() -> None:
    """The fast path has the same bound."""
    decoder = SSEDecoder(max_event_bytes=100)
    read = b"data: " + b"x" * 100 + b"\n\n"
    assert decoder.whole_event(read) is None
    with pytest.raises(ProtocolError):
        decoder.receive_data(read)


def test_many_short_events_are_no_long_one() -> None:
    """The bound is on one event: any number of short ones passes, in one read or many."""
    decoder = SSEDecoder(max_event_bytes=100)
    assert len(decoder.receive_data(b"data: 12345678\n\n" * 50)) == 50
    assert sum(len(decoder.receive_data(b": ping\n\n" * 3)) for _ in range(50)) == 0
    assert decoder.pending_bytes == 0


def test_whole_event_takes_only_what_needs_no_state() -> None:
    """The fast path declines everything that is not exactly one simple event between events."""
    for read in (b"", b"data: a\n", b"data:a\n\n", b"data: a\n\ndata: b\n\n", b": c\n\n",
                 b"data: a\r\r\n\n", b"event: e\ndata: a\n\n", b"data: a\ndata: b\n\n", b"\n\n",
                 b"data: a\n\n\n"):  # fmt: skip
        assert SSEDecoder().whole_event(read) is None, read
    decoder = SSEDecoder()
    decoder.receive_data(b"data: held\n")
    assert decoder.whole_event(b"data: a\n\n") is None
    assert pairs(decoder.receive_data(b"data: a\n\n")) == [(None, b"held\na")]


def test_whole_events_takes_only_whole_simple_events() -> None:
    """Several one-line events in one read come out as they are; anything else is declined."""
    assert SSEDecoder().whole_events(b"data: a\n\ndata: b\n\n") == [b"a", b"b"]
    assert SSEDecoder().whole_events(b"data: a\n\ndata: \n\ndata: c\n\n") == [b"a", b"", b"c"]
    for read in (b"", b"\n\n", b"data: a\n\ndata: b\n", b"data: a\n\n\n", b"data: a\n\n\n\n",
                 b"data: a\ndata: b\n\ndata: c\n\n", b"data: a\n\n: ping\n\n",
                 b"data: a\n\nevent: e\ndata: b\n\n", b"data: a\r\n\n",
                 b"\ndata: a\n\n"):  # fmt: skip
        assert SSEDecoder().whole_events(read) is None, read
    decoder = SSEDecoder()
    decoder.receive_data(b"data: held\n")
    assert decoder.whole_events(b"data: a\n\ndata: b\n\n") is None


def test_nothing_prints_or_pickles_the_data() -> None:
    """Reprs show sizes; a decoder cannot be pickled; a dispatched event leaves nothing behind."""
    canary = b"canary-7f3a"
    decoder = SSEDecoder()
    (event,) = decoder.receive_data(b"data: " + canary + b"\n\nevent: " + canary + b"\ndata: x")
    assert b"canary" not in repr((event, decoder)).encode()
    with pytest.raises(TypeError, match="in flight"):
        pickle.dumps(decoder)
    del event
    decoder.receive_data(b"\n\n")
    held = gc.get_referents(decoder)
    assert not any(canary in bytes(item) for item in held if isinstance(item, bytes | bytearray))
    decoder.receive_data(b"data: " + canary)
    decoder.clear()
    assert decoder.pending_bytes == 0


def test_events_compare_by_value() -> None:
    """Equal name and data: equal events, equal hash."""
    assert SSEEvent(b"e", b"d") == SSEEvent(b"e", b"d")
    assert hash(SSEEvent(b"e", b"d")) == hash(SSEEvent(b"e", b"d"))
    assert SSEEvent(None, b"d") != SSEEvent(b"e", b"d")
    assert SSEEvent(None, b"d") != b"d"
