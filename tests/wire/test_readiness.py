"""A reset that comes together with the last bytes ends the exchange, on every kind of loop.

libuv would tell of a broken connection once and never again; where that one call found bytes, the
request hung. `breakeven_wire.readiness` tells until the socket was read to its end.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable

import pytest
import uvloop

from breakeven.errors import EngineError
from breakeven_wire import EnginePool, Origin
from breakeven_wire.readiness import EVENTS_A_TURN, READABLE, STAMPS_A_LOOK, ReadySet

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def reset(sock: socket.socket) -> None:
    """Closes with RST."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


async def exchange(answer: bytes, stamps: str) -> str:
    """What a request gets whose answer and reset lie in the socket before the loop looks again."""
    listener = socket.create_server(("127.0.0.1", 0))
    accepted: list[socket.socket] = []
    thread = threading.Thread(target=lambda: accepted.append(listener.accept()[0]))
    thread.start()
    port = listener.getsockname()[1]
    pool = EnginePool(Origin.parse(f"http://127.0.0.1:{port}"), stamps=stamps)  # type: ignore[arg-type]
    fetch = asyncio.ensure_future(pool.fetch("GET", "/", (), b""))
    try:
        while not accepted:  # noqa: ASYNC110 - the other end is a thread
            await asyncio.sleep(0.001)
        thread.join()
        peer = accepted[0]
        peer.settimeout(5)
        while b"\r\n\r\n" not in (await asyncio.to_thread(peer.recv, 65536)):
            pass
        # No await from here: bytes and reset are both there when the loop polls next.
        peer.sendall(answer)
        reset(peer)
        async with asyncio.timeout(5):
            try:
                await fetch
            except EngineError as error:
                return str(error)
        return "whole"
    finally:
        fetch.cancel()
        await pool.close()
        listener.close()


@pytest.mark.parametrize("answer", [HEAD, HEAD + b"5\r\nhello\r\n", HEAD + b"40\r\nhalf"])
@pytest.mark.parametrize("stamps", ["kernel", "loop"])
@pytest.mark.parametrize("run", [uvloop.run, asyncio.run], ids=["uvloop", "asyncio"])
def test_bytes_and_reset_in_one_turn_end_the_exchange(
    run: Callable[..., str], stamps: str, answer: bytes
) -> None:
    """The request fails in its body phase, at once; it never waits for a deadline."""
    assert "body" in run(exchange(answer, stamps))


def test_the_watch_is_given_back() -> None:
    """A closed pool leaves no descriptor in the loop."""

    async def dialogue() -> int:
        listener = socket.create_server(("127.0.0.1", 0))
        pool = EnginePool(
            Origin.parse(f"http://127.0.0.1:{listener.getsockname()[1]}"), stamps="kernel"
        )
        fetch = asyncio.ensure_future(pool.fetch("GET", "/", (), b""))
        peer, _ = await asyncio.to_thread(listener.accept)
        await asyncio.to_thread(peer.recv, 65536)
        peer.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")
        status = (await fetch).status
        await pool.close()
        peer.close()
        listener.close()
        return status

    assert uvloop.run(dialogue()) == 204


class Pairs:
    """Socket pairs in one set; what was heard and done, in order."""

    def __init__(self, count: int, *, stamps: bool = False) -> None:
        self.ready = ReadySet(asyncio.get_running_loop(), stamps=stamps)
        self.pairs = [socket.socketpair() for _ in range(count)]
        self.order: list[str] = []
        self.times: list[float] = []
        for number, (ours, _) in enumerate(self.pairs):
            ours.setblocking(False)
            self.ready.add(ours.fileno(), READABLE, self.hear(number), self.failed)

    def hear(self, number: int) -> Callable[[int], None]:
        def heard(events: int) -> None:
            assert events == READABLE
            self.times.append(self.ready.polled)
            self.order.append(self.pairs[number][0].recv(1).decode())
            if self.order[-1] == "L":  # asks for two calls
                self.ready.later(self.first)
                self.ready.later(lambda: self.order.append("second"))

        return heard

    def first(self) -> None:
        self.order.append("first")
        self.send(1, b"x")  # ready while calls wait: goes before the next of them

    def failed(self, error: Exception) -> None:
        raise error

    def send(self, number: int, data: bytes) -> None:
        self.pairs[number][1].sendall(data)

    async def until(self, length: int) -> list[str]:
        async with asyncio.timeout(5):
            while len(self.order) < length:  # noqa: ASYNC110 - the order is what is waited for
                await asyncio.sleep(0)
        return self.order

    def close(self) -> None:
        self.ready.close()
        for pair in self.pairs:
            for sock in pair:
                sock.close()


