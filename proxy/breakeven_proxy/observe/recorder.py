"""Records a redacted arrival trace: lengths, times, labels and keyed ids, nothing a person wrote.

The relay only appends to a bounded buffer; a thread of its own parses bodies, keys prefixes,
writes and rotates. When the buffer is full arrivals are dropped and counted: the relay never waits
for a disk, nor for a hash.
"""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Literal

import orjson

from breakeven.errors import ConfigError
from breakeven.keyed import MAX_PREFIX_BODY, MIN_SALT, message_bytes, prefix_ids, session_id
from breakeven.trace import Arrival as TraceArrival
from breakeven.trace import Block, Header, arrival_line, header_line
from breakeven_proxy.config import CohortSettings, RecordingSettings
from breakeven_proxy.observe.meter import Metered, RequestFacts, RequestReader
from breakeven_proxy.relay.seams import Arrival

BUFFERED = 4096
"""Arrivals that may wait for the disk."""

HELD_BYTES = 32 * 1024 * 1024
"""Bytes of bodies that may wait for the thread; beyond it an arrival records no prefix."""

FLUSH_S = 1.0

MAX_SALT = 64

UNKNOWN_COHORT = CohortSettings()


class BodyReader(RequestReader):
    """Keeps a request's body until it is whole; nothing of it is read here, on the loop."""

    __slots__ = ("_body", "_session")

    def __init__(self, session: str | None) -> None:
        self._session = session
        self._body: bytearray | None = bytearray()

    def feed(self, data: bytes) -> None:
        """A part of the body; one above 1 MiB is not kept."""
        if self._body is not None:
            self._body += data
            if len(self._body) > MAX_PREFIX_BODY:
                self._body = None

    def facts(self) -> RequestFacts:
        """The body, handed over: none is left here."""
        body, self._body = self._body, None
        return RequestFacts(None if body is None else bytes(body), self._session)


@dataclass(frozen=True, slots=True)
class Pending:
    """An arrival on its way to the thread that reads its body and writes its line."""

    arrival: TraceArrival
    body: bytes | None = field(repr=False)


def redacted(pending: Pending, salt: bytes, block_bytes: int) -> TraceArrival:
    """The arrival with what a body may tell: sampling and keyed prefix ids. The body goes."""
    sampling: Literal["greedy", "sampled"] = "sampled"
    prefix = None
    if pending.body is not None:
        with contextlib.suppress(ValueError, TypeError, AttributeError):
            body = orjson.loads(pending.body)
            if body.get("temperature") == 0:
                sampling = "greedy"
            data = message_bytes(body)
            if data is not None:
                prefix = prefix_ids(data, salt, block_bytes)
    return replace(pending.arrival, sampling=sampling, prefix=prefix)


