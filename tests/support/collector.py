"""An OTLP/HTTP collector that keeps what is posted to it."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator


class Collector:
    """Posts, head and body, as they came."""

    def __init__(self) -> None:
        self.posts: list[bytes] = []
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1/traces"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"(?i)content-length: *(\d+)", head)
                body = await reader.readexactly(int(length[1])) if length else b""
                self.posts.append(head + body)
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        writer.close()


@contextlib.asynccontextmanager
async def otlp_collector() -> AsyncIterator[Collector]:
    """A running collector on a free port."""
    collector = Collector()
    server = await asyncio.start_server(collector.serve, "127.0.0.1", 0)
    collector.port = server.sockets[0].getsockname()[1]
    try:
        yield collector
    finally:
        server.close()
