"""Offers a plan's arrivals to the target: the open loop itself.

Here: bounded admission, sessions, bookkeeping of what is in flight. Not here: the clockwork
(traffic.pacer), one request (attempt), files other than the spool.
Every offered arrival ends in exactly one row; nothing here ever waits for a slot.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from breakeven.slo import Verdict

from ..traffic.plan import Plan, Planned
from .ahead import Ahead
from .attempt import Attempt, Sending
from .clientload import InFlight
from .rows import Row
from .spool import Spool


@dataclass(slots=True)
class Counts:
    """What happened so far, for progress and /metrics. Warm-up arrivals are in all of them."""

    offered: int = 0
    sent: int = 0
    ended: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    output_tokens: int = 0
    last_lag_s: float = 0.0
    worst_lag_s: float = 0.0


def _nothing() -> None:
    """No pacer waits."""


class Offer:
    """The arrivals of one plan, offered to one target."""

    def __init__(
        self,
        plan: Plan,
        ahead: Ahead,
        sending: Sending,
        spool: Spool,
        *,
        max_inflight: int,
        labels: tuple[str, int],
    ) -> None:
        """`labels` are (arm, block), copied into the rows. `start_s`, the run's start on the
        monotonic clock, must be set before the first arrival fires; `poke`, called after each
        read, should be the pacer's: many streams tick together, and an arrival that fell due
        meanwhile should wait for one of them, not for all."""
        self._plan = plan
        self._ahead = ahead
        self._sending = sending
        self._spool = spool
        self.start_s = 0.0
        self.poke: Callable[[], None] = _nothing
        self._max_inflight = max_inflight
        self._arm, self._block = labels
        self._running: dict[int, Attempt] = {}
        self._open_turns: set[int] = set()
        self._followers: dict[int, list[tuple[int, Row]]] = defaultdict(list)
        self._stopping = False
        self.counts = Counts()
        self.inflight = InFlight(time.monotonic())
        self.idle = asyncio.Event()
        self.idle.set()

    def fire(self, position: int, intended_s: float) -> None:  # noqa: ARG002 - the pacer's
        """An arrival falls due (called by the pacer)."""
        planned = self._plan.arrivals[position]
        row = self._row(planned)
        self.counts.offered += 1
        self._spool.start(row)
        if planned.arrival.session is not None:
            self._open_turns.add(planned.index)
        if planned.after is not None and planned.after in self._open_turns:
            # The user has not read the answer yet. Waiting holds no slot.
            self._followers[planned.after].append((position, row))
            self.idle.clear()
            return
        row.ready_s = row.intended_s
        self._admit(position, row)

    def stop(self) -> None:
        """End everything that is under way: rows become `interrupted`."""
        self._stopping = True
        for followers in list(self._followers.values()):
            for _, row in followers:
                self._close(row, Verdict.INTERRUPTED, "interrupted")
        self._followers.clear()
        for attempt in list(self._running.values()):
            attempt.interrupt()
        self._check_idle()

    def _row(self, planned: Planned) -> Row:
        arrival = planned.arrival
        return Row(
            index=planned.index,
            block=self._block,
            arm=self._arm,
            cohort=arrival.cohort,
            task=arrival.task,
            lang=arrival.lang,
            sampling=arrival.sampling,
            stream=arrival.stream,
            warmup=planned.warmup,
            turn_of=planned.after,
            asked_prompt_tokens=arrival.in_tokens,
            asked_output_tokens=arrival.out_tokens,
            cancel_after=planned.cancel_after,
            intended_s=planned.offset_s,  # exact: the same in every process
        )

    def _admit(self, position: int, row: Row) -> None:
        """Send it, or record it as dropped when the bound is reached."""
        if self.inflight.value >= self._max_inflight:
            self._close(row, Verdict.DROPPED, "max_inflight")
            return
        body = self._ahead.take(position)
        row.content_hash = body.content_hash
        attempt = Attempt(self._sending, row, self.start_s, self._ended, self.poke)
        self._running[row.index] = attempt
        self.idle.clear()
        sent_mono = time.monotonic()
        self.inflight.change(+1, sent_mono)
        attempt.send(body.data, row.cohort, sent_mono)
        self.counts.sent += 1
        self.counts.last_lag_s = row.lag_s or 0.0
        self.counts.worst_lag_s = max(self.counts.worst_lag_s, self.counts.last_lag_s)

    def _ended(self, attempt: Attempt) -> None:
        row = attempt.row
        del self._running[row.index]
        assert row.end_s is not None
        self.inflight.change(-1, self.start_s + row.end_s)
        self._finish(row)

    def _close(self, row: Row, verdict: Verdict, error_class: str) -> None:
        """A row whose request was never sent."""
        row.verdict = verdict.value
        row.error_class = error_class
        row.end_s = time.monotonic() - self.start_s
        self._finish(row)

    def _finish(self, row: Row) -> None:
        assert row.verdict is not None
        self._spool.end(row)
        self.counts.ended += 1
        self.counts.verdicts[row.verdict] += 1
        self.counts.output_tokens += row.output_tokens or 0
        self._open_turns.discard(row.index)
        if not self._stopping:
            for position, follower in self._followers.pop(row.index, ()):
                follower.ready_s = max(follower.intended_s, row.end_s or 0.0)
                self._admit(position, follower)
        self._check_idle()

    def _check_idle(self) -> None:
        if not self._running and not self._followers:
            self.idle.set()
