"""Deadlines, admission and the one retry; each wait ends by the event, deadlines are short here."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.engine import (
    STREAM_HEAD,
    chunked,
    completion,
    event,
    get,
    ok,
    post,
    scripted_engine,
    status_of,
    until,
)
from tests.support.proxied import dialogue, proxied

SHORT = 0.5


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: a\r\nX: "])
def test_a_request_head_that_does_not_come_is_408_or_closed(sent: bytes) -> None:
    """Row 36, slow loris: a started head is answered 408, a silent connection is closed."""

    async def script() -> None:
        timeouts = {"head_s": SHORT}
        async with scripted_engine() as engine, proxied(engine.url, timeouts=timeouts) as proxy:
            client = await proxy.dial()
            await client.send(sent)
            raw = await client.rest()
            assert status_of(raw) == ([408] if sent else [])
            assert engine.connections == 0

    dialogue(script())


def test_a_head_that_drips_meets_the_same_deadline() -> None:
    """One byte after the other does not move the deadline of the head."""

    async def script() -> None:
        timeouts = {"head_s": SHORT}
        async with scripted_engine() as engine, proxied(engine.url, timeouts=timeouts) as proxy:
            client = await proxy.dial()

            async def drip() -> None:
                for byte in b"GET / HTTP/1.1\r\n" + b"X" * 10000:
                    client.writer.write(bytes([byte]))
                    await asyncio.sleep(0.01)

            dripping = asyncio.create_task(drip())
            assert status_of(await client.rest()) == [408]
            dripping.cancel()

    dialogue(script())


def test_an_idle_keep_alive_connection_is_closed() -> None:
    """After an answer the client has keepalive_s for its next request."""

    async def script() -> None:
        timeouts = {"keepalive_s": SHORT}
        async with scripted_engine() as engine, proxied(engine.url, timeouts=timeouts) as proxy:
            client = await proxy.dial()
            await client.send(get())
            conn = await engine.accept()
            await conn.send(ok(b"1"))
            await client.message()
            assert await client.closed()

    dialogue(script())


def test_a_body_that_stops_coming_is_408_and_a_timeout() -> None:
    """The engine's connection is aborted, the client told."""

    async def script() -> None:
        timeouts = {"body_s": SHORT}
        async with scripted_engine() as engine, proxied(engine.url, timeouts=timeouts) as proxy:
            client = await proxy.dial()
            await client.send(
                b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc"
            )
            conn = await engine.accept()
            assert status_of(await client.rest()) == [408]
            await conn.closed()
            assert await proxy.verdicts() == {"timeout": 1}

    dialogue(script())


@pytest.mark.parametrize("stamps", ["kernel", "loop"])
def test_an_engine_that_does_not_answer_is_504(stamps: str) -> None:
    """No first byte in time: 504, verdict timeout, the engine sees the abort."""

    async def script() -> None:
        settings = {"timeouts": {"first_byte_s": SHORT}, "stamps": stamps}
        async with scripted_engine() as engine, proxied(engine.url, **settings) as proxy:
            client = await proxy.dial()
            await client.send(post())
            conn = await engine.accept()
            assert (await client.message()).status == 504
            await conn.closed()
            assert await proxy.verdicts() == {"timeout": 1}

    dialogue(script())


@pytest.mark.parametrize("stamps", ["kernel", "loop"])
def test_a_stream_that_falls_silent_is_broken_off(stamps: str) -> None:
    """Silence longer than idle_s inside a body: the client's stream breaks, verdict timeout."""

    async def script() -> None:
        settings = {"timeouts": {"idle_s": SHORT}, "stamps": stamps}
        async with scripted_engine() as engine, proxied(engine.url, **settings) as proxy:
            client = await proxy.dial()
            await client.send(post())
            conn = await engine.accept()
            await conn.send(STREAM_HEAD + chunked(event("a"), end=False))
            assert not (await client.rest()).endswith(b"0\r\n\r\n")
            await conn.closed()
            assert await proxy.verdicts() == {"timeout": 1}

    dialogue(script())


def test_a_connection_that_cannot_be_made_in_time_is_504() -> None:
    """connect_s bounds the handshake."""

    async def script() -> None:
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
        url = f"http://127.0.0.1:{sink.getsockname()[1]}"
        async with proxied(url, timeouts={"connect_s": SHORT}) as proxy:
            client = await proxy.dial()
            await client.send(post())
            assert (await client.message()).status == 504
            assert await proxy.verdicts() == {"timeout": 1}
        for sock in (sink, *fillers):
            sock.close()

    dialogue(script())


def test_a_full_queue_is_429_and_a_late_place_503() -> None:
    """Beyond max_inflight requests wait, beyond max_queue they are refused; both say when."""

    async def script() -> None:
        admission = {"max_inflight": 1, "max_queue": 1, "queue_timeout_s": 2 * SHORT}
        async with scripted_engine() as engine, proxied(engine.url, admission=admission) as proxy:
            first, second, third = [await proxy.dial() for _ in range(3)]
            await first.send(post())
            conn = await engine.accept()
            await second.send(post())
            await until(lambda: proxy.proxy.arms["baseline"].queued == 1)
            await third.send(post())
            full = await third.message()
            assert (full.status, full.get("retry-after")) == (429, b"1")
            late = await second.message()
            assert (late.status, late.get("retry-after")) == (503, b"1")
            await conn.send(ok(completion()))
            await first.message()
            assert await proxy.verdicts() == {"good": 1, "rejected": 2}
            assert await proxy.total("rejections_total", reason="queue_full") == 1
            assert await proxy.total("rejections_total", reason="queue_timeout") == 1
            # The refused clients' connections go on.
            await third.send(post())
            await conn.next()
            await conn.send(ok(completion()))
            assert (await third.message()).status == 200

    dialogue(script())


