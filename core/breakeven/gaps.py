"""Timed points of a stream: gaps, bursts and what of them may enter a statistic.

Implements docs/definitions.md, "Burst", "Burst gap" and "Reads, merges and pauses", once for proxy
and generator. Not here: which events a read holds and their tokens (`breakeven.stream`).
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left

from .histogram import (
    BURST_GAP_BOUNDS_S,
    BURST_TOKENS_BOUNDS,
    EVENT_GAP_BOUNDS_S,
    Buckets,
    p99_rank,
)

EPSILON_S = 0.002
"""Events closer than this belong to one burst (docs/definitions.md; loadgen calibrates it)."""
KEPT_GAPS = 256
"""How many of a stream's longest burst gaps are kept: its p99 is exact below 25,600 gaps."""


class GapSink:
    """The histograms that observers fill while their streams run; one per arm and cohort."""

    __slots__ = ("burst_gaps", "burst_tokens", "event_gaps")

    def __init__(
        self,
        event_gaps: Buckets | None = None,
        burst_gaps: Buckets | None = None,
        burst_tokens: Buckets | None = None,
    ) -> None:
        self.event_gaps = event_gaps or Buckets(EVENT_GAP_BOUNDS_S)
        self.burst_gaps = burst_gaps or Buckets(BURST_GAP_BOUNDS_S)
        self.burst_tokens = burst_tokens or Buckets(BURST_TOKENS_BOUNDS)


class Track:
    """Timed points of one choice index: seconds after the stream's start.

    With n > 1 events of several choices arrive together; that is no burst, so gaps and bursts
    are followed within each choice.
    """

    __slots__ = (
        "breaks", "burst_clean", "burst_tokens", "first", "first_events", "first_tokens", "last",
        "pauses", "read_events", "read_tokens",
    )  # fmt: skip

    def __init__(self) -> None:
        # The events of the read at hand: one timed point when it ends.
        self.read_events = 0
        self.read_tokens: int | None = 0
        # The points so far.
        self.first: float | None = None
        self.first_events = 0
        self.first_tokens: int | None = None
        self.last = 0.0
        self.breaks = self.pauses = 0  # the meter's counts when the last point was made
        # The burst that is open. Unclean: its tokens or its edges were not fully observed.
        self.burst_tokens: int | None = 0
        self.burst_clean = True


