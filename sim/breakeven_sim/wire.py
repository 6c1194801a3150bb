"""Response bytes as vLLM 0.32 writes them: chunk fields in their order, SSE frames, bodies.

Compared with recordings in tests/data/vllm by tests/sim/test_contract.py. No HTTP here, no state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import orjson

VLLM_VERSION = "0.32.0"
VERSION = f"{VLLM_VERSION}+breakeven.sim"
DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"

Json = Mapping[str, object]


def dumps(value: object) -> bytes:
    """Compact JSON as pydantic writes it: UTF-8, no spaces."""
    return orjson.dumps(value)


def frame(payload: bytes) -> bytes:
    """One SSE data event."""
    return b"data: " + payload + b"\n\n"


def error_frame(message: str, kind: str, code: int) -> bytes:
    """The frame of an engine failure after 200; vLLM writes this one with json.dumps' spaces."""
    return b'data: {"error": {"message": %b, "type": %b, "param": null, "code": %d}}\n\n' % (
        dumps(message),
        dumps(kind),
        code,
    )


@dataclass(frozen=True, slots=True)
class Envelope:
    """What is the same in every chunk of one response."""

    id: str
    object: str
    created: int
    model: str
    fingerprint: str

    def open(self) -> bytes:
        """The chunk up to the choices."""
        return b'data: {"id":%b,"object":"%b","created":%d,"model":%b,"choices":[' % (
            dumps(self.id),
            self.object.encode(),
            self.created,
            dumps(self.model),
        )

    def tail(self, usage: bytes, fingerprint: bool, extra: bytes = b"") -> bytes:
        """The chunk after its choices: usage, fingerprint, what follows."""
        mark = b',"system_fingerprint":%b' % dumps(self.fingerprint) if fingerprint else b""
        return b"]" + usage + mark + extra + b"}\n\n"


def chat_role(index: int) -> bytes:
    """The choice of the role event that opens a chat stream."""
    return (
        b'{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,'
        b'"finish_reason":null}' % index
    )


def chat_role_extra(prompt_ids: Sequence[int] | None) -> bytes:
    """The two prompt fields that end a role event."""
    return b',"prompt_token_ids":%b,"prompt_text":null' % _ids(prompt_ids)


def chat_choice(
    index: int,
    text: str,
    logprobs: object,
    finish: str | None,
    stop: str | None,
    token_ids: Sequence[int] | None,
) -> bytes:
    """The choice of a chat chunk; `stop_reason` appears only on the last one."""
    end = b'"finish_reason":null' if finish is None else _finish(finish, stop)
    return b'{"index":%d,"delta":{"content":%b},"logprobs":%b,%b,"token_ids":%b}' % (
        index,
        dumps(text),
        _json(logprobs),
        end,
        _ids(token_ids),
    )


def tool_choice(
    index: int, call: Json, logprobs: object, finish: str | None, token_ids: Sequence[int] | None
) -> bytes:
    """The choice of a chat chunk that carries a part of a tool call: its content is null."""
    end = b'"finish_reason":null' if finish is None else _finish(finish, None)
    return (
        b'{"index":%d,"delta":{"content":null,"tool_calls":[%b]},"logprobs":%b,%b,"token_ids":%b}'
        % (index, dumps(call), _json(logprobs), end, _ids(token_ids))
    )


def completion_choice(
    index: int,
    text: str,
    logprobs: object,
    finish: str | None,
    stop: str | None,
    token_ids: Sequence[int] | None,
    prompt_ids: Sequence[int] | None,
) -> bytes:
    """The choice of a completions chunk."""
    return b'{"index":%d,"text":%b,"logprobs":%b,%b,"prompt_token_ids":%b,"token_ids":%b}' % (
        index,
        dumps(text),
        _json(logprobs),
        _finish(finish, stop),
        _ids(prompt_ids),
        _ids(token_ids),
    )


def chunk_usage(prompt: int, completion: int, details: bool) -> bytes:
    """The running usage of one choice; chat chunks carry a null `completion_tokens_details`."""
    end = b',"completion_tokens_details":null' if details else b""
    return b',"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d%b}' % (
        prompt,
        prompt + completion,
        completion,
        end,
    )


