"""Load of an arm: its arrivals over the last 30 seconds per replica, and the class of that rate.

Pure: times are passed in. Every arrival counts, whether it was admitted, queued or rejected
(docs/definitions.md, Load). Not here: what a load class decides (`breakeven.certificate`, routing).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

from .errors import InputError

LoadClass = Literal["low", "normal", "peak"]
LOAD_CLASSES: Final[tuple[LoadClass, ...]] = ("low", "normal", "peak")

WINDOW_S = 30.0
"""The window of the definition."""
SLOTS = 300
"""Slots of the window: a rate forgets an arrival within one slot (0.1 s) of the exact time."""
MIN_SPAN_S = 1.0
"""A window that is only just open divides by this much at least: one arrival is no stampede."""


@dataclass(frozen=True, slots=True)
class LoadClasses:
    """Upper bounds of the classes, in requests per second per replica; above both is peak.

    Raises:
        InputError: a bound is not finite and positive, or they do not rise.
    """

    low_max: float
    normal_max: float

    def __post_init__(self) -> None:
        for key, value in (("low_max", self.low_max), ("normal_max", self.normal_max)):
            if not (math.isfinite(value) and value > 0):
                raise InputError(
                    "a load bound is a positive rate",
                    key=key,
                    value=value,
                    mend="give requests per second per replica, e.g. 4",
                )
        if self.low_max >= self.normal_max:
            raise InputError(
                f"load bounds must rise, but low_max is {self.low_max}",
                key="normal_max",
                value=self.normal_max,
                mend="give a normal_max above low_max",
            )

    def classify(self, rate_per_replica: float) -> LoadClass:
        """The class of a rate in requests per second per replica; a bound belongs to its class."""
        if rate_per_replica <= self.low_max:
            return "low"
        return "normal" if rate_per_replica <= self.normal_max else "peak"


class ArrivalWindow:
    """Arrivals of the last `window_s` seconds, in bounded memory.

    The rate is arrivals in the window ÷ the seconds that the window covers: `window_s`, or less
    while it has been open for less (at least `MIN_SPAN_S`), so that the first half minute after a
    start is not reported as idle.

    Args:
        start: when counting began, on the caller's clock (seconds).
        window_s: length of the window in seconds.
        slots: how many counters the window is cut into.
    """

    __slots__ = ("_counts", "_newest", "_per_s", "_start", "_total", "_window_s")

    def __init__(self, start: float, *, window_s: float = WINDOW_S, slots: int = SLOTS) -> None:
        if not (math.isfinite(window_s) and window_s > 0 and slots >= 1):
            raise ValueError(f"window_s {window_s!r} and slots {slots!r} must be positive")
        self._start = start
        self._window_s = window_s
        self._per_s = slots / window_s
        self._counts = [0] * slots
        self._newest = 0  # number of the newest slot since start
        self._total = 0

    def record(self, now: float) -> None:
        """One arrival at `now`. A clock that steps back counts into the newest slot."""
        if (now - self._start) * self._per_s >= self._newest + 1:
            self._advance(now)
        self._counts[self._newest % len(self._counts)] += 1
        self._total += 1

    def rate(self, now: float) -> float:
        """Arrivals per second over the window that ends at `now`."""
        open_s = now - self._start
        if open_s * self._per_s >= self._newest + 1:
            self._advance(now)
        if open_s >= self._window_s:
            return self._total / self._window_s
        return self._total / min(max(open_s, MIN_SPAN_S), self._window_s)

    def _advance(self, now: float) -> None:
        slot = int((now - self._start) * self._per_s)
        fresh = slot - self._newest
        if fresh <= 0:
            return
        size = len(self._counts)
        for step in range(1, min(fresh, size) + 1):
            index = (self._newest + step) % size
            self._total -= self._counts[index]
            self._counts[index] = 0
        self._newest = slot
