"""The proxy before the real engine: bodies byte for byte, token counts, a client that leaves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.leaks import leaks_in_bytes
from tests.vllm.client import USAGE, Answer, ask, completion, stream, until
from tests.vllm.engine import BASELINE, CANDIDATES, MODEL_NAME, Engine
from tests.vllm.prompts import CANARY, CHAT, CODE
from tests.vllm.shells import arm_settings, proxy, tap
from tests.vllm.solo import idle, settled_counters

CHAT_PATH, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
TOKENS = 8


def chat(**more: Any) -> dict[str, Any]:
    return {
        "model": MODEL_NAME,
        "messages": [{"role": "user", "content": f"Say {CANARY} twice."}],
        "max_tokens": TOKENS,
        "temperature": 0,
        **more,
    }


def short(**more: Any) -> dict[str, Any]:
    return completion(CODE[1], max_tokens=TOKENS, min_tokens=0, ignore_eos=False, **more)


STREAM = {"stream": True}
DIALOGUES: dict[str, tuple[str, str, object, int]] = {
    "chat stream": ("POST", CHAT_PATH, chat(**STREAM), 200),
    "chat stream, usage": ("POST", CHAT_PATH, chat(**STREAM, stream_options=USAGE), 200),
    "chat stream, n = 2": ("POST", CHAT_PATH, chat(**STREAM, n=2, temperature=0.8, seed=1), 200),
    "completions stream": ("POST", COMPLETIONS, short(**STREAM), 200),
    "completions stream, ids": ("POST", COMPLETIONS, short(**STREAM, return_token_ids=True), 200),
    "completions stream, logprobs": ("POST", COMPLETIONS, short(**STREAM, logprobs=1), 200),
    "completions stream, stop": ("POST", COMPLETIONS, short(**STREAM, stop=["five"]), 200),
    "chat": ("POST", CHAT_PATH, chat(), 200),
    "completions": ("POST", COMPLETIONS, short(), 200),
    "unknown model": ("POST", CHAT_PATH, chat(model="nope"), 404),
    "unknown model, stream": ("POST", CHAT_PATH, chat(**STREAM, model="nope"), 404),
    "no JSON": ("POST", COMPLETIONS, b'{"model": "smol", "prompt": ', 400),
    "bad temperature": ("POST", CHAT_PATH, chat(temperature=-1), 400),
    "models": ("GET", "/v1/models", None, 200),
    "tokenize": ("POST", "/tokenize", {"model": MODEL_NAME, "prompt": "hello world"}, 200),
    "unknown path": ("GET", "/nope", None, 404),
}


@pytest.mark.parametrize("arm_name", [BASELINE, "draft"])
def test_bodies_pass_byte_for_byte(arm: Engine, tmp_path: Path) -> None:
    """Request bodies reach the engine, response bodies the client, without one byte changed."""
    seen: dict[str, tuple[int, bool]] = {}
    with (
        tap(arm.url) as between,
        proxy(tmp_path, {arm.name: arm_settings(arm, url=between.url)}) as front,
    ):
        for name, (method, path, body, status) in DIALOGUES.items():
            data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            answer = ask(front.url, method, path, data)
            asked, answered = between.newest(path)
            assert asked.body == (data or b""), name
            assert answer.body == answered.body, name
            assert answered.whole, name
            seen[name] = (answer.status, answer.status == answered.status == status)
            if body is not None and b'"stream": true' in (data or b"") and status == 200:
                assert answer.body.endswith(b"data: [DONE]\n\n"), name
        left = leaks_in_bytes("proxy", front.child.text().encode(), CANARY)
        left += leaks_in_bytes("page", ask(front.admin, "GET", "/metrics").body, CANARY)
        left += leaks_in_bytes("status", ask(front.admin, "GET", "/status").body, CANARY)
    assert all(right for _, right in seen.values()), seen
    assert left == []


@pytest.mark.parametrize("arm_name", [BASELINE, "draft"])
def test_asking_for_counts_changes_nothing_the_client_sees(arm: Engine, tmp_path: Path) -> None:
    """With token_counts: request every token is counted, and the client's stream is as without."""
    body = json.dumps(chat(**STREAM)).encode()
    direct = _told(ask(arm.url, "POST", CHAT_PATH, body))
    before = settled_counters(arm.url)
    settings = {"token_counts": "request"}
    with proxy(tmp_path, {arm.name: arm_settings(arm)}, **settings) as front:
        # The proxy watches a first stream to learn whether the engine counts by itself.
        streams = [_told(ask(front.url, "POST", CHAT_PATH, body)) for _ in range(3)]
        counted = front.total("completion_tokens_total", arm=arm.name)
        unknown = front.total("usage_coverage_total", arm=arm.name, known="no")
    made = settled_counters(arm.url).counters["generation_tokens"]
    per_answer = (made - before.counters["generation_tokens"]) / 3
    assert streams == [direct] * 3
    assert unknown <= 1
    assert counted == (3 - unknown) * per_answer


def _told(answer: Answer) -> list[Any]:
    """A stream's chunks without what differs from answer to answer."""
    events = [part.removeprefix(b"data: ") for part in answer.body.split(b"\n\n") if part]
    assert events[-1] == b"[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    # Where the engine cuts the text into events depends on its timing: compare the text whole.
    text = "".join(c["delta"].get("content") or "" for k in chunks for c in k["choices"])
    keys = [sorted(set(chunk)) for chunk in (chunks[0], chunks[-1])]
    return [text, keys, [k["choices"] == [] for k in chunks].count(True)]


@pytest.mark.parametrize("arm_name", [BASELINE, *CANDIDATES])
def test_a_client_that_leaves_the_proxy_ends_generation(arm: Engine, tmp_path: Path) -> None:
    """The proxy closes its upstream, the engine stops, the proxy counts it: nobody else does."""
    asked = 900
    before = settled_counters(arm.url)
    with proxy(tmp_path, {arm.name: arm_settings(arm)}) as front:
        left = stream(
            front.url,
            completion(CHAT[1], max_tokens=asked, min_tokens=asked, stream_options=USAGE),
            leave_after=lambda body: body.count(b"data: ") >= 4,
        )
        until(lambda: front.verdicts() != {})
        until(lambda: idle(arm.url))
        assert front.verdicts(arm=arm.name) == {"cancelled": 1}
        through = front.total("completion_tokens_total", arm=arm.name)
    made = settled_counters(arm.url).counters["generation_tokens"]
    made -= before.counters["generation_tokens"]
    assert left.report.tokens is not None
    assert left.report.tokens <= through <= made < asked