@pytest.mark.parametrize("run", [uvloop.run, asyncio.run], ids=["uvloop", "asyncio"])
def test_what_is_put_off_waits_for_every_ready_socket(run: Callable[..., list[str]]) -> None:
    """No stream waits for another's metering: sockets first, then one call, then look again."""

    async def dialogue() -> list[str]:
        pairs = Pairs(3)
        try:
            for number, data in enumerate([b"L", b"a", b"b"]):
                pairs.send(number, data)
            order = await pairs.until(6)
            assert len(set(pairs.times[:3])) == 1, "found together, so there at one time"
            assert pairs.times[3] > pairs.times[0]
            return order
        finally:
            pairs.close()

    order = run(dialogue())
    assert sorted(order[:3]) == ["L", "a", "b"]
    assert order[3:] == ["first", "x", "second"]


def test_what_is_put_off_is_done_though_a_turn_is_full() -> None:
    """As many sockets as a turn serves are ready, then none ever again: the call still comes."""

    async def dialogue() -> list[str]:
        pairs = Pairs(EVENTS_A_TURN)
        try:
            for number in range(EVENTS_A_TURN):
                pairs.send(number, b"L" if number == 0 else b"a")
            return list(await pairs.until(EVENTS_A_TURN + 3))
        finally:
            pairs.close()

    assert uvloop.run(dialogue())[EVENTS_A_TURN:] == ["first", "x", "second"]


def test_a_set_that_is_closed_by_one_of_its_sockets_calls_nobody_else() -> None:
    """Neither the sockets behind it in the same turn nor what was put off."""

    async def dialogue() -> list[str]:
        pairs = Pairs(2)
        called: list[str] = []

        def close(events: int) -> None:
            called.append("heard")
            pairs.ready.later(lambda: called.append("later"))
            pairs.ready.close()

        for number in range(2):
            pairs.ready.heard_by(pairs.pairs[number][0].fileno(), close)
            pairs.send(number, b"x")
        await asyncio.sleep(0.05)
        pairs.close()
        return called

    assert uvloop.run(dialogue()) == ["heard"]


def test_a_socket_that_waits_keeps_the_time_it_was_found_ready() -> None:
    """A set that stamps looks again every few sockets; what waited came when it was first seen.

    Twice: a socket's second read has nothing to do with when its first was found.
    """

    async def dialogue() -> list[list[float]]:
        count = 2 * STAMPS_A_LOOK + 3
        pairs = Pairs(count + 1, stamps=True)
        rounds: list[list[float]] = []
        late = count  # becomes ready while the others wait
        plain = pairs.hear(0)

        def wakes_late(events: int) -> None:
            plain(events)
            pairs.send(late, b"z")

        pairs.ready.heard_by(pairs.pairs[0][0].fileno(), wakes_late)
        try:
            for _ in range(2):
                for number in range(count):
                    pairs.send(number, b"a")
                await pairs.until(count + 1)
                assert pairs.order.count("z") == 1
                rounds.append([*pairs.times, pairs.times[pairs.order.index("z")]])
                pairs.order.clear()
                pairs.times.clear()
            return rounds
        finally:
            pairs.close()

    first, second = uvloop.run(dialogue())
    for times in (first, second):
        when_late = times.pop()
        assert sorted(set(times)) == [times[0], when_late], "the crowd at one time, one later"
        assert times.count(when_late) == 1
    assert second[0] > max(first)


def test_a_socket_that_was_forgotten_leaves_no_time_to_the_next_of_its_number() -> None:
    """A descriptor's number comes again within the same turn."""

    async def dialogue() -> tuple[float, float]:
        count = 2 * STAMPS_A_LOOK
        pairs = Pairs(count, stamps=True)
        last = pairs.pairs[-1][0]
        plain = pairs.hear(0)

        def replace(events: int) -> None:
            plain(events)
            pairs.ready.forget(last.fileno())
            pairs.ready.add(last.fileno(), READABLE, pairs.hear(count - 1), pairs.failed)

        pairs.ready.heard_by(pairs.pairs[0][0].fileno(), replace)
        try:
            for number in range(count):
                pairs.send(number, b"a" if number < count - 1 else b"z")
            await pairs.until(count)
            return pairs.times[0], pairs.times[pairs.order.index("z")]
        finally:
            pairs.close()

    found, again = uvloop.run(dialogue())
    assert again > found


def test_a_turn_that_takes_long_ends_though_sockets_are_ready() -> None:
    """Timers and other sets get their turn between slow sockets, here a clock of 1 s a look."""

    async def dialogue() -> list[str]:
        pairs = Pairs(1)
        clock = iter(range(1000))
        pairs.ready._now = lambda: float(next(clock))
        loop = asyncio.get_running_loop()
        plain = pairs.hear(0)

        def ready_again(events: int) -> None:
            plain(events)
            loop.call_soon(pairs.order.append, "other")
            pairs.send(0, b"a")

        pairs.ready.heard_by(pairs.pairs[0][0].fileno(), ready_again)
        pairs.send(0, b"a")
        try:
            return (await pairs.until(8))[:8]
        finally:
            pairs.close()

    assert uvloop.run(dialogue()) == ["a", "other"] * 4