class GapMeter:
    """Gaps and bursts of one stream, over all its choices, in bounded memory.

    Args:
        epsilon_s: gaps below it are inside a burst.
        bound_s: burst gaps above it are counted in `over`; None: none are.
        sink: histograms to fill as the gaps come.
    """

    __slots__ = (
        "_bound", "_breaks", "_kept", "_pauses", "_sink", "backpressured", "burst_gaps", "bursts",
        "epsilon_s", "first", "first_merged", "max_burst_tokens", "merged_reads", "over",
        "unobserved",
    )  # fmt: skip

    def __init__(
        self, epsilon_s: float, bound_s: float | None = None, sink: GapSink | None = None
    ) -> None:
        self.epsilon_s = epsilon_s
        self._bound = math.inf if bound_s is None else bound_s
        self._sink = sink
        self._breaks = 0  # pauses and clock steps so far: a gap across one is not observed
        self._pauses = 0  # those of them that were pauses for a slow client
        self.first: float | None = None
        self.first_merged = False
        self.merged_reads = 0
        self.backpressured = 0
        self.unobserved = 0
        self._kept: list[float] = []  # the KEPT_GAPS longest burst gaps; a heap once it is full
        self.burst_gaps = 0
        self.over = 0
        self.bursts = 0
        self.max_burst_tokens = 0

    def interrupt(self, *, pause: bool) -> None:
        """The gap that is open now holds a pause (a slow client) or a step of the clock."""
        self._breaks += 1
        self._pauses += pause

    def end_read(self, tracks: list[Track], at: float) -> None:
        """Make one timed point of each track that had events in the read that ended at `at`."""
        merged = False
        for track in tracks:
            events, tokens = track.read_events, track.read_tokens
            track.read_events = track.read_tokens = 0
            clean = events == 1
            if not clean:
                merged = True
                self.unobserved += events - 1
            if track.first is None:
                self._first_point(track, at, events, tokens)
            elif track.breaks != self._breaks:
                # The gap holds a pause or a clock step: it and the bursts' edges were not seen.
                self.unobserved += 1
                self.backpressured += track.pauses != self._pauses
                track.breaks, track.pauses = self._breaks, self._pauses
                track.burst_clean = False
                self._end_burst(track, None)
                track.burst_tokens, track.burst_clean = tokens, False
            else:
                gap = at - track.last
                if self._sink is not None:
                    # Buckets.observe in place, here and below: three calls an event fewer.
                    buckets = self._sink.event_gaps
                    buckets.counts[bisect_left(buckets.bounds, gap)] += 1
                    buckets.sum += gap
                if gap >= self.epsilon_s:
                    self._end_burst(track, gap)
                    track.burst_tokens, track.burst_clean = tokens, clean
                else:
                    if not clean:
                        track.burst_clean = False
                    if tokens is None or track.burst_tokens is None:
                        track.burst_tokens = None
                    else:
                        track.burst_tokens += tokens
            track.last = at
        if merged:
            self.merged_reads += 1

    def single_reads(self, track: Track, times: list[float]) -> None:
        """`end_read` for reads of one event of unknown size each, oldest first, on one track.

        The same in one loop with everything at hand, for the event that engines repeat.
        """
        position, sink = 0, self._sink
        while sink is None or track.breaks != self._breaks or track.burst_tokens is not None:
            track.read_events, track.read_tokens = 1, None
            self.end_read([track], times[position])
            position += 1
            if position == len(times):
                return
        events, waits = sink.event_gaps, sink.burst_gaps
        event_counts, event_bounds = events.counts, events.bounds
        wait_counts, wait_bounds = waits.counts, waits.bounds
        epsilon, bound, kept, last = self.epsilon_s, self._bound, self._kept, track.last
        waited, bursts, started = 0.0, 0, last
        for at in times[position:] if position else times:
            gap = at - last
            last = at
            event_counts[bisect_left(event_bounds, gap)] += 1
            if gap < epsilon:
                continue
            bursts += 1
            wait_counts[bisect_left(wait_bounds, gap)] += 1
            waited += gap
            if gap > bound:
                self.over += 1
            if len(kept) < KEPT_GAPS - 1:
                kept.append(gap)
            elif len(kept) < KEPT_GAPS:
                self._keep(gap)
            elif gap > kept[0]:
                heapq.heapreplace(kept, gap)
        track.last = last
        events.sum += last - started
        if bursts:
            track.burst_clean = True
            self.bursts += bursts
            self.burst_gaps += bursts
            waits.sum += waited

    def close(self, track: Track, *, cut: bool) -> None:
        """The stream is over. Cut: it broke off, so the rest of the open burst was never seen."""
        if track.first is not None:
            if cut:
                track.burst_clean = False
            self._end_burst(track, None)

    def max_s(self) -> float | None:
        """The longest burst gap; None without gaps."""
        return max(self._kept, default=None)

    def p99_s(self) -> float | None:
        """Nearest-rank p99 of the burst gaps; None without gaps or from 25,600 gaps on."""
        from_top = self.burst_gaps - p99_rank(self.burst_gaps) + 1
        if not self.burst_gaps or from_top > len(self._kept):
            return None
        return sorted(self._kept)[-from_top]

    def _first_point(self, track: Track, at: float, events: int, tokens: int | None) -> None:
        track.first = at
        track.first_events, track.first_tokens = events, tokens
        track.burst_tokens, track.burst_clean = tokens, events == 1
        track.breaks, track.pauses = self._breaks, self._pauses
        if self.first is None:
            self.first = at
        if events > 1 and at == self.first:
            self.first_merged = True

    def _end_burst(self, track: Track, gap: float | None) -> None:
        """The open burst is over; `gap` leads to the next, None when that gap was not observed."""
        self.bursts += 1
        tokens = track.burst_tokens
        if tokens is not None and track.burst_clean:
            if tokens > self.max_burst_tokens:
                self.max_burst_tokens = tokens
            if self._sink is not None:
                buckets = self._sink.burst_tokens
                buckets.counts[bisect_left(buckets.bounds, tokens)] += 1
                buckets.sum += tokens
        if gap is None:
            return
        if self._sink is not None:
            buckets = self._sink.burst_gaps
            buckets.counts[bisect_left(buckets.bounds, gap)] += 1
            buckets.sum += gap
        self.burst_gaps += 1
        if gap > self._bound:
            self.over += 1
        if len(self._kept) < KEPT_GAPS:
            self._keep(gap)
        elif gap > self._kept[0]:
            heapq.heapreplace(self._kept, gap)

    def _keep(self, gap: float) -> None:
        """One of the first gaps: all are kept until there are too many."""
        self._kept.append(gap)
        if len(self._kept) == KEPT_GAPS:
            heapq.heapify(self._kept)
