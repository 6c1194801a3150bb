"""The short way of a stream: the same bytes at the client, the same reads at the meter."""

from __future__ import annotations

import asyncio
import itertools
import socket
from typing import Any

import httptools
import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from breakeven_wire import EnginePool, Exchange, ExchangeHandler, Failure, Lane, Origin, Request
from breakeven_wire.lane import HELD_READS, LANE_READ_BYTES, SMALL_ROOM_BYTES, size_line
from breakeven_wire.link import LinkOwner
from breakeven_wire.readiness import READABLE, WRITABLE, ReadySet
from breakeven_wire.socket_link import SocketLink

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Client(LinkOwner):
    """The owner of the client's link: a slow client pauses the engine's side."""

    exchange: Exchange
    relay: Relay

    def data_received(self, data: bytes, stamp: float) -> None: ...
    def eof_received(self) -> None: ...
    def connection_lost(self, error: BaseException | None) -> None: ...
    def flushed(self) -> None: ...
    def unstamped(self) -> None: ...
    def pause_writing(self) -> None:
        self.exchange.pause_reading()
        self.exchange.close_lane()
        self.relay.lane = None

    def resume_writing(self) -> None:
        self.exchange.resume_reading()


class Relay(ExchangeHandler):
    """As the proxy's splice: a lane from the second read on."""

    def __init__(self, sink: SocketLink, *, failing: bool = False) -> None:
        self.sink = sink
        self.failing = failing
        self.watched = 0  # reads that may not wait
        self.exchange: Exchange
        self.lane: Lane | None = None
        self.lanes: list[Lane] = []
        self.reads: list[tuple[bytes, float]] = []
        self.failures = 0
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def on_head(self, head: object, stamp: float) -> None: ...

    def on_body(self, data: bytes, stamp: float) -> None:
        self.reads.append((data, stamp))
        self.sink.write(chunk(data))
        if not self.exchange.more and self.lane is None:
            self.lane = self.exchange.open_lane(self.sink, self.observe, self.failed)
            if self.lane is not None:
                self.lanes.append(self.lane)

    def observe(self, reads: list[tuple[bytes, float]]) -> bool:
        self.reads += reads
        if self.failing:
            raise ZeroDivisionError
        return len(self.reads) > self.watched

    def failed(self) -> None:
        self.failures += 1

    def on_end(self, trailers: object, stamp: float) -> None:
        self.over("whole")

    def on_failure(self, failure: Failure) -> None:
        self.over(failure.kind.value)

    def over(self, word: str) -> None:
        if self.lane is not None:
            self.lane.flush()
        self.sink.write(END)
        self.sink.close()
        self.ended.set_result(word)


class Dechunked:
    def __init__(self, data: bytes) -> None:
        self.body = b""
        self.complete = False
        httptools.HttpResponseParser(self).feed_data(HEAD + data)

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.complete = True


class Scene:
    """An engine's socket, the pool, a client's socket; the ends are plain and blocking."""

    def __init__(self, stamps: Any, *, failing: bool = False) -> None:
        loop = asyncio.get_running_loop()
        self.listener = socket.create_server(("127.0.0.1", 0))
        port = self.listener.getsockname()[1]
        self.pool = EnginePool(Origin.parse(f"http://127.0.0.1:{port}"), stamps=stamps)
        ours, self.client = socket.socketpair()
        ours.setblocking(False)
        self.ready = ReadySet(loop)
        owner = Client()
        self.relay = Relay(SocketLink(loop, self.ready, ours, owner), failing=failing)
        owner.relay = self.relay
        self.relay.exchange = owner.exchange = self.pool.start(Request(b"GET", b"/"), self.relay)

    async def __aenter__(self) -> Scene:
        self.engine, _ = await asyncio.to_thread(self.listener.accept)
        self.engine.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.to_thread(self.engine.recv, 65536)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.pool.close()
        self.relay.sink.abort()
        self.ready.close()
        for sock in (self.engine, self.client, self.listener):
            sock.close()

    async def send(self, *reads: bytes) -> None:
        """Each in a read of its own, as far as two processes' timing allows."""
        for read in reads:
            self.engine.sendall(read)
            for _ in range(3):
                await asyncio.sleep(0)

    async def at_client(self) -> bytes:
        self.client.settimeout(5)

        def take() -> bytes:
            data = b""
            while part := self.client.recv(1 << 20):
                data += part
            return data

        return await asyncio.to_thread(take)


