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
