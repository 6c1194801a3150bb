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
"""Room for a read; a larger chunk takes the long way."""
HELD_READS = 8
"""Reads that wait to be metered together: a stream's state is then fetched from memory once."""
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
        "_connection", "_failed", "_link", "_now", "_observe", "_reads", "_receive", "_send",
        "_sink", "_stamped", "_until", "data_bytes",
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
        self._stamped, self._receive, self._now = link.stamped, link.receive, link.now
        self._send = sink.send
        self._reads: list[tuple[bytes, float]] = []
        self._until = 0.0  # the first read is observed at once
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
        if not self._reads:
            return
        held, self._reads = self._reads, []
        reads = [(frame[len(size_line(len(frame))) : -2], stamp) for frame, stamp in held]
        self.data_bytes += sum([len(data) for data, _ in reads])
        self._connection.last_stamp = reads[-1][1]
        may_wait = True
        try:
            may_wait = self._observe(reads)
        except Exception:  # noqa: BLE001 - metering never breaks a stream; it is counted
            self._failed()
        self._until = reads[-1][1] + HELD_S if may_wait else 0.0

    @property
    def last_stamp(self) -> float | None:
        """Of the newest read that waits."""
        return self._reads[-1][1] if self._reads else None

    def heard(self, events: int) -> None:
        """The engine's socket is ready: see `SocketLink.heard`, whose short form this is.

        Slots that hold functions are fetched before the call: a call by way of the slot looks for
        a method first, every time (CPython 3.11).
        """
        if events != READABLE:
            self._link.heard(events)
            return
        receive = self._receive
        try:
            if self._stamped:
                data, told, _, _ = receive(LANE_READ_BYTES, ANCILLARY_BYTES)
                if told:
                    seconds, nanoseconds = timespec(told[0][2])
                    stamp = seconds + nanoseconds * 1e-9
                else:
                    stamp = self._link.unstamped() if data else 0.0  # the end has no stamp
            else:
                data = receive(LANE_READ_BYTES)
                now = self._now
                stamp = now()
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._link.lose(error)
            return
        size = len(data)
        line = _SIZE_LINES.get(size) or size_line(size)
        if not data.startswith(line) or not data.endswith(b"\r\n"):
            self.stop()
            self._link.take(data, stamp)
            return
        reads = self._reads
        reads.append((data, stamp))  # before the write: it may close this lane, and none is lost
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
        if len(reads) >= HELD_READS or stamp > self._until:
            self.flush()
