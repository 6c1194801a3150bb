"""Streams through the proxy: bytes unchanged, broken stays broken, and what the metrics say."""

from __future__ import annotations

import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.captures import DATA, response
from tests.support.engine import (
    DONE,
    STREAM_HEAD,
    chunked,
    completion,
    event,
    ok,
    post,
    scripted_engine,
)
from tests.support.proxied import dialogue, proxied

CRLF_STREAM = (
    b': ping\r\n\r\ndata:{"choices":[{"index":0,"delta":{"content":"\xc3\xa9"},'
    b'"finish_reason":null}]}\r\n\r\nevent: x\r\ndata: {"choices":[{"index":0,'
    b'"delta":{"content":"b"},"finish_reason":"stop"}]}\r\n\r\ndata: [DONE]\r\n\r\n'
)


@pytest.mark.parametrize("stamps", ["kernel", "loop"])
@pytest.mark.parametrize("name", ["base/sse_chat_n2.raw", "ngram/conc_00.raw"])
def test_recorded_streams_pass_unchanged_and_are_counted(stamps: str, name: str) -> None:
    """A recorded vLLM stream: the same bytes come out, and the token sum equals its usage."""
    raw = (DATA / name).read_bytes()
    body = response(DATA / name).body
    usage = re.findall(rb'"completion_tokens":(\d+)', body)

    async def script() -> None:
        async with scripted_engine() as engine, proxied(engine.url, stamps=stamps) as proxy:
            client = await proxy.dial()
            await client.send(post())
            conn = await engine.accept()
            await conn.send(raw)
            answer = await client.message()
            assert answer.body == body
            assert await proxy.verdicts() == {"good": 1}
            if usage:
                tokens = await proxy.total("completion_tokens_total")
                assert tokens >= int(usage[-1])

    dialogue(script())


@given(cuts=st.lists(st.integers(1, 700), max_size=12))
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_stream_split_anywhere_is_the_same_stream(cuts: list[int]) -> None:
    """HTTP chunks, segments and events are cut at random; bytes, tokens and verdict are equal."""
    body = b"".join(event("ab", tokens=i + 1) for i in range(3)) + CRLF_STREAM
    edges = sorted({cut for cut in cuts if cut < len(body)})
    parts = [body[a:b] for a, b in zip([0, *edges], [*edges, len(body)], strict=True)]

    async def script() -> None:
        async with scripted_engine() as engine, proxied(engine.url) as proxy:
            client = await proxy.dial()
            await client.send(post())
            conn = await engine.accept()
            raw = STREAM_HEAD + chunked(*parts)
            for i in range(0, len(raw), 97):
                await conn.send(raw[i : i + 97])
            assert (await client.message()).body == body
            assert await proxy.verdicts() == {"good": 1}
            assert await proxy.total("token_coverage_total") == 5

    dialogue(script())


@given(data=st.data())
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_request_split_anywhere_is_the_same_request(data: st.DataObject) -> None:
    """Two pipelined requests, one chunked, cut at random: the engine gets both bodies whole."""
    requests = post(b"first body", headers="X-A: 1\r\n") + (
        b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        + chunked(b"second ", b"body")
    )
    edges = sorted(data.draw(st.sets(st.integers(1, len(requests) - 1), max_size=8)))

    async def script() -> None:
        async with scripted_engine() as engine, proxied(engine.url) as proxy:
            client = await proxy.dial()
            for a, b in zip([0, *edges], [*edges, len(requests)], strict=True):
                await client.send(requests[a:b])
            conn = await engine.accept()
            assert (await conn.request()).body == b"first body"
            await conn.send(ok(completion()))
            assert (await conn.next()).body == b"second body"
            await conn.send(ok(completion()))
            assert (await client.message()).body == completion()
            assert (await client.message()).body == completion()

    dialogue(script())


@pytest.mark.parametrize("stamps", ["kernel", "loop"])
@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_broken_engine_breaks_the_stream(stamps: str, how: str) -> None:
    """Rows 10 to 12: no invented end, no glued frame; the client sees the break."""

    async def script() -> None:
        async with scripted_engine() as engine, proxied(engine.url, stamps=stamps) as proxy:
            client = await proxy.dial()
            await client.send(post())
            conn = await engine.accept()
            await conn.send(STREAM_HEAD + chunked(event("a") + b"data: {half", end=False))
            await client.head()
            assert await client.chunk() == event("a") + b"data: {half"
            getattr(conn, how)()
            rest = await client.rest()
            assert rest == b""
            await proxy.idle()
            assert await proxy.verdicts() == {"error": 1}
            assert await proxy.total("upstream_connections") == 0

    dialogue(script())


