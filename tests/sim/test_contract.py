"""Same bytes on the wire as vLLM: every recorded request is sent to the simulator.

Compared with the recording: status, header names in order and their fixed values, the kinds of
events in order, every field in its order with its type, the type, param and code of errors.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.sim.serving import Response, Sim, parse_response, serving

from breakeven_sim.config import ServeConfig, engine_config
from breakeven_sim.options import Options

DATA = Path(__file__).resolve().parents[1] / "data/vllm"
FLAGS = Options(
    force_include_usage=True,
    per_request_spec_decode_metrics="detailed",
    per_request_metrics=True,
    request_id_headers=True,
)
ARMS = {
    "base": ServeConfig(engine_config("8b-h100"), model="smol", max_model_len=2048, time_scale=40),
    "ngram": ServeConfig(
        engine_config("8b-h100", "ngram", 4),
        draft="ngram",
        model="smol",
        max_model_len=2048,
        time_scale=40,
        options=FLAGS,
    ),
}
# Values that differ by nature; their presence and place are compared.
FREE_HEADERS = {"date", "content-length", "x-request-id", "endpoint-load-metrics"}
NULLABLE = {"stop_reason", "incomplete_details"}
# Left out of chunks (null in bodies) when no step was drafted: the real ngram finds no match there.
OPTIONAL = {"per_step_accepted", "per_step_drafted"}
# The client closes these after some reads.
CUT = {"disconnect_sse": 10}
NAMES = sorted(
    (arm, path.stem)
    for arm in ARMS
    for path in (DATA / arm).glob("*.req")
    if not path.stem.startswith("metrics_")
)


@pytest.fixture(scope="module")
def sims() -> Iterator[dict[str, Sim]]:
    with serving(ARMS["base"]) as base, serving(ARMS["ngram"]) as ngram:
        yield {"base": base, "ngram": ngram}


def shape(value: object, key: str = "") -> object:
    """Keys in order with the types below; texts and numbers only as types."""
    if key in NULLABLE:
        return "nullable"
    if isinstance(value, dict):
        if key == "top_logprobs":
            return "map"
        return tuple((k, shape(v, k)) for k, v in value.items() if k not in OPTIONAL)
    if isinstance(value, list):
        return ("list", *sorted({repr(shape(v, key)) for v in value}))
    if isinstance(value, bool) or value is None:
        return str(value)
    return "number" if isinstance(value, int | float) else "string"


def kinds(response: Response) -> list[object]:
    """The kinds of events in the order they first come: comment, name and shape, [DONE]."""
    found: list[object] = []
    for event in response.events:
        lines = event.decode().split("\n")
        data = "".join(line[6:] for line in lines if line.startswith("data: "))
        if not data:
            found.append(lines[0])
            continue
        parsed = data if data == "[DONE]" else shape(json.loads(data))
        names = tuple(line for line in lines if line.startswith("event: "))
        found.append((names, parsed))
    return list(dict.fromkeys(found))


def compact(payload: bytes) -> bool:
    """Whether JSON is written as pydantic writes it: no spaces, UTF-8 unescaped, shortest numbers.

    Of two compact payloads the shape (keys in order, types) says all but the values.
    """
    text = payload.decode()
    written = json.dumps(json.loads(text), separators=(",", ":"), ensure_ascii=False)
    return written == text


def payloads(response: Response) -> list[bytes]:
    lines = [line for event in response.events for line in event.split(b"\n")]
    found = [line[6:] for line in lines if line.startswith(b"data: ")]
    return [payload for payload in found if payload != b"[DONE]"]


def recorded_kinds(arm: str) -> set[object]:
    """Every kind of event in any stream of an arm."""
    pages = (parse_response(path.read_bytes()) for path in (DATA / arm).glob("sse_*.raw"))
    return {kind for page in pages if page.status == 200 for kind in kinds(page)}


def heads(response: Response) -> list[tuple[str, str]]:
    return [(k, "*" if k in FREE_HEADERS else v) for k, v in response.headers]


def replayed(sim: Sim, arm: str, name: str) -> Response:
    request = (DATA / arm / f"{name}.req").read_bytes()
    if "_stop" in name:
        request = with_a_stop_that_comes(sim, request)
    return sim.send(request, CUT.get(name))


def with_a_stop_that_comes(sim: Sim, request: bytes) -> bytes:
    """The recorded stop word is the real model's; take the fifth word of the simulated answer."""
    head, _, body = request.partition(b"\r\n\r\n")
    asked = json.loads(body)
    plain = {k: v for k, v in asked.items() if k not in ("stop", "stream")}
    text = sim.post("/v1/completions", plain).json()["choices"][0]["text"]
    body = json.dumps({**asked, "stop": [text.split()[4]]}).encode()
    head = re.sub(rb"Content-Length: \d+", b"Content-Length: %d" % len(body), head)
    return head + b"\r\n\r\n" + body


