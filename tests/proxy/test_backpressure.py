"""Slow readers, slow engines, large bodies: what is held stays bounded, what is paused is known."""

from __future__ import annotations

import asyncio
import resource
from pathlib import Path

import pytest
from tests.support.engine import (
    DONE,
    STREAM_HEAD,
    Conn,
    Peer,
    chunked,
    completion,
    event,
    ok,
    post,
    scripted_engine,
    soon,
    until,
)
from tests.support.proxied import dialogue, proxied

MB = 1 << 20


def rss_bytes() -> int:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


async def push(conn: Conn, data: bytes, limit: int) -> int:
    """Sends until the other side takes no more for a while, or `limit` is reached; bytes taken."""
    sent = 0
    while sent < limit:
        conn.writer.write(data)
        try:
            await asyncio.wait_for(conn.writer.drain(), 0.5)
        except TimeoutError:
            break
        sent += len(data)
    return sent


@pytest.mark.parametrize("stamps", ["kernel", "loop"])
def test_a_slow_reader_stops_the_engine(stamps: str) -> None:
    """An unread stream is taken up to the buffers' size, not whole; afterwards it goes on."""

    async def script() -> None:
        async with scripted_engine() as engine, proxied(engine.url, stamps=stamps) as proxy:
            client = await proxy.dial(rcvbuf=65536)
            client.reader._limit = 1024  # type: ignore[attr-defined]
            await client.send(post())
            conn = await engine.accept()
            conn.writer.transport.set_write_buffer_limits(high=65536)
            await conn.send(STREAM_HEAD + chunked(event("a", tokens=1), end=False))
            await client.head()
            filler = chunked(b": " + b"x" * 65000 + b"\n\n", end=False)
            before = rss_bytes()
            taken = await push(conn, filler, 90 * MB)
            assert taken < 24 * MB  # socket buffers of three sockets and this test's own
            assert rss_bytes() - before < 12 * MB
            splice = next(iter(proxy.proxy.relay.connections))
            assert splice.busy
            # The client reads again: everything arrives, and the stream ends.
            tail = chunked(event("b", tokens=2, finish="stop"), DONE)
            reading = asyncio.create_task(drain_all(client))
            conn.writer.write(tail)
            await soon(conn.writer.drain())
            total = await asyncio.wait_for(reading, 20)
            assert total >= taken
            await proxy.idle()
            assert await proxy.verdicts() == {"good": 1}
            assert await proxy.total("backpressured_requests_total") == 1
            # The gap across the pause is in no statistic.
            assert await proxy.total("burst_gap_seconds_count") == 0
            assert await proxy.total("unobserved_gaps_total") == 1

    dialogue(script())


async def drain_all(client: Peer) -> int:
    """Reads a chunked body to its end; its size."""
    total, tail = 0, b""
    while not tail.endswith(b"\r\n0\r\n\r\n"):
        data = await client.reader.read(65536)
        assert data, "broken off"
        total += len(data)
        tail = (tail + data)[-16:]
    return total


@pytest.mark.parametrize("stamps", ["kernel", "loop"])
@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_a_50_mb_upload_streams_through(stamps: str, framing: str) -> None:
    """Row 35: the body reaches the engine whole while memory grows by less than 10 MB."""
    size = 50 * MB

    async def script() -> None:
        async with scripted_engine() as engine, proxied(engine.url, stamps=stamps) as proxy:
            client = await proxy.dial()
            head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\n"
            part = b"y" * 65536
            if framing == "length":
                await client.send(head + b"Content-Length: %d\r\n\r\n" % size)
            else:
                part = chunked(part, end=False)
                await client.send(head + b"Transfer-Encoding: chunked\r\n\r\n")
            conn = await engine.accept()
            before = rss_bytes()
            upload = asyncio.create_task(send_parts(client, part, size // 65536, framing))
            received = await asyncio.wait_for(count_body(conn, size, framing), 25)
            await upload
            assert received == size
            assert rss_bytes() - before < 10 * MB
            await conn.send(ok(completion()))
            assert (await client.message()).status == 200
            assert await proxy.verdicts() == {"good": 1}

    dialogue(script())


async def send_parts(client: Peer, part: bytes, count: int, framing: str) -> None:
    for _ in range(count):
        client.writer.write(part)
        await client.writer.drain()
    if framing == "chunked":
        await client.send(b"0\r\n\r\n")


async def count_body(conn: Conn, size: int, framing: str) -> int:
    """Reads the request's body; its length, less chunk framing."""
    total = 0
    if framing == "length":
        while total < size:
            total += len(await conn.reader.read(1 << 18))
        return total
    while True:
        length = int(await conn.reader.readuntil(b"\r\n"), 16)
        await conn.reader.readexactly(length + 2)
        if length == 0:
            return total
        total += length


def test_an_engine_that_does_not_read_pauses_the_upload() -> None:
    """A stuck engine stops the client by TCP; memory does not grow with the body."""

    async def script() -> None:
        async with scripted_engine() as engine, proxied(engine.url) as proxy:
            client = await proxy.dial()
            await client.send(
                b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 104857600\r\n\r\n"
            )
            conn = await engine.accept()
            conn.writer.transport.pause_reading()  # type: ignore[attr-defined]
            client.writer.transport.set_write_buffer_limits(high=65536)
            before, sent = rss_bytes(), 0
            while sent < 100 * MB:
                client.writer.write(b"z" * 65536)
                try:
                    await asyncio.wait_for(client.writer.drain(), 0.5)
                except TimeoutError:
                    break
                sent += 65536
            # What is on the way lies in the kernel's windows, which grow to tens of megabytes.
            assert sent < 80 * MB, "the client was stopped"
            assert rss_bytes() - before < 12 * MB
            client.reset()
            conn.writer.transport.resume_reading()  # type: ignore[attr-defined]

    dialogue(script())


def test_a_bigger_body_passes_when_the_engine_answers_first() -> None:
    """A response before the end of the upload: the exchange ends, the client's rest is dropped."""

    async def script() -> None:
        async with scripted_engine() as engine, proxied(engine.url) as proxy:
            client = await proxy.dial()
            await client.send(
                b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 10000000\r\n\r\n"
            )
            conn = await engine.accept()
            await conn.send(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
            assert (await client.message()).status == 413
            client.writer.write(b"w" * 100000)
            await until(lambda: not proxy.proxy.relay.active)
            assert await proxy.total("upstream_connections") == 0

    dialogue(script())


@pytest.mark.parametrize("how", ["half-close", "keep-alive ends"])
def test_unsent_bytes_keep_no_connection_for_ever(how: str) -> None:
    """A client that takes nothing: its request ends with its half-close, its socket in time."""

    async def script() -> None:
        half = how == "half-close"
        timeouts = {"idle_s": 60 if half else 1, "keepalive_s": 0.2}
        async with scripted_engine() as engine, proxied(engine.url, timeouts=timeouts) as proxy:
            client = await proxy.dial(rcvbuf=4096)
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await client.send(post())
            conn = await engine.accept()
            await conn.send(STREAM_HEAD)
            relay = proxy.proxy.relay
            (connection,) = relay.connections
            while not connection.unsent:
                await conn.send(chunked(b": " + b"x" * 4000, end=False))
                await asyncio.sleep(0.001)
            if half:
                client.writer.write_eof()
                await proxy.idle()
            else:
                await conn.send(chunked())
                await until(lambda: not relay.connections)

    dialogue(script())
