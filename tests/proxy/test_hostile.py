"""Peers that bend the rules: what they send may end a connection, never reach the wrong request."""

from __future__ import annotations

import asyncio
import socket

import pytest
from tests.support.engine import (
    Conn,
    chunked,
    completion,
    get,
    ok,
    post,
    scripted_engine,
    soon,
    status_of,
    until,
)
from tests.support.proxied import dialogue, proxied

from breakeven_wire import EnginePool

SMUGGLED = get("/smuggled")


@pytest.mark.parametrize(
    ("first", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nExpect: 200-ok\r\n\r\n", 417),
        (b"GET / HTTP/1.1\r\nHost: a\r\nExpect: 200-ok\r\nConnection: keep-alive\r\n\r\n", 417),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
        (
            b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            501,
        ),
    ],
    ids=range(5),
)
def test_nothing_is_served_behind_the_answer_that_closes(first: bytes, status: int) -> None:
    """A refused head says close; a request pipelined behind it is neither answered nor passed."""

    async def script() -> None:
        async with scripted_engine() as engine, proxied(engine.url) as proxy:
            client = await proxy.dial()
            await client.send(first + SMUGGLED)
            raw = await client.rest()
            assert status_of(raw) == [status]
            assert b"\r\nConnection: close\r\n" in raw
            await proxy.idle()
            assert engine.connections == 0

    dialogue(script())


@pytest.mark.parametrize(
    "first",
    [get("/a", headers="Connection: close\r\n"), get("/a").replace(b"1.1", b"1.0"),
     get("/a", headers="Connection: keep-alive\r\n").replace(b"HTTP/1.1", b"HTTP/1.0")],
    ids=["close", "1.0", "1.0 keep-alive"],
)  # fmt: skip
def test_a_body_that_ends_with_the_connection_holds_no_second_answer(first: bytes) -> None:
    """After `Connection: close` the connection ends, whatever was pipelined behind the request."""

    async def script() -> None:
        async with scripted_engine() as engine, proxied(engine.url) as proxy:
            client = await proxy.dial()
            await client.send(first + SMUGGLED)
            conn = await engine.accept()
            await conn.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            await conn.send(chunked(b"all"))
            raw = await client.rest()
            assert status_of(raw) == [200]
            assert b"HTTP" not in raw.partition(b"\r\n\r\n")[2]
            await proxy.idle()
            assert engine.connections == 1

    dialogue(script())


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\nhello",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 099 Odd\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"2\r\nok\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nok",
    ],
    ids=["101", "101 bare", "099", "coded", "coded in two fields", "coded to the end"],
)
@pytest.mark.parametrize("stamps", ["kernel", "loop"])
def test_an_answer_that_must_not_be_passed_on_is_502_and_nothing_else(
    stamps: str, answer: bytes
) -> None:
    """No byte of a protocol switch, a status that is none or a coded body reaches the client."""

    async def script() -> None:
        async with scripted_engine() as engine, proxied(engine.url, stamps=stamps) as proxy:
            client = await proxy.dial()
            await client.send(post())
            conn = await engine.accept()
            await conn.send(answer)
            head = await client.head()
            assert head.status == 502
            assert await conn.closed()
            await proxy.idle()
            assert await proxy.verdicts() == {"error": 1}

    dialogue(script())


def test_a_status_above_599_is_counted_as_a_fault_of_the_engine() -> None:
    """Every request that is not metered has its count, whatever the status."""

    async def script() -> None:
        async with scripted_engine() as engine, proxied(engine.url) as proxy:
            client = await proxy.dial()
            await client.send(get())
            conn = await engine.accept()
            await conn.send(b"HTTP/1.1 799 Odd\r\nContent-Length: 0\r\n\r\n")
            assert (await client.message()).status == 799
            await proxy.idle()
            assert await proxy.total("other_requests_total", code_class="5xx") == 1
            assert await proxy.total("telemetry_errors_total") == 0

    dialogue(script())