@settings(max_examples=60, deadline=None)
@given(
    pieces=st.lists(
        st.one_of(
            st.binary(min_size=1, max_size=30),
            st.integers(1, 6000).map(lambda size: b"x" * size),
            st.just(b"\r\n"),
            st.just(b"5\r\nhello\r\n"),
        ),
        max_size=25,
    ),
    cuts=st.sets(st.integers(0, 3000), max_size=8),
    whole=st.booleans(),
    stamps=st.sampled_from(["kernel", "loop"]),
)
def test_the_client_gets_what_the_engine_sent_however_it_is_cut(
    pieces: list[bytes], cuts: set[int], whole: bool, stamps: str
) -> None:
    """Body and observed reads are the engine's, in order, and the end is told once."""

    async def dialogue() -> None:
        parts = [HEAD, *map(chunk, pieces), END]
        if not whole:
            stream = b"".join(parts)
            edges = [0, *sorted(c for c in cuts if 0 < c < len(stream)), len(stream)]
            parts = [stream[a:b] for a, b in itertools.pairwise(edges)]
        async with Scene(stamps) as scene:
            await scene.send(*parts)
            async with asyncio.timeout(5):
                assert await scene.relay.ended == "whole"
            got = Dechunked(await scene.at_client())
            assert (got.body, got.complete) == (b"".join(pieces), True)
            assert b"".join(data for data, _ in scene.relay.reads) == b"".join(pieces)
            times = [stamp for _, stamp in scene.relay.reads]
            assert times == sorted(times)
            counted = sum(lane.data_bytes for lane in scene.relay.lanes)
            assert counted <= sum(map(len, pieces))

    uvloop.run(dialogue())


async def one_by_one(scene: Scene, count: int) -> None:
    """Chunks that are each read before the next is sent: the client has it by then."""
    scene.client.settimeout(5)
    for number in range(count):
        data = chunk(b"%03d" % number)
        scene.engine.sendall(data)
        got = b""
        while len(got) < len(data):
            got += await asyncio.to_thread(scene.client.recv, len(data) - len(got))
        assert got == data


@pytest.mark.parametrize("stamps", ["kernel", "loop"])
def test_the_first_read_of_a_lane_is_metered_at_once_and_few_wait(stamps: str) -> None:
    """At any moment at most HELD_READS − 1 reads are not metered, and none at the end."""

    async def dialogue() -> None:
        async with Scene(stamps) as scene:
            await scene.send(HEAD)
            await one_by_one(scene, 2)
            assert [data for data, _ in scene.relay.reads] == [b"000", b"001"]
            await one_by_one(scene, HELD_READS - 1)
            assert len(scene.relay.reads) >= 2
            await one_by_one(scene, 1)
            assert len(scene.relay.reads) >= 2 + HELD_READS - 1
            scene.engine.sendall(END)
            async with asyncio.timeout(5):
                assert await scene.relay.ended == "whole"
            assert len(scene.relay.reads) == 2 + HELD_READS
            assert scene.relay.lanes[0].data_bytes == 3 * (1 + HELD_READS)

    uvloop.run(dialogue())


def test_reads_that_somebody_waits_for_are_told_at_once() -> None:
    """The proxy's meter lets none wait before the stream's first token."""

    async def dialogue() -> None:
        async with Scene("kernel") as scene:
            scene.relay.watched = 6
            await scene.send(HEAD)
            await one_by_one(scene, 6)
            assert len(scene.relay.reads) == 6
            scene.engine.sendall(END)
            async with asyncio.timeout(5):
                assert await scene.relay.ended == "whole"

    uvloop.run(dialogue())


def test_a_slow_client_stops_the_lane_and_loses_nothing() -> None:
    """The engine's side is paused while bytes wait; then everything comes in order."""

    async def dialogue() -> None:
        async with Scene("kernel") as scene:
            pieces = [b"%06d" % number * 200 for number in range(2000)]
            sender = asyncio.create_task(
                asyncio.to_thread(scene.engine.sendall, HEAD + b"".join(map(chunk, pieces)) + END)
            )
            await asyncio.sleep(0.2)
            assert scene.relay.sink.unsent < 1 << 20
            got = Dechunked(await scene.at_client())
            await sender
            assert (got.body, got.complete) == (b"".join(pieces), True)
            assert b"".join(data for data, _ in scene.relay.reads) == got.body

    uvloop.run(dialogue())


