"""What a stream observer found out: one frozen value per streamed response, numbers only.

Here: the fields, their definitions and what follows from them by arithmetic. Not here: observing
(`breakeven.stream`) and verdicts (`breakeven.slo`).
"""

from __future__ import annotations

from enum import Enum

from .chunks import ErrorInfo, SpecBlock
from .histogram import p99_rank
from .value import value


class Ending(Enum):
    """How the body of a response came to its end, as the reader of the socket saw it."""

    COMPLETE = "complete"  # the transfer ended as HTTP says it must
    BROKEN = "broken"  # the connection broke before that
    CANCELLED = "cancelled"  # the client went away, or the run asked for it
    TIMEOUT = "timeout"  # a deadline of ours passed


@value
class StreamReport:
    """Measurements of one streamed response. Seconds; offsets are from the observer's start.

    None means unknown, never zero. "First point" is the first *timed point* of a choice: its
    first event, or all events of the read that held it (docs/definitions.md: reads and merges).
    """

    ending: Ending
    end_s: float
    """When `finish` was called."""

    # Events
    events: int
    """SSE events that carried new tokens, over all choices."""
    events_counted: int
    """Those whose token count is known; coverage is events_counted / events."""
    first_event_s: float | None
    last_event_s: float | None
    ttft_s: float | None
    """Start to first event. Role chunks, comments and headers are none."""
    ttft_merged: bool
    """The first read held several events: its stamp is the last one's, ttft_s an upper bound."""
    ttfo_s: float | None
    """Start to the first event with output that is not reasoning."""
    answer_s: float | None
    """Start to the end of the answer: last event or finish reason, whichever is later. A usage
    chunk or a [DONE] that comes late does not move it. None without a finish reason."""

    # Tokens
    counted_tokens: int
    """Sum of the known counts of events."""
    counted_by_logprobs: bool
    """The last chunk was counted by its logprobs: an engine that hides a delta (the marks of a
    reasoning or tool parser) hides its logprobs too, so the sum may lie below the usage."""
    usage_tokens: int | None
    """Completion tokens as the engine's newest usage states them, over all choices."""
    tokens: int | None
    """Completion tokens: usage_tokens, else counted_tokens if every event was counted."""
    prompt_tokens: int | None
    reasoning_tokens: int | None
    first_event_tokens: int | None
    """Tokens of the first points, one a choice, summed."""

    # Decoding
    decode_s: float | None
    """Σ over choices of (last event − first event); None without events."""
    decode_tokens: int | None
    """tokens − first_event_tokens: 0 when all came in the first points. None when counts are
    missing, or contradict the usage."""
    stream_cycles: int
    """Events after the first points. vLLM sends one a step, so decode_tokens / stream_cycles
    estimates M; biased upwards when the engine merges events under load."""
    choices: int

    # Gaps and bursts, within each choice
    epsilon_s: float
    bursts: int
    burst_gaps: int
    """Observed gaps from the end of a burst to the first event of the next."""
    gap_bound_s: float | None
    burst_gaps_over: int | None
    """Burst gaps above gap_bound_s; exact. None without a bound."""
    burst_gap_max_s: float | None
    burst_gap_p99_s: float | None
    """Nearest rank, exact; None without gaps, or from 25,600 gaps on (p99_over_bound decides)."""
    unobserved_gaps: int
    """Gaps that no statistic holds: inside a merged read, across a pause or a clock step."""
    merged_reads: int
    """Reads with more than one event of the same choice."""
    backpressured: int
    """Gaps across a pause that a slow client caused; decode_s has them in it."""
    clock_steps: int
    """Reads stamped before the one before: offsets are shifted so that time stands still there."""
    max_burst_tokens: int | None
    """Most tokens in one fully observed burst; above k + 1 something coalesced."""

    # What the engine said
    finish_reasons: tuple[str | None, ...]
    """One a choice, by index."""
    empty: bool
    """No delta ever carried visible output, whatever the counts say."""
    done: bool
    error_frame: ErrorInfo | None
    malformed: int
    """Events that are not JSON of the API, or bytes that are no event stream."""
    truncated_event: bool
    """The body ended inside an event."""
    spec: SpecBlock | None
    system_fingerprint: str | None

    # Columns, one entry an event in order of arrival; None unless keep_events
    event_offsets_s: tuple[float, ...] | None = None
    event_tokens: tuple[int | None, ...] | None = None
    event_choices: tuple[int, ...] | None = None

    @property
    def tpot_s(self) -> float | None:
        """decode_s / decode_tokens, seconds a token; None when unknown or there are 0 tokens."""
        if not self.decode_tokens or self.decode_s is None:
            return None
        return self.decode_s / self.decode_tokens

    @property
    def finished(self) -> bool:
        """Every choice that was seen has a finish reason, and there is one at least."""
        return bool(self.finish_reasons) and None not in self.finish_reasons

    @property
    def tokens_missing(self) -> bool:
        """Every event was counted by usage or ids, and the sum is below what the usage says."""
        return (
            self.usage_tokens is not None
            and not self.counted_by_logprobs
            and self.events_counted == self.events
            and self.counted_tokens < self.usage_tokens
        )

    @property
    def p99_over_bound(self) -> bool | None:
        """Whether the nearest-rank p99 of the burst gaps lies above gap_bound_s; exact by counters.

        The ⌈0.99·n⌉-th smallest of n is above the bound when fewer than that many are not.
        """
        if self.burst_gaps_over is None:
            return None
        return self.burst_gaps - self.burst_gaps_over < p99_rank(self.burst_gaps)

    @property
    def block_cycles(self) -> int | None:
        """Decode steps, drafted or not, where the engine sent its speculation block; else None.

        Every step commits one token of the target and the accepted drafts, so decode_tokens −
        accepted counts the steps, drafted or not, less the tokens that max_tokens or a stop cut
        from the last one (at most k). The drafted steps alone, and the events after the first
        point (one a step unless the engine merges), are lower bounds too: the largest is taken.
        All of them leave out the steps that a merged first read hides, as decode_tokens does.
        """
        if self.spec is None or self.decode_tokens is None:
            return None
        hidden = max(self.events - self.stream_cycles - 1, 0)  # steps inside the first point
        accepted = self.spec.accepted
        if hidden and self.first_event_tokens is not None:
            accepted -= max(self.first_event_tokens - 1 - hidden, 0)
        return max(self.decode_tokens - accepted, self.spec.cycles - hidden, self.stream_cycles)