def test_a_waiting_request_is_served_when_a_place_is_free() -> None:
    """First come, first served."""

    async def script() -> None:
        admission = {"max_inflight": 1, "max_queue": 8}
        async with scripted_engine() as engine, proxied(engine.url, admission=admission) as proxy:
            clients = [await proxy.dial() for _ in range(4)]
            arm = proxy.proxy.arms["baseline"]
            for i, client in enumerate(clients):
                await client.send(post(b"%d" % i))
                await until(lambda i=i: arm.inflight + arm.queued == i + 1)
            conn = await engine.accept()
            for i in range(4):
                seen = await (conn.request() if i == 0 else conn.next())
                assert seen.body == b"%d" % i
                await conn.send(ok(completion()))
            for client in clients:
                assert (await client.message()).status == 200

    dialogue(script())


@pytest.mark.parametrize("stamps", ["kernel", "loop"])
@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_stale_keep_alive_connection_is_retried_once(stamps: str, how: str) -> None:
    """Rows 22, 23: the engine closes a reused connection unanswered; one retry, counted."""

    async def script() -> None:
        async with scripted_engine() as engine, proxied(engine.url, stamps=stamps) as proxy:
            client = await proxy.dial()
            await client.send(post(b"one"))
            conn = await engine.accept()
            await conn.request()
            await conn.send(ok(completion()))
            await client.message()
            await client.send(post(b"two"))
            await conn.next()  # it was written on the old connection
            getattr(conn, how)()
            again = await engine.accept()
            assert (await again.request()).body == b"two"
            await again.send(ok(completion()))
            assert (await client.message()).status == 200
            assert await proxy.verdicts() == {"good": 2}
            assert await proxy.total("upstream_retries_total") == 1

    dialogue(script())


def test_no_second_retry_and_none_on_a_fresh_connection() -> None:
    """A fresh connection that closes unanswered is a 502: the engine may have done the work."""

    async def script() -> None:
        async with scripted_engine() as engine, proxied(engine.url) as proxy:
            client = await proxy.dial()
            await client.send(post())
            conn = await engine.accept()
            conn.close()
            assert (await client.message()).status == 502
            assert engine.connections == 1

    dialogue(script())


def test_no_retry_after_a_byte_or_when_switched_off() -> None:
    """RFC 9110 9.2.2: with part of an answer, or by configuration, the request is not repeated."""

    async def script() -> None:
        for settings, byte in (({}, b"H"), ({"retry_stale": False}, b"")):
            async with scripted_engine() as engine, proxied(engine.url, **settings) as proxy:
                client = await proxy.dial()
                await client.send(post())
                conn = await engine.accept()
                await conn.send(ok(completion()))
                await client.message()
                await client.send(post())
                await conn.next()
                await conn.send(byte)
                conn.close()
                assert (await client.message()).status == 502
                assert engine.connections == 1

    dialogue(script())


def test_a_request_above_64_kib_is_not_retried() -> None:
    """What is no longer held cannot be sent again."""

    async def script() -> None:
        async with scripted_engine() as engine, proxied(engine.url) as proxy:
            client = await proxy.dial()
            await client.send(post())
            conn = await engine.accept()
            await conn.send(ok(completion()))
            await client.message()
            await client.send(post(b"a" * 70000))
            await conn.next()
            conn.close()
            assert (await client.message()).status == 502
            assert engine.connections == 1

    dialogue(script())


def test_connections_are_reused_and_idle_ones_closed_before_the_engine_would() -> None:
    """Row 22: the pool's idle limit lies below uvicorn's 5 s."""
    from breakeven_wire.pool import IDLE_S

    assert IDLE_S < 5

    async def script() -> None:
        async with scripted_engine() as engine, proxied(engine.url) as proxy:
            client = await proxy.dial()
            await client.send(post())
            conn = await engine.accept()
            await conn.send(ok(completion()))
            await client.message()
            assert await conn.closed()  # after IDLE_S

    dialogue(script())


def test_connections_beyond_the_limit_are_refused() -> None:
    """The bound on client connections: one more gets 503 and the close; a free place is used."""

    async def script() -> None:
        limits = {"connections": 2}
        async with scripted_engine() as engine, proxied(engine.url, limits=limits) as proxy:
            first, _ = await proxy.dial(), await proxy.dial()
            await until(lambda: len(proxy.proxy.relay.connections) == 2)
            third = await proxy.dial()
            assert status_of(await third.rest()) == [503]
            first.close()
            await until(lambda: len(proxy.proxy.relay.connections) == 1)
            fourth = await proxy.dial()
            await fourth.send(get())
            conn = await engine.accept()
            await conn.send(ok(b"1"))
            assert (await fourth.message()).status == 200

    dialogue(script())


def test_draining_waits_for_an_answer_that_a_slow_client_has_not_taken() -> None:
    """The exchange is over, the last bytes are not: they are sent before the process ends."""

    async def script() -> None:
        async with scripted_engine() as engine, proxied(engine.url) as proxy:
            client = await proxy.dial(rcvbuf=4096)
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await client.send(get())
            conn = await engine.accept()
            body = b"z" * 4_000_000
            sending = asyncio.create_task(conn.send(ok(body)))
            await until(lambda: proxy.proxy.relay.active)
            await asyncio.sleep(0.1)
            draining = asyncio.create_task(proxy.proxy.drain())
            await asyncio.sleep(0.1)
            assert not draining.done()
            client.writer.transport.resume_reading()  # type: ignore[attr-defined]
            received = (await client.message()).body
            assert len(received) == len(body)
            await sending
            await draining

    dialogue(script())
