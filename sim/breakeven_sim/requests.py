"""What a client asked for: bodies of the three generating routes, read and checked as vLLM does.

Raises ApiError with vLLM's status, type and param. Messages here may quote a parameter's value,
as vLLM's do; they never quote a prompt.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import orjson

from . import structured, text

Endpoint = Literal["chat", "completions", "responses"]
BAD_REQUEST = "BadRequestError"
INVALID = "Bad Request"


class ApiError(Exception):
    """An HTTP error with an OpenAI error body."""

    def __init__(self, status: int, kind: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.kind, self.message, self.param = status, kind, message, param


@dataclass(frozen=True, slots=True)
class Generation:
    """A checked request. `prompts` are token ids; `max_tokens` is resolved against the context."""

    endpoint: Endpoint
    prompts: tuple[tuple[int, ...], ...]
    prompt_texts: tuple[str, ...]
    max_tokens: int
    n: int = 1
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    min_tokens: int = 0
    ignore_eos: bool = False
    temperature: float = 1.0
    seed: int | None = None
    stops: tuple[str, ...] = ()
    include_stop: bool = False
    logprobs: int | None = None
    return_token_ids: bool = False
    echo: bool = False
    stream_interval: int = 1
    request_id: str | None = None
    fixed: tuple[str, ...] | None = None
    tool: str | None = None
    tool_named: bool = False
    requested_max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """What the server allows."""

    models: tuple[str, ...]
    max_model_len: int
    tool_calls: bool = False


@dataclass(slots=True)
class _Body:
    """Typed access to a JSON object; a wrong type is a validation error that names its path."""

    values: Mapping[str, object] = field(default_factory=dict)

    def integer(self, key: str, default: int | None = None) -> int | None:
        value = self.values.get(key)
        if value is None:
            return default
        if isinstance(value, str) and re.fullmatch(r"[+-]?\d+", value):
            return int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise _validation(
                "int_parsing",
                f"body.{key}",
                "Input should be a valid integer, unable to parse string as an integer",
            )
        return value

    def number(self, key: str, default: float) -> float:
        value = self.values.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _validation("float_type", f"body.{key}", "Input should be a valid number")
        return float(value)

    def flag(self, key: str) -> bool:
        value = self.values.get(key)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise _validation("bool_type", f"body.{key}", "Input should be a valid boolean")
        return value

    def text(self, key: str) -> str | None:
        value = self.values.get(key)
        return value if isinstance(value, str) else None


def _validation(kind: str, where: str, message: str) -> ApiError:
    detail = f"1 validation error:\n  {{'type': '{kind}', 'loc': '{where}', 'msg': '{message}'}}"
    return ApiError(400, INVALID, detail, where)


def _refused(message: str, param: str | None) -> ApiError:
    return ApiError(400, BAD_REQUEST, message, param)


def read_body(raw: bytes, content_type: str) -> Mapping[str, object]:
    """The JSON object of a POST, or the ApiError that vLLM answers."""
    if raw and not content_type.startswith("application/json"):
        raise ApiError(
            400,
            INVALID,
            "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed",
        )
    if not raw:
        raise _validation("missing", "body", "Field required")
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise _validation("json_invalid", f"body.{error.pos}", "JSON decode error") from None
    if not isinstance(value, dict):
        raise _validation("model_attributes_type", "body", "Input should be a valid dictionary")
    return value


def parse(endpoint: Endpoint, values: Mapping[str, object], limits: Limits) -> Generation:
    """Check a body and resolve its defaults."""
    body = _Body(values)
    messages = _messages(endpoint, values)
    max_tokens = _asked_tokens(endpoint, body)
    temperature = body.number("temperature", 1.0)
    if temperature < 0:
        raise _refused(
            f"temperature must be non-negative, got {temperature}. "
            f"(parameter=temperature, value={temperature})",
            "temperature",
        )
    stream = body.flag("stream")
    options = values.get("stream_options")
    if options is not None and not stream:
        raise _refused(
            "Stream options can only be defined when `stream=True`. (parameter=stream_options)",
            "stream_options",
        )
    option = _Body(options if isinstance(options, dict) else {})
    model = body.text("model")
    if model is not None and model not in limits.models:
        raise ApiError(
            404,
            "NotFoundError",
            f"The model `{model}` does not exist. Valid aliases: {', '.join(limits.models)}.",
            "model",
        )
    tool = _tool(values, limits) if endpoint == "chat" else None
    n = body.integer("n", 1) or 0
    if n < 1:
        raise _refused(f"n must be at least 1, got {n}.", None)
    prompts, prompt_texts = _prompts(endpoint, values, messages)
    max_tokens, asked = _resolve_tokens(prompts, max_tokens, limits), max_tokens
    return Generation(
        endpoint=endpoint,
        prompts=prompts,
        prompt_texts=prompt_texts,
        max_tokens=max_tokens,
        n=n,
        stream=stream,
        include_usage=option.flag("include_usage"),
        continuous_usage=option.flag("include_usage") and option.flag("continuous_usage_stats"),
        min_tokens=body.integer("min_tokens", 0) or 0,
        ignore_eos=body.flag("ignore_eos"),
        temperature=temperature,
        seed=body.integer("seed"),
        stops=_stops(values.get("stop")),
        include_stop=body.flag("include_stop_str_in_output"),
        logprobs=_logprobs(endpoint, body),
        return_token_ids=body.flag("return_token_ids"),
        echo=endpoint != "responses" and body.flag("echo"),
        stream_interval=max(1, body.integer("stream_interval", 1) or 1),
        request_id=body.text("request_id"),
        fixed=_structured(values) if tool is None else structured.arguments(tool),
        tool=None if tool is None else structured.tool_name(tool),
        tool_named=isinstance(values.get("tool_choice"), dict),
        requested_max_tokens=asked,
    )


def _messages(endpoint: Endpoint, values: Mapping[str, object]) -> list[Mapping[str, object]]:
    if endpoint == "completions":
        return []
    key = "messages" if endpoint == "chat" else "input"
    given = values.get(key)
    if given is None:
        raise _validation("missing", f"body.{key}", "Field required")
    if endpoint == "responses" and isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list):
        raise _validation("list_type", f"body.{key}", "Input should be a valid list")
    messages: list[Mapping[str, object]] = [m for m in given if isinstance(m, dict)]
    if not messages or len(messages) != len(given):
        raise _refused("Each message must be an object with a role and content.", key)
    return messages


def _asked_tokens(endpoint: Endpoint, body: _Body) -> int | None:
    if endpoint == "responses":
        return body.integer("max_output_tokens")
    if endpoint == "chat":
        return body.integer("max_completion_tokens", body.integer("max_tokens"))
    return body.integer("max_tokens", 16)


def _prompts(
    endpoint: Endpoint, values: Mapping[str, object], messages: Sequence[Mapping[str, object]]
) -> tuple[tuple[tuple[int, ...], ...], tuple[str, ...]]:
    if endpoint != "completions":
        return (tuple(text.encode_chat(messages)),), ("",)
    given = values.get("prompt")
    if given is None or given in ("", []):
        raise _refused(
            "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)",
            "prompt",
        )
    if isinstance(given, str) or (isinstance(given, list) and isinstance(given[0], int)):
        given = [given]
    if not isinstance(given, list):
        raise _validation("string_type", "body.prompt", "Input should be a valid string or list")
    pairs = [_prompt(item) for item in given]
    return tuple(ids for ids, _ in pairs), tuple(words for _, words in pairs)


def _prompt(item: object) -> tuple[tuple[int, ...], str]:
    if isinstance(item, str) and item:
        return tuple(text.encode(item)), item
    if isinstance(item, list) and item and all(type(i) is int and i >= 0 for i in item):
        return tuple(item), " ".join(f"<{i}>" for i in item)
    raise _validation(
        "string_type", "body.prompt", "Input should be non-empty text, token ids, or lists of them"
    )


def _resolve_tokens(
    prompts: Sequence[Sequence[int]], max_tokens: int | None, limits: Limits
) -> int:
    longest, room = max(len(p) for p in prompts), limits.max_model_len
    if max_tokens is not None and max_tokens < 1:
        raise _refused(
            f"max_tokens must be at least 1, got {max_tokens}. "
            f"(parameter=max_tokens, value={max_tokens})",
            "max_tokens",
        )
    if max_tokens is not None and max_tokens > room:
        raise _refused(
            f"max_tokens={max_tokens} cannot be greater than max_model_len={room}. "
            f"Please request fewer output tokens. (parameter=max_tokens, value={max_tokens})",
            "max_tokens",
        )
    if longest + (max_tokens or 1) > room:
        raise _refused(
            f"This model's maximum context length is {room} tokens. However, your prompt contains "
            f"at least {longest} input tokens and asks for {max_tokens or 1} output tokens. "
            f"Please reduce the length of the input prompt or of the output. "
            f"(parameter=input_tokens, value={longest})",
            "input_tokens",
        )
    return max_tokens if max_tokens is not None else room - longest


def _stops(given: object) -> tuple[str, ...]:
    if isinstance(given, str):
        given = [given]
    if not isinstance(given, list):
        return ()
    return tuple(s for s in given if isinstance(s, str) and s)


def _logprobs(endpoint: Endpoint, body: _Body) -> int | None:
    if endpoint == "completions":
        return body.integer("logprobs")
    if endpoint == "chat" and body.flag("logprobs"):
        return body.integer("top_logprobs", 0)
    return None


def _tool(values: Mapping[str, object], limits: Limits) -> Mapping[str, object] | None:
    """The tool that the answer calls: the named one, else the first. None: an answer in words."""
    tools, choice = values.get("tools"), values.get("tool_choice", "auto")
    if not isinstance(tools, list) or not tools or choice in (None, "none"):
        return None
    if not limits.tool_calls and choice == "auto":
        raise _refused(
            '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser '
            "to be set",
            None,
        )
    if not limits.tool_calls:
        raise _refused("tool_choice requires --tool-call-parser to be set", None)
    named = choice.get("function") if isinstance(choice, dict) else None
    name = named.get("name") if isinstance(named, dict) else None
    for tool in tools:
        if isinstance(tool, dict) and name in (None, structured.tool_name(tool)):
            return tool
    raise _refused("The tool of tool_choice is not among the tools.", "tool_choice")


def _structured(values: Mapping[str, object]) -> tuple[str, ...] | None:
    try:
        return structured.answer(values)
    except structured.GrammarError as error:
        raise _refused(f"Grammar error: {error}", None) from None