def test_the_read_at_which_a_client_becomes_slow_is_metered() -> None:
    """The lane is closed while that read is on its way; it is among those that were observed."""

    async def dialogue() -> None:
        async with Scene("kernel") as scene:
            await scene.send(HEAD)
            await one_by_one(scene, 2)
            scene.engine.sendall(chunk(b"y" * SMALL_ROOM_BYTES))  # from now on the lane has room
            got = b""
            while got.count(b"y") < SMALL_ROOM_BYTES:
                got += await asyncio.to_thread(scene.client.recv, LANE_READ_BYTES)
            pieces = [b"%06d" % number + b"x" * 2035 for number in range(1000)]
            assert len(chunk(pieces[0])) == LANE_READ_BYTES  # each read is one chunk
            sender = asyncio.create_task(
                asyncio.to_thread(scene.engine.sendall, b"".join(map(chunk, pieces)) + END)
            )
            async with asyncio.timeout(5):
                while scene.relay.lane is not None or not scene.relay.sink.unsent:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
            got = Dechunked(await scene.at_client()).body
            await sender
            assert got == b"".join(pieces)
            observed = b"".join(data for data, _ in scene.relay.reads)
            assert observed.endswith(b"y" * SMALL_ROOM_BYTES + b"".join(pieces))

    uvloop.run(dialogue())


@pytest.mark.parametrize("how", ["reset", "close", "no chunk"])
def test_a_broken_engine_is_told_after_what_it_sent(how: str) -> None:
    """Reads that waited for the meter are there when the failure comes."""

    async def dialogue() -> None:
        async with Scene("kernel") as scene:
            await scene.send(HEAD)
            await one_by_one(scene, 5)
            unstamped = scene.relay.exchange.unstamped_reads
            if how == "no chunk":
                scene.engine.sendall(b"5\r\nhelloXX")
            else:
                if how == "reset":
                    linger = (1).to_bytes(4, "little") + bytes(4)
                    scene.engine.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                scene.engine.close()
            async with asyncio.timeout(5):
                expected = {"reset": "reset", "close": "closed_early", "no chunk": "protocol"}
                assert await scene.relay.ended == expected[how]
            assert scene.relay.exchange.unstamped_reads == unstamped, "an end is no read"
            assert [data for data, _ in scene.relay.reads][:5] == [b"%03d" % n for n in range(5)]

    uvloop.run(dialogue())


def test_what_comes_the_long_way_is_metered_behind_what_waited() -> None:
    """A last chunk and a reset that are heard of together are no reason to meter out of order."""

    async def dialogue() -> None:
        async with Scene("kernel") as scene:
            await scene.send(HEAD)
            await one_by_one(scene, 5)
            linger = (1).to_bytes(4, "little") + bytes(4)
            scene.engine.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            scene.engine.sendall(chunk(b"last"))
            scene.engine.close()
            async with asyncio.timeout(5):
                await scene.relay.ended
            assert [data for data, _ in scene.relay.reads][5:] in ([b"last"], [])
            assert [data for data, _ in scene.relay.reads][:5] == [b"%03d" % n for n in range(5)]

    uvloop.run(dialogue())


def test_a_ready_socket_that_can_also_be_written_keeps_the_order() -> None:
    """As while a request is still being sent: read and write are told of together."""

    async def dialogue() -> None:
        async with Scene("kernel") as scene:
            await scene.send(HEAD)
            await one_by_one(scene, 5)
            lane = scene.relay.lane
            assert lane is not None
            scene.engine.sendall(chunk(b"next"))
            lane.heard(READABLE | WRITABLE)
            scene.engine.sendall(END)
            async with asyncio.timeout(5):
                assert await scene.relay.ended == "whole"
            expected = [*(b"%03d" % n for n in range(5)), b"next"]
            assert [data for data, _ in scene.relay.reads] == expected

    uvloop.run(dialogue())


def test_a_meter_that_fails_is_counted_and_the_stream_goes_on() -> None:
    """The client gets everything."""

    async def dialogue() -> None:
        async with Scene("loop", failing=True) as scene:
            await scene.send(HEAD)
            await one_by_one(scene, 30)
            scene.engine.sendall(END)
            async with asyncio.timeout(5):
                assert await scene.relay.ended == "whole"
            assert scene.relay.failures >= 3

    uvloop.run(dialogue())


def test_the_size_line_is_that_of_a_read_of_one_chunk() -> None:
    """For every length that one chunk can have; a line that nothing starts with for the others."""
    lines = {len(b"%x" % size) + 4 + size: b"%x\r\n" % size for size in range(1, 70_000)}
    for length in range(70_000):
        assert size_line(length) == lines.get(length, b"no chunk is that long")


def test_a_read_of_the_lane_is_bounded() -> None:
    """What waits of one stream is at most HELD_READS reads of this size."""
    assert HELD_READS * LANE_READ_BYTES <= 16384
