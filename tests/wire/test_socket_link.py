"""A link over a socket of our own: what its owner hears, what the other end gets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Iterator

import pytest
import uvloop

from breakeven_wire.clock import SO_TIMESTAMPNS
from breakeven_wire.link import WRITE_HIGH_BYTES
from breakeven_wire.readiness import ReadySet
from breakeven_wire.socket_link import SocketLink

BIG = bytes(range(256)) * 40_000  # 10 MB: more than two socket buffers hold


class Owner:
    """Keeps what it is told, in order."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.data = b""
        self.stamps: list[float] = []
        self.changed = asyncio.Event()
        self.on_data: Callable[[bytes], None] = lambda _: None

    def _note(self, word: str) -> None:
        self.told.append(word)
        self.changed.set()

    def data_received(self, data: bytes, stamp: float) -> None:
        self.data += data
        self.stamps.append(stamp)
        self.changed.set()
        self.on_data(data)

    def eof_received(self) -> None:
        self._note("eof")

    def connection_lost(self, error: BaseException | None) -> None:
        self._note("lost" if error is None else f"lost {type(error).__name__}")

    def pause_writing(self) -> None:
        self._note("pause")

    def resume_writing(self) -> None:
        self._note("resume")

    def flushed(self) -> None:
        self._note("flushed")

    def unstamped(self) -> None:
        self._note("unstamped")

    async def until(self, true: Callable[[], bool]) -> None:
        """Waits for a change after which it is true; at most 5 s."""
        async with asyncio.timeout(5):
            while not true():
                self.changed.clear()
                await self.changed.wait()


class Ends:
    """Our end in a ready set, the other one plain and blocking."""

    def __init__(self, *, serving: bool = False, stamped: bool = False) -> None:
        loop = asyncio.get_running_loop()
        listener = socket.create_server(("127.0.0.1", 0))
        self.peer = socket.create_connection(listener.getsockname())
        sock, _ = listener.accept()
        listener.close()
        sock.setblocking(False)
        if stamped:
            sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self.ready = ReadySet(loop)
        self.owner = Owner()
        self.link = SocketLink(loop, self.ready, sock, self.owner, stamped=stamped, serving=serving)

    @contextlib.contextmanager
    def closing(self) -> Iterator[Ends]:
        try:
            yield self
        finally:
            self.link.abort()
            self.ready.close()
            self.peer.close()

    async def read_all(self) -> bytes:
        """All that the peer gets until the end."""
        self.peer.settimeout(5)

        def take() -> bytes:
            parts = []
            while part := self.peer.recv(1 << 20):
                parts.append(part)
            return b"".join(parts)

        return await asyncio.to_thread(take)


Dialogue = Callable[[], Awaitable[None]]


def on_both_loops(dialogue: Dialogue) -> Callable[[Callable[..., None]], None]:
    """The dialogue on uvloop and on asyncio's own loop."""

    @pytest.mark.parametrize("run", [uvloop.run, asyncio.run], ids=["uvloop", "asyncio"])
    def test(run: Callable[..., None]) -> None:
        run(dialogue())

    test.__doc__ = dialogue.__doc__
    return test


@on_both_loops
async def test_a_write_is_with_the_kernel_when_it_returns() -> None:
    """No turn of the loop is needed: the peer can read before anybody awaits."""
    with Ends().closing() as ends:
        ends.link.write(b"at once")
        assert ends.peer.recv(100) == b"at once"
        assert ends.link.unsent == 0


@on_both_loops
async def test_what_the_kernel_does_not_take_waits_in_order() -> None:
    """The owner is asked to pause and to go on; all bytes come, in order, then the end."""
    with Ends().closing() as ends:
        ends.link.write(BIG)
        ends.link.write(b"and the last")
        assert ends.owner.told == ["pause"]
        assert ends.link.unsent > WRITE_HIGH_BYTES
        ends.link.close()
        ends.link.write(b"too late")
        assert await ends.read_all() == BIG + b"and the last"
        await ends.owner.until(lambda: "lost" in ends.owner.told)


