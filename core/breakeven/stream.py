"""The observer of one streamed response: bytes and times in, a report out.

Implements docs/definitions.md ("Stream", "Reads, merges and pauses") for proxy and generator.
Not here: sockets and clocks (`breakeven_wire`), what an event's JSON means (`breakeven.chunks`),
verdicts (`breakeven.slo`), the report's type (`breakeven.report`).

No text is kept: the observer holds numbers, and the bytes of an event that has not ended yet.
"""

from __future__ import annotations

from typing import Any, NoReturn

from orjson import loads

from .chunks import (
    OUTPUT,
    REASONING,
    Chunk,
    ErrorInfo,
    SpecBlock,
    Usage,
    chunk_of,
    read_choice,
    read_fingerprint,
    read_spec,
    read_usage,
)
from .errors import ProtocolError
from .gaps import EPSILON_S, GapMeter, GapSink, Track
from .report import Ending, StreamReport
from .sse import MAX_EVENT_BYTES, SSEDecoder

__all__ = ["EPSILON_S", "Ending", "GapSink", "StreamObserver", "StreamReport"]

MAX_CHOICES = 1024
"""More choices than any request asks for: an index above it is malformed, not memory."""

_SHAPE_ERRORS = (ValueError, TypeError, AttributeError, KeyError)


class _Choice:
    """Counting state of one choice index, beside its track of timed points."""

    __slots__ = ("base", "base_known", "finish", "index", "track", "usage")

    def __init__(self, index: int) -> None:
        self.index = index
        self.track = Track()
        self.base = 0  # tokens counted so far
        self.base_known = True  # no event is missing in base
        self.usage: int | None = None  # newest cumulative usage of this choice
        self.finish: str | None = None


