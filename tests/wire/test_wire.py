"""The client connection: stamps, callbacks, failures, reuse; against scripted servers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop
from tests.support.engine import (
    Conn,
    ScriptedEngine,
    chunked,
    close_peers,
    ok,
    scripted_engine,
    soon,
)

from breakeven.errors import EngineError, InputError, NotReadyError, ProtocolError
from breakeven_wire import (
    ClockWatch,
    Deadlines,
    EnginePool,
    Exchange,
    ExchangeHandler,
    Failure,
    FailureKind,
    Headers,
    Origin,
    Phase,
    Request,
    ResponseHead,
    Stamps,
    kernel_stamps_work,
)

TLS = Path(__file__).parent / "tls"
STAMPS: list[Stamps] = ["kernel", "loop"]


def on_both_loops(script: Coroutine[Any, Any, None]) -> None:
    """Runs a script on uvloop, bounded."""

    async def bounded() -> None:
        try:
            async with asyncio.timeout(30):
                await script
        finally:
            await close_peers()

    uvloop.run(bounded())


class Heard(ExchangeHandler):
    """Keeps what an exchange told."""

    def __init__(self) -> None:
        self.heads: list[ResponseHead] = []
        self.informational: list[int] = []
        self.reads: list[tuple[bytes, float]] = []
        self.trailers: Headers | None = None
        self.failure: Failure | None = None
        self.ended = asyncio.Event()
        self.came = asyncio.Event()
        self.paused = 0

    def on_head(self, head: ResponseHead, stamp: float) -> None:
        self.heads.append(head)
        self.came.set()

    def on_body(self, data: bytes, stamp: float) -> None:
        self.reads.append((data, stamp))
        self.came.set()

    def on_end(self, trailers: Headers, stamp: float) -> None:
        self.trailers = trailers
        self.ended.set()

    def on_failure(self, failure: Failure) -> None:
        self.failure = failure
        self.ended.set()

    def on_informational(self, head: ResponseHead) -> None:
        self.informational.append(head.status)

    def on_pause_writing(self) -> None:
        self.paused += 1

    @property
    def body(self) -> bytes:
        return b"".join(data for data, _ in self.reads)


@contextlib.asynccontextmanager
async def pooled(
    stamps: Stamps, **options: Any
) -> AsyncIterator[tuple[ScriptedEngine, EnginePool]]:
    """A scripted engine and a pool for it."""
    async with scripted_engine() as engine:
        pool = EnginePool(Origin.parse(engine.url), stamps=stamps, **options)
        try:
            yield engine, pool
        finally:
            await pool.close()


def ask(pool: EnginePool, request: Request | None = None, **options: Any) -> tuple[Exchange, Heard]:
    """Starts a GET, or the request."""
    heard = Heard()
    return pool.start(request or Request(b"GET", b"/a"), heard, **options), heard


@pytest.mark.parametrize("stamps", STAMPS)
def test_a_read_is_one_callback_with_one_stamp(stamps: Stamps) -> None:
    """Two chunks of one segment come joined; the next segment comes by itself, later."""

    async def script() -> None:
        async with pooled(stamps) as (engine, pool):
            exchange, heard = ask(pool)
            conn = await engine.accept()
            await conn.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            await soon(heard.came.wait())
            heard.came.clear()
            await conn.send(chunked(b"one ", b"two ", end=False))
            await soon(heard.came.wait())
            await conn.send(chunked(b"three"))
            await soon(heard.ended.wait())
            assert [data for data, _ in heard.reads] == [b"one two ", b"three"]
            times = [exchange.started, exchange.connected, exchange.sent]
            times += [stamp for _, stamp in heard.reads] + [pool.now()]
            assert None not in times
            assert times == sorted(times, key=lambda t: t or 0)
            assert heard.trailers == ()
            assert exchange.unstamped_reads == 0

    on_both_loops(script())


def test_a_kernel_stamp_is_when_the_segment_came_not_when_it_was_read() -> None:
    """The loop is busy while a segment arrives: its stamp lies before the loop was free."""

    async def script() -> None:
        async with pooled("kernel") as (engine, pool):
            _, heard = ask(pool)
            conn = await engine.accept()
            await conn.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            await soon(heard.came.wait())
            sock: socket.socket = conn.writer.get_extra_info("socket")
            before = pool.now()
            with socket.socket(fileno=socket.dup(sock.fileno())) as direct:
                direct.send(chunked(b"x", end=False))
            sent_at = pool.now()
            while pool.now() - sent_at < 0.05:
                pass  # the loop cannot read now
            free_at = pool.now()
            heard.came.clear()
            await soon(heard.came.wait())
            [(_, stamp)] = heard.reads
            assert before <= stamp < free_at

    on_both_loops(script())


def test_the_stamp_of_a_merged_read_is_the_last_segments() -> None:
    """Two events wait in one socket: one read, one stamp, that of the second."""

    async def script() -> None:
        async with pooled("kernel") as (engine, pool):
            exchange, heard = ask(pool)
            conn = await engine.accept()
            await conn.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            await soon(heard.came.wait())
            exchange.pause_reading()
            await conn.send(chunked(b"first", end=False))
            await asyncio.sleep(0.05)
            between = pool.now()
            await conn.send(chunked(b"second", end=False))
            await asyncio.sleep(0.01)
            heard.came.clear()
            exchange.resume_reading()
            await soon(heard.came.wait())
            assert [data for data, _ in heard.reads] == [b"firstsecond"]
            assert heard.reads[0][1] > between

    on_both_loops(script())


def test_kernel_stamps_are_used_where_they_work_and_loop_stamps_where_not() -> None:
    """TLS and other systems fall back, and say why."""

    async def script() -> None:
        plain = EnginePool(Origin.parse("http://127.0.0.1:1"), stamps="kernel")
        assert plain.stamps == ("kernel" if kernel_stamps_work() else "loop")
        tls = EnginePool(Origin.parse("https://127.0.0.1:1"), stamps="kernel")
        assert (tls.stamps, "TLS" in tls.stamps_reason) == ("loop", True)
        asked = EnginePool(Origin.parse("http://127.0.0.1:1"), stamps="loop")
        assert (asked.stamps, asked.stamps_reason) == ("loop", "asked for")

    on_both_loops(script())


def test_another_system_has_no_kernel_stamps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only Linux's socket option is known."""
    monkeypatch.setattr("breakeven_wire.clock.sys.platform", "darwin")
    assert not kernel_stamps_work()


