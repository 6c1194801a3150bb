"""The two clocks of this room, and the watch that notices when one of them steps.

Kernel receive stamps (SO_TIMESTAMPNS) are CLOCK_REALTIME, which a time server may step; loop
stamps are CLOCK_MONOTONIC. A pool uses one of them for everything, so only differences are
meant. Both clocks are slewed alike (adjtimex), so their difference changes only in a step.
"""

from __future__ import annotations

import socket
import struct
import sys
import time
from collections.abc import Callable
from typing import Literal

Stamps = Literal["kernel", "loop"]

SO_TIMESTAMPNS = 35
"""socket(7); the value of SO_TIMESTAMPNS and of its control message on Linux (asm-generic)."""

TIMESPEC = struct.Struct("@ll")
"""struct timespec of the control message: seconds, nanoseconds."""

STEP_TOLERANCE_S = 0.001
"""A smaller change of REALTIME − MONOTONIC is the noise of reading two clocks in turn."""


def clock(stamps: Stamps) -> Callable[[], float]:
    """The clock that belongs to a kind of stamp; seconds."""
    return time.time if stamps == "kernel" else time.monotonic


def kernel_stamps_work() -> bool:
    """Whether this system stamps TCP reads: Linux with a 64-bit timespec and SO_TIMESTAMPNS."""
    if not sys.platform.startswith("linux") or TIMESPEC.size != 16:
        return False
    if not hasattr(socket.socket, "recvmsg"):
        return False
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    except OSError:
        return False
    return True


class ClockWatch:
    """Notices steps of the realtime clock by its distance from the monotonic one.

    `check()` returns the step in seconds since the last check, 0.0 when there was none, and
    counts it in `steps`. The two clocks are injected for the tests.
    """

    def __init__(
        self,
        realtime: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._realtime = realtime
        self._monotonic = monotonic
        self._offset = self.offset()
        self.steps = 0

    def offset(self) -> float:
        """REALTIME − MONOTONIC, from the tightest of three readings (a preempted one is wide)."""
        best_width, best = float("inf"), 0.0
        for _ in range(3):
            before = self._monotonic()
            real = self._realtime()
            after = self._monotonic()
            if after - before < best_width:
                best_width, best = after - before, real - (before + after) / 2
        return best

    def check(self) -> float:
        """Seconds that the realtime clock was stepped by since the last check."""
        # One quick look; only a suspicious one is worth the careful reading.
        if abs(self._realtime() - self._monotonic() - self._offset) <= STEP_TOLERANCE_S:
            return 0.0
        offset = self.offset()
        step = offset - self._offset
        if abs(step) <= STEP_TOLERANCE_S:
            return 0.0
        self._offset = offset
        self.steps += 1
        return step