@on_both_loops
async def test_the_owner_hears_that_all_is_sent() -> None:
    """pause, then flushed and resume, once each."""
    with Ends().closing() as ends:
        ends.link.write(BIG)
        reader = asyncio.create_task(ends.read_all())
        await ends.owner.until(lambda: "resume" in ends.owner.told)
        assert ends.owner.told == ["pause", "flushed", "resume"]
        ends.link.write_eof()
        assert await reader == BIG


@on_both_loops
async def test_write_eof_waits_for_what_is_unsent_and_reading_goes_on() -> None:
    """Our side ends after the last byte; the peer's bytes still come."""
    with Ends().closing() as ends:
        ends.link.write(BIG)
        ends.link.write_eof()
        assert await ends.read_all() == BIG
        ends.peer.send(b"still here")
        await ends.owner.until(lambda: ends.owner.data == b"still here")


@on_both_loops
async def test_a_clients_half_close_ends_the_link_after_what_is_unsent() -> None:
    """serving: eof, and the answer that waits is sent whole before the link closes."""
    with Ends(serving=True).closing() as ends:
        ends.link.write(BIG)
        ends.peer.shutdown(socket.SHUT_WR)
        await ends.owner.until(lambda: "eof" in ends.owner.told)
        assert await ends.read_all() == BIG
        await ends.owner.until(lambda: "lost" in ends.owner.told)


@on_both_loops
async def test_an_engines_end_ends_the_link_at_once() -> None:
    """Bytes first, then eof, then lost."""
    with Ends().closing() as ends:
        ends.peer.send(b"last words")
        ends.peer.close()
        await ends.owner.until(lambda: "lost" in ends.owner.told)
        assert (ends.owner.data, ends.owner.told) == (b"last words", ["eof", "lost"])


@on_both_loops
async def test_a_write_that_fails_still_reads_what_an_engine_said() -> None:
    """The engine answered and broke the connection: the answer comes before the loss."""
    with Ends().closing() as ends:
        ends.link.pause_reading()
        ends.peer.send(b"413 first")
        ends.peer.close()  # with nothing unread on its side: FIN, and RST for what we send
        for _ in range(200):
            ends.link.write(b"more")
            if ends.link.is_closing:
                break
            await asyncio.sleep(0.005)
        ends.link.resume_reading()
        await ends.owner.until(lambda: any("lost" in word for word in ends.owner.told))
        assert ends.owner.data == b"413 first"


@on_both_loops
async def test_a_reset_is_one() -> None:
    """The peer cannot take it for a clean end."""
    with Ends().closing() as ends:
        ends.link.write(b"half")
        ends.link.reset()
        with pytest.raises(ConnectionResetError):
            await ends.read_all()
        await ends.owner.until(lambda: ends.owner.told == ["lost"])
        ends.link.reset()  # and once more does nothing
        ends.link.write(b"x")
        ends.link.write_eof()
        ends.link.close()
        await asyncio.sleep(0)
        assert ends.owner.told == ["lost"]


@on_both_loops
async def test_nothing_is_read_while_paused_and_a_break_does_not_spin() -> None:
    """Bytes stay in the kernel; a reset in the pause is heard after it, behind the bytes."""
    with Ends().closing() as ends:
        ends.link.pause_reading()
        ends.peer.send(b"held")
        ends.peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        calls = 0
        heard = ends.link.heard

        def counted(events: int) -> None:
            nonlocal calls
            calls += 1
            heard(events)

        ends.link.heard_by(counted)
        await asyncio.sleep(0.02)
        assert (ends.owner.data, ends.owner.told) == (b"", [])
        ends.peer.close()
        await asyncio.sleep(0.05)
        assert calls <= 2
        ends.link.resume_reading()
        await ends.owner.until(lambda: any("lost" in word for word in ends.owner.told))


