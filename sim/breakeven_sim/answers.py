"""From a flight to bytes: the events of a stream and the body of a whole answer, per route."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from . import wire
from .generation import Choice, Delta, Flight
from .options import Options
from .wire import Envelope

# Stands for the text where an event is cut into what is before and after it.
_MARK = "\x00"
_MARK_JSON = wire.dumps(_MARK)


class Answer:
    """Writes one chat or completions response."""

    def __init__(self, flight: Flight, envelope: Envelope, options: Options, k: int) -> None:
        self._flight = flight
        self._generation = generation = flight.generation
        self._envelope = envelope
        self._options = options
        self._k = k
        self._chat = flight.generation.endpoint == "chat"
        self._open = envelope.open()
        force = options.force_include_usage
        self._include_usage = self._generation.include_usage or force
        self._continuous = self._generation.continuous_usage or force
        self._started: set[int] = set()
        self._plain = (
            generation.logprobs is None
            and not generation.return_token_ids
            and generation.tool is None
        )
        self._frames: dict[int, tuple[bytes, bytes]] = {}

    # -- stream -----------------------------------------------------------------------------------

    def role_events(self) -> Iterator[bytes]:
        """The events that open a chat stream, one per choice; none for completions."""
        if not self._chat:
            return
        for choice in self._flight.choices:
            yield (
                self._open
                + wire.chat_role(choice.index)
                + self._envelope.tail(
                    self._usage(choice, 0), False, wire.chat_role_extra(self._prompt_ids(choice))
                )
            )

    def events(self, choice: Choice, delta: Delta) -> Iterator[bytes]:
        """The event of a choice."""
        yield self._event(choice, delta)

    def closing(self) -> Iterator[bytes]:
        """What ends a stream: usage where asked for, then [DONE]."""
        if self._include_usage:
            yield self._usage_event()
        yield wire.DONE

    def _event(self, choice: Choice, delta: Delta) -> bytes:
        frame = self._frames.get(choice.index)
        if frame is not None and delta.finish is None:
            usage = self._usage(choice, delta.tokens) if self._continuous else b""
            return b"%b%b%b%b}\n\n" % (frame[0], wire.dumps(delta.text), frame[1], usage)
        event = self._full_event(choice, delta)
        if self._plain:
            # The next events of the choice differ in text and usage only: keep what is around.
            empty = Delta(_MARK, [], [], None, None, 0)
            before, _, after = (self._open + self._choice(choice, empty)).partition(_MARK_JSON)
            self._frames[choice.index] = (before, after + b"]")
        return event

    def _full_event(self, choice: Choice, delta: Delta) -> bytes:
        last = delta.finish is not None and not self._include_usage
        tail = self._envelope.tail(self._usage(choice, delta.tokens), last)
        return self._open + self._choice(choice, delta) + tail

    def _choice(self, choice: Choice, delta: Delta) -> bytes:
        generation = self._generation
        ids = delta.token_ids if generation.return_token_ids else None
        if generation.tool is not None:
            return self._tool_choice(choice, delta, ids)
        if self._chat:
            return wire.chat_choice(
                choice.index, delta.text, self._logprobs(delta.logprobs, 0), delta.finish,
                delta.stop, ids,
            )  # fmt: skip
        first = choice.index not in self._started
        self._started.add(choice.index)
        text = delta.text
        if first and generation.echo:
            text = generation.prompt_texts[choice.prompt] + text
        # The real server sends the prompt's ids with an echo too.
        with_prompt = first and (generation.return_token_ids or generation.echo)
        offset = len(choice.text) - len(delta.text) if generation.logprobs is not None else 0
        return wire.completion_choice(
            choice.index, text, self._logprobs(delta.logprobs, offset), delta.finish, delta.stop,
            ids, generation.prompts[choice.prompt] if with_prompt else None,
        )  # fmt: skip

    def _tool_choice(self, choice: Choice, delta: Delta, ids: list[int] | None) -> bytes:
        function: dict[str, object] = {"arguments": delta.text}
        call: dict[str, object] = {"index": 0, "function": function}
        if choice.index not in self._started:
            self._started.add(choice.index)
            call = {
                "id": self._call_id(choice),
                "type": "function",
                "index": 0,
                "function": {"name": self._generation.tool, **function},
            }
        finish = self._finish(delta.finish)
        return wire.tool_choice(choice.index, call, self._logprobs(delta.logprobs, 0), finish, ids)

    def _call_id(self, choice: Choice) -> str:
        return f"chatcmpl-tool-{self._envelope.id[-16:]}{choice.index}"

    def _finish(self, finish: str | None) -> str | None:
        """A call that the model chose ends with tool_calls, a named one with stop, as in vLLM."""
        chosen = self._generation.tool is not None and not self._generation.tool_named
        return "tool_calls" if chosen and finish == "stop" else finish

    def _usage_event(self) -> bytes:
        flight = self._flight
        block = self._metrics()
        extra = b"" if block is None else b',"metrics":' + wire.dumps(_without_none(block))
        used = wire.chunk_usage(flight.prompt_tokens, flight.completion_tokens, False)
        return self._open + self._envelope.tail(used, True, extra)

    def _usage(self, choice: Choice, tokens: int) -> bytes:
        if not self._continuous:
            return b""
        prompt = len(self._generation.prompts[choice.prompt])
        return wire.chunk_usage(prompt, tokens, self._chat)

    # -- whole body -------------------------------------------------------------------------------

    def body(self) -> bytes:
        """The body of a finished flight."""
        flight, generation = self._flight, self._generation
        chat = self._chat
        choices = [self._whole(choice) for choice in flight.choices]
        ids = generation.prompts[0] if generation.return_token_ids else None
        return wire.body(
            self._envelope,
            choices,
            wire.usage(flight.prompt_tokens, flight.completion_tokens),
            self._metrics(),
            chat=chat,
            prompt_ids=ids,
        )

    def _whole(self, choice: Choice) -> dict[str, object]:
        generation = self._generation
        ids = choice.token_ids if generation.return_token_ids else None
        finish = choice.finish or "stop"
        logprobs = self._logprobs(choice.logprobs(), 0)
        if generation.tool is not None:
            function = {"name": generation.tool, "arguments": choice.text}
            call = {"id": self._call_id(choice), "type": "function", "function": function}
            done = self._finish(finish) or "stop"
            return wire.chat_message_choice(
                choice.index, None, logprobs, done, choice.stop, ids, [call]
            )
        if self._chat:
            return wire.chat_message_choice(
                choice.index, choice.text, logprobs, finish, choice.stop, ids
            )
        text = (generation.prompt_texts[choice.prompt] if generation.echo else "") + choice.text
        prompt = generation.prompts[choice.prompt] if generation.return_token_ids else None
        return wire.text_choice(choice.index, text, logprobs, finish, choice.stop, ids, prompt)

    # -- parts ------------------------------------------------------------------------------------

    def _prompt_ids(self, choice: Choice) -> Sequence[int] | None:
        generation = self._generation
        return generation.prompts[choice.prompt] if generation.return_token_ids else None

    def _logprobs(self, tokens: list[tuple[str, float]], offset: int) -> object:
        top = self._generation.logprobs
        if top is None:
            return None
        if self._chat:
            return wire.chat_logprobs(tokens, top)
        return wire.completion_logprobs(tokens, offset, top)

    def _metrics(self) -> dict[str, object] | None:
        """The response's `metrics`; vLLM gives it only for one prompt and n = 1."""
        if len(self._flight.choices) != 1:
            return None
        choice = self._flight.choices[0]
        block: dict[str, object] = {}
        if self._options.per_request_metrics:
            block |= timing(choice)
        # A stop string is found outside the engine, and the real server then has no block.
        if self._options.per_request_spec_decode_metrics != "none" and self._k and not choice.stop:
            detailed = self._options.per_request_spec_decode_metrics == "detailed"
            block["speculative_decoding"] = speculation(choice, self._k, detailed)
        return block or None


