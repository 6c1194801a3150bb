"""The two ends of the proxy's benchmark, plain epoll and no library of ours.

`python -m benchmarks._proxy_load engine PORT_FILE`: an engine whose streams tick together. The
request's message says what it wants, {"events": N, "gap_ms": G, "pad": BYTES}; each event carries
its own send time (CLOCK_REALTIME, ns).
"""

from __future__ import annotations

import gc
import json
import re
import select
import socket
import sys
import time
from pathlib import Path

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
LENGTH = re.compile(rb"(?i)content-length: *(\d+)")
EVENT = (
    'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1796046953,"model":"m",'
    '"choices":[{"index":0,"delta":{"content":"%d"},"logprobs":null,"finish_reason":null}]}\n\n'
)
LAST = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
STEP_S = 0.001


def chunk(data: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


EVENT_CHUNK = chunk((EVENT % 10**18).encode()).replace(b"%d" % 10**18, b"%d")
"""A time in ns has 19 digits until the year 2286, so the size line never changes."""


class Stream:
    """One response in progress."""

    def __init__(self, sock: socket.socket, wish: dict[str, float], phase: int) -> None:
        self.sock = sock
        self.left = int(wish.get("events", 1))
        self.every = max(int(wish.get("gap_ms", 0)), 0)
        self.pad = int(wish.get("pad", 0))
        self.due = phase


class Engine:
    """One thread: accepts, parses requests, and each millisecond sends what is due.

    Streams of one gap tick in two groups, half a gap apart: what an engine step does to its batch.
    """

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self.listener.setblocking(False)
        self.poll = select.epoll()
        self.poll.register(self.listener.fileno(), select.EPOLLIN)
        self.socks: dict[int, socket.socket] = {}
        self.buffers: dict[int, bytes] = {}
        self.streams: dict[int, Stream] = {}
        self.closed_at: list[float] = []
        self.taken = 0
        self.now_ms = 0
        self.turn = 0

    def run(self) -> None:
        """For ever; the benchmark ends the process."""
        started = time.monotonic()
        while True:
            ahead = started + (self.now_ms + 1) * STEP_S - time.monotonic()
            for fd, _ in self.poll.poll(max(ahead, 0)):
                self.accept() if fd == self.listener.fileno() else self.read(fd)
            now_ms = int((time.monotonic() - started) / STEP_S)
            if now_ms > self.now_ms:
                self.now_ms = now_ms
                self.tick()

    def accept(self) -> None:
        for _ in range(64):
            try:
                sock, _ = self.listener.accept()
            except BlockingIOError:
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.socks[sock.fileno()] = sock
            self.buffers[sock.fileno()] = b""
            self.poll.register(sock.fileno(), select.EPOLLIN)

    def read(self, fd: int) -> None:
        try:
            data = self.socks[fd].recv(262144)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.drop(fd)
            return
        self.buffers[fd] += data
        head, found, rest = self.buffers[fd].partition(b"\r\n\r\n")
        if not found:
            return
        length = LENGTH.search(head)
        size = int(length[1]) if length else 0
        if len(rest) >= size:
            self.buffers[fd] = rest[size:]
            self.answer(fd, head, rest[:size])

    def answer(self, fd: int, head: bytes, body: bytes) -> None:
        path = head.split(b" ", 2)[1]
        if path == b"/closed":  # when streams were closed by the proxy, and bytes taken
            found = json.dumps({"closed": self.closed_at, "taken": self.taken}).encode()
            self.send(fd, b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(found), found))
            return
        if head.startswith(b"GET"):
            self.send(fd, b'HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n{"data":[]}')
            return
        wish = json.loads(json.loads(body)["messages"][0]["content"])
        self.turn += 1
        every = max(int(wish.get("gap_ms", 0)), 0)
        half = (self.turn % 2) * every // 2
        phase = self.now_ms + every - (self.now_ms - half) % every if every else self.now_ms
        stream = Stream(self.socks[fd], wish, phase)
        if wish.get("silent"):
            stream.left = 0
            stream.due = 1 << 60
            self.streams[fd] = stream
            return
        if not every and not stream.pad:
            events = b"".join(chunk((EVENT % time.time_ns()).encode()) for _ in range(stream.left))
            self.send(fd, HEAD + events + chunk(LAST) + b"0\r\n\r\n")
            return
        self.send(fd, HEAD)
        self.streams[fd] = stream
        if wish.get("hold"):
            stream.due = 1 << 60

    def tick(self) -> None:
        for fd, stream in list(self.streams.items()):
            if stream.due > self.now_ms:
                continue
            if stream.pad:
                self.push(fd, stream)
                continue
            stream.due += stream.every
            stream.left -= 1
            if stream.left >= 0:
                send = stream.sock.send
                try:
                    send(EVENT_CHUNK % time.time_ns())  # as little as can be between the two
                except OSError:
                    self.drop(fd)
            else:
                del self.streams[fd]
                self.send(fd, chunk(LAST) + b"0\r\n\r\n")

    def push(self, fd: int, stream: Stream) -> None:
        """As much filler as the socket takes."""
        filler = chunk(b": " + b"x" * 65000 + b"\n\n")
        while stream.pad > 0:
            try:
                sent = stream.sock.send(filler)
            except BlockingIOError:
                return
            except OSError:
                self.drop(fd)
                return
            self.taken += sent
            stream.pad -= sent
            if sent < len(filler):
                return  # a torn chunk: this stream is never ended properly

    def send(self, fd: int, data: bytes) -> None:
        try:
            self.socks[fd].send(data)
        except OSError:
            self.drop(fd)

    def drop(self, fd: int) -> None:
        if self.streams.pop(fd, None) is not None:
            self.closed_at.append(time.time())
        sock = self.socks.pop(fd, None)
        if sock is not None:
            self.poll.unregister(fd)
            sock.close()
        self.buffers.pop(fd, None)