def test_clock_steps_are_noticed_and_slewing_is_not() -> None:
    """REALTIME − MONOTONIC moves only in a step."""
    real, mono = [1000.0], [5.0]
    watch = ClockWatch(lambda: real[0], lambda: mono[0])
    real[0], mono[0] = 1010.0, 15.0
    assert watch.check() == 0.0
    real[0], mono[0] = 1020.0005, 25.0  # slewed: within the tolerance
    assert watch.check() == 0.0
    real[0], mono[0] = 1000.0, 35.0
    assert watch.check() == pytest.approx(-30.0005, abs=0.001)
    assert watch.steps == 1
    assert watch.check() == 0.0


def test_a_step_marks_the_exchanges_that_ran_through_it() -> None:
    """The exchange says so; later ones do not."""

    async def script() -> None:
        async with pooled("kernel") as (engine, pool):
            shift = [0.0]
            pool._watch = ClockWatch(lambda: pool.now() + shift[0])
            exchange, heard = ask(pool)
            conn = await engine.accept()
            shift[0] = 3.0
            await conn.send(ok())
            await soon(heard.ended.wait())
            assert exchange.clock_stepped
            later, heard = ask(pool)
            await conn.next()
            await conn.send(ok())
            await soon(heard.ended.wait())
            assert not later.clock_stepped
            assert pool.clock_steps == 1

    on_both_loops(script())