class Recorder:
    """The trace files of one process: `trace-TIME-NUMBER.jsonl`, rotated by size.

    A trace is sorted by arrival, requests end in any order: an arrival's slot is kept from its
    start, and slots leave in order. One that is open while `BUFFERED` others wait is dropped.

    Args:
        settings: directory, rotation, salt.
        cohorts: task and language of each cohort.
        count: told "written", "dropped" or "skipped" for each arrival.

    Raises:
        ConfigError: the salt file cannot be used.
    """

    def __init__(
        self,
        settings: RecordingSettings,
        cohorts: Mapping[str, CohortSettings],
        count: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._cohorts = cohorts
        self._count = count
        self._salt = read_salt(settings)
        self._session_header = (settings.session_header or "").lower().encode()
        self._slots: OrderedDict[int, Pending | None] = OrderedDict()
        self._open: set[int] = set()
        self._queue: queue.Queue[Pending | None] = queue.Queue(BUFFERED)
        self._held_bytes = 0
        self._lock = threading.Lock()
        self._files = TraceFiles(settings)
        self._thread = threading.Thread(target=self._write_all, name="trace", daemon=True)
        self._thread.start()

    def reader(self, arrival: Arrival) -> RequestReader:
        """For the meter: reads one request's body, and takes the arrival's slot."""
        key = id(arrival)
        self._slots[key] = None
        self._open.add(key)
        if len(self._slots) > BUFFERED:
            oldest, _ = self._slots.popitem(last=False)
            self._open.discard(oldest)
            self._count("dropped")
        name = arrival.get(self._session_header) if self._session_header else None
        session = None if name is None else session_id(name, self._salt)
        return BodyReader(session)

    def record(self, metered: Metered) -> None:
        """A finished request; only one whose lengths are known can be replayed."""
        key = id(metered.arrival)
        if key not in self._open:
            return  # dropped already
        self._open.discard(key)
        facts = metered.request_facts
        if facts is None or not metered.prompt_tokens or not metered.completion_tokens:
            self._count("skipped")
            del self._slots[key]
        else:
            self._slots[key] = Pending(self._arrival(metered, facts), self._hold(facts.body))
        self._hand_over()

    def _hold(self, body: bytes | None) -> bytes | None:
        """The body, if there is room to hold it until the thread reads it."""
        if body is None:
            return None
        with self._lock:
            if self._held_bytes + len(body) > HELD_BYTES:
                return None
            self._held_bytes += len(body)
        return body

    def _let_go(self, body: bytes | None) -> None:
        if body is not None:
            with self._lock:
                self._held_bytes -= len(body)

    def _hand_over(self) -> None:
        """Slots leave in order of arrival, up to the first that is still open."""
        while self._slots:
            key, pending = next(iter(self._slots.items()))
            if key in self._open or pending is None:
                return
            del self._slots[key]
            try:
                self._queue.put_nowait(pending)
            except queue.Full:
                self._let_go(pending.body)
                self._count("dropped")
            else:
                self._count("written")

    def _arrival(self, metered: Metered, facts: RequestFacts) -> TraceArrival:
        cohort = self._cohorts.get(metered.cohort, UNKNOWN_COHORT)
        return TraceArrival(
            t=metered.arrival.monotonic,  # the file's writer makes it relative
            in_tokens=metered.prompt_tokens or 1,
            out_tokens=metered.completion_tokens or 1,
            cohort=metered.cohort,
            task=cohort.task,
            lang=cohort.lang,
            stream=metered.stream,
            session=facts.session,
        )

    def close(self) -> None:
        """Writes what waits, leaves out what is still open, and ends the thread."""
        for key in self._open:
            self._slots.pop(key, None)
        self._open.clear()
        self._hand_over()
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=1)
        self._thread.join(timeout=5)

    def _write_all(self) -> None:
        """The thread: everything that waits for a disk happens here."""
        while True:
            batch: list[Pending] = []
            done = self._gather(batch)
            if batch:
                lines = [
                    redacted(pending, self._salt, self._settings.block_bytes) for pending in batch
                ]
                for pending in batch:
                    self._let_go(pending.body)
                try:
                    self._files.write(lines)
                except OSError:
                    self._count("failed")  # a full disk must not end the thread
            if done:
                self._files.close()
                return

    def _gather(self, batch: list[Pending]) -> bool:
        """Waits up to FLUSH_S for arrivals; True when the recorder closes."""
        try:
            item = self._queue.get(timeout=FLUSH_S)
            while item is not None:
                batch.append(item)
                item = self._queue.get_nowait()
        except queue.Empty:
            return False
        return True


class TraceFiles:
    """Writes arrivals into files that each stand alone: a header, times from 0, a bounded size."""

    def __init__(self, settings: RecordingSettings) -> None:
        self._directory = Path(settings.directory)
        self._settings = settings
        self._file: BinaryIO | None = None
        self._origin = 0.0
        self._number = 0
        self._stem = datetime.now(UTC).strftime("trace-%Y%m%dT%H%M%SZ") + f"-{os.getpid()}"

    def write(self, batch: list[TraceArrival]) -> None:
        """Appends arrivals, in order, and flushes."""
        for arrival in batch:
            if self._file is None or self._file.tell() >= self._settings.max_mb * 1_000_000:
                self._rotate(arrival.t)
            assert self._file is not None
            t = round(max(arrival.t - self._origin, 0.0), 6)
            self._file.write(arrival_line(replace(arrival, t=t)))
        if self._file is not None:
            self._file.flush()

    def _rotate(self, origin: float) -> None:
        self.close()
        name = f"{self._stem}-{self._number:05d}.jsonl"
        descriptor = os.open(self._directory / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._file = os.fdopen(descriptor, "wb")
        self._number += 1
        self._origin = origin
        created = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        notes = {"source": "recorded by breakeven-proxy", "created": created}
        block = Block("bytes", self._settings.block_bytes)
        self._file.write(header_line(Header(block, notes)))
        for old in sorted(self._directory.glob(f"{self._stem}-*.jsonl"))[: -self._settings.keep]:
            old.unlink(missing_ok=True)

    def close(self) -> None:
        """Closes the file that is open."""
        if self._file is not None:
            self._file.close()
            self._file = None


def read_salt(settings: RecordingSettings) -> bytes:
    """The secret of the keyed ids: the file's bytes, or random ones for this process.

    Raises:
        ConfigError: the file cannot be read, or is too short.
    """
    if settings.salt_file is None:
        return secrets.token_bytes(32)
    key = "trace_recording.salt_file"
    try:
        salt = Path(settings.salt_file).read_bytes().strip()
    except OSError as error:
        raise ConfigError(
            f"cannot be read: {error.strerror}",
            key=key,
            value=settings.salt_file,
            mend="write 32 random bytes into it",
        ) from None
    if not MIN_SALT <= len(salt) <= MAX_SALT:
        raise ConfigError(
            f"must hold {MIN_SALT} to {MAX_SALT} bytes",
            key=key,
            mend="write 32 random bytes into it",
        )
    return salt
