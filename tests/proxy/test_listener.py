"""Listening: every address of a host, errors that name the address, and no descriptor left."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import resource
import socket
from collections.abc import Callable, Iterator

import pytest
import uvloop

from breakeven_proxy.relay import listener
from breakeven_proxy.relay.listener import Listener


@contextlib.contextmanager
def few_descriptors() -> Iterator[None]:
    """This process may open eight more than it has."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as probe:
        resource.setrlimit(resource.RLIMIT_NOFILE, (probe.fileno() + 8, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def until(true: Callable[[], bool]) -> None:
    """Looks again and again; at most 5 s."""
    async with asyncio.timeout(5):
        while not true():  # noqa: ASYNC110 - what changes is a plain list
            await asyncio.sleep(0.001)


def test_a_taken_address_is_named() -> None:
    """The error says which address and why."""

    async def dialogue() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(OSError, match=f"127.0.0.1:{port}: Address already in use") as told:
                await Listener(lambda sock: sock.close()).listen("127.0.0.1", port)
            assert told.value.errno == errno.EADDRINUSE

    uvloop.run(dialogue())


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_many_connections_at_once_are_all_handed_over(host: str) -> None:
    """More than one turn accepts; each is non-blocking and on its own."""

    async def dialogue() -> None:
        taken: list[socket.socket] = []
        listening = Listener(taken.append)
        address = await listening.listen(host, 0)
        clients = [socket.create_connection(address) for _ in range(3 * listener.ACCEPTS_A_TURN)]
        await until(lambda: len(taken) == len(clients))
        assert {sock.getblocking() for sock in taken} == {False}
        assert len({sock.fileno() for sock in taken}) == len(clients)
        listening.close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)
        for sock in taken + clients:
            sock.close()

    uvloop.run(dialogue())


def test_without_descriptors_it_rests_says_so_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """No busy loop, no connection lost: those that wait are accepted when there is room again."""
    monkeypatch.setattr(listener, "REST_S", 0.05)

    async def dialogue() -> None:
        loop = asyncio.get_running_loop()
        said: list[str] = []
        loop.set_exception_handler(lambda _, context: said.append(context["message"]))
        taken: list[socket.socket] = []
        listening = Listener(taken.append)
        address = await listening.listen("127.0.0.1", 0)
        clients: list[socket.socket] = []
        with few_descriptors():
            with contextlib.suppress(OSError):
                while len(clients) < 20:  # all descriptors for clients: none to accept with
                    clients.append(socket.create_connection(address))
            assert 0 < len(clients) < 20
            await until(lambda: bool(said))
            assert said[0] == "no connection is accepted for 0.05 s"
        waiting = clients[0]
        for sock in clients[1:]:
            sock.close()
        await until(lambda: bool(taken))
        taken[0].send(b"here")
        assert await asyncio.to_thread(waiting.recv, 10) == b"here"
        listening.close()
        for sock in [*taken, waiting]:
            sock.close()

    uvloop.run(dialogue())


def test_a_closed_listener_accepts_nothing_more_after_its_rest() -> None:
    """Closing in the rest cancels what would have watched a closed descriptor."""

    async def dialogue() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        listening = Listener(lambda sock: sock.close())
        await listening.listen("127.0.0.1", 0)
        listening._rest(listening._sockets[0], OSError(errno.EMFILE, "full"))
        listening.close()
        assert not listening._resting

    uvloop.run(dialogue())


def test_an_address_that_the_machine_has_not_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name with one foreign address among its own listens on its own; alone it is an error."""
    foreign = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", 0))
    unknown = (socket.AF_DECnet, socket.SOCK_STREAM, 0, "", ("::1", 0))
    own = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))

    async def dialogue(*found: object) -> str:
        async def resolved(*_: object, **__: object) -> list[object]:
            return list(found)

        listening = Listener(lambda sock: sock.close())
        monkeypatch.setattr(listening, "_loop", Loop(resolved))
        try:
            return (await listening.listen("a.name", 0))[0]
        finally:
            listening.close()

    assert asyncio.run(dialogue(foreign, unknown, own)) == "127.0.0.1"
    with pytest.raises(OSError, match=r"cannot listen on 192\.0\.2\.1:0"):
        asyncio.run(dialogue(foreign))


class Loop:
    """The running loop, with another resolver."""

    def __init__(self, resolved: Callable[..., object]) -> None:
        self.getaddrinfo = resolved

    def __getattr__(self, name: str) -> object:
        return getattr(asyncio.get_running_loop(), name)


def test_a_connection_that_cannot_be_watched_is_closed_and_said() -> None:
    """The set of ready sockets is full (ENOSPC): no socket leaks, no busy loop."""

    async def dialogue() -> None:
        said: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, told: said.append(str(told)))

        def full(sock: socket.socket) -> None:
            raise OSError(errno.ENOSPC, "no room")

        listening = Listener(full)
        client = socket.create_connection(await listening.listen("127.0.0.1", 0))
        await until(lambda: bool(said))
        client.settimeout(5)
        assert await asyncio.to_thread(client.recv, 1) == b""
        assert len(said) == 1
        listening.close()
        client.close()

    uvloop.run(dialogue())
