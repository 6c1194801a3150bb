"""What one SSE event or one JSON body of an OpenAI-style engine says, without its text.

Reads `/v1/chat/completions`, `/v1/completions` and `/v1/responses`, streamed and whole. What
comes out holds counts, flags and words from closed sets only: content, reasoning, tool arguments,
token ids, logprobs and error messages are looked at and dropped; an error's type and a finish
reason are kept only if they are words of the protocol. Sources: vLLM 0.32 as recorded in
tests/data/vllm, OpenAI API reference. Not here: adding up a stream (`breakeven.stream`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import orjson

from .value import value

Endpoint = Literal["chat", "completions", "responses"]

OUTPUT: Final = 1
"""Flag: the delta carries output that is not reasoning."""
REASONING: Final = 2
"""Flag: the delta carries reasoning."""

DELTA_FIELDS: Final = {
    "content": OUTPUT,
    "refusal": OUTPUT,
    "tool_calls": OUTPUT,  # content is null beside it
    "function_call": OUTPUT,
    "reasoning": REASONING,
    "reasoning_content": REASONING,
}
"""Fields of a chat delta (or message) whose non-empty value is made of new tokens."""

FINISH_REASONS: Final = frozenset(
    {
        "stop", "length", "tool_calls", "function_call", "content_filter",
        "abort", "error", "repetition",
    }
)  # fmt: skip
OTHER: Final = "other"
"""Stands for a word of the engine that is none we know: it might be anything, so it is not kept."""

ERROR_TYPES: Final = frozenset(
    {
        "BadRequestError", "Bad Request", "invalid_request_error", "NotFoundError", "Not Found",
        "InternalServerError", "Internal Server Error", "server_error", "Service Unavailable",
        "ServiceUnavailableError", "service_unavailable_error", "engine_error", "GenerationError",
        "rate_limit_error", "rate_limit_exceeded", "requests", "tokens", "insufficient_quota",
        "authentication_error", "permission_error", "overloaded_error", "timeout",
        "NotImplementedError", "UnprocessableEntityError", "ClientDisconnected",
    }
)  # fmt: skip
_FINGERPRINT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}\Z")
_INCOMPLETE: Final = {"max_output_tokens": "length", "content_filter": "content_filter"}
_TERMINAL: Final = frozenset({"response.completed", "response.incomplete", "response.failed"})


@value
class Usage:
    """Token counts as the engine states them (`usage`); None where it states none."""

    prompt_tokens: int | None
    completion_tokens: int | None
    reasoning_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """An error frame or body: its code (an int below 1000) and type (a word of the protocol)."""

    code: int | None
    type: str | None


@dataclass(frozen=True, slots=True)
class SpecBlock:
    """`metrics.speculative_decoding` of vLLM (--per-request-spec-decode-metrics; n = 1 only).

    A cycle here is a *drafted* verification step: steps without a draft are not in the block.
    `by_accepted_length[i]` counts cycles in which i draft tokens were accepted.
    """

    cycles: int
    drafted: int
    accepted: int
    by_accepted_length: tuple[int, ...]
    k: int | None

    @property
    def committed(self) -> int:
        """Tokens committed in the drafted cycles: accepted + 1 each, before a stop cuts any."""
        return self.accepted + self.cycles


@value
class ChoiceDelta:
    """What one choice of one chunk adds.

    `tokens` is the chunk's own count (length of `token_ids`, else of the logprobs) or None;
    cumulative usage is the chunk's `usage`. `has_token` says that visible output came with it.
    """

    index: int
    tokens: int | None
    has_token: bool
    reasoning: bool
    finish_reason: str | None


@value
class Chunk:
    """One SSE data event, without its text.

    `done`: `data: [DONE]`, or the terminal event of /v1/responses. `malformed`: not JSON, or not
    of a shape that the API has.
    """

    choices: tuple[ChoiceDelta, ...] = ()
    usage: Usage | None = None
    spec: SpecBlock | None = None
    error: ErrorInfo | None = None
    system_fingerprint: str | None = None
    done: bool = False
    malformed: bool = False


@value
class Body:
    """One JSON body of a request that was not streamed, without its text.

    `empty`: no choice holds any output. `malformed`: no JSON object of the API, or the arguments
    of a tool call that are no JSON. `finish_reasons`: one a choice, None where it is null.
    """

    usage: Usage | None = None
    spec: SpecBlock | None = None
    error: ErrorInfo | None = None
    system_fingerprint: str | None = None
    finish_reasons: tuple[str | None, ...] = field(default=())
    empty: bool = True
    malformed: bool = False


MALFORMED: Final = Chunk(malformed=True)


def parse_chunk(data: bytes) -> Chunk:
    """Read the data of one SSE event. Never raises: what cannot be read is `malformed`."""
    if data == b"[DONE]":
        return Chunk(done=True)
    try:
        return chunk_of(orjson.loads(data))
    except (ValueError, TypeError, AttributeError, KeyError):
        return MALFORMED


def chunk_of(obj: dict[str, Any]) -> Chunk:
    """The same of a parsed object.

    Raises:
        TypeError, AttributeError, KeyError: the object is not of a shape that the API has.
    """
    error = read_error(obj)
    if error is not None:
        return Chunk(error=error)
    kind = obj.get("type")
    if isinstance(kind, str) and kind.startswith("response."):
        return _response_event(kind, obj)
    return Chunk(
        choices=tuple(
            ChoiceDelta(index, tokens, seen != 0, seen == REASONING, finish)
            for index, seen, tokens, finish in map(read_choice, obj.get("choices") or ())
        ),
        usage=read_usage(obj.get("usage")),
        spec=read_spec(obj.get("metrics")),
        system_fingerprint=read_fingerprint(obj.get("system_fingerprint")),
    )


def read_choice(choice: dict[str, Any]) -> tuple[int, int, int | None, str | None]:
    """(index, OUTPUT | REASONING flags, own token count or None, finish reason or None).

    The one place that decides what counts as output; the hot path of the observer calls it too.
    """
    seen = 0
    delta = choice.get("delta")
    if delta is not None:
        if len(delta) == 1 and delta.get("content"):  # nearly every chunk
            seen = OUTPUT
        else:
            for name, value in delta.items():
                if value:
                    seen |= DELTA_FIELDS.get(name, 0)
    elif choice.get("text"):
        seen = OUTPUT
    ids = choice.get("token_ids")
    if ids is not None:
        tokens: int | None = len(ids)
    else:
        logprobs = choice.get("logprobs")
        tokens = None if logprobs is None else _logprobs_length(logprobs, choice)
    finish = choice.get("finish_reason")
    if finish is not None and finish not in FINISH_REASONS:
        finish = OTHER
    return choice.get("index", 0), seen, tokens, finish


def read_usage(usage: dict[str, Any] | None) -> Usage | None:
    """`usage` of chat, completions (prompt/completion) or responses (input/output)."""
    if not usage:
        return None
    if "output_tokens" in usage:
        details = usage.get("output_tokens_details")
        prompt, completion = usage.get("input_tokens"), usage["output_tokens"]
    else:
        details = usage.get("completion_tokens_details")
        prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
    reasoning = details.get("reasoning_tokens") if details else None
    return Usage(_count(prompt), _count(completion), _count(reasoning))


def read_error(obj: dict[str, Any]) -> ErrorInfo | None:
    """The error of a frame or body: `{"error": …}`, `{"object": "error"}`, `{"type": "error"}`."""
    error = obj.get("error")
    if not error:
        if obj.get("object") != "error" and obj.get("type") != "error":
            return None
        error = obj
    if not isinstance(error, dict):
        return ErrorInfo(None, None)
    code, kind = error.get("code"), error.get("type")
    return ErrorInfo(
        code if isinstance(code, int) and 0 <= code < 1000 else None,
        None if kind is None else kind if str(kind) in ERROR_TYPES else OTHER,
    )


def read_spec(metrics: dict[str, Any] | None) -> SpecBlock | None:
    """`metrics.speculative_decoding`; None when the engine sends none."""
    block = metrics.get("speculative_decoding") if metrics else None
    if not block:
        return None
    histogram = block.get("acceptance_histogram") or ()
    return SpecBlock(
        cycles=int(block["num_spec_steps"]),
        drafted=int(block["num_draft_tokens"]),
        accepted=int(block["num_accepted_draft_tokens"]),
        by_accepted_length=tuple(int(count) for count in histogram),
        k=_count(block.get("num_spec_tokens")),
    )


def read_fingerprint(value: object) -> str | None:
    """The engine's `system_fingerprint`, if it looks like one."""
    return value if isinstance(value, str) and _FINGERPRINT.match(value) else None


