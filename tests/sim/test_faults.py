"""Every --fault kind does on the wire what it says; everything else stays as it was."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.sim.serving import Response, Sim, parse_response, post_bytes, serving

from breakeven_sim.config import ServeConfig, engine_config
from breakeven_sim.errors import SimInputError
from breakeven_sim.faults import KINDS, SAYS, Faults, halves, parse_fault

DATA = Path(__file__).resolve().parents[1] / "data/vllm"
COMP = "/v1/completions"
BODY = {
    "prompt": [1, 2, 3],
    "max_tokens": 20,
    "ignore_eos": True,
    "stream": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
}
POLL = threading.Event()


@contextmanager
def hurt(*faults: str, time_scale: float = 20.0) -> Iterator[Sim]:
    config = ServeConfig(
        engine_config("8b-h100", "eagle3", 3),
        draft="eagle3",
        time_scale=time_scale,
        faults=tuple(parse_fault(f) for f in faults),
        max_model_len=100_000,
    )
    with serving(config) as sim:
        yield sim


def stream(fault: str, **more: object) -> Response:
    with hurt(fault) as sim:
        return sim.post(COMP, {**BODY, **more})


def choices(response: Response) -> list[dict[str, object]]:
    return [c for e in response.data for c in e["choices"]]


def test_drop_connection() -> None:
    """The connection breaks inside a chunk: no last chunk, no finish_reason."""
    response = stream("drop:after=4")
    assert response.status == 200
    assert not response.ended
    assert len([e for e in response.events if e.endswith(b"}")]) == 4
    assert b"[DONE]" not in response.body


def test_truncate() -> None:
    """A legal HTTP end, but no finish_reason, no usage event, no [DONE]."""
    response = stream("truncate:after=4")
    assert response.ended
    assert len(response.events) == 4
    assert all(c["finish_reason"] is None for c in choices(response))
    assert b"[DONE]" not in response.body


def test_garble() -> None:
    """One event is no JSON; the stream goes on and ends well."""
    response = stream("garble:after=2")
    broken = []
    for at, event in enumerate(response.events[:-1]):
        try:
            json.loads(event.removeprefix(b"data: "))
        except ValueError:
            broken.append(at)
    assert broken == [2]
    assert response.events[-1] == b"data: [DONE]"


def test_wrong_usage() -> None:
    """Usage says more tokens than were sent, in every event and at the end."""
    response = stream("wrong-usage:by=7", return_token_ids=True)
    sent = sum(len(c["token_ids"]) for c in choices(response))  # type: ignore[arg-type]
    assert sent == 20
    assert response.data[-1]["usage"]["completion_tokens"] == 27
    assert response.data[-1]["usage"]["total_tokens"] == 30
    assert response.data[0]["usage"]["completion_tokens"] == 8


def test_missing_usage() -> None:
    """No usage anywhere although it was asked for; text and end are whole."""
    response = stream("missing-usage")
    assert b"usage" not in response.body
    assert choices(response)[-1]["finish_reason"] == "length"
    assert response.events[-1] == b"data: [DONE]"
    with hurt("missing-usage") as sim:
        whole = sim.post(COMP, {"prompt": [1], "max_tokens": 2}).json()
    assert "usage" not in whole


@pytest.mark.parametrize(
    ("fault", "form"),
    [("crlf", rb"data: \{[^\r\n]*\}\r\n\r\n"), ("no-space", rb"data:\{[^\n]*\}\n\n")],
)
def test_other_legal_framings(fault: str, form: bytes) -> None:
    """CR LF line ends, and no space after the colon: legal SSE, same content."""
    response = stream(fault)
    plain = stream("wrong-usage:by=0")
    assert len(re.findall(form, response.body)) == len(plain.data)
    assert b"[DONE]" in response.body


def test_half_utf8() -> None:
    """Some chunk ends inside a character; put together it is the same text."""
    more = {"max_tokens": 400}
    with hurt("half-utf8") as sim:
        raw = sim.raw(post_bytes(COMP, {**BODY, **more}))
    body = raw.partition(b"\r\n\r\n")[2]
    chunks = []
    while body:
        size, _, rest = body.partition(b"\r\n")
        chunks.append(rest[: int(size, 16)])
        body = rest[int(size, 16) + 2 :]
    assert any(chunk and chunk[-1] >= 0xC0 for chunk in chunks)
    text = "".join(str(c["text"]) for c in choices(parse_response(raw)))
    plain = choices(stream("wrong-usage:by=0", **more))
    assert text == "".join(str(c["text"]) for c in plain)
    assert halves("aé".encode()) == (b"a\xc3", b"\xa9")


def test_slow_first_byte() -> None:
    """The head comes late; the engine was not slower (its own TTFT says so)."""
    with hurt("slow-first-byte:for=0.3") as sim:
        with socket.create_connection(("127.0.0.1", sim.port), timeout=20) as connection:
            connection.sendall(post_bytes(COMP, BODY))
            connection.settimeout(0.15)
            with pytest.raises(TimeoutError):
                connection.recv(1)
            connection.settimeout(20)
            assert connection.recv(9) == b"HTTP/1.1 "
        total = sim.metric("vllm:time_to_first_token_seconds_sum")
    assert total < 0.1


def test_stall_is_one_long_step_of_model_time() -> None:
    """The engine's own histogram shows the gap: it was slow, not its simulator late."""
    with hurt("stall:at=0.05,for=3") as sim:
        sim.post(COMP, {**BODY, "max_tokens": 3000})
        slow = sim.metric("vllm:inter_token_latency_seconds_bucket", le="2.5")
        every = sim.metric("vllm:inter_token_latency_seconds_count")
    assert every - slow == 1


