"""The project's commands around a real engine: proxy, generator, and a tap between the two."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httptools
import pyarrow.parquet as pq
from tests.support import processes
from tests.vllm.client import ask, port_of
from tests.vllm.engine import MODEL_NAME, Engine, lines
from tests.vllm.prompts import CHAT, CODE, OUTPUT_TOKENS

from breakeven.exposition import parse_page

REPLAY_DEADLINE_S = 420.0


# --- proxy ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProxyCommand:
    """A running `breakeven-proxy serve`."""

    url: str
    admin: str
    child: processes.Child

    def total(self, name: str, **labels: str) -> float:
        """Sum of the series of one family that have these labels, as a scraper sees them."""
        page = ask(self.admin, "GET", "/metrics").body.decode()
        return sum(
            sample.value
            for sample in parse_page(page).samples
            if sample.name == f"breakeven_{name}" and labels.items() <= sample.labels.items()
        )

    def verdicts(self, **labels: str) -> dict[str, int]:
        """Metered requests by verdict, those above 0."""
        page = ask(self.admin, "GET", "/metrics").body.decode()
        found: dict[str, int] = {}
        for sample in parse_page(page).samples:
            mine = sample.name == "breakeven_requests_total"
            if mine and sample.value and labels.items() <= sample.labels.items():
                verdict = sample.labels["verdict"]
                found[verdict] = found.get(verdict, 0) + int(sample.value)
        return found


def arm_settings(engine: Engine, *, url: str | None = None, role: str = "baseline") -> Any:
    """One entry of `arms:` for an engine; `url` where it is reached through a tap."""
    return {
        "url": url or engine.url,
        "role": role,
        "metrics_urls": [f"{engine.url}/metrics"],
        "exclusive": True,
    }


@contextlib.contextmanager
def proxy(folder: Path, arms: Mapping[str, Any], **settings: Any) -> Iterator[ProxyCommand]:
    """The sidecar or gateway in front of these arms, as a command of its own."""
    config = folder / "proxy.yaml"
    cohorts = {"chat-en": {"task": "chat", "lang": "en"}, "code": {"task": "code", "lang": "en"}}
    values = {"arms": dict(arms), "cohorts": cohorts, **settings}
    config.write_text(json.dumps(values), "utf-8")  # JSON is YAML
    flags = ("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--config", str(config))
    with processes.running("breakeven-proxy", "serve", *flags) as child:
        try:
            yield ProxyCommand(child.urls[0], child.urls[1], child)
        except BaseException as error:
            status = child.end()
            error.add_note(f"breakeven-proxy ended with {status} and had written:\n{child.text()}")
            raise


# --- generator ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Replayed:
    """What one `loadgen replay` left behind."""

    status: int
    rows: list[dict[str, Any]]
    summary: dict[str, Any]
    folder: Path
    printed: str

    def total(self, column: str) -> int:
        return sum(row[column] or 0 for row in self.rows)

    def verdicts(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for row in self.rows:
            found[row["verdict"]] = found.get(row["verdict"], 0) + 1
        return found


def write_traffic(
    folder: Path, *, arrivals: int, gap_s: float = 0.3, out_tokens: int = OUTPUT_TOKENS
) -> tuple[Path, Path]:
    """(trace, pool): arrivals at even gaps, half of each cohort, and a prompt for each."""
    trace, pool = folder / "trace.jsonl", folder / "pool.jsonl"
    rows: list[object] = [{"breakeven_trace": 1, "block": {"unit": "tokens", "size": 16}}]
    for i in range(arrivals):
        cohort = "chat-en" if i % 2 else "code"
        rows.append({"t": i * gap_s, "in": 12, "out": out_tokens, "cohort": cohort})
    trace.write_text(lines(rows), "utf-8")
    entries = [{"prompt": p, "cohort": "chat-en"} for p in CHAT]
    entries += [{"prompt": p, "cohort": "code"} for p in CODE]
    pool.write_text(lines(entries), "utf-8")
    return trace, pool


def replay_flags(url: str, traffic: tuple[Path, Path], out: Path, *more: str) -> list[str]:
    """Arguments of `loadgen replay` for this trace and pool."""
    trace, pool = traffic
    return [
        "replay", str(trace), "--url", url, "--model", MODEL_NAME, "--out", str(out),
        "--content", str(pool), "--endpoint", "completions", "--output-length", "forced",
        *more,
    ]  # fmt: skip


def replay(url: str, traffic: tuple[Path, Path], out: Path, *more: str) -> Replayed:
    """Runs `loadgen replay` to its end."""
    flags = replay_flags(url, traffic, out, *more)
    done = processes.run("loadgen", *flags, deadline_s=REPLAY_DEADLINE_S)
    assert (out / "summary.json").exists(), done.stderr
    return read_replayed(out, done.returncode, done.stdout + done.stderr)


def read_replayed(out: Path, status: int, printed: str) -> Replayed:
    """The rows and the summary of a result folder."""
    return Replayed(
        status,
        pq.read_table(out / "requests.parquet").to_pylist(),
        json.loads((out / "summary.json").read_text("utf-8")),
        out,
        printed,
    )


# --- tap ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Message:
    """One HTTP message seen by the tap: a request has a path, a response a status."""

    body: bytes = b""
    path: str = ""
    status: int = 0
    whole: bool = False


class _Messages:
    """Callbacks of httptools: the messages of one direction of one connection."""

    def __init__(self, kind: type[Any]) -> None:
        self.found: list[Message] = []
        self._parser = kind(self)

    def feed(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self.found.append(Message())

    def on_url(self, url: bytes) -> None:
        self.found[-1].path += url.decode()

    def on_headers_complete(self) -> None:
        if isinstance(self._parser, httptools.HttpResponseParser):
            self.found[-1].status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self.found[-1].body += body

    def on_message_complete(self) -> None:
        self.found[-1].whole = True


@dataclass(slots=True)
class Tap:
    """Passes bytes on between proxy and engine, and keeps what passed."""

    url: str
    requests: list[_Messages] = field(default_factory=list)
    responses: list[_Messages] = field(default_factory=list)

    def newest(self, path: str) -> tuple[Message, Message]:
        """The newest request to `path`, and its response."""
        for asked, answered in zip(reversed(self.requests), reversed(self.responses), strict=True):
            for i in reversed(range(len(asked.found))):
                if asked.found[i].path == path:
                    return asked.found[i], answered.found[i]
        raise AssertionError(f"no request to {path} passed")


@contextlib.contextmanager
def tap(engine_url: str) -> Iterator[Tap]:
    """A listener on loopback in front of the engine; a thread a direction."""
    listener = socket.create_server(("127.0.0.1", 0))
    found = Tap(f"http://127.0.0.1:{listener.getsockname()[1]}")
    sockets = [listener]
    threads: list[threading.Thread] = []

    def pump(source: socket.socket, sink: socket.socket, messages: _Messages) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                messages.feed(data)
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.create_connection(("127.0.0.1", port_of(engine_url)))
                sockets.extend((near, far))
                asked = _Messages(httptools.HttpRequestParser)
                answered = _Messages(httptools.HttpResponseParser)
                found.requests.append(asked)
                found.responses.append(answered)
                for source, sink, messages in ((near, far, asked), (far, near, answered)):
                    start(pump, source, sink, messages)

    def start(what: Any, *arguments: Any) -> None:
        thread = threading.Thread(target=what, args=arguments, daemon=True)
        threads.append(thread)
        thread.start()

    start(accept)
    try:
        yield found
    finally:
        for held in sockets:
            with contextlib.suppress(OSError):
                held.shutdown(socket.SHUT_RDWR)
            held.close()
        for thread in threads:
            thread.join(10)
