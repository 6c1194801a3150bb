"""The short way of a stream: the engine's socket, the meter, the client's socket, in one call.

Most reads of a stream are exactly one HTTP chunk that goes on as it is. While nothing else comes,
they need no parser, no callbacks and no buffers, and what a read costs is what the next of a
hundred streams that tick together waits. Everything unusual is handed to the link's long way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from breakeven_wire.readiness import READABLE
from breakeven_wire.socket_link import ANCILLARY_BYTES, SocketLink, timespec

if TYPE_CHECKING:
    from breakeven_wire.connection import Connection

_SIZE_LINES: dict[int, bytes] = {}
_SIZE_LINES_KEPT = 4096
_NO_CHUNK = b"no chunk is that long"


LANE_READ_BYTES = 2048
"""Largest room for a read; a larger chunk takes the long way."""
SMALL_ROOM_BYTES = 478
"""Room while chunks fit: CPython keeps bytes objects up to this size in pools of its own, and
everything larger in the C library's heap."""
HELD_READS = 8
"""Reads that are metered together: a stream's state is then fetched from memory once. They are
when no socket is ready any more, so that no other stream waits for it; twice as many at most."""
HELD_S = 0.5
"""How long, until the read that comes then: what is metered lags behind by no more."""


class Observe(Protocol):
    """Hears reads, oldest first: the data of a chunk and its stamp. True: the next may wait."""

    def __call__(self, reads: list[tuple[bytes, float]], /) -> bool: ...


def size_line(length: int) -> bytes:
    """The first line of a read of `length` bytes that is one chunk with its framing.

    In the one spelling that engines and this proxy use; a read of another spelling is no worse
    off than one of half a chunk.
    """
    line = _SIZE_LINES.get(length)
    if line is not None:
        return line
    for digits in range(1, 9):
        size = length - digits - 4
        line = b"%x\r\n" % size
        if size > 0 and len(line) == digits + 2:
            if len(_SIZE_LINES) < _SIZE_LINES_KEPT:
                _SIZE_LINES[length] = line
            return line
    return _NO_CHUNK


class Lane:
    """Made by `Exchange.open_lane`; must be stopped. `data_bytes` counts what was observed.

    The first reads are observed at once, and when those who observe have seen enough to wait, up
    to `HELD_READS` together; before anything that is not of this way, and at its stop, all are.
    """

    __slots__ = (
        "_connection", "_due", "_failed", "_frames", "_link", "_observe", "_ready", "_receive",
        "_room", "_send", "_sink", "_stamped", "_stamps", "_until", "data_bytes",
    )  # fmt: skip

    def __init__(
        self,
        connection: Connection,
        link: SocketLink,
        sink: SocketLink,
        observe: Observe,
        failed: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._link = link
        self._sink = sink
        self._observe = observe
        self._failed = failed
        self._stamped, self._receive, self._ready = link.stamped, link.receive, link.ready
        self._send = sink.send
        self._room = SMALL_ROOM_BYTES
        # Two lists, and no tuple for each read: a thousand of those and the collector looks at all.
        self._frames: list[bytes] = []
        self._stamps: list[float] = []
        self._until = 0.0  # the first read is observed at once
        self._due = False  # the link's set of sockets will call `flush`
        self.data_bytes = 0

    def start(self) -> None:
        """The parser stands between two chunks, and reading is on."""
        self._link.heard_by(self.heard)

    def stop(self) -> None:
        """Back to the long way."""
        self._link.heard_by(None)
        self.flush()

    def flush(self) -> None:
        """What waits is observed."""
        self._due = False
        frames, stamps = self._frames, self._stamps
        if not frames:
            return
        self._frames, self._stamps = [], []
        # The size line's end is found faster than the line is fetched.
        reads = [(f[f.index(b"\n") + 1 : -2], t) for f, t in zip(frames, stamps, strict=True)]
        self.data_bytes += sum([len(data) for data, _ in reads])
        latest = self._connection.last_stamp = stamps[-1]
        if self._room != SMALL_ROOM_BYTES and max(map(len, frames)) < SMALL_ROOM_BYTES:
            self._room = SMALL_ROOM_BYTES
        may_wait = True
        try:
            may_wait = self._observe(reads)
        except Exception:  # noqa: BLE001 - metering never breaks a stream; it is counted
            self._failed()
        self._until = latest + HELD_S if may_wait else 0.0

    @property
    def last_stamp(self) -> float | None:
        """Of the newest read that waits."""
        return self._stamps[-1] if self._stamps else None

    def heard(self, events: int) -> None:
        """The engine's socket is ready: see `SocketLink.heard`, whose short form this is.

        Slots that hold functions are fetched before the call: a call by way of the slot looks for
        a method first, every time (CPython 3.11).
        """
        if events != READABLE:
            self._link.heard(events)
            return
        receive, room = self._receive, self._room
        try:
            if self._stamped:
                data, told, _, _ = receive(room, ANCILLARY_BYTES)
                if told:
                    seconds, nanoseconds = timespec(told[0][2])
                    stamp = seconds + nanoseconds * 1e-9
                else:
                    stamp = self._link.unstamped() if data else 0.0  # the end has no stamp
            else:
                data = receive(room)
                stamp = self._ready.polled
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._link.lose(error)
            return
        size = len(data)
        line = _SIZE_LINES.get(size) or size_line(size)
        if not data.startswith(line) or not data.endswith(b"\r\n"):
            self.stop()
            if size == room:
                self._room = LANE_READ_BYTES
            self._link.take(data, stamp)
            return
        # Before the write: it may close this lane, and none is lost.
        stamps = self._stamps
        stamps.append(stamp)
        self._frames.append(data)
        sink = self._sink
        if sink.direct:
            send = self._send
            try:
                sent = send(data)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError as error:
                sink.write_failed(error)
                sent = size
            if sent != size:
                sink.keep(memoryview(data)[sent:])
        else:
            sink.write(data)
        held = len(stamps)
        if held >= HELD_READS or stamp > self._until:
            if held >= 2 * HELD_READS:
                self.flush()
            elif not self._due:
                self._due = True
                self._ready.later(self.flush)
