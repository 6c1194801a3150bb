"""Bodies built before they fall due: a long prompt's text must not eat into the schedule.

Here: what is built when, within a memory budget. Not here: what a body is (content).
Before the start, bodies are built for at most `BEFORE_START_S`, and only those of the first second
where the gaps leave room for all others; afterwards in the gaps between arrivals. What is still
missing when its arrival falls due is built then, and the delay is lag.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from ..traffic.content import Bodies, Body
from ..traffic.plan import Planned

BEFORE_START_S = 0.15
"""Start to first request stays below a second, whatever the prompts' length."""
HEAD_START_S = 1.0
"""Arrivals that far into the plan are built before the start, if there is the time."""
ROOMY = 10.0
"""The rest is left to the gaps if the mean gap is this many times longer than building takes."""
BUDGET_BYTES = 256 * 1024 * 1024
"""Bodies held at once; at 120k-token prompts about 400 of them."""
SAFETY = 3.0
"""A body is built in a gap only if the gap is this many times longer than building took so far."""
QUIET_S = 0.002
"""Gaps shorter than this are left alone."""


class Ahead:
    """The bodies of a plan, in order, built ahead of their time."""

    def __init__(self, bodies: Bodies, arrivals: Sequence[Planned]) -> None:
        self._bodies = bodies
        self._arrivals = arrivals
        self._built: dict[int, Body] = {}
        self._next = 0
        self._bytes = 0
        self._worst_s = 0.0

    def before_start(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Build until the time or the memory budget is used up, or the gaps are enough."""
        end_s = clock() + BEFORE_START_S
        while clock() < end_s and not self._gaps_are_enough() and self._build():
            pass

    def _gaps_are_enough(self) -> bool:
        plan, position = self._arrivals, self._next
        if not 0 < position < len(plan):
            return False
        span_s = plan[-1].offset_s - plan[0].offset_s
        ahead_s = plan[position].offset_s - plan[0].offset_s
        return ahead_s > HEAD_START_S and span_s > ROOMY * self._worst_s * len(plan)

    def in_gap(self, free_s: float) -> bool:
        """Build one body if `free_s`, the time to the next arrival, leaves room for it."""
        if free_s < max(QUIET_S, SAFETY * self._worst_s):
            return False
        return self._build()

    def take(self, position: int) -> Body:
        """The body of the plan's arrival at `position`; built now if it was not yet."""
        body = self._built.pop(position, None)
        if body is not None:
            self._bytes -= len(body.data)
            return body
        self._next = max(self._next, position + 1)
        return self._bodies.body(self._arrivals[position])

    def _build(self) -> bool:
        if self._next >= len(self._arrivals) or self._bytes >= BUDGET_BYTES:
            return False
        began = time.monotonic()
        body = self._bodies.body(self._arrivals[self._next])
        self._worst_s = max(self._worst_s * 0.9, time.monotonic() - began)
        self._built[self._next] = body
        self._bytes += len(body.data)
        self._next += 1
        return True
