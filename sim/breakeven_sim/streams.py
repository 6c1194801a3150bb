"""Event streams: from deliveries to bytes on the connection.

Two paths. Normally the step loop's delivery writes the event at once (`_write_now`): one wake-up of
a task per event would double the cost of a stream. First and last events, keep-alives, faults and
back-pressure go through the task; while a slow client holds it up, deliveries merge.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Protocol

from aiohttp import web

from . import faults, wire
from .faults import Fault
from .generation import Choice, Delta, EngineDead, Flight

# What may wait in the socket's buffer before deliveries merge: about the kernel's own send buffer.
FULL_BYTES = 64 * 1024
ENGINE_DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."


class Writer(Protocol):
    """What a route gives: its opening, its events, its end (answers.py, responses_api.py)."""

    def role_events(self) -> Iterator[bytes]: ...

    def events(self, choice: Choice, delta: Delta) -> Iterator[bytes]: ...

    def closing(self) -> Iterator[bytes]: ...


class Outlet:
    """One response's connection."""

    def __init__(self, request: web.Request, response: web.StreamResponse) -> None:
        self.response = response
        self.direct = response.chunked
        self._transport = request.transport
        self._busy = False

    @property
    def ready(self) -> bool:
        """Whether an event can be written without waiting."""
        transport = self._transport
        return (
            not self._busy
            and transport is not None
            and not transport.is_closing()
            and transport.get_write_buffer_size() < FULL_BYTES
        )

    def write_now(self, event: bytes) -> None:
        """Write one event as a chunk; only when `ready` and `direct`."""
        if self._transport is not None:
            self._transport.write(b"%x\r\n%b\r\n" % (len(event), event))

    async def send(self, event: bytes) -> None:
        """Write one event, wait while the client is slow. ConnectionError when it is gone."""
        self._busy = True
        try:
            await self.response.write(event)
        finally:
            self._busy = False

    async def end(self) -> None:
        """Complete the body."""
        await self.response.write_eof()


class StreamCut(Exception):
    """A fault ended the stream early."""


class FaultyOutlet(Outlet):
    """An outlet that hurts its client as asked; never written to directly."""

    def __init__(
        self, request: web.Request, response: web.StreamResponse, kinds: Mapping[str, Fault]
    ) -> None:
        super().__init__(request, response)
        self.direct = False
        self._kinds = kinds
        self._events = 0

    async def send(self, event: bytes) -> None:
        """One event, with every fault that hits this request."""
        kinds = self._kinds
        event = self._usage(event)
        if not event:
            return
        self._events += 1
        if self._due("truncate"):
            raise StreamCut
        if self._due("drop"):
            await self._drop(event)
        if self._due("garble", exactly=True):
            event = faults.garbled(event)
        event = faults.reframed(event, crlf="crlf" in kinds, no_space="no-space" in kinds)
        if "half-utf8" in kinds:
            first, event = faults.halves(event)
            await super().send(first)
            # The rest goes out with the next turn of the loop: two segments, two chunks.
            await asyncio.sleep(0.001)
        if event:
            await super().send(event)

    def _due(self, kind: str, exactly: bool = False) -> bool:
        fault = self._kinds.get(kind)
        if fault is None:
            return False
        after = int(fault["after"])
        return self._events == after + 1 if exactly else self._events > after

    def _usage(self, event: bytes) -> bytes:
        if "missing-usage" in self._kinds:
            return faults.without_usage(event)
        wrong = self._kinds.get("wrong-usage")
        return event if wrong is None else faults.with_wrong_usage(event, int(wrong["by"]))

    async def _drop(self, event: bytes) -> None:
        """Promise a chunk, send half of it, close."""
        if self._transport is not None:
            self._transport.write(b"%x\r\n%b" % (len(event), event[: len(event) // 2]))
            # Let the bytes out first: an abort would throw them away.
            await asyncio.sleep(0.01)
            self._transport.abort()
        raise ConnectionResetError


class EventStream:
    """Writes one flight's events in the order that the engine delivers them."""

    def __init__(self, flight: Flight, writer: Writer, outlet: Outlet, idle_s: float | None):
        self._flight = flight
        self._writer = writer
        self._outlet = outlet
        self._idle_s = idle_s

    async def run(self) -> None:
        """Until the last event. ConnectionError when the client is gone."""
        outlet = self._outlet
        try:
            await self._events()
            for event in self._writer.closing():
                await outlet.send(event)
        except EngineDead:
            await outlet.send(wire.error_frame(ENGINE_DEAD, "InternalServerError", 500))
            await outlet.send(wire.DONE)
        except StreamCut:
            self._flight.close()
        await outlet.end()

    async def _events(self) -> None:
        flight, outlet, writer = self._flight, self._outlet, self._writer
        opening: list[bytes] | None = list(writer.role_events())
        while flight.open:
            if not await flight.wait(self._idle_s):
                await outlet.send(wire.KEEP_ALIVE)
                continue
            for choice, delta in flight.take():
                for event in opening or ():
                    await outlet.send(event)
                opening = None
                for event in writer.events(choice, delta):
                    await outlet.send(event)
            if opening is None and outlet.direct and self._idle_s is None:
                flight.on_news = self._write_now

    def _write_now(self, choice: Choice) -> bool:
        """The step loop's call: write what is new, or say that the task has to."""
        if choice.finish is not None or not self._outlet.ready:
            return False
        for event in self._writer.events(choice, choice.take(self._flight.generation)):
            self._outlet.write_now(event)
        return True
