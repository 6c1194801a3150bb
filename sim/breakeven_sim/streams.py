"""Event streams: from deliveries to bytes on the connection.

Two paths. Normally the step loop's delivery writes the event at once (`_write_now`): one wake-up of
a task per event would double the cost of a stream. First and last events, keep-alives, faults and
back-pressure go through the task; while a slow client holds it up, deliveries merge.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from aiohttp import web

from . import wire
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