class StreamObserver:
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
        "_by_logprobs", "_choices", "_clock_steps", "_columns", "_counted", "_decoder", "_done",
        "_error", "_events", "_fingerprint", "_finish_at", "_gap_bound", "_gaps", "_malformed",
        "_now", "_output_at", "_prompt_tokens", "_report", "_seen", "_shift", "_spec", "_touched",
        "_uncounted", "_usage",
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
        self._gaps = GapMeter(epsilon_s, gap_bound_s, sink)
        self._decoder: SSEDecoder | None = SSEDecoder(max_event_bytes=max_event_bytes)
        self._choices: dict[int, _Choice] = {}
        self._touched: list[Track] = []
        self._columns: tuple[list[float], list[int | None], list[int]] | None = None
        if keep_events:
            self._columns = ([], [], [])
        self._report: StreamReport | None = None
        # Time. A clock that steps back is shifted forward again, so that no gap is negative.
        self._now = start
        self._shift = -start
        self._clock_steps = 0
        # What was seen.
        self._events = 0
        self._uncounted = 0
        self._by_logprobs = False
        self._counted = 0
        self._seen = False
        self._malformed = 0
        self._done = False
        self._error: ErrorInfo | None = None
        self._usage: Usage | None = None
        self._prompt_tokens: int | None = None
        self._spec: SpecBlock | None = None
        self._fingerprint: str | None = None
        self._output_at: float | None = None
        self._finish_at: float | None = None

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

    def finish(self, now: float, ending: Ending) -> StreamReport:
        """Close the stream; the same report again if it was closed before."""
        if self._report is None:
            self._report = self._close(now, ending)
        return self._report

    # Counting: what an event carries

    def _receive_event(self, payload: bytes) -> None:
        if self._done:
            self._malformed += bool(payload)  # nothing may follow the end
            return
        if not payload:
            return
        if payload == b"[DONE]":
            self._done = True
            return
        try:
            obj = loads(payload)
            choices = obj.get("choices")
            if not choices or obj.get("error"):
                self._take_chunk(chunk_of(obj))
                return
            usage = obj.get("usage")
            total = usage.get("completion_tokens") if usage else None
            if total.__class__ is not int or total < 0:
                total = None
            for choice in choices:
                index, seen, tokens, finish = read_choice(choice)
                self._take(index, seen, tokens, total, finish)
                if finish is not None:
                    self._take_extras(obj)
                    if total is None and choice.get("token_ids") is None:
                        self._by_logprobs = tokens is not None
            if total is not None and self._prompt_tokens is None:
                self._take_prompt(read_usage(usage))
        except _SHAPE_ERRORS:
            self._malformed += 1

    def _take_chunk(self, chunk: Chunk) -> None:
        """The rare chunks: usage only, errors, and the events of /v1/responses."""
        self._error = self._error or chunk.error
        self._spec = chunk.spec or self._spec
        self._fingerprint = chunk.system_fingerprint or self._fingerprint
        for delta in chunk.choices:
            seen = (REASONING if delta.reasoning else OUTPUT) if delta.has_token else 0
            self._take(delta.index, seen, delta.tokens, None, delta.finish_reason)
        if chunk.usage is not None:
            self._usage = chunk.usage
            self._take_prompt(chunk.usage)
        self._done = chunk.done

    def _take_extras(self, obj: dict[str, Any]) -> None:
        """What a last chunk may bring; where there is a usage chunk, that one brings it."""
        self._spec = read_spec(obj.get("metrics")) or self._spec
        self._fingerprint = read_fingerprint(obj.get("system_fingerprint")) or self._fingerprint

    def _take_prompt(self, usage: Usage | None) -> None:
        if usage is not None and usage.prompt_tokens is not None:
            self._prompt_tokens = usage.prompt_tokens

    def _take(
        self, index: int, seen: int, tokens: int | None, total: int | None, finish: str | None
    ) -> None:
        """Count the tokens that one choice of one chunk adds, and note an event if it adds any.

        Order of docs/definitions.md: cumulative usage of this choice, else the chunk's own count
        (token ids, else logprobs), else unknown; never 1 per chunk.
        """
        choice = self._choices.get(index)
        if choice is None:
            choice = self._new_choice(index)
        if total is not None and (total or not seen):
            # Text beside a total of 0 shows that totals are placeholders here, not counts.
            if choice.base_known and total >= choice.base:
                tokens = total - choice.base
            choice.usage = choice.base = total
            choice.base_known = True
        elif tokens is not None:
            choice.base += tokens
        elif seen:
            choice.base_known = False
        if finish is not None:
            choice.finish = finish
            self._finish_at = self._now + self._shift
        if seen:
            if tokens == 0 and not choice.base:
                tokens = None  # no tokens so far cannot be true beside text
                choice.base_known = False
            if self._output_at is None:
                self._seen = True
                if seen & OUTPUT:
                    self._output_at = self._now + self._shift
        elif tokens is None:
            return
        if tokens == 0:
            return
        self._events += 1
        track = choice.track
        if not track.read_events:
            self._touched.append(track)
        track.read_events += 1
        if tokens is None:
            self._uncounted += 1
            track.read_tokens = None
        else:
            self._counted += tokens
            if track.read_tokens is not None:
                track.read_tokens += tokens
        if self._columns is not None:
            self._columns[0].append(self._now + self._shift)
            self._columns[1].append(tokens)
            self._columns[2].append(index)

    def _new_choice(self, index: int) -> _Choice:
        if index.__class__ is not int or not 0 <= index < MAX_CHOICES:
            raise ValueError("no choice index")
        choice = self._choices[index] = _Choice(index)
        return choice

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

    def _usage_tokens(self, choices: list[_Choice]) -> int | None:
        """The engine's total: its usage-only chunk, else the choices' newest cumulative ones."""
        if self._usage is not None and self._usage.completion_tokens is not None:
            return self._usage.completion_tokens
        totals = [choice.usage for choice in choices]
        return None if None in totals or not totals else sum(n or 0 for n in totals)

    def _answer_s(self, choices: list[_Choice]) -> float | None:
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