def _without_none(block: dict[str, object]) -> dict[str, object]:
    """Chunks leave absent values out; whole bodies say null."""
    return {
        key: _without_none(value) if isinstance(value, dict) else value
        for key, value in block.items()
        if value is not None
    }


def timing(choice: Choice) -> dict[str, object]:
    """Per-request times in milliseconds, model time."""
    sequence = choice.sequence
    first = sequence.first_s or sequence.arrival_s
    last = sequence.last_s or first
    scheduled = sequence.scheduled_s or first
    decode = last - first
    whole = last - sequence.arrival_s
    return {
        "time_to_first_token_ms": (first - sequence.arrival_s) * 1e3,
        "generation_time_ms": decode * 1e3,
        "queue_time_ms": (scheduled - sequence.arrival_s) * 1e3,
        "mean_itl_ms": decode * 1e3 / (choice.tokens - 1) if choice.tokens > 1 else None,
        "tokens_per_second": choice.tokens / whole if whole > 0 else 0.0,
    }


def speculation(choice: Choice, k: int, detailed: bool) -> dict[str, object]:
    """The `speculative_decoding` block: one entry per drafted step, counted before any cut."""
    accepted, drafted = choice.sequence.accepted_steps, choice.sequence.drafted_steps
    steps, total, proposed = len(accepted), sum(accepted), sum(drafted)
    histogram = [0] * (k + 1)
    for count in accepted:
        histogram[count] += 1
    return {
        "mean_acceptance_length": 1.0 + (total / steps if steps else 0.0),
        "draft_acceptance_rate": total / proposed if proposed else 0.0,
        "acceptance_histogram": histogram,
        "num_spec_steps": steps,
        "num_accepted_draft_tokens": total,
        "num_draft_tokens": proposed,
        "num_spec_tokens": k,
        "per_step_accepted": accepted if detailed and steps else None,
        "per_step_drafted": drafted if detailed and steps else None,
    }