def request(events: int, gap_ms: float = 0, **more: object) -> bytes:
    """A streaming chat request."""
    # The wish stands in the message: a peer that re-serialises requests drops unknown fields.
    wish = json.dumps({"events": events, "gap_ms": gap_ms, **more})
    message = {"role": "user", "content": wish}
    body = json.dumps({"model": "m", "stream": True, "messages": [message]}).encode()
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    )


SENT_AT = re.compile(rb'"content":"(\d{19})"')


def paced(port: int, streams: int, gap_ms: float, seconds: float) -> tuple[int, list[float]]:
    """Reads `streams` streams to their ends; events, and their delays in µs (send → here)."""
    poll = select.epoll()
    socks: dict[int, socket.socket] = {}
    events = max(int(seconds * 1000 / gap_ms), 1)
    for _ in range(streams):
        sock = socket.create_connection(("127.0.0.1", port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.send(request(events, gap_ms))
        sock.setblocking(False)
        socks[sock.fileno()] = sock
        poll.register(sock.fileno(), select.EPOLLIN)
    count, delays, end = 0, [], time.monotonic() + seconds * 3 + 20
    while socks and time.monotonic() < end:
        for fd, _ in poll.poll(1.0):
            data = socks[fd].recv(262144)
            now = time.time_ns()
            for sent in SENT_AT.findall(data):
                count += 1
                delays.append((now - int(sent)) / 1000)
            if not data or data.endswith(b"0\r\n\r\n"):
                poll.unregister(fd)
                socks.pop(fd).close()
    for sock in socks.values():
        sock.close()
    return count, delays


def closed_loop(port: int, connections: int, seconds: float) -> int:
    """One-event streams on kept connections, one after another; how many were answered."""
    poll = select.epoll()
    socks: dict[int, socket.socket] = {}
    ask = request(1)
    for _ in range(connections):
        sock = socket.create_connection(("127.0.0.1", port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.send(ask)
        sock.setblocking(False)
        socks[sock.fileno()] = sock
        poll.register(sock.fileno(), select.EPOLLIN)
    done, end = 0, time.monotonic() + seconds
    tails: dict[int, bytes] = dict.fromkeys(socks, b"")
    while time.monotonic() < end and socks:
        for fd, _ in poll.poll(0.1):
            data = socks[fd].recv(262144)
            if not data:
                poll.unregister(fd)
                socks.pop(fd).close()
                continue
            tails[fd] = (tails[fd] + data)[-16:]
            if tails[fd].endswith(b"0\r\n\r\n"):
                tails[fd] = b""
                done += 1
                socks[fd].send(ask)
    for sock in socks.values():
        sock.close()
    return done


def main(argv: list[str]) -> None:
    """`engine FILE`: writes its port into the file and serves."""
    engine = Engine()
    gc.disable()  # a collection between the clock and the send would look like a stamp's error
    Path(argv[1]).write_text(str(engine.listener.getsockname()[1]))
    engine.run()


if __name__ == "__main__":
    main(sys.argv[1:])
