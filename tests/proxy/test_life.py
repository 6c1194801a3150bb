"""The process: start, ready, drain, exit; what it logs; what it refuses to start with."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.engine import (
    STREAM_HEAD,
    Peer,
    chunked,
    completion,
    dial,
    event,
    get,
    ok,
    post,
    scripted_engine,
)
from tests.support.processes import BIN, run
from tests.support.proxied import dialogue, proxied

from breakeven_proxy.cli import main
from breakeven_proxy.relay.seams import Arrival, Close, Ending, Refusal, Visit
from breakeven_proxy.series import series_of
from breakeven_wire import ResponseHead


class Process:
    """A `breakeven-proxy serve` of its own."""

    def __init__(self, child: asyncio.subprocess.Process, port: int, admin: int) -> None:
        self.child = child
        self.port = port
        self.admin = admin

    async def dial(self) -> Peer:
        return await dial(self.port)

    async def page(self, path: str) -> tuple[int, bytes]:
        peer = await dial(self.admin)
        await peer.send(f"GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode())
        message = await peer.message()
        return message.status, message.body

    async def ended(self) -> tuple[int, str]:
        """Exit status and the log."""
        assert self.child.stderr is not None
        log = (await asyncio.wait_for(self.child.stderr.read(), 15)).decode()
        return await self.child.wait(), log


@contextlib.asynccontextmanager
async def process(*args: str) -> AsyncIterator[Process]:
    """Starts the command, waits for its line, and ends it in any case."""
    child = await asyncio.create_subprocess_exec(
        str(BIN / "breakeven-proxy"), "serve", "--listen", "127.0.0.1:0",
        "--admin", "127.0.0.1:0", *args,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert child.stdout is not None
        line = (await asyncio.wait_for(child.stdout.readline(), 30)).decode().split()
        assert line[0] == "listening"
        assert line[2] == "admin"
        yield Process(child, int(line[1].rsplit(":")[-1]), int(line[3].rsplit(":")[-1]))
    finally:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await child.wait()
        child._transport.close()  # type: ignore[attr-defined]


def test_sigterm_finishes_streams_and_exits_0() -> None:
    """Not ready, 503 + Retry-After for new requests, the running stream ends whole, exit 0."""

    async def script() -> None:
        async with scripted_engine() as engine, process("--upstream", engine.url) as proxy:
            client, idle = await proxy.dial(), await proxy.dial()
            await client.send(post())
            conn = await engine.accept()
            await conn.send(STREAM_HEAD + chunked(event("a"), end=False))
            await client.head()
            await client.chunk()
            while (await proxy.page("/readyz"))[0] != 200:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.05)
            late = await proxy.dial()
            await late.send(b"POST /v1/completions HTTP/1.1\r\n")  # begun before the signal
            await asyncio.sleep(0.2)
            os.kill(proxy.child.pid, signal.SIGTERM)
            assert await idle.closed()
            status, body = await proxy.page("/readyz")
            assert (status, body) == (503, b"not ready: draining\n")
            assert (await proxy.page("/livez"))[0] == 200
            await late.send(b"Host: a\r\nContent-Length: 0\r\n\r\n")
            refused = await late.message()
            assert refused.status == 503
            assert refused.get("retry-after") is not None
            assert refused.get("connection") == b"close"
            fresh = await proxy.dial()
            await fresh.send(post())
            assert (await fresh.message()).status == 503
            await conn.send(chunked(event("b", finish="stop")))
            assert await client.chunk() == event("b", finish="stop")
            assert await client.rest() == b"0\r\n\r\n"
            status, log = await proxy.ended()
            assert status == 0
            assert '"event":"draining"' in log

    dialogue(script())


def test_a_stream_longer_than_the_drain_time_is_broken_off(tmp_path: Path) -> None:
    """The drain time is a bound: what runs on is broken, not ended cleanly; exit 0."""
    config = tmp_path / "proxy.yaml"
    config.write_text("timeouts: {drain_s: 0.2}\n")

    async def script() -> None:
        async with (
            scripted_engine() as engine,
            process("--upstream", engine.url, "--config", str(config)) as proxy,
        ):
            client = await proxy.dial()
            await client.send(post())
            conn = await engine.accept()
            await conn.send(STREAM_HEAD + chunked(event("a"), end=False))
            await client.head()
            os.kill(proxy.child.pid, signal.SIGTERM)
            assert not (await client.rest()).endswith(b"0\r\n\r\n")
            await conn.closed()
            assert (await proxy.ended())[0] == 0

    dialogue(script())


def test_a_second_signal_ends_at_once() -> None:
    """A person who presses twice does not want to wait for the drain time."""

    async def script() -> None:
        async with scripted_engine() as engine, process("--upstream", engine.url) as proxy:
            client = await proxy.dial()
            await client.send(post())
            await engine.accept()
            for _ in range(2):
                os.kill(proxy.child.pid, signal.SIGINT)
                await asyncio.sleep(0.1)
            assert (await proxy.ended())[0] == 0

    dialogue(script())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lisen: 127.0.0.1:0\n", ["lisen", "did you mean listen"]),
        ("timeouts: {connect_s: -1}\n", ["timeouts.connect_s", "-1"]),
        ("arms: {a: {url: 'ftp://x'}}\n", ["arms.a.url", "ftp://x", "http://HOST:PORT"]),
        ("arms: {a: {url: 'http://user:pw@x'}}\n", ["arms.a.url", "credentials"]),
        ("arms: {A B: {url: 'http://x'}}\n", ["arms", "'A B'"]),
        ("arms: {a: {url: 'http://x'}}\nrouting: {arm: b}\n", ["routing.arm", "'b'", "one of: a"]),
        ("arms: {a: {url: 'http://x'}}\nlisten: nowhere\n", ["listen", "HOST:PORT"]),
        ("arms: {a: {url: 'http://x'}}\nlisten: '127.0.0.1:²'\n", ["listen", "HOST:PORT", "²"]),
        ("arms: {a: {url: 'http://x'}}\nlisten: 127.0.0.1:9\nadmin: 127.0.0.1:9\n",
         ["admin", "127.0.0.1:9", "another port"]),
        ("arms: {a: {url: 'http://x'}}\nadmin_token_file: /nope\n",
         ["admin_token_file", "/nope", "readable"]),
        ("arms: {a: {url: 'http://x'}}\ntrace_recording: {directory: /tmp, salt_file: /nope}\n",
         ["trace_recording.salt_file", "32 random bytes"]),
        ("arms: {a: {url: 'http://x'}}\nload_classes: {low_max: 9, normal_max: 3}\n",
         ["load_classes.normal_max"]),
        ("arms: {a: {url: 'http://x', ca_file: /nope.pem}}\n", ["arms.a.ca_file", "/nope.pem"]),
        ("arms: {a: {url: 'http://x'}}\ntrace_recording: {directory: /nope}\n",
         ["trace_recording.directory", "/nope"]),
        ("arms: {a: {url: 'http://x'}}\nrouting: {state_file: /nope/trips.json}\n",
         ["routing.state_file", "/nope/trips.json", "a directory that exists"]),
        ("arms: {a: {url: 'http://x'}}\nrouting: {state_file: /tmp}\n",
         ["routing.state_file", "/tmp"]),
        ("arms: {a: {url: 'http://x'}}\nrouting: {health: {hold_s: 400, max_hold_s: 300}}\n",
         ["routing.health.max_hold_s", "below hold_s (400)", "300"]),
        ("arms: {a: {url: 'http://x'}}\ncertificate: /nope.json\n",
         ["/nope.json", "loadgen decide"]),
        ("{}\n", ["arms", "--upstream"]),
        ("a: [\n", ["YAML"]),
    ],
)  # fmt: skip
def test_a_bad_configuration_is_exit_2_and_names_the_place(
    tmp_path: Path,
    text: str,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """File, key, value and the mend on stderr; nothing is started."""
    config = tmp_path / "proxy.yaml"
    config.write_text(text)
    ports = [] if "listen:" in text else ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
    monkeypatch.setattr(sys, "argv", ["breakeven-proxy", "serve", *ports, "--config", str(config)])
    with pytest.raises(SystemExit) as end:
        main()
    shown = capsys.readouterr()
    assert end.value.code == 2
    assert shown.out == ""
    for word in words:
        assert word in shown.err
    if "nope.json" not in text:
        assert "proxy.yaml" in shown.err
    checked = ["breakeven-proxy", "check", "--config", str(config)]
    monkeypatch.setattr(sys, "argv", checked)
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert capsys.readouterr().err == shown.err


def test_a_port_in_use_is_exit_2() -> None:
    """The address and the mend, no traceback."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = run("breakeven-proxy", "serve", "--upstream", "http://127.0.0.1:1",
                   "--listen", address, "--admin", "127.0.0.1:0")  # fmt: skip
    assert done.returncode == 2
    assert address in done.stderr
    assert "free" in done.stderr
    assert "Traceback" not in done.stderr


