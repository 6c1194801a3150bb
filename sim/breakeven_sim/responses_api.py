"""The /v1/responses route: its event sequence and its body, as vLLM 0.32 writes them."""

from __future__ import annotations

from collections.abc import Iterator

from . import wire
from .answers import timing
from .generation import Choice, Delta, Flight
from .wire import Envelope, Json


class ResponsesAnswer:
    """Writes one response object; events are named and numbered."""

    def __init__(self, flight: Flight, envelope: Envelope, with_metrics: bool) -> None:
        self._flight = flight
        self._envelope = envelope
        self._with_metrics = with_metrics
        self._item = f"msg_{envelope.id.removeprefix('resp_')}"
        self._sequence = 0

    def role_events(self) -> Iterator[bytes]:
        """The four events before the first text."""
        for kind in ("response.created", "response.in_progress"):
            yield self._event(kind, {"response": self._response("in_progress", [])})
        item = self._message([], "in_progress")
        yield self._event("response.output_item.added", {"item": item, "output_index": 0})
        part = {"annotations": [], "text": "", "type": "output_text", "logprobs": []}
        yield self._event("response.content_part.added", self._at({"part": part}))

    def events(self, _: Choice, delta: Delta) -> Iterator[bytes]:
        """The text of one delivery; an end-of-sequence token alone adds none."""
        if delta.text:
            text = {"delta": delta.text, "logprobs": []}
            yield self._event("response.output_text.delta", self._at(text))

    def closing(self) -> Iterator[bytes]:
        """The four events after the last text; no [DONE] here."""
        choice = self._flight.choices[0]
        done = {"logprobs": [], "text": choice.text}
        yield self._event("response.output_text.done", self._at(done))
        part = self._part(choice)
        yield self._event("response.content_part.done", self._at({"part": part}))
        item = self._message([part], "completed")
        yield self._event("response.output_item.done", {"item": item, "output_index": 0})
        yield self._event("response.completed", {"response": self._finished(choice)})

    def body(self) -> bytes:
        """The whole response of a finished flight."""
        return wire.dumps(self._finished(self._flight.choices[0]))

    def _event(self, kind: str, fields: Json) -> bytes:
        numbered = dict(sorted({**fields, "sequence_number": self._sequence, "type": kind}.items()))
        self._sequence += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), wire.dumps(numbered))

    def _at(self, fields: Json) -> Json:
        place = {"content_index": 0, "item_id": self._item, "output_index": 0}
        return {**place, **fields}

    def _part(self, choice: Choice) -> dict[str, object]:
        return {"annotations": [], "text": choice.text, "type": "output_text", "logprobs": None}

    def _message(self, content: list[object], status: str) -> dict[str, object]:
        return {
            "id": self._item,
            "content": content,
            "role": "assistant",
            "status": status,
            "type": "message",
            "phase": None,
        }

    def _finished(self, choice: Choice) -> dict[str, object]:
        cut = choice.finish == "length"
        output: list[object] = [self._message([self._part(choice)], "completed")]
        response = self._response("incomplete" if cut else "completed", output)
        if cut:
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        prompt, tokens = self._flight.prompt_tokens, choice.tokens
        response["usage"] = {
            "input_tokens": prompt,
            "input_tokens_details": {
                "cached_tokens": choice.sequence.cached_tokens,
                "cache_write_tokens": 0,
                "input_tokens_per_turn": [],
                "cached_tokens_per_turn": [],
            },
            "output_tokens": tokens,
            "output_tokens_details": {
                "reasoning_tokens": 0,
                "tool_output_tokens": 0,
                "output_tokens_per_turn": [],
                "tool_output_tokens_per_turn": [],
            },
            "total_tokens": prompt + tokens,
        }
        if not self._with_metrics:
            return response
        # The real one has its place after `user`, and no speculation block on this route.
        metrics = {**timing(choice), "speculative_decoding": None}
        items = list(response.items())
        at = [key for key, _ in items].index("user") + 1
        return dict([*items[:at], ("metrics", metrics), *items[at:]])

    def _response(self, status: str, output: list[object]) -> dict[str, object]:
        generation = self._flight.generation
        return {
            "id": self._envelope.id,
            "created_at": self._envelope.created,
            "incomplete_details": None,
            "instructions": None,
            "metadata": None,
            "model": self._envelope.model,
            "object": "response",
            "output": output,
            "parallel_tool_calls": True,
            "temperature": generation.temperature,
            "tool_choice": "none",
            "tools": [],
            "top_p": 1.0,
            "background": False,
            "max_output_tokens": generation.max_tokens,
            "max_tool_calls": None,
            "previous_response_id": None,
            "prompt": None,
            "reasoning": None,
            "service_tier": "auto",
            "status": status,
            "text": None,
            "top_logprobs": None,
            "truncation": "disabled",
            "usage": None,
            "user": None,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "input_messages": None,
            "output_messages": None,
        }