@on_both_loops
async def test_a_client_that_breaks_off_in_a_pause_is_heard_at_once() -> None:
    """serving: its reset ends the link although nobody reads (a paused upload, a full queue)."""
    with Ends(serving=True).closing() as ends:
        ends.link.pause_reading()
        ends.peer.send(b"unread")
        ends.peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await asyncio.sleep(0)
        ends.peer.close()
        await ends.owner.until(lambda: ends.owner.told == ["lost"])
        assert ends.owner.data == b""


@on_both_loops
async def test_a_pause_holds_for_the_turn_that_it_was_asked_in() -> None:
    """Both sockets were ready in one turn; the first owner pauses the second's link."""
    with Ends().closing() as one, Ends().closing() as two:
        loop = asyncio.get_running_loop()
        owner = Owner()
        sock = two.link._sock.dup()
        link = SocketLink(loop, one.ready, sock, owner)
        one.owner.on_data = lambda _: link.pause_reading()
        two.link.pause_reading()
        one.peer.send(b"a")
        two.peer.send(b"b")
        await one.owner.until(lambda: one.owner.data == b"a")
        await asyncio.sleep(0.02)
        # epoll tells them in the order in which they became ready: the first pauses the second.
        assert owner.data == b""
        link.resume_reading()
        await owner.until(lambda: owner.data == b"b")
        link.abort()


@on_both_loops
async def test_an_owner_that_fails_loses_its_own_link_only() -> None:
    """The others of the turn are served; the loop's handler hears of it; nothing spins."""
    with Ends().closing() as ends:
        loop = asyncio.get_running_loop()
        heard: list[str] = []
        loop.set_exception_handler(lambda _, context: heard.append(context["message"]))
        other = Ends()
        with other.closing():
            second = Owner()
            link = SocketLink(loop, ends.ready, other.link._sock.dup(), second)
            other.link.pause_reading()

            def fail(data: bytes) -> None:
                raise ZeroDivisionError(len(data))

            ends.owner.on_data = fail
            ends.peer.send(b"a")
            other.peer.send(b"b")
            await second.until(lambda: second.data == b"b")
            await ends.owner.until(lambda: ends.owner.told == ["lost ZeroDivisionError"])
            assert heard == ["a socket's owner failed"]
            link.abort()


@on_both_loops
async def test_reads_are_stamped_by_the_kernel_or_say_so() -> None:
    """With SO_TIMESTAMPNS the stamp lies before the read; without it the owner is told."""
    with Ends(stamped=True).closing() as ends:
        stamped, before = False, 0.0
        for _ in range(100):  # the kernel begins to stamp a little after the first one asks for it
            if stamped:
                break
            ends.owner.data, ends.owner.told = b"", []
            before = time.time()
            ends.peer.send(b"x")
            await asyncio.sleep(0.02)
            await ends.owner.until(lambda: bool(ends.owner.data))
            stamped = ends.owner.told == []
        assert stamped
        assert before - 0.001 <= ends.owner.stamps[-1] <= time.time() - 0.01
        ends.peer.shutdown(socket.SHUT_WR)
        await ends.owner.until(lambda: "lost" in ends.owner.told)
        assert ends.owner.told == ["eof", "lost"], "the end is no unstamped read"
    with Ends(stamped=True).closing() as ends:
        ends.link._sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 0)
        ends.peer.send(b"y")
        await ends.owner.until(lambda: "unstamped" in ends.owner.told)
        assert len(ends.owner.stamps) == 1


@on_both_loops
async def test_large_reads_get_room_and_small_ones_give_it_back() -> None:
    """4 KiB after a small read, 64 KiB after a full one; no byte is lost at the edges."""
    with Ends().closing() as ends:
        for size in (4095, 4096, 4097, 200_000, 3):
            ends.owner.data = b""
            await asyncio.to_thread(ends.peer.sendall, BIG[:size])
            await ends.owner.until(lambda size=size: len(ends.owner.data) == size)  # type: ignore[misc]
            assert ends.owner.data == BIG[:size]
        assert ends.link.room == 4096