def test_check_prints_the_effective_configuration_and_the_series(tmp_path: Path) -> None:
    """Defaults are filled in; the number of series is an upper bound that a page keeps."""
    config = tmp_path / "proxy.yaml"
    config.write_text("arms: {a: {url: 'http://127.0.0.1:1'}}\ncohorts: {x: {}, y: {}}\n")
    done = run("breakeven-proxy", "check", "--config", str(config), "--json")
    assert done.returncode == 0
    found = json.loads(done.stdout)
    assert found["config"]["timeouts"]["idle_s"] == 300
    assert found["config"]["arms"]["a"]["replicas"] == 1
    assert found["series"] > 1000
    text = run("breakeven-proxy", "check", "--config", str(config)).stdout
    assert f"# series: at most {found['series']}" in text


def test_help_and_version() -> None:
    """Help has an example and the exit codes."""
    shown = run("breakeven-proxy", "serve", "--help").stdout
    assert "--upstream http://127.0.0.1:8000" in shown
    assert "nothing was sent" in shown
    assert "breakeven-proxy" in run("breakeven-proxy", "--version").stdout


def test_the_log_is_json_without_what_clients_sent() -> None:
    """Bodies, query strings, paths and header values stay out, also when things go wrong."""

    async def script() -> None:
        async with scripted_engine() as engine, process("--upstream", engine.url) as proxy:
            client = await proxy.dial()
            canary = "s3cr3t-canary"
            await client.send(
                post(
                    f'{{"prompt":"{canary}"}}'.encode(),
                    path=f"/v1/completions?key={canary}",
                    headers=f"Authorization: Bearer {canary}\r\n",
                )
            )
            conn = await engine.accept()
            await conn.send(b"HTTP/1.1 500 X\r\nContent-Length: 30\r\n\r\n" + canary.encode())
            conn.close()
            await client.rest()
            bad = await proxy.dial()
            await bad.send(f"GET /{canary} NONSENSE\r\n\r\n".encode())
            await bad.rest()
            _, page = await proxy.page("/metrics")
            _, status = await proxy.page("/status")
            os.kill(proxy.child.pid, signal.SIGTERM)
            code, log = await proxy.ended()
            assert code == 0
            for line in log.splitlines():
                assert {"time", "level", "event"} <= json.loads(line).keys()
            for text in (log, page.decode(), status.decode()):
                assert canary not in text

    dialogue(script())