def usage(prompt: int, completion: int) -> dict[str, object]:
    """The usage of a whole body."""
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": None,
        "completion_tokens_details": None,
    }


def chat_message_choice(
    index: int,
    text: str | None,
    logprobs: object,
    finish: str,
    stop: str | None,
    ids: object,
    calls: Sequence[Json] = (),
) -> dict[str, object]:
    """One choice of a whole chat body."""
    message: dict[str, object] = {
        "role": "assistant",
        "content": text,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "reasoning": None,
    }
    if calls:
        message["tool_calls"] = list(calls)
    return {
        "index": index,
        "message": message,
        "logprobs": logprobs,
        "finish_reason": finish,
        "stop_reason": stop,
        "token_ids": ids,
        "routed_experts": None,
    }


def text_choice(
    index: int,
    text: str,
    logprobs: object,
    finish: str,
    stop: str | None,
    ids: object,
    prompt_ids: object,
) -> dict[str, object]:
    """One choice of a whole completions body."""
    return {
        "index": index,
        "text": text,
        "logprobs": logprobs,
        "finish_reason": finish,
        "stop_reason": stop,
        "token_ids": ids,
        "prompt_logprobs": None,
        "prompt_token_ids": prompt_ids,
        "routed_experts": None,
    }


def body(
    envelope: Envelope,
    choices: Sequence[Json],
    used: Json,
    metrics: object,
    *,
    chat: bool,
    prompt_ids: object = None,
) -> bytes:
    """A whole (non-stream) body."""
    prompt = (
        {"prompt_logprobs": None, "prompt_token_ids": prompt_ids, "prompt_text": None}
        if chat
        else {}
    )
    return dumps(
        {
            "id": envelope.id,
            "object": envelope.object,
            "created": envelope.created,
            "model": envelope.model,
            "choices": list(choices),
            "service_tier": None,
            "system_fingerprint": envelope.fingerprint,
            "usage": used,
            **prompt,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": metrics,
        }
    )


def error_body(message: str, kind: str, param: str | None, code: int) -> bytes:
    """An error body."""
    return dumps({"error": {"message": message, "type": kind, "param": param, "code": code}})


def chat_logprobs(tokens: Sequence[tuple[str, float]], top: int) -> dict[str, object]:
    """The chat form: one entry per token with `top` alternatives (the chosen one first)."""

    def entry(text: str, logprob: float) -> dict[str, object]:
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}

    return {
        "content": [
            {
                **entry(text, value),
                "top_logprobs": [
                    entry(text if i == 0 else f"{text}~{i}", value - i) for i in range(top)
                ],
            }
            for text, value in tokens
        ]
    }


def completion_logprobs(
    tokens: Sequence[tuple[str, float]], offset: int, top: int
) -> dict[str, object]:
    """The completions form: four parallel lists; `offset` is where the first token starts."""
    offsets = []
    for text, _ in tokens:
        offsets.append(offset)
        offset += len(text)
    return {
        "text_offset": offsets,
        "token_logprobs": [value for _, value in tokens],
        "tokens": [text or "<|im_end|>" for text, _ in tokens],
        "top_logprobs": [
            {(text or "<|im_end|>") + "~" * i: value - i for i in range(max(top, 1))}
            for text, value in tokens
        ],
    }


def _ids(ids: Sequence[int] | None) -> bytes:
    return b"null" if ids is None else dumps(list(ids))


def _json(value: object) -> bytes:
    return b"null" if value is None else dumps(value)


def _finish(finish: str | None, stop: str | None) -> bytes:
    return b'"finish_reason":%b,"stop_reason":%b' % (_json(finish), _json(stop))


def models(name: str, root: str, created: int, max_model_len: int) -> dict[str, object]:
    """The body of /v1/models; `root` says what stands behind the name."""
    permission = {
        "id": f"modelperm-{created:016x}",
        "object": "model_permission",
        "created": created,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    model = {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "vllm",
        "root": root,
        "parent": None,
        "max_model_len": max_model_len,
        "permission": [permission],
    }
    return {"object": "list", "data": [model]}