def parse_body(data: bytes) -> Body:
    """Read a whole JSON body. Never raises: what cannot be read is `malformed`."""
    try:
        obj = orjson.loads(data)
        error = read_error(obj)
        if error is not None:
            return Body(error=error)
        return _response_body(obj) if obj.get("object") == "response" else _choices_body(obj)
    except (ValueError, TypeError, AttributeError, KeyError):
        return Body(malformed=True)


def _choices_body(obj: dict[str, Any]) -> Body:
    choices = obj["choices"]
    read = [read_choice({**choice, "delta": choice.get("message")}) for choice in choices]
    return Body(
        usage=read_usage(obj.get("usage")),
        spec=read_spec(obj.get("metrics")),
        system_fingerprint=read_fingerprint(obj.get("system_fingerprint")),
        finish_reasons=tuple(finish for _, _, _, finish in read),
        empty=not any(seen for _, seen, _, _ in read),
        malformed=not all(_tool_calls_parse(choice.get("message")) for choice in choices),
    )


def _response_body(obj: dict[str, Any]) -> Body:
    output = obj.get("output") or ()
    return Body(
        usage=read_usage(obj.get("usage")),
        spec=read_spec(obj.get("metrics")),
        finish_reasons=(_response_finish(obj),),
        empty=not any(_item_output(item) for item in output),
        malformed=not all(
            _is_json(item.get("arguments")) for item in output if item["type"] == "function_call"
        ),
    )