def test_bytes_that_no_request_asked_for_reach_nobody() -> None:
    """An answer behind an answer, or on an idle connection, is not the next client's."""
    poison = b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nPOISONED"

    async def script() -> None:
        async with scripted_engine() as engine, proxied(engine.url) as proxy:
            client = await proxy.dial()
            for late in (False, True):
                await client.send(post())
                conn = await engine.accept()
                await conn.request()
                await conn.send(ok(completion()) + (b"" if late else poison))
                assert (await client.message()).body == completion()
                if late:
                    await conn.send(poison)
                await conn.closed()
            await client.send(post())
            conn = await engine.accept()
            await conn.send(ok(completion()))
            assert (await client.message()).body == completion()

    dialogue(script())


@pytest.mark.parametrize("room", [20_000, 40_000, 60_000, 70_000, 90_000])
@pytest.mark.parametrize("stamps", ["kernel", "loop"])
def test_an_upload_goes_on_whatever_the_kernel_takes_at_first(
    stamps: str, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A body that came before the connection stood: what a small send buffer leaves is not stuck.

    On a real network the kernel takes less at once than on loopback; the client, paused until
    then, has to be resumed also when less than a link's own high water mark was left over.
    """
    connect = EnginePool._connect_socket

    async def small(pool: EnginePool) -> socket.socket:
        sock = await connect(pool)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, room)
        return sock

    monkeypatch.setattr(EnginePool, "_connect_socket", small)

    async def read(conn: Conn, wanted: int) -> None:
        await soon(conn.reader.readexactly(wanted))

    async def script() -> None:
        async with scripted_engine() as engine, proxied(engine.url, stamps=stamps) as proxy:
            client = await proxy.dial()
            size = 400_000
            client.writer.write(post(b"x" * size))
            conn = await engine.accept()
            await read(conn, size)
            await conn.send(ok(completion()))
            assert (await client.message()).status == 200
            await asyncio.sleep(0)
            assert await proxy.verdicts() == {"good": 1}

    dialogue(script())


def test_an_http_1_0_client_is_not_told_to_continue() -> None:
    """RFC 9110 10.1.1: its Expect is ignored, also where the proxy gathers the body itself."""

    async def script() -> None:
        async with (
            scripted_engine() as engine,
            proxied(engine.url, token_counts="request") as proxy,
        ):
            client = await proxy.dial()
            head, body = post(b'{"stream":true}', headers="Expect: 100-continue\r\n").split(
                b"\r\n\r\n"
            )
            await client.send(head.replace(b"HTTP/1.1", b"HTTP/1.0") + b"\r\n\r\n")
            await client.send(body)
            conn = await engine.accept()
            await conn.request()
            await conn.send(ok(completion()))
            assert status_of(await client.rest()) == [200]

    dialogue(script())


@pytest.mark.parametrize("token_counts", ["observe", "request"])
def test_a_large_body_that_waited_in_the_queue_goes_on(token_counts: str) -> None:
    """A client paused while its request waited for a place is read on once there is one."""
    body = b'{"stream":true,"prompt":"' + b"x" * 600_000 + b'"}'

    async def script() -> None:
        async with (
            scripted_engine() as engine,
            proxied(
                engine.url,
                token_counts=token_counts,
                admission={"max_inflight": 1, "max_queue": 1, "queue_timeout_s": 30},
            ) as proxy,
        ):
            first, second = await proxy.dial(), await proxy.dial()
            await first.send(post())
            conn = await engine.accept()
            second.writer.write(post(body))
            await until(lambda: any(c.paused_for for c in proxy.proxy.relay.connections))
            await conn.send(ok(completion()))
            assert (await first.message()).status == 200
            assert (await conn.next()).body == body
            await conn.send(ok(completion()))
            assert (await second.message()).status == 200
            await proxy.idle()
            assert await proxy.verdicts() == {"good": 2}

    dialogue(script())


def test_a_large_body_pipelined_behind_a_request_goes_on() -> None:
    """The second request's body, paused while the first was served, comes when it is its turn."""
    body = b"x" * 600_000

    async def script() -> None:
        async with scripted_engine() as engine, proxied(engine.url) as proxy:
            client = await proxy.dial()
            client.writer.write(post() + post(body))
            conn = await engine.accept()
            await conn.request()
            await until(lambda: any(c.paused_for for c in proxy.proxy.relay.connections))
            await conn.send(ok(completion()))
            assert (await client.message()).status == 200
            assert (await conn.next()).body == body
            await conn.send(ok(completion()))
            assert (await client.message()).status == 200

    dialogue(script())
