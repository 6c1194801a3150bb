"""An independent witness of arrivals: answers completions and logs when each request came.

Run as a process of its own (`python -m benchmarks._loadgen_server LOG`). Times are the kernel's
receive stamps (SO_TIMESTAMPNS) of a request's first segment, so that neither this process's own
lateness nor anything of the generator's is in them. Only the standard library and uvloop; nothing
of Breakeven's.
"""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import struct
import sys
import time
from contextlib import suppress

import uvloop

SO_TIMESTAMPNS = 35
TIMESPEC = struct.Struct("@ll")
MODEL = "witness"
TTFT_S, GAP_S = 0.050, 0.005
"""First token after 50 ms, then one each 5 ms: the mock that the peers were measured against."""
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Connection:
    """One client connection: reads requests, stamps them, answers by timers."""

    def __init__(self, server: Server, sock: socket.socket) -> None:
        self.server = server
        self.sock = sock
        self.data = bytearray()
        self.stamp = 0.0

    def readable(self) -> None:
        try:
            data, ancillary, _, _ = self.sock.recvmsg(1 << 20, 64)
        except BlockingIOError:
            return
        except OSError:
            data, ancillary = b"", []
        if not data:
            self.close()
            return
        if not self.data:
            self.stamp = time.time()
            for level, kind, value in ancillary:
                if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS:
                    s, ns = TIMESPEC.unpack(value[: TIMESPEC.size])
                    self.stamp = s + ns / 1e9
        self.data += data
        self.parse()

    def parse(self) -> None:
        head, blank, rest = bytes(self.data).partition(b"\r\n\r\n")
        if not blank:
            return
        lines = head.split(b"\r\n")
        length = 0
        for line in lines[1:]:
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        if len(rest) < length:
            return
        self.data.clear()
        if lines[0].startswith(b"GET"):
            self.get(lines[0].split(b" ")[1].decode())
            return
        fields = json.loads(rest[:length])
        asked = int(fields.get("max_tokens") or fields.get("max_completion_tokens") or 16)
        self.server.log.append(self.stamp)
        self.server.answer(self, asked)

    def get(self, path: str) -> None:
        body = {"/v1/models": {"data": [{"id": MODEL}]}, "/version": {"version": "0"}}.get(path)
        status = b"200 OK" if body is not None else b"404 Not Found"
        data = json.dumps(body or {}).encode()
        self.send(
            b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
            % (status, len(data), data)
        )

    def send(self, data: bytes) -> None:
        with suppress(OSError):
            self.sock.send(data)

    def close(self) -> None:
        if self.sock.fileno() >= 0:
            self.server.loop.remove_reader(self.sock)
            self.sock.close()


class Server:
    def __init__(self, stall: tuple[float, float] | None) -> None:
        self.loop = asyncio.get_running_loop()
        self.log: list[float] = []
        self.stall = stall
        self.first: float | None = None

    def answer(self, connection: Connection, asked: int) -> None:
        now = self.loop.time()
        self.first = now if self.first is None else self.first
        delay = TTFT_S
        if (
            self.stall is not None
        ):  # everything that would be answered in the stall waits for its end
            begin, end = self.first + self.stall[0], self.first + self.stall[0] + self.stall[1]
            if begin <= now + delay < end:
                delay = end - now
        connection.send(HEAD)
        self.loop.call_later(delay, self.token, connection, 1, asked)

    def token(self, connection: Connection, i: int, asked: int) -> None:
        usage = {"prompt_tokens": 1, "completion_tokens": i, "total_tokens": 1 + i}
        choice = {"index": 0, "text": "x", "finish_reason": "length" if i == asked else None}
        event = {"object": "text_completion", "choices": [choice], "usage": usage}
        data = chunk(b"data: " + json.dumps(event).encode() + b"\n\n")
        if i == asked:
            connection.send(data + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
            return
        connection.send(data)
        self.loop.call_later(GAP_S, self.token, connection, i + 1, asked)


async def main(path: str, stall: tuple[float, float] | None) -> None:
    """Serve until SIGTERM, then write the log: one stamp a line, Unix seconds."""
    server = Server(stall)
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    listener.setblocking(False)
    loop = server.loop

    def accept() -> None:
        with suppress(BlockingIOError):
            while True:
                sock, _ = listener.accept()
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
                loop.add_reader(sock, Connection(server, sock).readable)

    loop.add_reader(listener, accept)
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    await stop.wait()
    with open(path, "w", encoding="ascii") as file:  # noqa: ASYNC230 - nothing else runs any more
        file.writelines(f"{stamp:.9f}\n" for stamp in server.log)


if __name__ == "__main__":
    given = tuple(float(part) for part in sys.argv[2:4])
    uvloop.run(main(sys.argv[1], (given[0], given[1]) if len(given) == 2 else None))
