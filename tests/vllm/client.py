"""A plain client for the engine tests: one socket, one request; streams go through the core's
observer.

Independent of the wire room on purpose: what proxy and generator report is compared with what came
here.
"""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.support.captures import Dechunker
from tests.vllm.engine import MODEL_NAME
from tests.vllm.prompts import OUTPUT_TOKENS

from breakeven.engine_metrics import EngineCounters, read_counters
from breakeven.report import StreamReport
from breakeven.stream import Ending, StreamObserver

TIMEOUT_S = 240.0
USAGE = {"include_usage": True, "continuous_usage_stats": True}


def port_of(url: str) -> int:
    return int(url.rsplit(":", 1)[1].split("/")[0])


def completion(prompt: str, **more: Any) -> dict[str, Any]:
    """A greedy /v1/completions body of exactly OUTPUT_TOKENS tokens."""
    return {
        "model": MODEL_NAME,
        "prompt": prompt,
        "max_tokens": OUTPUT_TOKENS,
        "min_tokens": OUTPUT_TOKENS,
        "ignore_eos": True,
        "temperature": 0,
        **more,
    }


@dataclass(frozen=True, slots=True)
class Answer:
    """One response as it was read: body without chunk framing."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def ask(url: str, method: str, path: str, body: object = None, **headers: str) -> Answer:
    """One request whose response is read whole."""
    connection = http.client.HTTPConnection("127.0.0.1", port_of(url), timeout=TIMEOUT_S)
    data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    sent = {"Content-Type": "application/json", **headers} if data is not None else headers
    try:
        connection.request(method, path, data, {k.replace("_", "-"): v for k, v in sent.items()})
        response = connection.getresponse()
        return Answer(
            response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()
        )
    finally:
        connection.close()


def counters(url: str) -> EngineCounters:
    """The engine's counters by the core's schema."""
    return read_counters(ask(url, "GET", "/metrics").body)


@dataclass(frozen=True, slots=True)
class Streamed:
    """One stream: the observer's report and the body's bytes."""

    report: StreamReport
    body: bytes

    def chunks(self) -> list[dict[str, Any]]:
        """Its JSON events."""
        events = [part.removeprefix(b"data: ") for part in self.body.split(b"\n\n")]
        return [json.loads(event) for event in events if event.startswith(b"{")]

    def token_ids(self) -> list[int]:
        """Output ids (return_token_ids)."""
        return [
            token
            for chunk in self.chunks()
            for choice in chunk["choices"]
            for token in choice.get("token_ids") or ()
        ]


def stream(
    url: str,
    body: Mapping[str, Any],
    *,
    path: str = "/v1/completions",
    leave_after: Callable[[bytes], bool] | None = None,
) -> Streamed:
    """One streamed request. `leave_after` sees the body so far: true makes the client go away."""
    data = json.dumps({**body, "stream": True}).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    parser, received, ending = Dechunker(), b"", Ending.BROKEN
    with socket.create_connection(("127.0.0.1", port_of(url)), TIMEOUT_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(head.encode() + data)
        observer = StreamObserver(time.monotonic(), keep_events=True)
        while read := connection.recv(1 << 16):
            now = time.monotonic()
            part = parser.receive(read)
            received += part
            if part:
                observer.receive_data(part, now)
            if leave_after is not None and leave_after(received):
                ending = Ending.CANCELLED
                break
    if parser.complete:
        ending = Ending.COMPLETE
    return Streamed(observer.finish(time.monotonic(), ending), received)


def until(what: Callable[[], bool], *, deadline_s: float = 180.0, poll_s: float = 0.1) -> None:
    """Asks again until it is true; fails at the deadline. State is waited for, never a time."""
    deadline = time.monotonic() + deadline_s
    while not what():
        assert time.monotonic() < deadline, f"not within {deadline_s:g} s: {what}"
        time.sleep(poll_s)
