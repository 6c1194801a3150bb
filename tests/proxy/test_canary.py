"""A canary in prompts, answers, headers, queries and error bodies appears in no output.

Part of the proxy: log, metrics page, status, trace file, spans, crash output. Each kind is shown
to be searched: a planted leak of that kind is found. (The whole product's part: tests/e2e.)
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from tests.support.collector import otlp_collector
from tests.support.engine import STREAM_HEAD, chunked, event, ok, post, scripted_engine
from tests.support.leaks import leaks_in_bytes, leaks_in_folder
from tests.support.proxied import Proxied, dialogue, proxied

CANARY = "kanarienvogel-7f3a"


def answers() -> list[bytes]:
    """Everything an engine can say, with the canary in it."""
    c = CANARY.encode()
    spoken = event(CANARY, tokens=2, finish="stop")
    error = b'{"error":{"message":"%b","type":"%b","code":"%b"}}' % (c, c, c)
    return [
        STREAM_HEAD + chunked(event(CANARY, tokens=1), spoken),
        STREAM_HEAD + chunked(b"data: " + error + b"\n\n", b"data: [DONE]\n\n"),
        STREAM_HEAD + chunked(b"data: {broken %b\n\n" % c),
        STREAM_HEAD + chunked(b": %b\n\nevent: %b\ndata: %b\n\n" % (c, c, c)),
        ok(b'{"choices":[{"index":0,"message":{"content":"%b"},"finish_reason":"%b"}],'
           b'"system_fingerprint":"%b with spaces","usage":{"prompt_tokens":1,'
           b'"completion_tokens":2}}' % (c, c, c), b"X-Model: " + c + b"\r\n"),
        b"HTTP/1.1 400 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
        % (c, len(error), error),
        b"HTTP/1.1 500 Oops\r\nContent-Length: 99\r\n\r\n" + c,  # breaks off
        b"%b is no HTTP\r\n\r\n" % c,
    ]  # fmt: skip


async def talk(proxy: Proxied, engine: object, answer: bytes) -> None:
    """One request full of canaries, and one answer."""
    client = await proxy.dial()
    body = json.dumps({"messages": [{"role": "user", "content": CANARY * 50}], "user": CANARY})
    headers = (
        f"Connection: close\r\nAuthorization: Bearer {CANARY}\r\nX-Breakeven-Cohort: {CANARY}\r\n"
        f"X-Session: {CANARY}\r\nX-Breakeven-Arm: {CANARY}\r\nCookie: {CANARY}\r\n"
    )
    path = f"/v1/chat/completions?key={CANARY}"
    await client.send(post(body.encode(), headers=headers, path=path))
    conn = await engine.accept()  # type: ignore[attr-defined]
    await conn.request()
    await conn.send(answer)
    conn.close()
    await client.rest()
    client.close()


@pytest.mark.parametrize("token_counts", ["observe", "request"])
def test_no_output_of_the_proxy_holds_the_canary(tmp_path: Path, token_counts: str) -> None:
    """All shapes of answers, metering, recording and tracing on, both modes of counting."""
    folder = tmp_path / "traces"
    folder.mkdir()

    async def script() -> None:
        async with scripted_engine() as engine, otlp_collector() as collector:
            settings = {
                "trace_recording": {"directory": str(folder), "session_header": "X-Session",
                                    "block_bytes": 64},
                "tracing": {"endpoint": collector.url, "sample_ratio": 1.0},
                "token_counts": token_counts, "allow_arm_header": True,
            }  # fmt: skip
            async with proxied(engine.url, **settings) as proxy:
                for answer in answers():
                    await talk(proxy, engine, answer)
                bad = await proxy.dial()
                await bad.send(f"GET /{CANARY} HTTP/1.1\r\nHost: {CANARY}\r\nX\r\n\r\n".encode())
                await bad.rest()
                await proxy.idle()
                asyncio.get_running_loop().call_exception_handler(
                    {"message": CANARY, "exception": ValueError(CANARY)}
                )
                proxy.proxy.log.error("failed", ValueError(CANARY))
                for path in ("/metrics", "/status", "/readyz", "/livez"):
                    _, page = await proxy.admin(path)
                    assert not leaks_in_bytes(path, page, CANARY)
                log = proxy.log.getvalue().encode()
            assert b'"event":"failed"' in log
            assert not leaks_in_bytes("log", log, CANARY)
            assert collector.posts
            for post_ in collector.posts:
                assert not leaks_in_bytes("spans", post_, CANARY)

    dialogue(script())
    assert list(folder.iterdir())
    assert not leaks_in_folder(folder, CANARY)


def test_a_planted_leak_of_each_kind_is_found(tmp_path: Path) -> None:
    """The search can fail: the canary in a log line, a page, a trace line or a span is found."""
    from breakeven.trace import Arrival, arrival_line

    planted = {
        "log": b'{"event":"request","body":"%b"}\n' % CANARY.encode(),
        "escaped log": json.dumps({"event": CANARY.replace("k", "\u212a")}).encode()
        + json.dumps(CANARY).encode("utf-16-le"),
        "page": b'breakeven_requests_total{cohort="%b"} 1\n' % CANARY.encode(),
        "trace": arrival_line(Arrival(t=0, in_tokens=1, out_tokens=1, cohort=CANARY)),
        "span": b"\x0a\x20gen_ai.prompt\x12" + CANARY.encode(),
    }
    for name, data in planted.items():
        assert leaks_in_bytes(name, data, CANARY), name
    (tmp_path / "trace.jsonl").write_bytes(planted["trace"])
    assert leaks_in_folder(tmp_path, CANARY)
