"""A run at a glance: the few numbers that progress and workers exchange."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import orjson


@dataclass(frozen=True, slots=True)
class Glance:
    """Numbers of one moment; warm-up arrivals are in all of them. Seconds after the start."""

    phase: str
    elapsed_s: float
    last_offset_s: float
    scheduled: int
    offered: int
    ended: int
    inflight: int
    dropped: int
    good: int
    lag_s: float

    def line(self) -> bytes:
        """One line of JSON."""
        return orjson.dumps(asdict(self)) + b"\n"

    @classmethod
    def of_line(cls, line: bytes) -> Glance:
        """Back from a line."""
        fields: dict[str, Any] = orjson.loads(line)
        return cls(**fields)


def together(glances: Sequence[Glance]) -> Glance:
    """Several workers as one: sums, the worst lag, the longest time."""
    phases = {glance.phase for glance in glances}
    return Glance(
        phase="offering" if "offering" in phases else "draining",
        elapsed_s=max(glance.elapsed_s for glance in glances),
        last_offset_s=max(glance.last_offset_s for glance in glances),
        scheduled=sum(glance.scheduled for glance in glances),
        offered=sum(glance.offered for glance in glances),
        ended=sum(glance.ended for glance in glances),
        inflight=sum(glance.inflight for glance in glances),
        dropped=sum(glance.dropped for glance in glances),
        good=sum(glance.good for glance in glances),
        lag_s=max(glance.lag_s for glance in glances),
    )


class Progress(Protocol):
    """Who hears how a run goes; called about once a second from the event loop."""

    def update(self, glance: Glance) -> None: ...
