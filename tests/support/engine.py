"""A scripted engine on a real socket, and a raw HTTP client: the two ends of a proxy dialogue.

The test plays both ends: `await engine.accept()` gives the connection that the proxy made, with
the request it wrote; `conn.send(...)` answers byte for byte.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

WAIT_S = 5.0
"""No wait of a dialogue is longer."""


async def soon(awaitable: Awaitable[T]) -> T:
    """The result, or a test failure after `WAIT_S`."""
    return await asyncio.wait_for(awaitable, WAIT_S)


async def until(condition: Callable[[], object]) -> None:
    """Lets the loop turn until a condition holds; fails after `WAIT_S`."""
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - the condition has no event to wait for
            await asyncio.sleep(0.001)


OPEN: list[asyncio.StreamWriter] = []
"""Ends of connections that a dialogue opened; `close_peers` closes what it left open."""


async def close_peers() -> None:
    """Closes what is open, and waits until the loop has done so."""
    writers = OPEN[:]
    OPEN.clear()
    for writer in writers:
        writer.transport.abort()
    for writer in writers:
        with contextlib.suppress(ConnectionError, TimeoutError):
            await soon(writer.wait_closed())


@dataclass
class Message:
    """A parsed request or response; `start` is its first line."""

    start: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes = b""
    trailers: bytes = b""
    raw_head: bytes = b""

    def get(self, name: str) -> bytes | None:
        for key, value in self.headers:
            if key.lower() == name.encode():
                return value
        return None

    def all(self, name: str) -> list[bytes]:
        return [value for key, value in self.headers if key.lower() == name.encode()]

    @property
    def status(self) -> int:
        return int(self.start.split()[1])


class Peer:
    """One end of a connection: sends bytes, reads messages, hears the close."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        OPEN.append(writer)

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        with contextlib.suppress(ConnectionError):
            await soon(self.writer.drain())

    async def head(self) -> Message:
        raw = await soon(self.reader.readuntil(b"\r\n\r\n"))
        lines = raw[:-4].split(b"\r\n")
        fields = [line.split(b":", 1) for line in lines[1:]]
        return Message(lines[0], [(n, v.strip()) for n, v in fields], raw_head=raw)

    async def message(self, *, no_body: bool = False, to_end: bool = False) -> Message:
        """A whole message, by its own framing; `to_end` reads to the close without framing."""
        message = await self.head()
        if no_body:
            return message
        length = message.get("content-length")
        if message.get("transfer-encoding") == b"chunked":
            await self._chunks(message)
        elif length is not None:
            message.body = await soon(self.reader.readexactly(int(length)))
        elif to_end:
            message.body = await soon(self.reader.read())
        return message

    async def _chunks(self, message: Message) -> None:
        while True:
            size = int((await soon(self.reader.readuntil(b"\r\n"))).split(b";")[0], 16)
            if size == 0:
                break
            data = await soon(self.reader.readexactly(size + 2))
            assert data.endswith(b"\r\n")
            message.body += data[:-2]
        while (line := await soon(self.reader.readuntil(b"\r\n"))) != b"\r\n":
            message.trailers += line

    async def chunk(self) -> bytes:
        """One chunk's data."""
        size = int(await soon(self.reader.readuntil(b"\r\n")), 16)
        data = await soon(self.reader.readexactly(size + 2))
        return data[:-2]

    async def closed(self) -> bool:
        """Waits for the other end to close; False when it closed by a reset."""
        try:
            while await soon(self.reader.read(65536)):
                pass
        except ConnectionError:
            return False
        return True

    async def rest(self) -> bytes:
        """What comes until the close, however that is."""
        data = b""
        with contextlib.suppress(ConnectionError):
            while more := await soon(self.reader.read(65536)):
                data += more
        return data

    def close(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        """Closes with RST."""
        import socket
        import struct

        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


class Conn(Peer):
    """A connection that the proxy made; `first` is the head that came on it."""

    first: Message

    async def request(self) -> Message:
        """The next request on it, whole."""
        message = self.first
        if message.get("transfer-encoding") == b"chunked":
            await self._chunks(message)
        elif (length := message.get("content-length")) is not None:
            message.body = await soon(self.reader.readexactly(int(length)))
        return message

    async def next(self) -> Message:
        """Another request on the same connection."""
        self.first = await self.head()
        return await self.request()


class ScriptedEngine:
    """Listens; hands each connection of the relay to the test. Health checks are answered here."""

    def __init__(self) -> None:
        self.accepted: asyncio.Queue[Conn] = asyncio.Queue()
        self.connections = 0
        self.metrics_page: bytes | None = None
        self.healthy = True
        self.version = b"0.32.0"
        self.models = b'{"object":"list","data":[{"id":"m","object":"model"}]}'
        self._writers: list[asyncio.StreamWriter] = []
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def accept(self) -> Conn:
        return await soon(self.accepted.get())

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        conn = Conn(reader, writer)
        try:
            conn.first = await conn.head()
            if self._is_probe(conn.first):
                await self._answer_probes(conn)
                return
        except (asyncio.IncompleteReadError, ConnectionError, TimeoutError):
            writer.close()
            return
        self.connections += 1
        await self.accepted.put(conn)

    @staticmethod
    def _is_probe(request: Message) -> bool:
        asks = (b"GET /health ", b"GET /metrics ")
        ours = (request.get("user-agent") or b"").startswith(b"breakeven-probe")
        return ours or request.start.startswith(asks)

    async def _answer_probes(self, conn: Conn) -> None:
        while True:
            if conn.first.start.startswith(b"GET /health "):
                status = b"200 OK" if self.healthy else b"503 Service Unavailable"
                body = b""
            elif conn.first.start.startswith(b"GET /v1/models "):
                status, body = b"200 OK", self.models
            elif conn.first.start.startswith(b"GET /version "):
                status, body = b"200 OK", b'{"version":"%b"}' % self.version
            elif self.metrics_page is None:
                status, body = b"404 Not Found", b""
            else:
                status, body = b"200 OK", self.metrics_page
            await conn.send(
                b"HTTP/1.1 %b\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%b"
                % (status, len(body), body)
            )
            raw = await conn.reader.readuntil(b"\r\n\r\n")
            conn.first = Message(raw.split(b"\r\n", 1)[0], [])

    def close_all(self) -> None:
        for writer in self._writers:
            writer.transport.abort()


@contextlib.asynccontextmanager
async def scripted_engine(ssl: object = None) -> AsyncIterator[ScriptedEngine]:
    """A running scripted engine on a free port."""
    engine = ScriptedEngine()
    server = await asyncio.start_server(engine.serve, "127.0.0.1", 0, ssl=ssl)  # type: ignore[arg-type]
    engine.port = server.sockets[0].getsockname()[1]
    try:
        yield engine
    finally:
        server.close()
        engine.close_all()
        await asyncio.sleep(0)


async def dial(port: int, *, rcvbuf: int | None = None) -> Peer:
    """A raw client connection."""
    import socket

    sock = socket.socket()
    if rcvbuf is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    return Peer(*await asyncio.open_connection(sock=sock, limit=2**20))


def chunked(*parts: bytes, end: bool = True) -> bytes:
    """A body in chunks."""
    body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    return body + (b"0\r\n\r\n" if end else b"")


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)


