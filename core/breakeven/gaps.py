"""Timed points of a stream: gaps, bursts and what of them may enter a statistic.

Implements measurement.md, "burst", "burst gap" and "Reads, merges and pauses", once for proxy and
generator. Not here: which events a read holds and how many tokens they carry (`breakeven.stream`).
"""

from __future__ import annotations

import heapq

from .histogram import (
    BURST_GAP_BOUNDS_S,
    BURST_TOKENS_BOUNDS,
    EVENT_GAP_BOUNDS_S,
    Buckets,
    p99_rank,
)

EPSILON_S = 0.002
"""Events closer than this belong to one burst (measurement.md; loadgen calibrates it)."""
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
        bound_s: burst gaps above it are counted in `over`; None: nothing is.
        sink: histograms to fill as the gaps come.
    """

    __slots__ = (
        "_kept", "_sink", "backpressured", "bound_s", "breaks", "burst_gaps", "bursts",
        "epsilon_s", "first", "first_merged", "max_burst_tokens", "max_s", "merged_reads", "over",
        "pauses", "unobserved",
    )  # fmt: skip

    def __init__(
        self, epsilon_s: float, bound_s: float | None = None, sink: GapSink | None = None
    ) -> None:
        self.epsilon_s = epsilon_s
        self.bound_s = bound_s
        self._sink = sink
        self.breaks = 0  # pauses and clock steps so far: a gap across one is not observed
        self.pauses = 0  # those of them that were pauses for a slow client
        self.first: float | None = None
        self.first_merged = False
        self.merged_reads = 0
        self.backpressured = 0
        self.unobserved = 0
        self._kept: list[float] = []  # the KEPT_GAPS longest burst gaps; a heap once it is full
        self.burst_gaps = 0
        self.over = 0
        self.max_s = 0.0
        self.bursts = 0
        self.max_burst_tokens = 0

    def interrupt(self, *, pause: bool) -> None:
        """The gap that is open now holds a pause (a slow client) or a step of the clock."""
        self.breaks += 1
        self.pauses += pause

    def end_read(self, tracks: list[Track], at: float) -> None:
        """Make one timed point of each track that had events in the read that ended at `at`."""
        merged = False
        for track in tracks:
            if track.read_events > 1:
                merged = True
            self._point(track, at)
        self.merged_reads += merged

    def close(self, track: Track, *, cut: bool) -> None:
        """The stream is over. Cut: it broke off, so the rest of the open burst was never seen."""
        if track.first is not None:
            track.burst_clean = track.burst_clean and not cut
            self._close_burst(track)

    def p99_s(self) -> float | None:
        """Nearest-rank p99 of the burst gaps; None without gaps or from 25,600 gaps on."""
        from_top = self.burst_gaps - p99_rank(self.burst_gaps) + 1
        if not self.burst_gaps or from_top > len(self._kept):
            return None
        return sorted(self._kept)[-from_top]

    def _point(self, track: Track, at: float) -> None:
        events, tokens = track.read_events, track.read_tokens
        track.read_events = track.read_tokens = 0
        clean = events == 1
        if not clean:
            self.unobserved += events - 1
        if track.first is None:
            track.first = at
            track.first_events = events
            track.first_tokens = tokens
            if self.first is None:
                self.first = at
            if not clean and at == self.first:
                self.first_merged = True
            track.burst_tokens, track.burst_clean = tokens, clean
        elif track.breaks != self.breaks:
            # The gap holds a pause or a clock step: neither it nor the bursts' edges were seen.
            self.unobserved += 1
            self.backpressured += track.pauses != self.pauses
            track.burst_clean = False
            self._close_burst(track)
            track.burst_tokens, track.burst_clean = tokens, False
        else:
            gap = at - track.last
            if self._sink is not None:
                self._sink.event_gaps.observe(gap)
            if gap >= self.epsilon_s:
                self._burst_gap(gap)
                self._close_burst(track)
                track.burst_tokens, track.burst_clean = tokens, clean
            else:
                track.burst_clean = track.burst_clean and clean
                if track.burst_tokens is not None:
                    track.burst_tokens = None if tokens is None else track.burst_tokens + tokens
        track.last = at
        track.breaks, track.pauses = self.breaks, self.pauses

    def _burst_gap(self, gap: float) -> None:
        self.burst_gaps += 1
        if self.bound_s is not None and gap > self.bound_s:
            self.over += 1
        if gap > self.max_s:
            self.max_s = gap
        if self._sink is not None:
            self._sink.burst_gaps.observe(gap)
        gaps = self._kept
        if len(gaps) < KEPT_GAPS:
            gaps.append(gap)
            if len(gaps) == KEPT_GAPS:
                heapq.heapify(gaps)
        elif gap > gaps[0]:
            heapq.heapreplace(gaps, gap)

    def _close_burst(self, track: Track) -> None:
        self.bursts += 1
        tokens = track.burst_tokens
        if tokens is not None and track.burst_clean:
            if tokens > self.max_burst_tokens:
                self.max_burst_tokens = tokens
            if self._sink is not None:
                self._sink.burst_tokens.observe(tokens)
