"""Spans: sampled, without content, joined to the client's trace and handed on to the engine."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.support.engine import STREAM_HEAD, chunked, event, post, scripted_engine
from tests.support.proxied import Proxied, dialogue, proxied

from breakeven_proxy.config import TracingSettings
from breakeven_proxy.observe.tracing import TRACEPARENT, Tracing
from breakeven_proxy.relay.seams import Arrival

SETTINGS = TracingSettings(endpoint="http://127.0.0.1:1/v1/traces", sample_ratio=1.0)
PARENT = "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"
CANARY = "the-user-said-this"


def traced(proxy: Proxied) -> InMemorySpanExporter:
    """Gives the running proxy a tracing whose spans stay here."""
    exporter = InMemorySpanExporter()
    beside, meter = proxy.proxy.beside, proxy.proxy.meter
    beside.tracing = Tracing(SETTINGS, lambda _: None, exporter)
    meter.listeners.append(beside.tracing.record)
    return exporter


def test_a_span_joins_the_clients_trace_and_the_engine_gets_its_id() -> None:
    """traceparent in → child span → traceparent out, with the GenAI names and no content."""

    async def script() -> None:
        async with scripted_engine() as engine, proxied(engine.url) as proxy:
            exporter = traced(proxy)
            client = await proxy.dial()
            body = b'{"messages":[{"content":"%b"}]}' % CANARY.encode()
            headers = f"traceparent: {PARENT}\r\nAuthorization: Bearer {CANARY}\r\n"
            path = f"/v1/chat/completions?user={CANARY}"
            await client.send(post(body, headers=headers, path=path))
            conn = await engine.accept()
            passed = (await conn.request()).all("traceparent")
            assert len(passed) == 1
            match = TRACEPARENT.match(passed[0])
            assert match is not None
            assert match[1] == b"ab" * 16
            await conn.send(
                STREAM_HEAD + chunked(event(CANARY, tokens=1), event(tokens=3, finish="stop"))
            )
            await client.message()
            await proxy.idle()
            assert proxy.proxy.beside.tracing is not None
            proxy.proxy.beside.tracing._provider.force_flush()
            [span] = exporter.get_finished_spans()
            assert span.context is not None
            assert f"{span.context.span_id:016x}".encode() == match[2]
            assert span.parent is not None
            assert f"{span.parent.span_id:016x}" == "cd" * 8
            attributes: dict[str, Any] = dict(span.attributes or {})
            assert attributes["gen_ai.operation.name"] == "chat"
            assert attributes["gen_ai.usage.output_tokens"] == 3
            assert attributes["breakeven.verdict"] == "good"
            assert attributes["http.response.status_code"] == 200
            assert CANARY not in span.to_json()

    dialogue(script())


@pytest.mark.parametrize("header", [None, b"junk", b"00-" + b"0" * 32 + b"-" + b"1" * 16 + b"-01"])
def test_without_a_valid_parent_a_trace_begins_here(header: bytes | None) -> None:
    """No, or a broken, traceparent: a fresh id; the engine never gets the broken one."""
    tracing = Tracing(SETTINGS, lambda _: None, InMemorySpanExporter())
    headers = () if header is None else ((b"traceparent", header),)
    [(name, value)] = tracing.arrive(Arrival(b"POST", b"/", b"/", headers, 0.0, 0.0))
    assert name == b"traceparent"
    match = TRACEPARENT.match(value)
    assert match is not None
    assert match[3] == b"01"
    tracing.close()


def test_the_ratio_decides_and_an_unsampled_parent_is_kept() -> None:
    """Ratio 0 samples nothing of its own; a parent's flag is followed either way."""
    settings = TracingSettings(endpoint="http://127.0.0.1:1/", sample_ratio=0.0)
    tracing = Tracing(settings, lambda _: None, InMemorySpanExporter())
    for flag, want in ((None, b"00"), (b"00", b"00"), (b"01", b"01")):
        headers = () if flag is None else ((b"traceparent", PARENT[:-2].encode() + flag),)
        [(_, value)] = tracing.arrive(Arrival(b"POST", b"/", b"/", headers, 0.0, 0.0))
        assert value.endswith(want)
    tracing.close()
