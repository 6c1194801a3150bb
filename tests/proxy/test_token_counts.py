"""token_counts: request — the client sees what a direct call would have shown."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.captures import DATA, request, response
from tests.support.engine import STREAM_HEAD, Conn, chunked, completion, ok, post, scripted_engine
from tests.support.proxied import dialogue, proxied

from breakeven_proxy.control.token_counts import CountingArm, CountingTransform
from breakeven_wire import ResponseHead

HEAD = ResponseHead(200, b"OK", ((b"content-type", b"text/event-stream"),))
COUNTED = {"include_usage": True, "continuous_usage_stats": True}
ID = re.compile(rb'"id":"[^"]*"|"created":\d+')


def settled(body: bytes) -> bytes:
    """A stream without what differs from call to call."""
    return ID.sub(b"", body)


def learned(fingerprint: bytes = b',"system_fingerprint":"vllm-0.32.0-2408950a"') -> CountingArm:
    """An arm whose first stream was seen: it does not count by itself."""
    return CountingArm(counts_itself=False, fingerprint=fingerprint)


def through(transform: CountingTransform, body: bytes, cuts: list[int] | None = None) -> bytes:
    """The client's bytes for an engine's stream, cut into reads."""
    assert transform.response_head(HEAD)
    edges = sorted({cut for cut in cuts or [] if cut < len(body)})
    parts = [body[a:b] for a, b in zip([0, *edges], [*edges, len(body)], strict=True)]
    return b"".join(transform.response(part) for part in parts) + transform.response_end()


@pytest.mark.parametrize(
    ("asked", "direct", "engine"),
    [
        ("base/sse_chat_plain", "base/sse_chat_plain", "base/sse_chat_contusage"),
        ("base/sse_comp_plain", "base/sse_comp_plain", "base/sse_comp_contusage"),
        ("base/sse_chat_usage", "base/sse_chat_usage", "base/sse_chat_contusage"),
        ("base/sse_comp_usage", "base/sse_comp_usage", "base/sse_comp_contusage"),
    ],
)
def test_the_stream_equals_a_direct_call_byte_for_byte(
    asked: str, direct: str, engine: str
) -> None:
    """Recorded with and without counts from the same engine, greedy: ids and times aside, equal."""
    transform = CountingTransform(learned())
    body = json.dumps(request(DATA / f"{asked}.req")).encode()
    sent = transform.request(body)
    assert sent is not None
    assert json.loads(sent)["stream_options"] == COUNTED
    seen = through(transform, response(DATA / f"{engine}.raw").body)
    assert settled(seen) == settled(response(DATA / f"{direct}.raw").body)


def counted(body: bytes, *, final: bool) -> bytes:
    """A recorded plain stream as vLLM writes it when asked for counts.

    `"usage"` follows the choices of each chunk, and a last chunk without choices carries the sum
    and the fingerprint (as in the recorded sse_*_contusage streams).
    """
    events, out, fingerprint = body.split(b"\n\n"), [], b""
    tokens = 0
    for event in events:
        if b'"choices":[{' in event and b'"usage":{' not in event:
            tokens += 1
            found = re.search(rb',"system_fingerprint":"[^"]*"', event)
            if found:
                fingerprint = found.group()
                event = event.replace(fingerprint, b"")
            usage = (
                b',"usage":{"prompt_tokens":9,"total_tokens":%d,"completion_tokens":%d,'
                b'"completion_tokens_details":null}' % (9 + tokens, tokens)
            )
            at = event.rfind(b"}]") + 2
            event = event[:at] + usage + event[at:]
        if event == b"data: [DONE]" and final:
            out.append(
                b'data: {"id":"x","object":"y","created":1,"model":"smol","choices":[],"usage":'
                b'{"prompt_tokens":9,"total_tokens":%d,"completion_tokens":%d}%b}'
                % (9 + tokens, tokens, fingerprint)
            )
        out.append(event)
    return b"\n\n".join(out)


SHAPES = [
    "sse_chat_json_schema", "sse_chat_logprobs", "sse_chat_plain", "sse_chat_tokenids",
    "sse_comp_echo", "sse_comp_ignore_eos", "sse_comp_interval4", "sse_comp_length1",
    "sse_comp_length3", "sse_comp_logprobs", "sse_comp_multi_prompt", "sse_comp_n2",
    "sse_comp_plain", "sse_comp_regex", "sse_comp_stop", "sse_comp_stop_included",
    "sse_comp_temp1", "sse_comp_tokenids",
]  # fmt: skip


CONTINUOUS = {"sse_comp_ignore_eos", "sse_comp_tokenids"}
"""Recorded with counts asked for by the client: nothing is changed for it."""


@pytest.mark.parametrize("shape", sorted(set(SHAPES) - CONTINUOUS))
@given(cuts=st.lists(st.integers(1, 20000), max_size=30))
@settings(max_examples=8, deadline=None)
def test_every_recorded_shape_comes_out_as_it_was(shape: str, cuts: list[int]) -> None:
    """Counts put in as vLLM does and taken out again: the recorded bytes, cut anywhere."""
    asked = request(DATA / f"base/{shape}.req")
    direct = response(DATA / f"base/{shape}.raw").body
    options = asked.get("stream_options") or {}
    transform = CountingTransform(learned())
    sent = transform.request(json.dumps(asked).encode())
    assert sent is not None
    wants_usage = isinstance(options, dict) and options.get("include_usage")
    engine = counted(direct, final=not wants_usage)
    assert engine != direct
    assert through(transform, engine, cuts) == direct


@pytest.mark.parametrize("shape", SHAPES)
def test_an_engine_that_counts_by_itself_is_left_alone(shape: str) -> None:
    """--enable-force-include-usage (the ngram recordings): after its first stream, untouched."""
    arm = CountingArm()
    asked = json.dumps({**request(DATA / f"ngram/{shape}.req"), "stream_options": None}).encode()
    direct = response(DATA / f"ngram/{shape}.raw").body
    first = CountingTransform(arm)
    assert first.request(asked) == asked
    assert through(first, direct, [100, 500]) == direct
    assert arm.counts_itself is True
    assert CountingTransform(arm).request(asked) is None


def test_what_the_client_asked_for_itself_is_not_touched() -> None:
    """Continuous usage of its own, no stream, no JSON, not an object: the body passes as it is."""
    for body in (
        b'{"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}',
        b'{"stream":false}', b"{}", b"not json", b"[1]", b'{"stream":true,"n":"x"}',
        b'{"stream":true,"stream_options":[]}', b'{"stream":true,"stream_options":""}',
        b'{"stream":true,"stream\\u005foptions":{}}',
        b'{"stream":true,"x":1e400}',
    ):  # fmt: skip
        assert CountingTransform(learned()).request(body) is None


def test_the_rest_of_the_body_keeps_its_bytes() -> None:
    """Only stream_options change; numbers beyond 64 bits, digits and spacing stay."""
    asked = b'{"include_usage":true,"continuous_usage_stats":true}'
    rest = b' "stream": true, "seed": 123456789012345678901234567890, "t": 1.00000000000000000001'
    sent = CountingTransform(learned()).request(b"{" + rest + b"}")
    assert sent is not None
    assert sent.replace(b" ", b"") == b'{"stream_options":' + asked + b"," + packed(rest) + b"}"
    assert sent.endswith(rest + b"}")
    for theirs in (b"null", b"{}", b'{"include_usage": true}', b'{"include_usage":false}'):
        body = b"{" + rest + b', "stream_options" : ' + theirs + b', "z": "\xc3\xa9 }"}'
        sent = CountingTransform(learned()).request(body)
        assert sent is not None
        assert packed(sent) == packed(body).replace(packed(theirs), asked)
    inner = (
        b'{"tools":{"stream_options":{"include_usage":1}},"stream_options":{"a":1e2},"stream":true}'
    )
    sent = CountingTransform(learned()).request(inner)
    assert sent is not None
    assert b'{"stream_options":{"include_usage":1}}' in sent
    assert json.loads(sent)["stream_options"] == {"a": 100.0, **json.loads(asked)}
    many = b'{"stream_options":{},"stream":true,"x":[' + b'{"stream_options":1},' * 20000 + b"1]}"
    assert CountingTransform(learned()).request(many) is None


def packed(data: bytes) -> bytes:
    """Without spaces."""
    return data.replace(b" ", b"")


def test_a_new_fingerprint_is_learned_anew() -> None:
    """The engine was restarted with other flags: the next stream is watched again."""
    arm = learned(b',"system_fingerprint":"old"')
    transform = CountingTransform(arm)
    assert transform.request(b'{"stream":true}') is not None
    through(transform, response(DATA / "base/sse_chat_contusage.raw").body)
    assert arm.counts_itself is None


def test_a_stream_of_another_kind_passes() -> None:
    """Comments, pings, errors, CRLF, an unfinished last event: nothing is lost."""
    for body in (
        b": ping\n\ndata: [DONE]\n\n",
        b'data: {"error":{"message":"x"}}\n\ndata: [DONE]\n\n',
        b"data: {half",
        b"event: a\r\ndata: 1\r\n\r\n: x\r\n\r\n",
    ):
        transform = CountingTransform(learned())
        assert transform.request(b'{"stream":true}') is not None
        assert through(transform, body, [3, 9]) == body


async def exchange(conn: Conn, raw: bytes) -> dict[str, object]:
    """The engine's end of one exchange; the request's JSON."""
    seen = await conn.request()
    await conn.send(raw)
    found: dict[str, object] = json.loads(seen.body)
    return found


@pytest.mark.parametrize("stamps", ["kernel", "loop"])
def test_the_dialogue(stamps: str) -> None:
    """First stream watched, second asked and cut; tokens are counted, the block feeds spec_*."""
    plain = response(DATA / "base/sse_chat_plain.raw").body
    engine_body = response(DATA / "base/sse_chat_contusage.raw").body
    block = (
        b'"metrics":{"speculative_decoding":{"acceptance_histogram":[2,0,1],"num_spec_steps":3,'
        b'"num_accepted_draft_tokens":2,"num_draft_tokens":6,"num_spec_tokens":2}}'
    )
    engine_body = engine_body.replace(
        b'"system_fingerprint":"vllm-0.32.0-2408950a"}',
        b'"system_fingerprint":"vllm-0.32.0-2408950a",%b}' % block,
    )

    async def script() -> None:
        settings = {"token_counts": "request", "stamps": stamps}
        async with scripted_engine() as engine, proxied(engine.url, **settings) as proxy:
            client = await proxy.dial()
            body = b'{"model":"smol","stream":true,"messages":[]}'
            await client.send(post(body))
            conn = await engine.accept()
            first = await exchange(conn, STREAM_HEAD + chunked(plain))
            assert "stream_options" not in first
            assert (await client.message()).body == plain
            assert await proxy.total("token_coverage_total", known="yes") == 0
            assert "margin unavailable" in (await proxy.status())["arms"]["baseline"]["margin"]

            await client.send(post(body))
            conn.first = await conn.head()
            second = await exchange(conn, STREAM_HEAD + chunked(engine_body))
            assert second["stream_options"] == COUNTED
            assert settled((await client.message()).body) == settled(plain)
            assert await proxy.total("completion_tokens_total") == 64
            assert await proxy.total("spec_accepted_tokens_total", source="block") == 2
            assert await proxy.total("spec_reports_total", present="yes") == 1
            assert await proxy.verdicts() == {"good": 2}

            await client.send(post(b'{"model":"smol","messages":[]}'))
            conn.first = await conn.head()
            third = await exchange(conn, ok(completion(5)))
            assert third == {"model": "smol", "messages": []}
            assert (await client.message()).body == completion(5)

    dialogue(script())


def test_a_large_body_passes_untouched() -> None:
    """Above 1 MiB nothing is parsed; the request counts as observed."""

    async def script() -> None:
        async with (
            scripted_engine() as engine,
            proxied(engine.url, token_counts="request") as proxy,
        ):
            client = await proxy.dial()
            body = b'{"stream":true,"pad":"' + b"a" * (1 << 20) + b'"}'
            await client.send(post(body))
            conn = await engine.accept()
            assert (await conn.request()).body == body
            await conn.send(ok(completion()))
            assert (await client.message()).status == 200

    dialogue(script())