def _response_event(kind: str, obj: dict[str, Any]) -> Chunk:
    """An event of /v1/responses. Items follow each other, so all of them are choice 0."""
    if kind in _TERMINAL:
        response = obj["response"]
        error = read_error(response)
        if error is None and kind == "response.failed":
            error = ErrorInfo(None, None)
        return Chunk(
            choices=(ChoiceDelta(0, None, False, False, _response_finish(response)),),
            usage=read_usage(response.get("usage")),
            spec=read_spec(response.get("metrics")),
            error=error,
            done=True,
        )
    if not kind.endswith(".delta") or not obj.get("delta"):
        return Chunk()
    tokens = len(obj.get("logprobs") or ()) or None
    reasoning = "reasoning" in kind
    return Chunk(choices=(ChoiceDelta(0, tokens, True, reasoning, None),))


def _response_finish(response: dict[str, Any]) -> str | None:
    """The finish reason that chat would give: vLLM ends with `completed` and status incomplete."""
    status = response.get("status")
    if status == "completed":
        return "stop"
    if status == "incomplete":
        reason = (response.get("incomplete_details") or {}).get("reason")
        return _INCOMPLETE.get(str(reason), OTHER)
    return None


def _item_output(item: dict[str, Any]) -> bool:
    if item["type"] in ("message", "reasoning"):
        parts = [*(item.get("content") or ()), *(item.get("summary") or ())]
        return any(part.get("text") or part.get("refusal") for part in parts)
    return True  # a call of a function or tool


def _logprobs_length(logprobs: dict[str, Any], choice: dict[str, Any]) -> int | None:
    """Tokens that the logprobs list; None when they list none.

    With `echo` the first completions chunk lists the prompt's tokens before the new ones, and
    vLLM sends `prompt_token_ids` in the same chunk: those are no output.
    """
    listed = logprobs.get("tokens")  # completions
    if listed is None:
        listed = logprobs.get("content") or logprobs.get("refusal")  # chat
    if not listed:
        return None
    prompt = choice.get("prompt_token_ids")
    tokens = len(listed) - (len(prompt) if prompt else 0)
    return tokens if tokens >= 0 else None


def _tool_calls_parse(message: dict[str, Any] | None) -> bool:
    calls = message.get("tool_calls") if message else None
    return all(
        _is_json(call["function"]["arguments"]) for call in calls or () if "function" in call
    )


def _is_json(text: str | None) -> bool:
    try:
        orjson.loads(text or "")
    except ValueError:
        return False
    return True


def _count(value: object) -> int | None:
    """A token count, or None: absent is not zero."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    return None
