"""A scripted target for the generator: a real HTTP server in a thread of its own, on port 0.

`replay()` is synchronous and runs its own event loop, so the server must not share it. A script
is a coroutine that answers one request byte for byte; what arrived is kept in `calls`.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

MODEL = "scripted"
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


@dataclass
class Call:
    """One generation request, and the means to answer it."""

    at_s: float
    path: str
    headers: dict[str, str]
    body: bytes
    writer: asyncio.StreamWriter
    number: int
    inflight: int
    aborted: bool = False

    @property
    def json(self) -> dict[str, Any]:
        return dict(json.loads(self.body))

    async def write(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def chunk(self, data: bytes) -> None:
        """One chunk of a chunked body."""
        await self.write(b"%x\r\n%b\r\n" % (len(data), data))

    async def end(self) -> None:
        """The last chunk."""
        await self.write(b"0\r\n\r\n")

    async def answer(self, status: int, body: bytes, kind: str = "application/json") -> None:
        """A whole response with Content-Length."""
        head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
        await self.write(head.encode() + body)


Script = Callable[[Call], Awaitable[None]]


@dataclass
class Target:
    """A running server: where it is, what it was asked."""

    url: str
    calls: list[Call] = field(default_factory=list)
    most_inflight: int = 0
    generated: int = 0
    answered: int = 0
    steps: int = 0

    def page(self) -> bytes:
        """/metrics with vLLM's names, for what scripts counted."""
        label = f'{{model_name="{MODEL}",engine="0"}}'
        histograms = [
            (name, n, n * 0.005)
            for name, n in (
                ("time_to_first_token_seconds", self.answered),
                ("inter_token_latency_seconds", self.steps),
            )
        ]
        lines = [f"vllm:generation_tokens_total{label} {self.generated}"]
        for name, n, total in histograms:
            lines.append(f'vllm:{name}_bucket{{model_name="{MODEL}",engine="0",le="+Inf"}} {n}')
            lines.append(f"vllm:{name}_count{label} {n}")
            lines.append(f"vllm:{name}_sum{label} {total}")
        return ("\n".join(lines) + "\n").encode()


def event(
    tokens: int | None,
    total: int | None,
    *,
    text: str = "x",
    finish: str | None = None,
    prompt: int = 4,
    eol: bytes = b"\n",
    space: bytes = b" ",
) -> bytes:
    """One completions event as vLLM writes it; `tokens` None leaves the usage out."""
    body: dict[str, Any] = {
        "id": "c",
        "object": "text_completion",
        "choices": [{"index": 0, "text": text, "finish_reason": finish}],
    }
    if total is not None:
        body["usage"] = {
            "prompt_tokens": prompt, "completion_tokens": total, "total_tokens": prompt + total,
        }  # fmt: skip
    return b"data:" + space + json.dumps(body).encode() + eol + eol


def usage_event(total: int, prompt: int = 4) -> bytes:
    """The final chunk with usage and no choices."""
    usage = {"prompt_tokens": prompt, "completion_tokens": total, "total_tokens": prompt + total}
    return b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


async def good(call: Call, target: Target, *, per_event: int = 1, gap_s: float = 0.0) -> None:
    """A whole stream of exactly the tokens that were asked for."""
    asked = int(call.json["max_tokens"])
    prompt = call.json.get("prompt")
    size = len(prompt) if isinstance(prompt, list) else 4
    await call.write(STREAM_HEAD)
    sent = 0
    target.answered += 1
    while sent < asked:
        n = min(per_event, asked - sent)
        sent += n
        target.generated += n
        target.steps += sent > n
        finish = "length" if sent == asked else None
        await call.chunk(event(n, sent, finish=finish, prompt=size))
        if gap_s:
            await asyncio.sleep(gap_s)
    await call.chunk(usage_event(asked, size))
    await call.chunk(DONE)
    await call.end()


class _Server:
    def __init__(self, script: Callable[[Call, Target], Awaitable[None]], target: Target) -> None:
        self._script = script
        self._target = target
        self._inflight = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while await self._one(reader, writer):
                    pass
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        method, path, _ = lines[0].split(" ")
        pairs = [line.partition(":") for line in lines[1:] if line]
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        call = Call(time.monotonic(), path, headers, body, writer, len(self._target.calls), 0)
        if method == "GET":
            await self._get(call)
            return True
        self._inflight += 1
        call.inflight = self._inflight
        self._target.most_inflight = max(self._target.most_inflight, self._inflight)
        self._target.calls.append(call)
        try:
            await self._script(call, self._target)
        except ConnectionError:
            call.aborted = True
            raise
        finally:
            self._inflight -= 1
        return not writer.is_closing()

    async def _get(self, call: Call) -> None:
        if call.path == "/v1/models":
            await call.answer(200, json.dumps({"data": [{"id": MODEL}]}).encode())
        elif call.path == "/version":
            await call.answer(200, b'{"version": "0.32.0"}')
        elif call.path == "/metrics":
            await call.answer(200, self._target.page(), "text/plain")
        else:
            await call.answer(404, b"{}")


@contextmanager
def scripted(script: Callable[[Call, Target], Awaitable[None]] = good) -> Iterator[Target]:
    """A target that answers every generation request by `script`."""
    loop = asyncio.new_event_loop()
    started = threading.Event()
    target = Target("")
    stop: list[asyncio.Event] = []

    async def main() -> None:
        server = await asyncio.start_server(
            _Server(script, target).serve, "127.0.0.1", 0, limit=1 << 26
        )
        target.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        stop.append(asyncio.Event())
        started.set()
        await stop[0].wait()
        server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
            with suppress(asyncio.CancelledError, ConnectionError):
                await task
        for _ in range(3):  # transports close in later turns of the loop
            await asyncio.sleep(0)

    thread = threading.Thread(target=lambda: loop.run_until_complete(main()), daemon=True)
    thread.start()
    assert started.wait(10)
    try:
        yield target
    finally:
        loop.call_soon_threadsafe(stop[0].set)
        thread.join(10)
        loop.close()