def event(text: str = "x", *, tokens: int | None = None, finish: str | None = None) -> bytes:
    """One chat chunk as vLLM writes it; `tokens` is the cumulative usage."""
    usage = (
        ""
        if tokens is None
        else (
            f',"usage":{{"prompt_tokens":3,"total_tokens":{3 + tokens},'
            f'"completion_tokens":{tokens}}}'
        )
    )
    reason = "null" if finish is None else f'"{finish}"'
    return (
        'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m",'
        f'"choices":[{{"index":0,"delta":{{"content":"{text}"}},"logprobs":null,'
        f'"finish_reason":{reason}}}]{usage}}}\n\n'
    ).encode()


DONE = b"data: [DONE]\n\n"


def post(
    body: bytes = b"{}",
    *,
    path: str = "/v1/chat/completions",
    headers: str = "",
    version: str = "1.1",
) -> bytes:
    """A POST with a Content-Length."""
    return (
        f"POST {path} HTTP/{version}\r\nHost: proxy\r\nContent-Type: application/json\r\n"
        f"{headers}Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body


def get(path: str = "/v1/models", headers: str = "", method: str = "GET") -> bytes:
    """A request without a body."""
    return f"{method} {path} HTTP/1.1\r\nHost: proxy\r\n{headers}\r\n".encode()


def ok(body: bytes = b"{}", headers: bytes = b"") -> bytes:
    """A whole 200 with JSON."""
    return (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n%bContent-Length: %d\r\n\r\n%b"
        % (headers, len(body), body)
    )


def completion(tokens: int = 2) -> bytes:
    """A whole non-stream chat answer."""
    return (
        b'{"id":"c","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant",'
        b'"content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"total_tokens":%d,'
        b'"completion_tokens":%d}}' % (3 + tokens, tokens)
    )


def status_of(raw: bytes) -> list[int]:
    """The status codes of the responses in raw bytes."""
    return [int(code) for code in re.findall(rb"HTTP/1\.1 (\d{3}) ", raw)]
