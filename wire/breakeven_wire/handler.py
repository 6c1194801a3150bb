"""Who hears about an exchange."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from breakeven_wire.failure import Failure
from breakeven_wire.message import Headers, ResponseHead

if TYPE_CHECKING:
    from breakeven_wire.pool import EnginePool


class ExchangeHandler(Protocol):
    """Who hears about an exchange; inherit to get the optional methods."""

    __slots__ = ()

    def on_head(self, head: ResponseHead, stamp: float) -> None:
        """The final response head came (never a 1xx)."""

    def on_body(self, data: bytes, stamp: float) -> None:
        """One read's decoded body bytes, joined; see `Exchange.open_lane` and `Exchange.more`."""

    def on_end(self, trailers: Headers, stamp: float) -> None:
        """The response is whole. The last callback."""

    def on_failure(self, failure: Failure) -> None:
        """The response will not become whole. The last callback."""

    def on_unreachable(self, failure: Failure) -> EnginePool | None:  # noqa: ARG002 - a default
        """No connection could be made: another engine for this request, or None (it fails)."""
        return None

    def on_informational(self, head: ResponseHead) -> None:  # noqa: ARG002 - a default
        """A 1xx head came (100 Continue, 103 Early Hints)."""
        return

    def on_pause_writing(self) -> None:
        """Enough of the request waits to be sent: stop calling `write`."""
        return

    def on_resume_writing(self) -> None:
        """`write` may go on."""
        return
