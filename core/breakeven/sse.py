"""Server-sent events: body bytes in, dispatched events out, as the WHATWG stream rules say.

Source: HTML Living Standard, 9.2.5 "Parsing an event stream" and 9.2.6 "Interpreting an event
stream". Works on bytes, so a UTF-8 character cut by a read can do no harm, and resumes at any
byte offset. Not here: what an event means (`breakeven.chunks`), and times (`breakeven.stream`).
"""

from __future__ import annotations

from typing import NoReturn

from .errors import ProtocolError

MAX_EVENT_BYTES = 16 * 1024 * 1024
"""Longest event accepted. A last event can repeat a whole answer, or carry a prompt's token ids."""

BOM = b"\xef\xbb\xbf"
CR = 0x0D
LF = 0x0A


class SSEEvent:
    """One dispatched event: its name (None when the stream gave none) and its data.

    `data` is the `data:` lines joined by LF, undecoded. The repr shows sizes only: the data of
    an engine's events is a customer's text.
    """

    __slots__ = ("data", "event")

    def __init__(self, event: bytes | None, data: bytes) -> None:
        self.event = event
        self.data = data

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SSEEvent):
            return NotImplemented
        return self.event == other.event and self.data == other.data

    def __hash__(self) -> int:
        return hash((self.event, self.data))

    def __repr__(self) -> str:
        return f"SSEEvent(<{len(self.data)} bytes>)"


class SSEDecoder:
    """Turns the reads of one body into events, however the reads are cut.

    Lines end in LF, CRLF or CR; one byte order mark at the start is dropped; comments, `id`,
    `retry` and unknown fields are ignored; a blank line dispatches an event if a `data` field
    came before it, and only then. An event that the end of the stream cuts short is never
    dispatched.

    Args:
        max_event_bytes: longest event, field names included.

    Raises:
        ProtocolError: from `receive_data`, when an event grows longer than that. The decoder is
            of no use after it.
    """

    __slots__ = ("_bom", "_data", "_event", "_idle", "_line", "_max", "_size", "_skip_lf")

    def __init__(self, *, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max = max_event_bytes
        self._bom = True  # a byte order mark may still come
        self._skip_lf = False  # the last byte was a CR that ended a line: an LF belongs to it
        self._line = bytearray()  # the line that has not ended yet
        self._data: list[bytes] = []  # data lines of the event that has not been dispatched yet
        self._event: bytes | None = None
        self._size = 0  # bytes held in _data
        self._idle = True  # between two events, nothing held

    def __repr__(self) -> str:
        return f"SSEDecoder(<{self.pending_bytes} bytes pending>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("an SSEDecoder holds bytes in flight and is never written anywhere")

    @property
    def pending_bytes(self) -> int:
        """Bytes of an event that has not been dispatched yet."""
        return self._size + len(self._line)

    @property
    def idle(self) -> bool:
        """Whether it stands between two events and holds nothing."""
        return self._idle

    def whole_event(self, data: bytes) -> bytes | None:
        """The payload, if this read is exactly one unnamed `data: …` event ended by a blank line.

        The common read of an engine's stream, taken without building an event object. None means:
        give the same read to `receive_data`.
        """
        size = len(data)
        if (
            self._idle
            and data[:6] == b"data: "
            and data.find(b"\n") == size - 2
            and data[-1] == LF
            and b"\r" not in data
            and size <= self._max
        ):
            self._bom = False
            return data[6:-2]
        return None

    def whole_events(self, data: bytes) -> list[bytes] | None:
        """The payloads, if this read is nothing but unnamed one-line `data: …` events, all whole.

        What engines send when a step's events, or the last one and [DONE], come together. None
        means: give the same read to `receive_data`.
        """
        if not self._idle or b"\r" in data or len(data) > self._max or data[-2:] != b"\n\n":
            return None
        events = data[:-2].split(b"\n\n")
        if data.count(b"\n") != 2 * len(events):
            return None
        for event in events:
            if event[:6] != b"data: ":
                return None
        self._bom = False
        return [event[6:] for event in events]

    def receive_data(self, data: bytes) -> list[SSEEvent]:
        """The events that these bytes complete, in order."""
        if not data:
            return []
        if self._bom:
            if len(self._line) + len(data) < len(BOM) and BOM.startswith(bytes(self._line) + data):
                self._line += data
                self._idle = False
                return []
            data = bytes(self._line) + data
            self._line.clear()
            self._bom = False
            if data.startswith(BOM):
                data = data[len(BOM) :]
        events: list[SSEEvent] = []
        position = self._after_cr(data)
        has_cr = b"\r" in data
        while True:
            end = data.find(b"\n", position)
            if has_cr:
                cr = data.find(b"\r", position, end if end >= 0 else len(data))
                end = cr if cr >= 0 else end
            if end < 0:
                break
            self._take_line(self._whole_line(data[position:end]), events)
            position = end + 1
            if data[end] == CR:
                self._skip_lf = True
                position += self._after_cr(data[position : position + 1])
        if position < len(data):
            self._line += data[position:]
        self._idle = not (self._line or self._data or self._skip_lf or self._event is not None)
        if self.pending_bytes > self._max:
            self._overflow()
        return events

    def clear(self) -> None:
        """Forget what is held of an unfinished event."""
        self._line.clear()
        self._data.clear()
        self._event = None
        self._size = 0

    def _after_cr(self, data: bytes) -> int:
        """1 where the first byte is the LF of a CRLF cut in two, else 0."""
        if self._skip_lf and data:
            self._skip_lf = False
            return int(data[0] == LF)
        return 0

    def _whole_line(self, tail: bytes) -> bytes:
        if not self._line:
            return tail
        self._line += tail
        line = bytes(self._line)
        self._line.clear()
        return line

    def _take_line(self, line: bytes, events: list[SSEEvent]) -> None:
        if not line:
            self._dispatch(events)
            return
        name, _, value = line.partition(b":")
        if value.startswith(b" "):
            value = value[1:]
        if name == b"data":
            self._data.append(value)
            self._size += len(line)
            if self._size > self._max:
                self._overflow()
        elif name == b"event":
            self._event = value or None

    def _dispatch(self, events: list[SSEEvent]) -> None:
        if self._data:
            data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
            events.append(SSEEvent(self._event, data))
            self._data.clear()
            self._size = 0
        self._event = None

    def _overflow(self) -> NoReturn:
        self.clear()
        raise ProtocolError(
            f"an SSE event is longer than {self._max} bytes; raise max_event_bytes if it is meant"
        )