def test_a_broken_body_with_a_length_stays_short() -> None:
    """Row 9: the worker's status passes, the body breaks off, the request is an error."""

    async def script() -> None:
        async with scripted_engine() as engine, proxied(engine.url) as proxy:
            client = await proxy.dial()
            await client.send(post())
            conn = await engine.accept()
            await conn.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
            assert (await client.head()).status == 200
            conn.close()
            assert await client.rest() in (b"half", b"")
            await proxy.idle()
            assert await proxy.verdicts() == {"error": 1}

    dialogue(script())


@pytest.mark.parametrize(
    "junk", [b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\nA: b\n\n", b"SSH-2.0\r\n"]
)
def test_an_engine_that_speaks_no_http_is_502(junk: bytes) -> None:
    """A protocol error before the head is a 502 of ours, in OpenAI's error shape."""

    async def script() -> None:
        async with scripted_engine() as engine, proxied(engine.url) as proxy:
            client = await proxy.dial()
            await client.send(post())
            conn = await engine.accept()
            await conn.send(junk)
            answer = await client.message()
            assert answer.status == 502
            assert b'"type":"bad_gateway"' in answer.body
            assert await proxy.verdicts() == {"error": 1}

    dialogue(script())


def test_an_engine_that_is_not_there_is_502_and_the_connection_goes_on() -> None:
    """Refused connections are answered; the client's connection survives."""

    async def script() -> None:
        async with proxied("http://127.0.0.1:1") as proxy:
            client = await proxy.dial()
            for _ in range(2):
                await client.send(post())
                assert (await client.message()).status == 502
            assert await proxy.verdicts() == {"error": 2}
            status, body = await proxy.admin("/readyz")
            assert status == 503
            assert b"no arm is ready" in body

    dialogue(script())


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (ok(completion()), "good"),
        (ok(b'{"error":{"message":"secret","type":"x","code":400}}'), "error"),
        (ok(b"not json"), "malformed"),
        (ok(completion().replace(b'"stop"', b"null")), "truncated"),
        (b"HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\n\r\n{}", "error"),
        (b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 2\r\n\r\n{}", "rejected"),
        (b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 2\r\n\r\n{}", "rejected"),
        (STREAM_HEAD + chunked(event("a") + DONE), "truncated"),
        (STREAM_HEAD + chunked(event("a", finish="stop") + DONE), "good"),
        (STREAM_HEAD + chunked(b'data: {"error":{"code":500}}\n\n' + DONE), "error"),
        (STREAM_HEAD + chunked(b"data: {nope\n\n" + event(finish="stop") + DONE), "malformed"),
        (STREAM_HEAD + chunked(event(tokens=1) + event(tokens=2, finish="stop") + DONE), "good"),
    ],
)
def test_each_request_gets_one_verdict(answer: bytes, verdict: str) -> None:
    """Row 9 and docs/definitions.md: what the engine answered decides, one verdict each."""

    async def script() -> None:
        async with scripted_engine() as engine, proxied(engine.url) as proxy:
            client = await proxy.dial()
            await client.send(post())
            conn = await engine.accept()
            await conn.request()
            await conn.send(answer)
            await client.message()
            await proxy.idle()
            assert await proxy.verdicts() == {verdict: 1}

    dialogue(script())


def test_cohort_and_arm_label_a_request() -> None:
    """A configured cohort is a label; the arm header works where it is allowed."""

    async def script() -> None:
        async with scripted_engine() as a, scripted_engine() as b:
            arms = {"base": {"url": a.url}, "draft": {"url": b.url, "role": "candidate"}}
            cohorts = {"chat-en": {"task": "chat", "lang": "en"}}
            async with proxied("", arms=arms, cohorts=cohorts, allow_arm_header=True) as proxy:
                client = await proxy.dial()
                headers = "X-Breakeven-Cohort: chat-en\r\nX-Breakeven-Arm: draft\r\n"
                await client.send(post(headers=headers))
                conn = await b.accept()
                await conn.send(ok(completion(7)))
                await client.message()
                assert await proxy.total("requests_total", arm="draft", cohort="chat-en") == 1
                tokens = await proxy.total("completion_tokens_total", arm="draft")
                assert tokens == 7

    dialogue(script())
