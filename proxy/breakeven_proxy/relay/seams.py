"""What the relay asks of the floors above it, as protocols: a desk to enter at, an observation.

The relay imports nothing of `control` and `observe`; they implement these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Literal, Protocol

from breakeven.value import value
from breakeven_wire import EnginePool, Exchange, Failure, Headers, ResponseHead
from breakeven_wire.message import first_values


class Close(Enum):
    """How a request's way through the relay ended."""

    COMPLETE = "complete"
    """The whole response was handed to the client."""
    BROKEN = "broken"
    """The engine's side failed; the client's stream was broken, or got a 502."""
    TIMEOUT = "timeout"
    """A deadline passed on either side."""
    CANCELLED = "cancelled"
    """The client went away."""
    REFUSED = "refused"
    """Admission said no: 429 or 503 with Retry-After."""
    BAD_REQUEST = "bad_request"
    """The client's request was wrong in a way that showed after its head: 400, 408, 413."""


@dataclass(slots=True, eq=False)
class Arrival:
    """A request whose head is complete. Not to be changed.

    `realtime` and `monotonic` are the moment of that, seconds on either clock, so that stamps of
    both kinds have a start on their own clock. `path` is `target` without its query; `first` has
    the first value of each field by its lower-case name.
    """

    method: bytes
    target: bytes
    path: bytes
    headers: Headers
    realtime: float
    monotonic: float
    content_length: int | None = None
    first: Mapping[bytes, bytes] | None = None

    def get(self, name: bytes) -> bytes | None:
        """The first value of a header (name in lower case), or None."""
        if self.first is None:
            self.first = first_values(self.headers)
        return self.first.get(name)


@value
class Ending:
    """All that the relay knows when a request is over.

    `status` is what the client got (None: no head was sent). `stamp` is the time of the last
    read, or of now, on the pool's clock.
    """

    close: Close
    status: int | None
    stamp: float
    failure: Failure | None = None
    exchange: Exchange | None = None
    backpressured: bool = False
    request_bytes: int = 0
    response_bytes: int = 0


class Observation(Protocol):
    """Hears what goes by; may never stop it (the relay guards each call)."""

    def request_body(self, data: bytes) -> None:
        """A part of the request's body, as the client sent it."""

    def request_sent(self, complete: float, sent: float) -> None:
        """The request was whole here at `complete`, and with the engine at `sent`."""

    def head(self, head: ResponseHead, stamp: float) -> None:
        """The response head of the engine."""

    def body(self, data: bytes, stamp: float, paused: bool) -> None:
        """One read's body bytes; `paused`: a slow client had stopped the reading before it."""

    def bodies(self, reads: list[tuple[bytes, float]]) -> bool:
        """Several reads, oldest first, each with its stamp; none after a pause.

        True: nobody waits for what comes next, it may be told together with more.
        """

    def end(self, ending: Ending) -> None:
        """Exactly once, last."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why there is no room: an HTTP status, in words, and when to come again."""

    status: Literal[429, 503]
    message: str
    retry_after_s: int


class Transform(Protocol):
    """Changes a request's body on its way, and takes the change's traces out of the response."""

    max_bytes: int

    def request(self, body: bytes) -> bytes | None:
        """The body to send instead; None leaves request and response as they are."""

    def response_head(self, head: ResponseHead) -> bool:
        """Whether the response is changed, so that its length is not the engine's."""

    def response(self, data: bytes) -> bytes:
        """What the client gets for this read; may be empty."""

    def response_end(self) -> bytes:
        """What was held back."""


class Visit(Protocol):
    """One request's stay: made by `Desk.enter`, left exactly once."""

    pool: EnginePool
    observation: Observation
    transform: Transform | None
    extra_headers: Headers

    def divert(self, failure: Failure) -> EnginePool | None:
        """No connection could be made: another arm's pool where there is room, or None.

        From then on `pool` and `observation` are those of the other arm.
        """

    def leave(self) -> None:
        """Gives the place back, in the queue or in flight."""


class Guest(Protocol):
    """Who is told when there is room; called once, possibly from inside `enter`."""

    def admitted(self, visit: Visit) -> None: ...
    def refused(self, visit: Visit, refusal: Refusal) -> None: ...


class Desk(Protocol):
    """Chooses an arm and grants a place."""

    def enter(self, arrival: Arrival, guest: Guest) -> Visit:
        """Registers an arrival; the guest hears `admitted` or `refused`, unless it leaves."""
