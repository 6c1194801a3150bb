"""An engine that answers with a canary everywhere it can, and counts the prompts it saw.

Plays every way in which text can reach a client: content, reasoning, tool arguments, logprobs,
error bodies, error frames after a 200, half streams. Also takes OTLP posts and keeps them, so
that spans can be searched. Only the standard library: a stranger's bytes.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).parents[1] / "data/vllm/base/metrics_before.raw"
METRICS = RECORDED.read_bytes().split(b"\r\n\r\n", 1)[1]


def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish, **more}
    body = {"id": "x", "object": "chat.completion.chunk", "model": "m", "choices": [choice]}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def usage(tokens: int) -> bytes:
    counts = {"prompt_tokens": 5, "completion_tokens": tokens, "total_tokens": 5 + tokens}
    return b"data: " + json.dumps({"choices": [], "usage": counts}).encode() + b"\n\n"


class CanaryEngine:
    """The scripted server; `with CanaryEngine(canary) as engine:` listens on `engine.url`."""

    def __init__(self, canary: str) -> None:
        self.canary = canary
        self.prompts_with_canary = 0
        self.served: list[str] = []
        self.spans: list[bytes] = []
        self._turn = itertools.count()
        self._lock = threading.Lock()

    def streams(self) -> dict[str, tuple[bytes, ...]]:
        """Name of a shape -> the events of its answer."""
        c = self.canary
        logprobs = {"content": [{"token": c, "logprob": -1.0, "bytes": list(c.encode())}]}
        error = {"error": {"message": f"died on {c}", "type": c, "code": 500, "param": c}}
        return {
            "content": (
                chunk({"role": "assistant", "content": ""}),
                chunk({"content": c}, logprobs=logprobs),
                chunk({"content": c}, "stop", stop_reason=c),
                usage(2),
                b"data: [DONE]\n\n",
            ),
            "reasoning": (
                chunk({"reasoning_content": c}),
                chunk({"tool_calls": [{"index": 0, "function": {"name": c, "arguments": c}}]}),
                chunk({}, "tool_calls"),
                usage(2),
                b"data: [DONE]\n\n",
            ),
            "finish": (chunk({"content": c}, c), usage(1), b"data: [DONE]\n\n"),
            "error_frame": (
                chunk({"content": c}),
                b"data: " + json.dumps(error).encode() + b"\n\n",
                b"data: [DONE]\n\n",
            ),
            "half": (chunk({"content": c}),),
            "garbled": (f"data: {{{c}\n\n".encode(), f"event: {c}\n: {c}\n\n".encode()),
        }

    def answer(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        if handler.path.startswith("/otlp"):
            self.spans.append(body)
            self._plain(handler, 200, b"")
            return
        with self._lock:
            self.prompts_with_canary += self.canary.encode() in body or (
                json.dumps(self.canary)[1:-1].encode() in body
            )
            shapes = [*self.streams(), "refused", "rejected", "broken"]
            shape = shapes[next(self._turn) % len(shapes)]
            self.served.append(shape)
        if shape in ("refused", "rejected"):
            text = {"error": {"message": f"bad prompt {self.canary}", "type": self.canary}}
            status = 400 if shape == "refused" else 503
            self._plain(handler, status, json.dumps(text).encode())
        elif shape == "broken":
            self._head(handler)
            handler.wfile.write(chunk({"content": self.canary})[:40])
            handler.close_connection = True
        else:
            self._head(handler)
            for event in self.streams()[shape]:
                handler.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
                handler.wfile.flush()
            handler.wfile.write(b"0\r\n\r\n")

    def _head(self, handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("content-type", "text/event-stream; charset=utf-8")
        handler.send_header("x-request-id", self.canary.encode("ascii", "replace").decode())
        handler.send_header("transfer-encoding", "chunked")
        handler.end_headers()

    def _plain(self, handler: BaseHTTPRequestHandler, status: int, body: bytes) -> None:
        handler.send_response(status)
        handler.send_header("content-type", "application/json")
        handler.send_header("content-length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    def get(self, handler: BaseHTTPRequestHandler) -> None:
        if handler.path == "/metrics":
            self._plain(handler, 200, METRICS)
        elif handler.path == "/v1/models":
            self._plain(handler, 200, json.dumps({"data": [{"id": "m"}]}).encode())
        elif handler.path == "/health":
            self._plain(handler, 200, b"")
        else:
            self._plain(handler, 404, json.dumps({"error": {"message": self.canary}}).encode())

    @contextlib.contextmanager
    def listening(self) -> Iterator[str]:
        """Serves on a free loopback port until the block ends; gives the URL."""
        engine = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                engine.answer(self, self.rfile.read(length))

            def do_GET(self) -> None:
                engine.get(self)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                """Silent."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
            server.server_close()
