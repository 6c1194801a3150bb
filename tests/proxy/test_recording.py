"""The redacted trace: what it holds, in which order, and that the relay never waits for it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from tests.support.engine import (
    DONE,
    STREAM_HEAD,
    Conn,
    chunked,
    completion,
    event,
    ok,
    post,
    scripted_engine,
)
from tests.support.proxied import dialogue, proxied

from breakeven.errors import ConfigError
from breakeven.trace import Trace, read_trace
from breakeven_proxy.observe.recorder import BUFFERED, Recorder

SALT = b"0123456789abcdef0123456789abcdef"


def traces(folder: Path) -> list[Trace]:
    """The files of a folder, read by the core's reader, which allows nothing else in them."""
    return [
        read_trace(path.read_bytes().splitlines(), file=path.name)
        for path in sorted(folder.glob("*.jsonl"))
    ]


def body(text: str, more: str = "") -> bytes:
    """A chat request whose one message is `text`."""
    return f'{{"messages":[{{"role":"user","content":"{text}"}}]{more}}}'.encode()


def test_a_recording_holds_lengths_labels_and_keyed_ids(tmp_path: Path) -> None:
    """Two requests with a common prefix share ids; a third differs; nothing else is in the file."""
    salt = tmp_path / "salt"
    salt.write_bytes(SALT)
    folder = tmp_path / "traces"
    folder.mkdir()
    recording = {"directory": str(folder), "salt_file": str(salt), "block_bytes": 64,
                 "session_header": "X-Session"}  # fmt: skip
    common = "a" * 100

    async def script() -> None:
        cohorts = {"chat-en": {"task": "chat", "lang": "en"}}
        async with (
            scripted_engine() as engine,
            proxied(engine.url, trace_recording=recording, cohorts=cohorts) as proxy,
        ):
            client = await proxy.dial()
            headers = "X-Breakeven-Cohort: chat-en\r\nX-Session: alice@example.org\r\n"
            await client.send(post(body(common + "x", ',"temperature":0'), headers=headers))
            conn = await engine.accept()
            await conn.send(STREAM_HEAD + chunked(event(tokens=1), event(tokens=4, finish="stop")))
            await client.message()
            for text in (common + "y" * 200, "b" * 100):
                await client.send(post(body(text)))
                await conn.next()
                await conn.send(ok(completion(7)))
                await client.message()
            assert await proxy.total("recorded_arrivals_total", result="written") == 3

    dialogue(script())
    [trace] = traces(folder)
    one, two, three = trace.arrivals
    assert (one.in_tokens, one.out_tokens, one.stream, one.sampling) == (3, 4, True, "greedy")
    assert (one.cohort, one.task, one.lang) == ("chat-en", "chat", "en")
    assert (two.out_tokens, two.stream, two.sampling, two.cohort) == (7, False, "sampled", "other")
    assert one.prefix
    assert two.prefix
    assert three.prefix
    assert one.prefix[0] == two.prefix[0]
    assert one.prefix[0] != three.prefix[0]
    assert one.session is not None
    assert two.session is None
    assert one.t == 0.0
    assert one.t <= two.t <= three.t
    text = b"".join(path.read_bytes() for path in folder.iterdir())
    for secret in (common.encode(), b"alice", b"bbbb", b"messages"):
        assert secret not in text


def test_arrivals_are_written_in_order_of_arrival(tmp_path: Path) -> None:
    """A long request that began first stands first, though it ends last."""

    async def script() -> None:
        recording = {"directory": str(tmp_path)}
        async with (
            scripted_engine() as engine,
            proxied(engine.url, trace_recording=recording) as proxy,
        ):
            slow, fast = await proxy.dial(), await proxy.dial()
            await slow.send(post(body("slow")))
            first = await engine.accept()
            await fast.send(post(body("fast")))
            second = await engine.accept()
            await second.send(ok(completion(2)))
            await fast.message()
            await first.send(ok(completion(9)))
            await slow.message()

    dialogue(script())
    [trace] = traces(tmp_path)
    assert [arrival.out_tokens for arrival in trace.arrivals] == [9, 2]


def test_a_request_without_known_lengths_is_skipped(tmp_path: Path) -> None:
    """An error, a cancelled request, a stream without usage: counted, not invented."""

    async def script() -> None:
        recording = {"directory": str(tmp_path)}
        async with (
            scripted_engine() as engine,
            proxied(engine.url, trace_recording=recording) as proxy,
        ):
            client = await proxy.dial()
            await client.send(post(body("x")))
            conn = await engine.accept()
            await conn.send(STREAM_HEAD + chunked(event(finish="stop"), DONE))
            await client.message()
            await client.send(post(body("x")))
            await conn.next()
            client.close()
            await proxy.idle()
            assert await proxy.total("recorded_arrivals_total", result="skipped") == 2

    dialogue(script())
    assert traces(tmp_path) == []