def test_a_crash_says_where_and_not_with_what() -> None:
    """The text of an exception may quote a request: only its class and our lines are printed."""
    code = (
        "from breakeven_proxy.observe.log import start_logging\n"
        "log = start_logging()\n"
        "import logging\n"
        "logging.getLogger('aiohttp.server').error('Error handling %s', 's3cr3t-canary')\n"
        "try:\n    raise ValueError('s3cr3t-canary')\n"
        "except ValueError as error:\n    log.error('failed', error)\n"
        "def deep(body):\n    raise RuntimeError(body)\n"
        "deep('s3cr3t-canary')\n"
    )
    import subprocess

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "s3cr3t-canary" not in done.stderr + done.stdout
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["event"] for line in lines] == ["message of aiohttp.server", "failed", "crashed"]
    assert lines[2]["exception"] == "RuntimeError"
    assert any("deep" in place for place in lines[2]["at"])


class Visitor:
    """A guest at the desk: takes what it is given."""

    def __init__(self) -> None:
        self.visit: Visit | None = None

    def admitted(self, visit: Visit) -> None:
        self.visit = visit

    def refused(self, visit: Visit, refusal: Refusal) -> None:
        raise AssertionError(refusal)


def test_the_series_stay_bounded() -> None:
    """10,000 different header values, models and paths: the page stays under what check prints."""
    head = ResponseHead(200, b"OK", ((b"content-type", b"application/json"),))

    async def script() -> None:
        settings = {"cohorts": {"known": {}}, "allow_arm_header": True}
        async with scripted_engine() as engine, proxied(engine.url, **settings) as proxy:
            desk = proxy.proxy.desk
            for i in range(10_000):
                value = b"v%d" % i
                headers = ((b"X-Breakeven-Cohort", value), (b"X-Breakeven-Arm", value),
                           (b"X-Model", value))  # fmt: skip
                path = b"/v1/completions" if i % 3 else b"/" + value
                method = b"POST" if i % 3 else b"GET"
                guest = Visitor()
                desk.enter(Arrival(method, path, path, headers, 1.0, 1.0), guest)
                visit = guest.visit
                assert visit is not None
                visit.observation.request_body(b'{"model":"%b"}' % value)
                visit.observation.head(head, 1.1)
                body = completion(i % 50 + 1)[:-1] + b',"model":"%b"}' % value
                visit.observation.body(body, 1.2, False)
                visit.observation.end(Ending(Close.COMPLETE, 200, 1.3))
                visit.leave()
            # The same through sockets, a few times.
            client = await proxy.dial()
            await client.send(post(headers="X-Breakeven-Cohort: v0\r\n") + get("/v0"))
            conn = await engine.accept()
            await conn.send(ok(completion()))
            await conn.next()
            await conn.send(ok(b"{}"))
            assert [(await client.message()).status for _ in range(2)] == [200, 200]
            samples = await proxy.samples("")
            ours = [s for s in samples if s.name.startswith("breakeven_")]
            assert len(ours) <= series_of(proxy.proxy.settings)
            assert await proxy.total("requests_total") == 6667
            assert await proxy.total("label_overflow_total", label="cohort") == 10_001
            assert not [s for s in samples if "v77" in s.labels.values()]

    dialogue(script())


def test_the_page_is_built_in_slices() -> None:
    """Between two slices of a page other work runs: a scrape cannot stall the streams."""

    async def script() -> None:
        cohorts = {f"c{i}": {} for i in range(40)}
        async with proxied("http://127.0.0.1:1", cohorts=cohorts) as proxy:
            turns, building = 0, asyncio.create_task(proxy.proxy.metrics.page())
            while not building.done():
                turns += 1
                await asyncio.sleep(0)
            page = building.result()
            samples = sum(not line.startswith(b"#") for line in page.splitlines())
            assert samples > 8000
            assert turns > samples / 300
            kinds = [line for line in page.splitlines() if line.startswith(b"# TYPE ")]
            assert len(kinds) == len(set(kinds))

    dialogue(script())