@pytest.mark.parametrize(("arm", "name"), NAMES)
def test_recorded_request_gets_the_recorded_shape(
    sims: dict[str, Sim], arm: str, name: str
) -> None:
    """Status, heads, kinds of events, fields and types, error types as the real server's."""
    recorded = parse_response((DATA / arm / f"{name}.raw").read_bytes())
    found = replayed(sims[arm], arm, name)
    assert found.status == recorded.status
    assert heads(found) == heads(recorded)
    if (recorded.header("content-type") or "").startswith("text/event-stream"):
        expected = kinds(recorded)
        got = kinds(found)
        # Tokens per step differ: a plain delta may come between, if the arm has such a kind.
        assert set(got) <= recorded_kinds(arm) | set(expected)
        assert [kind for kind in got if kind in expected] == expected
        for response in (recorded, found):
            assert all(map(compact, payloads(response)))
    elif recorded.body:
        value, wanted = found.json(), recorded.json()
        assert compact(recorded.body)
        assert compact(found.body)
        assert shape(value) == shape(wanted)
        if "error" in wanted:
            for field in ("type", "param", "code"):
                assert value["error"][field] == wanted["error"][field]
    else:
        assert found.body == b""


def test_all_recordings_are_replayed() -> None:
    """A recording that is renamed or added does not drop out silently."""
    assert len([n for a, n in NAMES if a == "base"]) >= 90
    assert len([n for a, n in NAMES if a == "ngram"]) >= 90


# -- /metrics -------------------------------------------------------------------------------------

Sample = tuple[str, tuple[str, ...]]


def read_page(page: str) -> tuple[dict[str, tuple[str, str]], dict[Sample, list[str]]]:
    """Families (type, help) and, per sample name and label names, its bucket bounds in order."""
    families: dict[str, tuple[str, str]] = {}
    samples: dict[Sample, list[str]] = {}
    helps: dict[str, str] = {}
    for line in page.splitlines():
        if line.startswith("# HELP "):
            _, _, name, text = line.split(" ", 3)
            helps[name] = text
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ", 3)
            families[name] = (kind, helps[name])
        elif line:
            name = re.split(r"[{ ]", line, maxsplit=1)[0]
            labels = dict(re.findall(r'([a-z_]+)="((?:[^"\\]|\\.)*)"', line))
            bounds = samples.setdefault((name, tuple(labels)), [])
            bound = labels.get("le")
            if bound is not None and bound not in bounds:
                bounds.append(bound)
    return families, samples


def read_values(page: str, label: str) -> dict[str, set[str]]:
    """Values of one label, per sample name."""
    found: dict[str, set[str]] = {}
    for name, value in re.findall(rf'^([a-z:_]+)\{{.*\b{label}="([^"]*)"', page, re.MULTILINE):
        found.setdefault(name, set()).add(value)
    return found


@pytest.mark.parametrize("arm", ARMS)
def test_metrics_page_is_the_recorded_one(sims: dict[str, Sim], arm: str) -> None:
    """Names, types, helps, label names and buckets: equal, but for families named breakeven_sim."""
    raw = (DATA / arm / "metrics_after.raw").read_bytes()
    recorded = parse_response(raw)
    for name in ("chat", "get_models"):
        replayed(sims[arm], arm, name)
    found = sims[arm].send((DATA / arm / "metrics_after.req").read_bytes())
    assert heads(found) == heads(recorded)
    families, samples = read_page(found.body.decode())
    wanted_families, wanted_samples = read_page(recorded.body.decode())
    assert {k: v for k, v in families.items() if "breakeven_sim" not in k} == wanted_families
    assert {k: v for k, v in samples.items() if "breakeven_sim" not in k[0]} == wanted_samples
    order = [name for name in families if "breakeven_sim" not in name]
    vllm = [name for name in wanted_families if name.startswith("vllm:")]
    assert [name for name in order if name.startswith("vllm:")] == vllm


def test_one_misspelt_name_is_caught(sims: dict[str, Sim]) -> None:
    """The comparison above fails for every single family, type, label or bucket that is off."""
    recorded = parse_response((DATA / "ngram/metrics_after.raw").read_bytes()).body.decode()
    wanted = read_page(recorded)
    for name in wanted[0]:
        assert read_page(re.sub(rf"\b{name}", name + "s", recorded)) != wanted, name
    for right, wrong in (
        ("model_name=", "model="),
        ("finished_reason=", "reason="),
        ('le="0.025"', 'le="0.02"'),
        ("_total counter", "_total gauge"),
    ):
        assert right in recorded
        assert read_page(recorded.replace(right, wrong)) != wanted


@pytest.mark.parametrize(
    "label", ["finished_reason", "source", "reason", "sleep_state", "position", "engine"]
)
def test_label_values_are_the_recorded_ones(sims: dict[str, Sim], label: str) -> None:
    """Every value of the closed label sets is there from the start, and no other."""
    recorded = (DATA / "ngram/metrics_after.raw").read_text().split("\n\n", 1)[1]
    found = sims["ngram"].get("/metrics").body.decode()
    assert read_values(found, label) == read_values(recorded, label)


def test_the_page_says_that_it_is_simulated(sims: dict[str, Sim]) -> None:
    """A family of ours on the page, the version and the fingerprint give it away."""
    page = sims["ngram"].get("/metrics").body.decode()
    assert 'breakeven_sim_info{draft="ngram",k="4",preset="8b-h100"' in page
    assert sims["base"].get("/version").json() == {"version": "0.32.0+breakeven.sim"}
    body = sims["base"].post("/v1/completions", {"prompt": "a", "max_tokens": 1}).json()
    assert "breakeven.sim" in str(body["system_fingerprint"])