def test_a_large_body_records_no_prefix(tmp_path: Path) -> None:
    """Above 1 MiB the body is neither kept nor parsed."""

    async def answer(conn: Conn) -> None:
        await conn.request()
        await conn.send(ok(completion()))

    async def script() -> None:
        recording = {"directory": str(tmp_path)}
        async with (
            scripted_engine() as engine,
            proxied(engine.url, trace_recording=recording) as proxy,
        ):
            client = await proxy.dial()
            await client.send(post(body("c" * (1 << 20))))
            await answer(await engine.accept())
            await client.message()

    dialogue(script())
    [trace] = traces(tmp_path)
    assert trace.arrivals[0].prefix is None


def test_files_rotate_and_the_oldest_go(tmp_path: Path) -> None:
    """Each file stands alone, begins at 0, and no more than `keep` stay."""
    from breakeven.trace import Arrival
    from breakeven_proxy.config import RecordingSettings
    from breakeven_proxy.observe.recorder import TraceFiles

    files = TraceFiles(RecordingSettings(directory=str(tmp_path), max_mb=1, keep=3))
    ids = tuple(f"{i:016x}" for i in range(400))
    for i in range(1200):
        files.write([Arrival(t=float(i), in_tokens=1, out_tokens=1, prefix=ids)])
    files.close()
    found = traces(tmp_path)
    assert len(found) == 3
    assert all(trace.arrivals[0].t == 0.0 for trace in found)
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.iterdir())


def test_a_stuck_disk_never_blocks_the_relay(tmp_path: Path) -> None:
    """With the writer stuck the buffer fills; the rest is dropped and counted, at once."""
    from breakeven.load import LoadClass
    from breakeven.slo import Verdict
    from breakeven_proxy.config import RecordingSettings
    from breakeven_proxy.observe.meter import Metered, RequestFacts
    from breakeven_proxy.relay.seams import Arrival, Close

    counts: dict[str, int] = {}

    def count(result: str) -> None:
        counts[result] = counts.get(result, 0) + 1

    recorder = Recorder(RecordingSettings(directory=str(tmp_path)), {}, count)
    stuck, free = threading.Event(), threading.Event()

    def write(_: object) -> None:
        stuck.set()
        free.wait(20)

    recorder._files.write = write  # type: ignore[method-assign, assignment]
    load: LoadClass = "low"
    total = 3 * BUFFERED
    for i in range(total):
        arrival = Arrival(b"POST", b"/", b"/", (), float(i), float(i))
        recorder.reader(arrival)
        recorder.record(
            Metered(
                arrival, "a", "other", load, Verdict.GOOD, 200, True, 0.1, 1.0, 0.01, 3, 4, None,
                RequestFacts(b"{}", None), Close.COMPLETE, None,
            )
        )  # fmt: skip
        if i == 0:
            assert stuck.wait(10)
    assert counts["written"] <= BUFFERED + 2
    assert counts["written"] + counts["dropped"] == total
    free.set()
    recorder.close()


def test_an_arrival_that_stays_open_is_given_up_for_the_others(tmp_path: Path) -> None:
    """Slots are bounded: the oldest open one is dropped when as many wait behind it."""
    from breakeven_proxy.config import RecordingSettings
    from breakeven_proxy.relay.seams import Arrival

    counts: list[str] = []
    recorder = Recorder(RecordingSettings(directory=str(tmp_path)), {}, counts.append)
    kept = [Arrival(b"POST", b"/", b"/", (), 0.0, 0.0) for _ in range(BUFFERED + 10)]
    for arrival in kept:
        recorder.reader(arrival)
    assert counts == ["dropped"] * 10
    assert len(recorder._slots) == BUFFERED
    recorder.close()


def test_a_bad_salt_is_refused(tmp_path: Path) -> None:
    """Too short, or not there: the key and the mend."""
    from breakeven_proxy.config import RecordingSettings
    from breakeven_proxy.observe.recorder import read_salt

    short = tmp_path / "salt"
    short.write_bytes(b"short")
    for file in (short, tmp_path / "none"):
        with pytest.raises(ConfigError, match="32 random bytes") as error:
            read_salt(RecordingSettings(directory=".", salt_file=str(file)))
        assert error.value.key == "trace_recording.salt_file"
