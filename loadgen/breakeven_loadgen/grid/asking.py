"""Small questions to an engine: identity, support probes, greedy answers. Counts come out.

Here: requests and what their answers show. Not here: what counts as broken (core quality), what
follows (judge). Answers are looked at and forgotten: nothing of a text is returned or stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import orjson

from breakeven import quality
from breakeven.errors import BreakevenError, EngineError
from breakeven.quality import Feature, Support
from breakeven_wire import Deadlines, EnginePool, Headers

ASK = Deadlines(connect_s=5.0, first_byte_s=120.0, idle_s=60.0, total_s=180.0)
PROBE_PROMPT = "Reply with one short sentence about the weather."
"""A fixed prompt of ours, the same for every arm."""
TOKENIZE_PROMPTS = ("The quick brown fox.", "Grüße, 世界! 12,345", "def f(x):\n    return x\n")
GREEDY_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Asker:
    """One engine that questions are put to."""

    pool: EnginePool
    headers: Headers
    model: str

    async def get(self, path: str) -> Any | None:
        """JSON of a GET; None where it is not there."""
        try:
            response = await self.pool.fetch("GET", path, self.headers, deadlines=ASK)
            return orjson.loads(response.body) if response.status == 200 else None
        except (EngineError, orjson.JSONDecodeError):
            return None

    async def post(self, path: str, body: dict[str, Any]) -> tuple[int | None, Any]:
        """(status, JSON) of a POST; (None, None) where no answer came. Error bodies are dropped."""
        try:
            response = await self.pool.fetch(
                "POST", path, self.headers, orjson.dumps({"model": self.model, **body}),
                deadlines=ASK,
            )  # fmt: skip
        except BreakevenError:
            return None, None
        if response.status != 200:
            return response.status, None
        try:
            return 200, orjson.loads(response.body)
        except orjson.JSONDecodeError:
            return 200, None

    async def chat(self, **extra: Any) -> tuple[int | None, Any]:
        """One chat answer to the probe prompt."""
        body = {
            "messages": [{"role": "user", "content": PROBE_PROMPT}],
            "max_tokens": 32,
            "temperature": 0.0,
            **extra,
        }
        return await self.post("/v1/chat/completions", body)


# --- identity -----------------------------------------------------------------------------------


async def identity(ask: Asker) -> dict[str, Any]:
    """What the engine shows of its target; null where it does not."""
    listed = await ask.get("/v1/models")
    cards = listed.get("data") if isinstance(listed, dict) else None
    card = next((c for c in cards or () if c.get("id") == ask.model), None) or {}
    version = await ask.get("/version")
    return {
        "model": card.get("root") or card.get("id"),
        "max_model_len": card.get("max_model_len"),
        "tokenize": await _tokenize_digest(ask),
        "sampling": None,  # default sampling is not exposed by an engine's public routes
        "version": version.get("version") if isinstance(version, dict) else None,
    }


async def _tokenize_digest(ask: Asker) -> str | None:
    """Digest of the token ids of our prompts, plain and through the chat template."""
    state = blake2b(digest_size=16)
    for prompt in TOKENIZE_PROMPTS:
        for body in ({"prompt": prompt}, {"messages": [{"role": "user", "content": prompt}]}):
            _, found = await ask.post("/tokenize", body)
            tokens = found.get("tokens") if isinstance(found, dict) else None
            if not isinstance(tokens, list):
                return None
            state.update(orjson.dumps(tokens))
    return state.hexdigest()


# --- support probes (L0) --------------------------------------------------------------------------

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "n": {"type": "integer"}},
    "required": ["ok", "n"],
    "additionalProperties": False,
}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


async def probes(ask: Asker, adapters: bool = False) -> dict[str, dict[str, str]]:
    """One row per feature: supported, failed or untested, with a detail that quotes no answer."""
    rows = {
        Feature.STRUCTURED_OUTPUT: await _structured(ask),
        Feature.TOOLS: await _tools(ask),
        Feature.N_CHOICES: await _choices(ask),
        Feature.LOGPROBS: await _logprobs(ask),
        Feature.STOP_STRINGS: await _stops(ask),
        Feature.MAX_TOKENS: await _max_tokens(ask),
        Feature.ADAPTERS: None if not adapters else await _adapters(ask),
    }
    return {
        feature.value: {"support": Support.UNTESTED.value, "detail": "no probe was asked for"}
        if found is None
        else {
            "support": (Support.FAILED if found else Support.SUPPORTED).value,
            "detail": found or "the answer kept its shape",
        }
        for feature, found in rows.items()
    }


def _first(found: Any) -> dict[str, Any]:
    choices = found.get("choices") if isinstance(found, dict) else None
    return choices[0] if choices else {}


async def _structured(ask: Asker) -> str:
    form = {"type": "json_schema", "json_schema": {"name": "probe", "schema": SCHEMA}}
    status, found = await ask.chat(response_format=form, max_tokens=128)
    if status != 200:
        return _refused(status)
    text = (_first(found).get("message") or {}).get("content")
    return quality.json_shape_fault(text or "", SCHEMA) or ""


async def _tools(ask: Asker) -> str:
    status, found = await ask.chat(tools=[TOOL], tool_choice="required", max_tokens=128)
    if status != 200:
        return _refused(status)
    calls = (_first(found).get("message") or {}).get("tool_calls") or []
    return quality.tool_call_fault(calls, ["get_weather"]) or ""


async def _choices(ask: Asker) -> str:
    status, found = await ask.chat(n=2, temperature=1.0)
    if status != 200:
        return _refused(status)
    count = len(found.get("choices") or ()) if isinstance(found, dict) else 0
    return "" if count == 2 else f"{count} choices where 2 were asked for"


async def _logprobs(ask: Asker) -> str:
    status, found = await ask.chat(logprobs=True, top_logprobs=2)
    if status != 200:
        return _refused(status)
    content = (_first(found).get("logprobs") or {}).get("content") or []
    usage = (found.get("usage") or {}).get("completion_tokens")
    if not content:
        return "no logprobs in the answer"
    if usage is not None and len(content) != usage:
        return f"{len(content)} logprobs for {usage} tokens"
    return ""


async def _stops(ask: Asker) -> str:
    status, found = await ask.chat(stop=[" ", "e"], max_tokens=64)
    if status != 200:
        return _refused(status)
    choice = _first(found)
    text = (choice.get("message") or {}).get("content") or ""
    return quality.stop_fault(text, [" ", "e"], choice.get("finish_reason")) or ""


async def _max_tokens(ask: Asker) -> str:
    for asked in (1, 2, 3, 5):
        status, found = await ask.chat(max_tokens=asked)
        if status != 200:
            return _refused(status)
        tokens = (found.get("usage") or {}).get("completion_tokens") if found else None
        fault = quality.max_tokens_fault(tokens, asked, _first(found).get("finish_reason"))
        if fault:
            return fault
    return ""


async def _adapters(ask: Asker) -> str:
    listed = await ask.get("/v1/models")
    cards = listed.get("data") if isinstance(listed, dict) else []
    return "" if any(card.get("parent") for card in cards or ()) else "no adapter is served"


def _refused(status: int | None) -> str:
    return "no answer" if status is None else f"refused with status {status}"


# --- greedy answers (L1 and guards) ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Greedy:
    """Token ids of one greedy answer and, per position, best minus second-best log-probability."""

    tokens: tuple[int, ...]
    gaps: tuple[float, ...] | None
    finish: str | None


async def greedy(ask: Asker, messages: list[dict[str, Any]], tokens: int) -> Greedy | None:
    """One greedy answer with its token ids; None where the engine gives none."""
    body = {"messages": messages, "max_tokens": tokens, "temperature": 0.0,
            "return_token_ids": True, "logprobs": True, "top_logprobs": 2}  # fmt: skip
    status, found = await ask.post("/v1/chat/completions", body)
    if status != 200:
        body = {k: v for k, v in body.items() if not k.endswith("logprobs")}
        status, found = await ask.post("/v1/chat/completions", body)
    choice = _first(found) if status == 200 else {}
    ids = choice.get("token_ids")
    if not isinstance(ids, list):
        return None
    return Greedy(tuple(ids), _gaps(choice), choice.get("finish_reason"))


def _gaps(choice: dict[str, Any]) -> tuple[float, ...] | None:
    content = (choice.get("logprobs") or {}).get("content") or []
    out = []
    for one in content:
        tops = sorted((t.get("logprob", 0.0) for t in one.get("top_logprobs") or ()), reverse=True)
        out.append(tops[0] - tops[1] if len(tops) > 1 else float("inf"))
    return tuple(out) or None
