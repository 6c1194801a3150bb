"""The generator watches itself: in-flight, CPU, event-loop lag, steps of the clock.

Here: counters and samples that the client and accounting gates judge. Not here: the gates.
"""

from __future__ import annotations

import asyncio
import resource
import time
from array import array
from dataclasses import dataclass

import numpy as np

from breakeven_wire import ClockWatch

LAG_PERIOD_S = 0.020
"""Between two readings of the event loop's lag."""
COARSE_S = 0.001
"""uvloop's timers count whole milliseconds: a wake-up this late is on time."""
RECENT_S = 15.0
"""How far back `recent_lag_s` reaches at least: an ordinary scrape interval, so none is missed."""


class InFlight:
    """Number of requests that hold a slot, and its integral over time (request-seconds)."""

    def __init__(self, clock_now_s: float) -> None:
        self._since_s = clock_now_s
        self.value = 0
        self.peak = 0
        self.integral_s = 0.0

    def change(self, step: int, now_s: float) -> None:
        """One more (+1) or one less (−1)."""
        self.integral_s += self.value * (now_s - self._since_s)
        self._since_s = now_s
        self.value += step
        self.peak = max(self.peak, self.value)


@dataclass(frozen=True, slots=True)
class ClientLoad:
    """What one worker used. `cpu_share` is CPU seconds per wall second, 1.0 = one core."""

    cpu_share: float
    loop_lag_p99_s: float
    clock_steps: int
    inflight_integral_s: float
    inflight_peak: int


class SelfWatch:
    """Samples the event loop's lag and the clocks while a run lasts."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._clocks = ClockWatch()
        self._lags = array("d")
        self._recent = (0.0, 0.0)  # worst of the interval before this one, and of this one
        self._recent_until_s = 0.0
        self._due_s = 0.0
        self._handle: asyncio.TimerHandle | None = None
        self._wall_s = time.monotonic()
        self._cpu_s = _cpu_s()
        self.cpu_share = 0.0
        self.steps = 0

    def start(self) -> None:
        """Begin: CPU and lag count from here."""
        self._wall_s = time.monotonic()
        self._cpu_s = _cpu_s()
        self._arm()

    def mark(self) -> None:
        """Note the CPU share up to here (the end of the offered window: the drain is idle)."""
        wall_s = max(1e-9, time.monotonic() - self._wall_s)
        self.cpu_share = (_cpu_s() - self._cpu_s) / wall_s

    def stop(self) -> None:
        """No more samples."""
        if self._handle is not None:
            self._handle.cancel()
        self._check_clock()

    def check(self) -> None:
        """Once a second: did the realtime clock step?"""
        self._check_clock()

    def lag_p99_s(self) -> float:
        """99th percentile of the loop's lag, seconds; 0 without samples."""
        return float(np.quantile(self._lags, 0.99)) if len(self._lags) else 0.0

    def recent_lag_s(self) -> float:
        """The worst lag of the last 15 to 30 s, seconds: a stall shows at whatever scrape comes."""
        return max(self._recent)

    def _arm(self) -> None:
        self._due_s = time.monotonic() + LAG_PERIOD_S
        self._handle = self._loop.call_later(LAG_PERIOD_S, self._sample)

    def _sample(self) -> None:
        now_s = time.monotonic()
        lag_s = max(0.0, now_s - self._due_s - COARSE_S)
        self._lags.append(lag_s)
        before, worst = self._recent
        if now_s < self._recent_until_s:
            self._recent = (before, max(worst, lag_s))
        else:
            self._recent = (worst, lag_s)
            self._recent_until_s = now_s + RECENT_S
        self._arm()

    def _check_clock(self) -> None:
        if self._clocks.check():
            self.steps += 1


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