def test_die_mid_stream_as_recorded() -> None:
    """Error frame then [DONE] under status 200; /health 503, then the port is closed."""
    recorded = (DATA / "crash/stream_midcrash.txt").read_bytes()
    with hurt("die:at=0.4", time_scale=1.0) as sim:
        response = sim.post(COMP, {**BODY, "max_tokens": 50_000})
        assert response.status == 200
        assert response.ended
        assert response.events[-2:] == recorded.strip().split(b"\n\n")[-2:]
        health = sim.get("/health")
        witness = (DATA / "crash/health_1.txt").read_bytes()
        assert health.status == 503
        names = [k for k, _ in health.headers if k != "connection"]
        assert names == [k for k, _ in parse_response(witness).headers]
        assert sim.post(COMP, {"prompt": [1], "max_tokens": 2}).status == 500
        closed = False
        for _ in range(500):
            try:
                sim.get("/health")
            except ConnectionRefusedError:
                closed = True
                break
            POLL.wait(0.02)
        assert closed


def test_a_bug_in_the_step_loop_ends_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams get the error frame and the port closes; nothing hangs."""
    with hurt("stall:at=1000") as sim:
        monkeypatch.setattr(sim.server.engine, "finish", lambda: 1 / 0)
        response = sim.post(COMP, BODY)
    assert b'data: {"error"' in response.events[-2]
    assert sim.server.ended.is_set()


def test_metrics_renamed() -> None:
    """An older vLLM's names: the new ones are gone, not 0."""
    with hurt("metrics-renamed") as sim:
        page = sim.get("/metrics").body.decode()
    assert "vllm:kv_cache_usage_perc" not in page
    assert "vllm:gpu_cache_usage_perc{" in page
    assert "vllm:time_per_output_token_seconds_bucket{" in page


def test_counters_reset() -> None:
    """All counters start at 0 again, with a later creation time; gauges stay true."""
    with hurt("counters-reset:at=0.5") as sim:
        sim.post(COMP, BODY)
        created = sim.metric("vllm:generation_tokens_created")
        before = sim.metric("vllm:generation_tokens_total")
        for _ in range(500):
            if sim.metric("vllm:generation_tokens_total") == 0:
                break
            POLL.wait(0.02)
        assert before == 20
        assert sim.metric("vllm:generation_tokens_total") == 0
        assert sim.metric("vllm:inter_token_latency_seconds_count") == 0
        assert sim.metric("vllm:generation_tokens_created") > created
        sim.post(COMP, BODY)
        assert sim.metric("vllm:generation_tokens_total") == 20


def test_clock_step() -> None:
    """`created` and the Date header jump; durations do not."""
    plain, jumped = stream("clock-step:by=0"), stream("clock-step:by=86400")
    step = jumped.data[0]["created"] - plain.data[0]["created"]
    assert 86_390 < step < 86_600
    assert plain.header("date") != jumped.header("date")


def test_503_burst() -> None:
    """Generating routes answer 503 for a while; /health does not."""
    with hurt("503-burst:at=0,for=0.6") as sim:
        first = sim.post(COMP, BODY)
        assert first.status == 503
        assert first.json()["error"]["code"] == 503
        assert sim.get("/health").status == 200
        for _ in range(500):
            if sim.post(COMP, BODY).status == 200:
                return
            POLL.wait(0.02)
        pytest.fail("the burst did not end")


def test_share_picks_requests_by_seed() -> None:
    """About that share of the requests, the same ones in each run."""
    plan = Faults((parse_fault("drop:share=0.25"),), seed=7)
    hit = [n for n in range(2000) if plan.of_request(n)]
    assert len(hit) == pytest.approx(500, rel=0.15)
    assert hit == [n for n in range(2000) if plan.of_request(n)]
    other = Faults((parse_fault("drop:share=0.25"),), seed=8)
    assert hit != [n for n in range(2000) if other.of_request(n)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("burn", "unknown fault 'burn': use one of drop"),
        ("drop:x=1", "unknown key 'x': use share, after"),
        ("drop:after=soon", "after='soon': give a number"),
        ("drop:share=2", "share=2: give a number in 0..1"),
    ],
)
def test_bad_faults_are_named(text: str, message: str) -> None:
    """What is wrong, and what there is."""
    with pytest.raises(SimInputError, match=re.escape(message)):
        parse_fault(text)


def test_every_kind_is_described() -> None:
    """The table of sim/README.md has each kind with its sentence, and no other."""
    assert set(KINDS) == set(SAYS)
    readme = (Path(__file__).resolve().parents[2] / "sim/README.md").read_text("utf-8")
    table = readme.split("## Faults")[1]
    assert dict(re.findall(r"^\| `([a-z0-9-]+)` \| (.+) \|$", table, re.MULTILINE)) == SAYS
