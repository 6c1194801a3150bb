"""What a run asks of its process: a start time, quiet garbage collection, open files.

Here: the few settings of the interpreter and the system that a faithful schedule needs.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator

from breakeven.errors import InputError

LEAD_S = 0.05
"""Between the last preparation and the first possible arrival."""
MAX_WAIT_S = 86400.0
"""Longest wait for --start-at: a start further away is a slip, and the run would seem to hang."""
_PR_SET_PDEATHSIG = 1
MAX_OPEN_FILES = 65536
"""Soft limit asked for: one descriptor per request in flight, and some."""


def start_time(start_at: float | None) -> float:
    """The run's start on the monotonic clock: a moment from now, or the given Unix time.

    Raises:
        InputError: the Unix time has passed, or is more than a day ahead.
    """
    now = time.monotonic()
    if start_at is None:
        return now + LEAD_S
    wait_s = start_at - time.time()
    if wait_s > MAX_WAIT_S:
        raise InputError(
            f"that is {wait_s / 86400:.0f} days ahead", key="--start-at", value=start_at,
            mend="give a Unix time in seconds (not milliseconds), within a day",
        )  # fmt: skip
    if wait_s <= 0:
        raise InputError(
            f"that was {-wait_s:.1f} s ago", key="--start-at", value=start_at,
            mend="give a Unix time in the future, after every shard is ready",
        )  # fmt: skip
    return now + wait_s


@contextlib.contextmanager
def quiet_gc() -> Iterator[None]:
    """No full collections during a run: one over a plan of a million arrivals takes a second.

    Nor one before it, which would only delay the start: what little garbage the preparation left
    is collected afterwards.
    """
    gc.freeze()
    thresholds = gc.get_threshold()
    gc.set_threshold(50_000, 50, 1_000_000)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
        gc.collect()


def raise_file_limit() -> None:
    """One file descriptor per request in flight: lift the soft limit to the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def dies_with_parent(number: signal.Signals) -> Callable[[], None] | None:
    """For `preexec_fn`: on Linux the kernel sends the child `number` when its parent is gone,
    even after kill -9 (man 2 prctl), perhaps more than once; elsewhere nothing."""
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)

    def ask() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, number)

    return ask