@pytest.mark.parametrize("stamps", STAMPS)
@pytest.mark.parametrize(
    ("answer", "end", "kind", "phase"),
    [
        (b"", "close", FailureKind.CLOSED_EARLY, Phase.HEAD),
        (b"", "reset", FailureKind.RESET, Phase.HEAD),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab", "close", FailureKind.CLOSED_EARLY,
         Phase.BODY),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab", "reset", FailureKind.RESET, Phase.BODY),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello", "close",
         FailureKind.CLOSED_EARLY, Phase.BODY),
        (b"nonsense\r\n\r\n", None, FailureKind.PROTOCOL, Phase.HEAD),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", None,
         FailureKind.PROTOCOL, Phase.BODY),
        (b"HTTP/1.1 200 OK\r\nX: " + b"a" * 600000, None, FailureKind.PROTOCOL, Phase.HEAD),
        (b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", None,
         FailureKind.PROTOCOL, Phase.HEAD),
    ],
)  # fmt: skip
def test_failures_say_what_and_how_far(
    stamps: Stamps, answer: bytes, end: str | None, kind: FailureKind, phase: Phase
) -> None:
    """Kind and phase of each way in which a response can break; exactly one last callback."""

    async def script() -> None:
        async with pooled(stamps) as (engine, pool):
            _, heard = ask(pool)
            conn = await engine.accept()
            await conn.send(answer)
            if end is not None:
                await asyncio.sleep(0.01)
                getattr(conn, end)()
            await soon(heard.ended.wait())
            assert heard.failure is not None
            assert (heard.failure.kind, heard.failure.phase) == (kind, phase)
            assert heard.trailers is None
            await asyncio.sleep(0.01)
            assert pool.open_connections == 0

    on_both_loops(script())


@pytest.mark.parametrize("stamps", STAMPS)
def test_connecting_can_fail_and_time_out(stamps: Stamps) -> None:
    """Refused, no such host, and a handshake that never ends."""

    async def script() -> None:
        with socket.socket() as sink:
            sink.bind(("127.0.0.1", 0))
            sink.listen(0)
            fillers = []
            for _ in range(4):
                filler = socket.socket()
                filler.setblocking(False)
                filler.connect_ex(sink.getsockname())
                fillers.append(filler)
            cases = [
                ("http://127.0.0.1:1", FailureKind.REFUSED),
                ("http://no-such-host.invalid:1", FailureKind.UNREACHABLE),
                (f"http://127.0.0.1:{sink.getsockname()[1]}", FailureKind.TIMEOUT),
            ]
            for url, kind in cases:
                pool = EnginePool(Origin.parse(url), stamps=stamps)
                _, heard = ask(pool, deadlines=Deadlines(connect_s=0.5))
                await soon(heard.ended.wait())
                assert heard.failure is not None
                assert (heard.failure.kind, heard.failure.phase) == (kind, Phase.CONNECT)
                await pool.close()
            for filler in fillers:
                filler.close()

    on_both_loops(script())


@pytest.mark.parametrize("stamps", STAMPS)
def test_deadlines_of_head_body_and_whole(stamps: Stamps) -> None:
    """first_byte_s, idle_s and total_s each end an exchange, in their phase."""

    async def script() -> None:
        body = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab"
        cases = [
            (Deadlines(first_byte_s=0.5), b"", Phase.HEAD),
            (Deadlines(idle_s=0.5), body, Phase.BODY),
            (Deadlines(total_s=1.5), body, Phase.BODY),
        ]
        async with pooled(stamps) as (engine, pool):
            for deadlines, answer, phase in cases:
                _, heard = ask(pool, deadlines=deadlines)
                conn = await engine.accept()
                await conn.send(answer)
                await soon(heard.ended.wait())
                assert heard.failure is not None
                assert heard.failure.kind is FailureKind.TIMEOUT
                assert heard.failure.phase is phase
                await conn.closed()

    on_both_loops(script())


@pytest.mark.parametrize("stamps", STAMPS)
def test_a_big_body_is_sent_whole_and_sent_says_when(stamps: Stamps) -> None:
    """20 MB as one bytes object; `sent` comes when the last byte was handed over, not before."""

    async def script() -> None:
        async with pooled(stamps) as (engine, pool):
            size = 20_000_000
            exchange, heard = ask(pool, Request(b"POST", b"/a", (), b"z" * size))
            conn = await engine.accept()
            assert exchange.sent is None
            reading = pool.now()
            assert len((await conn.request()).body) == size
            await conn.send(ok())
            await soon(heard.ended.wait())
            assert exchange.sent is not None
            assert exchange.sent >= reading

    on_both_loops(script())


