"""A simulated engine on a free port, in a thread; a plain-socket client. Shared by tests/sim."""

from __future__ import annotations

import asyncio
import contextlib
import json
import queue
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import uvloop

from breakeven_sim.config import ServeConfig
from breakeven_sim.serve import listening
from breakeven_sim.server import SimServer


@dataclass(frozen=True)
class Response:
    """Status line, header lines in order, body without transfer coding."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    ended: bool

    def header(self, name: str) -> str | None:
        return next((v for k, v in self.headers if k == name), None)

    @property
    def events(self) -> list[bytes]:
        return [e for e in self.body.split(b"\n\n") if e]

    @property
    def data(self) -> list[dict[str, Any]]:
        """The JSON of every data event ([DONE] left out)."""
        return [
            json.loads(e[6:])
            for e in self.events
            if e.startswith(b"data: ") and e != b"data: [DONE]"
        ]

    def json(self) -> dict[str, Any]:
        value = json.loads(self.body)
        assert isinstance(value, dict)
        return value


def parse_response(raw: bytes) -> Response:
    """Split a response; `ended` says whether its body is complete."""
    head, _, body = raw.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = [(k.lower(), v) for k, _, v in (line.partition(": ") for line in lines[1:])]
    fields = dict(headers)
    ended = True
    if fields.get("transfer-encoding") == "chunked":
        body, ended = dechunk(body)
    elif "content-length" in fields:
        ended = len(body) >= int(fields["content-length"])
    return Response(int(lines[0].split()[1]), headers, body, ended)


def dechunk(body: bytes) -> tuple[bytes, bool]:
    """The bytes of the complete chunks, and whether the last chunk was there."""
    parts: list[bytes] = []
    while True:
        size, found, rest = body.partition(b"\r\n")
        if not found:
            return b"".join(parts), False
        length = int(size, 16)
        if length == 0:
            return b"".join(parts), True
        if len(rest) < length + 2:
            return b"".join(parts) + rest[:length], False
        parts.append(rest[:length])
        body = rest[length + 2 :]


@dataclass(frozen=True)
class Sim:
    """A served simulator."""

    port: int
    server: SimServer
    loop: asyncio.AbstractEventLoop

    def send(self, request: bytes, reads: int | None = None) -> Response:
        """Send bytes, read to the end of the connection (or only `reads` times)."""
        return parse_response(self.raw(request, reads))

    def raw(self, request: bytes, reads: int | None = None) -> bytes:
        with socket.create_connection(("127.0.0.1", self.port), timeout=30) as connection:
            connection.sendall(request)
            parts: list[bytes] = []
            while reads is None or len(parts) < reads:
                try:
                    part = connection.recv(65536)
                except ConnectionResetError:
                    break
                if not part:
                    break
                parts.append(part)
            return b"".join(parts)

    def post(self, path: str, body: object, *headers: str) -> Response:
        return self.send(post_bytes(path, body, *headers))

    def get(self, path: str) -> Response:
        return self.send(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())

    def metric(self, name: str, **labels: str) -> float:
        """Sum of the samples of one name whose labels include these."""
        total = 0.0
        for line in self.get("/metrics").body.decode().splitlines():
            if line.startswith((name + "{", name + " ")) and all(
                f'{k}="{v}"' in line for k, v in labels.items()
            ):
                total += float(line.rsplit(" ", 1)[1])
        return total

    def call(self, function: object, *args: object) -> None:
        """Run a function on the server's loop and wait for it."""
        done: queue.Queue[None] = queue.Queue()

        def run() -> None:
            assert callable(function)
            function(*args)
            done.put(None)

        self.loop.call_soon_threadsafe(run)
        done.get(timeout=10)


def post_bytes(path: str, body: object, *headers: str) -> bytes:
    data = json.dumps(body).encode()
    extra = "".join(f"{line}\r\n" for line in headers)
    return (
        f"POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
        f"content-type: application/json\r\n{extra}content-length: {len(data)}\r\n\r\n"
    ).encode() + data


@contextlib.contextmanager
def serving(config: ServeConfig) -> Iterator[Sim]:
    """Serve in a thread; stop it at the end."""
    ready: queue.Queue[Sim] = queue.Queue()
    stop: list[asyncio.Event] = []

    async def main() -> None:
        server = SimServer(config)
        stop.append(asyncio.Event())
        async with listening(server) as port:
            ready.put(Sim(port, server, asyncio.get_running_loop()))
            await stop[0].wait()

    thread = threading.Thread(target=uvloop.run, args=(main(),), daemon=True)
    thread.start()
    sim = ready.get(timeout=20)
    try:
        yield sim
    finally:
        sim.loop.call_soon_threadsafe(stop[0].set)
        thread.join(timeout=20)
