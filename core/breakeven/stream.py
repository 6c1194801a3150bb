"""The observer of one streamed response: bytes and times in, a report out.

Implements docs/definitions.md ("Stream", "Reads, merges and pauses") for proxy and generator.
Not here: sockets and clocks (`breakeven_wire`), what the events carry (`breakeven.counting`),
verdicts (`breakeven.slo`), the report's type (`breakeven.report`).

No text is kept: the observer holds numbers, the bytes of an event that has not ended yet, and what
surrounds the text of the event that is repeated (ids and names of its chunks).
"""

from __future__ import annotations

from typing import NoReturn

from .counting import Choice, EventCounter
from .errors import ProtocolError
from .gaps import EPSILON_S, GapMeter, GapSink
from .repeat import is_string
from .report import Ending, StreamReport
from .sse import MAX_EVENT_BYTES, SSEDecoder

__all__ = ["EPSILON_S", "Ending", "GapSink", "StreamObserver", "StreamReport"]


class StreamObserver(EventCounter):
    """Measures one streamed response while it is read.

    Args:
        start: when the request was sent, seconds, on the clock of the reads' stamps.
        epsilon_s: gaps below it are inside a burst.
        gap_bound_s: the SLO's gap bound; burst gaps above it are counted exactly.
        keep_events: keep offset and tokens of every event for the report's columns.
        sink: histograms to fill while the stream runs.
        max_event_bytes: longest SSE event; a longer one makes the stream malformed.

    Never raises for what an engine sent: the report says `malformed`, `error_frame` and the like.
    """

    __slots__ = (
        "_clock_steps", "_decoder", "_gap_bound", "_head", "_longest", "_report", "_tail",
    )  # fmt: skip

    def __init__(
        self,
        start: float,
        *,
        epsilon_s: float = EPSILON_S,
        gap_bound_s: float | None = None,
        keep_events: bool = False,
        sink: GapSink | None = None,
        max_event_bytes: int = MAX_EVENT_BYTES,
    ) -> None:
        self._gap_bound = gap_bound_s
        super().__init__(start, GapMeter(epsilon_s, gap_bound_s, sink), keep_events=keep_events)
        self._decoder: SSEDecoder | None = SSEDecoder(max_event_bytes=max_event_bytes)
        self._report: StreamReport | None = None
        # The event that is repeated: its head where it may come next, between two events.
        self._head: bytes | None = None
        self._tail = b""
        self._longest = max_event_bytes
        self._clock_steps = 0

    @property
    def started(self) -> bool:
        """Whether an event, so a token, has come."""
        return self._events > 0

    def __repr__(self) -> str:
        return f"StreamObserver(<{self._events} events>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a StreamObserver holds bytes in flight and is never written anywhere")

    @property
    def counted_tokens(self) -> int:
        """Tokens of the events so far whose count is known."""
        return self._counted

    @property
    def least_tokens(self) -> int:
        """Tokens so far at least: the known counts, and one for each event of unknown size."""
        return self._counted + self._uncounted

    @property
    def events(self) -> int:
        """Events so far."""
        return self._events

    def receive_data(self, data: bytes, now: float, paused: bool = False) -> None:
        """Take the body bytes of one read.

        Args:
            data: dechunked body bytes of the whole read; may hold several events, or half of one.
            now: stamp of the read's last segment, on the clock of `start`.
            paused: reading had been paused since the read before, for a slow client.
        """
        head, tail = self._head, self._tail
        if head is not None:
            if (
                data.startswith(head)
                and data.endswith(tail)
                and now >= self._now
                and not paused
                and len(data) <= self._longest
                and is_string(data, len(head), len(data) - len(tail))
            ):
                self._now = now
                self._take_repeated([now])
                return
            self._head = None
        decoder = self._decoder
        if decoder is None:
            return
        if now < self._now:
            self._clock_steps += 1
            self._shift += self._now - now
            self._gaps.interrupt(pause=False)
        self._now = now
        if paused:
            self._gaps.interrupt(pause=True)
        payload = decoder.whole_event(data)
        if payload is not None:
            self._receive_event(payload)
        elif (payloads := decoder.whole_events(data)) is not None:
            for payload in payloads:
                self._receive_event(payload)
        else:
            try:
                for event in decoder.receive_data(data):
                    self._receive_event(event.data)
            except ProtocolError:
                self._malformed += 1
                self._decoder = None
        if self._touched:
            self._gaps.end_read(self._touched, now + self._shift)
            self._touched.clear()
        if self._frame is not None and decoder.idle and not self._done:
            self._head, self._tail = self._frame.head, self._frame.tail

    def receive_reads(self, reads: list[tuple[bytes, float]]) -> None:
        """Take several reads, oldest first, none of them after a pause: (data, now) each.

        The same as one call each, and cheaper where they repeat what came before.
        """
        head, tail, latest, longest = self._head, self._tail, self._now, self._longest
        begin, end = len(head or b""), len(tail)
        times: list[float] = []
        for data, now in reads:
            size = len(data)
            if (
                head is not None
                and now >= latest
                and size <= longest
                and data.startswith(head)
                and data.endswith(tail)
                and is_string(data, begin, size - end)
            ):
                latest = now
                times.append(now)
                continue
            if times:
                self._now = latest
                self._take_repeated(times)
                times = []
            self.receive_data(data, now)
            head, tail, latest = self._head, self._tail, self._now
            begin, end = len(head or b""), len(tail)
        if times:
            self._now = latest
            self._take_repeated(times)

    def finish(self, now: float, ending: Ending) -> StreamReport:
        """Close the stream; the same report again if it was closed before."""
        if self._report is None:
            self._report = self._close(now, ending)
        return self._report

    # Adding up

    def _close(self, now: float, ending: Ending) -> StreamReport:
        gaps = self._gaps
        truncated = self._decoder is not None and self._decoder.pending_bytes > 0
        self._decoder = None
        choices = list(self._choices.values())
        if len(choices) > 1:
            choices.sort(key=lambda choice: choice.index)
        cut = ending is not Ending.COMPLETE
        timed, first_events, decode_s, last = False, 0, 0.0, 0.0
        first_tokens: int | None = 0
        for choice in choices:
            track = choice.track
            if track.first is None:
                continue
            gaps.close(track, cut=cut)
            timed = True
            first_events += track.first_events
            decode_s += track.last - track.first
            last = max(last, track.last)
            if first_tokens is not None:
                known = track.first_tokens
                first_tokens = None if known is None else first_tokens + known
        if not timed:
            first_tokens = None
        usage = self._usage_tokens(choices)
        counted = not self._uncounted
        tokens = usage if usage is not None else self._counted if counted and timed else None
        columns = self._columns or (None, None, None)
        # By position: 45 keywords would cost as much as all the counting of a short stream.
        return StreamReport(
            ending,
            max(now, self._now) + self._shift,  # end_s
            self._events,
            self._events - self._uncounted,  # events_counted
            gaps.first,  # first_event_s
            last if timed else None,  # last_event_s
            gaps.first,  # ttft_s
            gaps.first_merged,  # ttft_merged
            self._output_at,  # ttfo_s
            self._answer_s(choices),
            self._counted,  # counted_tokens
            self._by_logprobs,  # counted_by_logprobs
            usage,  # usage_tokens
            tokens,
            self._prompt_tokens,
            None if self._usage is None else self._usage.reasoning_tokens,
            first_tokens,  # first_event_tokens
            decode_s if timed else None,
            self._decode_tokens(tokens, first_tokens, first_events),
            self._events - first_events,  # stream_cycles
            len(choices),
            gaps.epsilon_s,
            gaps.bursts,
            gaps.burst_gaps,
            self._gap_bound,  # gap_bound_s
            None if self._gap_bound is None else gaps.over,  # burst_gaps_over
            gaps.max_s(),  # burst_gap_max_s
            gaps.p99_s(),  # burst_gap_p99_s
            gaps.unobserved,  # unobserved_gaps
            gaps.merged_reads,
            gaps.backpressured,
            self._clock_steps,
            gaps.max_burst_tokens or None,
            tuple([choice.finish for choice in choices]),  # finish_reasons
            not self._seen,  # empty
            self._done,
            self._error,  # error_frame
            self._malformed,
            truncated,  # truncated_event
            self._spec,
            self._fingerprint,  # system_fingerprint
            None if columns[0] is None else tuple(columns[0]),  # event_offsets_s
            None if columns[1] is None else tuple(columns[1]),  # event_tokens
            None if columns[2] is None else tuple(columns[2]),  # event_choices
        )

    def _usage_tokens(self, choices: list[Choice]) -> int | None:
        """The engine's total: its usage-only chunk, else the choices' newest cumulative ones."""
        if self._usage is not None and self._usage.completion_tokens is not None:
            return self._usage.completion_tokens
        totals = [choice.usage for choice in choices]
        return None if None in totals or not totals else sum(n or 0 for n in totals)

    def _answer_s(self, choices: list[Choice]) -> float | None:
        end_s = self._finish_at or 0.0
        for choice in choices:
            if choice.finish is None:
                return None
            end_s = max(end_s, choice.track.last)
        return end_s if choices else None

    def _decode_tokens(
        self, tokens: int | None, first_tokens: int | None, first_events: int
    ) -> int | None:
        if self._events == first_events:
            return 0 if self._events else None
        if tokens is None or first_tokens is None:
            return None
        if not self._uncounted and self._counted != tokens:
            return None  # the counts contradict the usage: neither can be divided by
        return tokens - first_tokens if tokens >= first_tokens else None