@pytest.mark.parametrize("stamps", STAMPS)
def test_an_aborted_exchange_says_nothing_more(stamps: Stamps) -> None:
    """In any phase: the engine sees the close, the handler hears nothing."""

    async def script() -> None:
        async with pooled(stamps) as (engine, pool):
            for phase in range(3):
                exchange, heard = ask(pool)
                if phase:
                    conn = await engine.accept()
                    if phase == 2:
                        await conn.send(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab")
                        await soon(heard.came.wait())
                exchange.abort()
                if phase:
                    await conn.closed()
                await asyncio.sleep(0.01)
                assert not heard.ended.is_set()
                assert pool.open_connections == 0

    on_both_loops(script())


@pytest.mark.parametrize("stamps", STAMPS)
def test_no_request_waits_for_a_connection(stamps: Stamps) -> None:
    """Five at once open five connections; afterwards idle ones are reused, newest first."""

    async def script() -> None:
        async with pooled(stamps) as (engine, pool):
            asked = [ask(pool) for _ in range(5)]
            conns = [await engine.accept() for _ in range(5)]
            for conn in conns:
                await conn.send(ok())
            for _, heard in asked:
                await soon(heard.ended.wait())
            assert (pool.connects, pool.idle_connections) == (5, 5)
            exchange, heard = ask(pool)
            done, _ = await asyncio.wait(
                [asyncio.create_task(conn.next()) for conn in conns],
                return_when=asyncio.FIRST_COMPLETED,
            )
            assert len(done) == 1
            assert exchange.reused
            exchange.abort()

    on_both_loops(script())


@pytest.mark.parametrize("stamps", STAMPS)
def test_a_connection_that_must_not_be_reused_is_not(stamps: Stamps) -> None:
    """Connection: close, HTTP/1.0, bytes behind the answer, a body to the end of the connection."""

    async def script() -> None:
        answers = [
            b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx",
            b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx",
            ok(b"1") + b"HTTP/1.1 200 OK\r\n",
            b"HTTP/1.1 200 OK\r\n\r\nto the end",
        ]
        async with pooled(stamps) as (engine, pool):
            for answer in answers:
                _, heard = ask(pool)
                conn = await engine.accept()
                await conn.send(answer)
                if b"to the end" in answer:
                    conn.close()
                await soon(heard.ended.wait())
                assert heard.failure is None
                assert pool.idle_connections == 0

    on_both_loops(script())


@pytest.mark.parametrize("stamps", STAMPS)
def test_streamed_bodies_and_back_pressure(stamps: Stamps) -> None:
    """Chunks and trailers are framed; a slow engine asks the writer to stop."""

    async def script() -> None:
        async with pooled(stamps) as (engine, pool):
            exchange, heard = ask(pool, Request(b"POST", b"/a", (), stream="chunked"))
            exchange.write(b"early ")
            conn = await engine.accept()
            exchange.write(b"late")
            exchange.end(((b"X-T", b"1"),))
            seen = await conn.request()
            assert (seen.body, seen.trailers) == (b"early late", b"X-T: 1\r\n")
            await conn.send(ok())
            await soon(heard.ended.wait())

            exchange, heard = ask(pool, Request(b"POST", b"/a", (), stream=50_000_000))
            conn.first = await conn.head()
            conn.writer.transport.pause_reading()  # type: ignore[attr-defined]
            while not heard.paused:
                exchange.write(b"y" * 100_000)
                await asyncio.sleep(0)
            exchange.abort()

    on_both_loops(script())


@pytest.mark.parametrize("stamps", STAMPS)
def test_fetch_gives_the_response_or_a_named_error(stamps: Stamps) -> None:
    """200 whole; refused is NotReady; a broken body an EngineError; too large a ProtocolError."""

    async def script() -> None:
        async with pooled(stamps) as (engine, pool):
            fetched = asyncio.create_task(pool.fetch("GET", "/v1/models", ((b"X-A", b"1"),)))
            conn = await engine.accept()
            assert conn.first.start == b"GET /v1/models HTTP/1.1"
            await conn.send(ok(b"[]", b"X-B: 2\r\n"))
            response = await fetched
            assert (response.status, response.body, response.head.get(b"x-b")) == (200, b"[]", b"2")

            fetched = asyncio.create_task(pool.fetch("GET", "/x", limit_bytes=10))
            await conn.next()
            await conn.send(ok(b"y" * 100))
            with pytest.raises(ProtocolError):
                await fetched

            fetched = asyncio.create_task(pool.fetch("GET", "/x"))
            await conn.next()
            await conn.send(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab")
            conn.close()
            with pytest.raises(EngineError):
                await fetched
        nobody = EnginePool(Origin.parse("http://127.0.0.1:1"), stamps=stamps)
        with pytest.raises(NotReadyError):
            await nobody.fetch("GET", "/")
        await nobody.close()

    on_both_loops(script())


def server_tls() -> ssl.SSLContext:
    """The scripted engine's side of TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "server.pem", TLS / "server.key")
    return context


def test_tls_with_a_ca_file_and_without() -> None:
    """Verified with the CA; refused without it; unverified only when asked for."""

    async def script() -> None:
        async with scripted_engine(ssl=server_tls()) as engine:
            origin = Origin.parse(f"https://localhost:{engine.port}")
            pool = EnginePool(origin, stamps="kernel", ca_file=str(TLS / "ca.pem"))
            assert pool.stamps == "loop"
            exchange, heard = ask(pool, Request(b"POST", b"/a", (), b"b" * 300_000))
            conn = await engine.accept()
            assert len((await conn.request()).body) == 300_000
            await conn.send(ok(b"secret"))
            await soon(heard.ended.wait())
            assert heard.body == b"secret"
            assert exchange.sent is not None
            stream, heard = ask(pool)
            await conn.next()
            await conn.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            await soon(heard.came.wait())
            stream.abort()  # row 25: the engine sees it although TLS is not closed properly
            await conn.closed()
            await pool.close()

            strict = EnginePool(origin)
            _, heard = ask(strict)
            await soon(heard.ended.wait())
            assert heard.failure is not None
            assert heard.failure.kind is FailureKind.TLS
            await strict.close()

            lax = EnginePool(origin, verify=False)
            _, heard = ask(lax)
            conn = await engine.accept()
            await conn.send(ok())
            await soon(heard.ended.wait())
            assert heard.failure is None
            await lax.close()

    on_both_loops(script())


def test_tls_to_a_server_that_speaks_none() -> None:
    """A plain server behind an https URL is a TLS failure, not a protocol error of HTTP."""

    async def script() -> None:
        async with scripted_engine() as engine:
            pool = EnginePool(Origin.parse(f"https://127.0.0.1:{engine.port}"), verify=False)
            _, heard = ask(pool, deadlines=Deadlines(connect_s=2))

            async def answer() -> None:
                with contextlib.suppress(Exception):
                    conn: Conn = await engine.accept()
                    conn.close()

            answering = asyncio.create_task(answer())
            await soon(heard.ended.wait())
            answering.cancel()
            assert heard.failure is not None
            assert heard.failure.phase is Phase.CONNECT
            await pool.close()

    on_both_loops(script())


@pytest.mark.parametrize(
    ("url", "want"),
    [
        ("http://h", ("http", "h", 80, "", "h")),
        ("http://h:8000/", ("http", "h", 8000, "", "h:8000")),
        ("http://h:8000/v1", ("http", "h", 8000, "", "h:8000")),
        ("https://h/base/v1/", ("https", "h", 443, "/base", "h")),
        ("http://[::1]:81", ("http", "::1", 81, "", "[::1]:81")),
    ],
)
def test_origins(url: str, want: tuple[str, str, int, str, str]) -> None:
    """With and without port, prefix and /v1."""
    origin = Origin.parse(url)
    found = (origin.scheme, origin.host, origin.port, origin.prefix, origin.authority)
    assert found == want


@pytest.mark.parametrize(
    "url", ["", "h:80", "ftp://h", "http://", "http://u:p@h", "http://h:99999", "http://h/?q=1",
            "http://h:0", "http://h/#f", "http://h a"],
)  # fmt: skip
def test_what_is_no_origin_is_refused(url: str) -> None:
    """The value and the mend; credentials are not printed."""
    with pytest.raises(InputError) as error:
        Origin.parse(url)
    assert "u:p" not in str(error.value)
