"""What the events of one stream carry: choices, tokens, finish reasons, and what is repeated.

The part of `breakeven.stream` that looks into events; when they came is told to it, and what the
times mean is `breakeven.gaps`.
"""

from __future__ import annotations

from typing import Any

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
from .gaps import GapMeter, Track
from .repeat import Frame, frame_of

MAX_CHOICES = 1024
"""More choices than any request asks for: an index above it is malformed, not memory."""

FRAMES_TRIED = 3
"""Frames looked for in one stream: reasoning, content; an engine may change each chunk's id."""

_SHAPE_ERRORS = (ValueError, TypeError, AttributeError, KeyError)


class Choice:
    """Counting state of one choice index, beside its track of timed points."""

    __slots__ = ("base", "base_known", "finish", "index", "track", "usage")

    def __init__(self, index: int) -> None:
        self.index = index
        self.track = Track()
        self.base = 0  # tokens counted so far
        self.base_known = True  # no event is missing in base
        self.usage: int | None = None  # newest cumulative usage of this choice
        self.finish: str | None = None


class EventCounter:
    """Counts the events of one stream; `StreamObserver` inherits from it."""

    __slots__ = (
        "_by_logprobs", "_choices", "_columns", "_counted", "_done", "_error", "_events",
        "_fingerprint", "_finish_at", "_frame", "_frames", "_gaps", "_malformed", "_now",
        "_output_at", "_prompt_tokens", "_seen", "_shift", "_spec", "_touched", "_uncounted",
        "_usage",
    )  # fmt: skip

    def __init__(self, start: float, gaps: GapMeter, *, keep_events: bool) -> None:
        self._gaps = gaps
        self._choices: dict[int, Choice] = {}
        self._touched: list[Track] = []
        self._columns: tuple[list[float], list[int | None], list[int]] | None = None
        if keep_events:
            self._columns = ([], [], [])
        self._frame: Frame | None = None
        self._frames = 0
        # Time. A clock that steps back is shifted forward again, so that no gap is negative.
        self._now = start
        self._shift = -start
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
                if tokens is None and seen and self._events > 2 and self._frames < FRAMES_TRIED:
                    self._look_for_frame(payload, obj, finish)
                if finish is not None:
                    self._take_extras(obj)
                    if total is None and choice.get("token_ids") is None:
                        self._by_logprobs = tokens is not None
            if total is not None and self._prompt_tokens is None:
                self._take_prompt(read_usage(usage))
        except _SHAPE_ERRORS:
            self._malformed += 1

    def _look_for_frame(self, payload: bytes, obj: dict[str, Any], finish: str | None) -> None:
        """From the third event on: is it what will be repeated?"""
        if len(obj["choices"]) != 1 or finish is not None or obj.get("usage"):
            return
        if self._frame is None or not payload.startswith(self._frame.head[len(b"data: ") :]):
            self._frames += 1
            self._frame = frame_of(payload, obj) or self._frame

    def _take_repeated(self, times: list[float]) -> None:
        """Reads of the repeated event, one each; what `_take` would do for every one of them."""
        index = self._frame.index  # type: ignore[union-attr]
        choice = self._choices[index]
        choice.base_known = False
        self._events += len(times)
        self._uncounted += len(times)
        if self._shift:
            times = [at + self._shift for at in times]
        if self._columns is not None:
            self._columns[0].extend(times)
            self._columns[1].extend([None] * len(times))
            self._columns[2].extend([index] * len(times))
        self._gaps.single_reads(choice.track, times)

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

    def _new_choice(self, index: int) -> Choice:
        if index.__class__ is not int or not 0 <= index < MAX_CHOICES:
            raise ValueError("no choice index")
        choice = self._choices[index] = Choice(index)
        return choice
