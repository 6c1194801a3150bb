"""A client that leaves, in every phase: the engine sees it at once, and the books close.

Order is asserted, never time: each wait ends by the event itself, and the engine's next byte
would only come long after (it never comes).
"""

from __future__ import annotations

import asyncio

import pytest
from tests.support.engine import STREAM_HEAD, chunked, event, get, ok, post, scripted_engine, until
from tests.support.proxied import Proxied, dialogue, proxied


async def assert_cancelled(proxy: Proxied, arm: str = "baseline") -> None:
    """One verdict, no gauge left over."""
    await proxy.idle()
    assert await proxy.verdicts() == {"cancelled": 1}
    assert await proxy.total("inflight_requests") == 0
    assert await proxy.total("queued_requests") == 0
    assert await proxy.total("upstream_connections") == 0


@pytest.mark.parametrize("stamps", ["kernel", "loop"])
@pytest.mark.parametrize("phase", ["before_head", "before_body", "long_gap", "non_stream"])
@pytest.mark.parametrize("how", ["close", "reset"])
def test_the_engine_sees_a_client_leave(stamps: str, phase: str, how: str) -> None:
    """Before the first byte, after the head, in a gap, in a half-sent JSON body."""

    async def script() -> None:
        async with scripted_engine() as engine, proxied(engine.url, stamps=stamps) as proxy:
            client = await proxy.dial()
            await client.send(post())
            conn = await engine.accept()
            await conn.request()
            if phase == "before_body":
                await conn.send(STREAM_HEAD)
                await client.head()
            elif phase == "long_gap":
                await conn.send(STREAM_HEAD + chunked(event("a"), end=False))
                await client.head()
                await client.chunk()
            elif phase == "non_stream":
                await conn.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
                await client.head()
            getattr(client, how)()
            await conn.closed()
            await assert_cancelled(proxy)

    dialogue(script())


def test_a_client_that_leaves_while_the_proxy_connects() -> None:
    """The connection attempt is given up; the engine may see a connection, but no request."""

    async def script() -> None:
        # A listener whose backlog is full never completes the handshake.
        import socket

        sink = socket.socket()
        sink.bind(("127.0.0.1", 0))
        sink.listen(0)
        fillers = []
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(sink.getsockname())
            fillers.append(filler)
        async with proxied(f"http://127.0.0.1:{sink.getsockname()[1]}") as proxy:
            client = await proxy.dial()
            await client.send(post())
            await until(lambda: proxy.proxy.arms["baseline"].inflight == 1)
            client.close()
            await assert_cancelled(proxy)
        for sock in (sink, *fillers):
            sock.close()

    dialogue(script())


def test_a_client_that_leaves_in_the_middle_of_its_upload() -> None:
    """The engine sees the broken request, not an end that was never sent."""

    async def script() -> None:
        async with scripted_engine() as engine, proxied(engine.url) as proxy:
            client = await proxy.dial()
            await client.send(
                b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nhalf"
            )
            conn = await engine.accept()
            client.close()
            assert await conn.rest() == b"half"
            await assert_cancelled(proxy)

    dialogue(script())


def test_a_client_that_leaves_the_queue() -> None:
    """A waiting request that goes away frees its place and never reaches the engine."""

    async def script() -> None:
        admission = {"max_inflight": 1, "max_queue": 1}
        async with scripted_engine() as engine, proxied(engine.url, admission=admission) as proxy:
            first, second = await proxy.dial(), await proxy.dial()
            await first.send(post())
            conn = await engine.accept()
            await second.send(post())
            await until(lambda: proxy.proxy.arms["baseline"].queued == 1)
            second.close()
            await until(lambda: proxy.proxy.arms["baseline"].queued == 0)
            await conn.send(ok(b"{}"))
            await first.message()
            assert engine.connections == 1
            assert (await proxy.verdicts())["cancelled"] == 1

    dialogue(script())


def test_a_half_close_is_taken_for_leaving() -> None:
    """As nginx, Envoy and uvicorn do."""

    async def script() -> None:
        async with scripted_engine() as engine, proxied(engine.url) as proxy:
            client = await proxy.dial()
            await client.send(post())
            conn = await engine.accept()
            client.writer.write_eof()
            await conn.closed()
            await assert_cancelled(proxy)

    dialogue(script())


def test_a_hundred_clients_that_leave_leak_nothing() -> None:
    """Fault rows 6 and 7: gauges go back to zero, places are given back."""

    async def script() -> None:
        admission = {"max_inflight": 10, "max_queue": 100, "queue_timeout_s": 5}
        async with scripted_engine() as engine, proxied(engine.url, admission=admission) as proxy:
            clients = [await proxy.dial() for _ in range(100)]
            for client in clients:
                await client.send(post())
            await until(lambda: engine.connections == 10)
            for i, client in enumerate(clients):
                client.reset() if i % 2 else client.close()
            await proxy.idle()
            assert await proxy.verdicts() == {"cancelled": 100}
            assert await proxy.total("inflight_requests") == 0
            assert await proxy.total("upstream_connections") == 0
            client = await proxy.dial()
            await client.send(get())
            await until(lambda: engine.accepted.qsize() >= 1)
            while True:
                conn = await engine.accept()
                if conn.first.start.startswith(b"GET"):
                    break
            await conn.send(ok(b"1"))
            assert (await client.message()).body == b"1"

    dialogue(script())


def test_a_handler_that_fails_breaks_nothing() -> None:
    """Metering that raises is counted; the stream goes on and the place is given back."""

    async def script() -> None:
        async with scripted_engine() as engine, proxied(engine.url) as proxy:

            def broken(*_: object, **__: object) -> None:
                raise RuntimeError("telemetry")

            proxy.proxy.meter.listeners.append(broken)
            client = await proxy.dial()
            await client.send(post())
            conn = await engine.accept()
            await conn.send(STREAM_HEAD + chunked(event(finish="stop")))
            assert (await client.message()).body == event(finish="stop")
            await proxy.idle()
            assert await proxy.total("telemetry_errors_total") == 1
            await asyncio.sleep(0)

    dialogue(script())
