"""The observation of a request that is not metered: one count."""

from __future__ import annotations

from typing import TYPE_CHECKING

from breakeven_proxy.relay.seams import Ending
from breakeven_wire import ResponseHead

if TYPE_CHECKING:
    from breakeven_proxy.observe.meter import Meter


class PassingObservation:
    """Counts a request that is not metered, by its status class."""

    __slots__ = ("_meter", "_meters")

    def __init__(self, meter: Meter, arm: str) -> None:
        self._meter = meter
        self._meters = meter.arms[arm]

    def request_body(self, data: bytes) -> None:
        """Nothing is read."""

    def request_sent(self, complete: float, sent: float) -> None:
        """Nothing is measured."""

    def head(self, head: ResponseHead, stamp: float) -> None:
        """Nothing is measured."""

    def body(self, data: bytes, stamp: float, paused: bool) -> None:
        """Nothing is read."""

    def bodies(self, reads: list[tuple[bytes, float]]) -> bool:  # noqa: ARG002 - the seam's
        """Nothing is read."""
        return True

    def moved(self, arm: str) -> None:
        """The request goes to another arm: no connection could be made to the first."""
        self._meters = self._meter.arms[arm]

    def end(self, ending: Ending) -> None:
        """One count."""
        # RFC 9110 section 15: a status above 599 is taken for a server's fault.
        code = "none" if ending.status is None else f"{min(ending.status // 100, 5)}xx"
        self._meters.other[code].inc()
        self._meter.note_failure(self._meters.arm, ending.failure)
