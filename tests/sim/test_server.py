"""The served engine: options of requests and flags, counters' identities, aborts, limits."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.sim.serving import Sim, parse_response, post_bytes, serving

from breakeven_sim.config import ServeConfig, engine_config
from breakeven_sim.options import Options
from breakeven_sim.text import VOCABULARY, encode

DATA = Path(__file__).resolve().parents[1] / "data/vllm"
FAST = 20.0
POLL = threading.Event()
COMP, CHAT = "/v1/completions", "/v1/chat/completions"
G = "vllm:generation_tokens_total"
F = "vllm:time_to_first_token_seconds_count"
S = "vllm:inter_token_latency_seconds_count"
A = "vllm:spec_decode_num_accepted_tokens_total"


@pytest.fixture(scope="module")
def base() -> Iterator[Sim]:
    with serving(ServeConfig(engine_config("8b-h100"), time_scale=FAST)) as sim:
        yield sim


@pytest.fixture(scope="module")
def spec() -> Iterator[Sim]:
    options = Options(per_request_spec_decode_metrics="detailed")
    config = ServeConfig(
        engine_config("8b-h100", "draft-1b", 5), draft="draft-1b", time_scale=FAST, options=options
    )
    with serving(config) as sim:
        yield sim


def ask(**more: object) -> dict[str, object]:
    return {"prompt": [1, 2, 3, 4, 5], "max_tokens": 24, "ignore_eos": True, **more}


def text_of(sim: Sim, **more: object) -> str:
    return str(sim.post(COMP, ask(**more)).json()["choices"][0]["text"])


def streamed(sim: Sim, path: str = COMP, **more: object) -> list[dict[str, object]]:
    usage = {"include_usage": True, "continuous_usage_stats": True}
    return sim.post(path, ask(stream=True, stream_options=usage, **more)).data


# -- text -----------------------------------------------------------------------------------------


def test_the_same_request_gives_the_same_text_on_every_arm(base: Sim, spec: Sim) -> None:
    """Greedy speculative decoding is lossless; so is the simulated one, streamed or whole."""
    whole = text_of(base)
    assert whole == text_of(base) == text_of(spec)
    events = streamed(spec)
    assert "".join(c["text"] for e in events for c in e["choices"]) == whole  # type: ignore[attr-defined]
    assert text_of(base, seed=1) != whole
    assert text_of(base, prompt=[9, 9]) != whole


def test_no_prompt_text_in_the_answer_unless_echo(base: Sim) -> None:
    """Words come from a fixed vocabulary; echo gives the prompt back, as vLLM does."""
    prompt = "canary-7f3a is secret"
    answer = text_of(base, prompt=prompt)
    assert set(answer.split()) <= set(VOCABULARY)
    assert text_of(base, prompt=prompt, echo=True) == prompt + answer


def test_tokenize_counts_like_usage(base: Sim) -> None:
    """One token per whitespace word; a chat prompt adds 3 per message and 2 for the template."""
    text = "one two  three\nfour"
    count = base.post("/tokenize", {"prompt": text}).json()["count"]
    used = base.post(COMP, {"prompt": text, "max_tokens": 1}).json()["usage"]["prompt_tokens"]
    assert count == used == len(encode(text)) == 4
    messages = [{"role": "system", "content": "a b"}, {"role": "user", "content": "c"}]
    chat = base.post(CHAT, {"messages": messages, "max_tokens": 1}).json()
    assert chat["usage"]["prompt_tokens"] == 3 + 2 * 3 + 2 + 0
    assert base.post("/tokenize", {"messages": messages}).json()["count"] == 11


def test_token_id_prompts_count_exactly(base: Sim) -> None:
    """A list of ids is one prompt; a list of lists is several."""
    assert base.post(COMP, ask(prompt=[5] * 37)).json()["usage"]["prompt_tokens"] == 37
    several = base.post(COMP, ask(prompt=[[5] * 3, [6] * 4])).json()
    assert several["usage"]["prompt_tokens"] == 7
    assert [c["index"] for c in several["choices"]] == [0, 1]
    assert several["usage"]["completion_tokens"] == 48


def test_natural_end_min_tokens_and_ignore_eos(base: Sim) -> None:
    """Without ignore_eos the answer ends by itself (stop); min_tokens puts that off."""
    free = {"prompt": [4, 4], "max_tokens": 5000}
    natural = base.post(COMP, free).json()
    assert natural["choices"][0]["finish_reason"] == "stop"
    length = natural["usage"]["completion_tokens"]
    longer = base.post(COMP, {**free, "min_tokens": length + 50}).json()
    assert longer["usage"]["completion_tokens"] == length + 51
    forced = base.post(COMP, {**free, "max_tokens": length + 9, "ignore_eos": True}).json()
    assert forced["choices"][0]["finish_reason"] == "length"
    assert forced["usage"]["completion_tokens"] == length + 9


@pytest.mark.parametrize("included", [False, True])
def test_stop_string_cuts_a_burst(spec: Sim, included: bool) -> None:
    """Text ends at the stop, tokens after it are dropped, held-back text comes with the last."""
    words = text_of(spec).split()
    stop = next(w for i, w in enumerate(words) if i > 8 and w not in words[:i])
    at = words.index(stop)
    more = {"stop": [stop], "include_stop_str_in_output": included}
    events = streamed(spec, **more)
    said = "".join(c["text"] for e in events for c in e["choices"])  # type: ignore[attr-defined]
    assert said == "".join(" " + w for w in words[:at]) + (" " + stop if included else " ")
    last = events[-2]["choices"][0]  # type: ignore[index]
    assert (last["finish_reason"], last["stop_reason"]) == ("stop", stop)
    assert events[-1]["usage"]["completion_tokens"] == at + 1  # type: ignore[index]
    # The engine generated (and counted) the whole burst; vLLM gives no block then.
    assert "speculative_decoding" not in str(events[-1])
    assert spec.post(COMP, ask(**more)).json()["choices"][0]["text"] == said


def test_choices_differ_and_finish_each(base: Sim) -> None:
    """n = 3: role events first, three texts, one usage sum."""
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 9, "n": 3}
    events = base.post(
        CHAT, {**body, "stream": True, "stream_options": {"include_usage": True}}
    ).data
    roles = [c["index"] for e in events[:3] for c in e["choices"] if "role" in c["delta"]]
    assert roles == [0, 1, 2]
    texts = {0: "", 1: "", 2: ""}
    for event in events:
        for choice in event["choices"]:
            texts[choice["index"]] += choice["delta"].get("content", "")
    assert len(set(texts.values())) == 3
    assert events[-1]["usage"]["completion_tokens"] == 27


def test_structured_output_is_valid_json(base: Sim) -> None:
    """The simulator must not be the reason why a contract check fails."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x"]}}}
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    body = {"messages": [{"role": "user", "content": "x"}], "response_format": form}
    choice = base.post(CHAT, body).json()["choices"][0]
    assert choice["message"]["content"] == '{"a":0,"b":"x"}'
    assert choice["finish_reason"] == "stop"


# -- events and counters --------------------------------------------------------------------------


def test_one_event_per_step_with_all_its_tokens(spec: Sim) -> None:
    """Tokens of an event = accepted + 1, the last step excepted; the block says the same."""
    events = streamed(spec, max_tokens=200, return_token_ids=True)
    block = events[-1]["metrics"]["speculative_decoding"]  # type: ignore[index]
    sizes = [len(e["choices"][0]["token_ids"]) for e in events[:-1]]  # type: ignore[index]
    totals = [e["usage"]["completion_tokens"] for e in events[:-1]]  # type: ignore[index]
    assert totals == [sum(sizes[: i + 1]) for i in range(len(sizes))]
    steps = block["per_step_accepted"]
    assert len(sizes) == 1 + len(steps) == 1 + block["num_spec_steps"]
    assert sizes[0] == 1
    assert sizes[1:-1] == [a + 1 for a in steps[:-1]]
    assert sizes[-1] <= steps[-1] + 1
    assert block["num_accepted_draft_tokens"] == sum(steps)
    assert sum(i * n for i, n in enumerate(block["acceptance_histogram"])) == sum(steps)


def test_counters_hold_the_recorded_identities(spec: Sim) -> None:
    """G = Σ usage; M = (G−F)/S; F + S + A − G = accepted tokens that a length cut threw away."""
    names = (G, F, S, A, "vllm:spec_decode_num_drafts_total")
    before = [spec.metric(n) for n in names]
    steps = tokens = cut = 0
    for length in range(1, 30):
        events = streamed(spec, max_tokens=length)
        block = events[-1]["metrics"]["speculative_decoding"]  # type: ignore[index]
        tokens += events[-1]["usage"]["completion_tokens"]  # type: ignore[index,operator]
        steps += block["num_spec_steps"]
        cut += 1 + block["num_spec_steps"] + block["num_accepted_draft_tokens"] - length
    g, f, s, a, drafts = (spec.metric(n) - b for n, b in zip(names, before, strict=True))
    assert (g, f, s, drafts) == (tokens, 29, steps, steps)
    assert f + s + a - g == cut > 0
    assert (g - f) / s > 1.5


def test_baseline_commits_one_token_per_step(base: Sim) -> None:
    """M = (G − F)/S = 1.000 without speculation, and no spec_decode family at all."""
    before = [base.metric(n) for n in (G, F, S)]
    streamed(base, max_tokens=50)
    g, f, s = (base.metric(n) - b for n, b in zip((G, F, S), before, strict=True))
    assert (g - f) / s == 1.0
    assert "spec_decode" not in base.get("/metrics").body.decode()


def test_mean_gap_of_the_counters_is_the_models_step(base: Sim) -> None:
    """ITL_sum/S is model time: the cycle of a lone request is T(1), however late the host is."""
    total = "vllm:inter_token_latency_seconds_sum"
    before = base.metric(total), base.metric(S)
    base.post(COMP, ask(max_tokens=100))
    cycle = (base.metric(total) - before[0]) / (base.metric(S) - before[1])
    assert cycle == pytest.approx(engine_config("8b-h100").engine.step_s(1, 55), rel=0.02)


def test_continuous_usage_and_forced_usage() -> None:
    """--enable-force-include-usage turns running usage on for a plain stream."""
    options = Options(force_include_usage=True)
    with serving(ServeConfig(engine_config("8b-h100"), time_scale=FAST, options=options)) as sim:
        events = sim.post(COMP, ask(stream=True)).data
    assert [e["usage"]["completion_tokens"] for e in events] == [*range(1, 25), 24]
    assert events[-1]["choices"] == []


def test_summary_block_has_no_steps() -> None:
    """--per-request-spec-decode-metrics summary: sums only; null in bodies, absent in chunks."""
    options = Options(per_request_spec_decode_metrics="summary")
    config = ServeConfig(
        engine_config("8b-h100", "eagle3", 3), draft="eagle3", time_scale=FAST, options=options
    )
    with serving(config) as sim:
        chunk = streamed(sim)[-1]["metrics"]["speculative_decoding"]  # type: ignore[index]
        body = sim.post(COMP, ask()).json()["metrics"]["speculative_decoding"]
    assert chunk["num_spec_steps"] > 0
    assert "per_step_accepted" not in chunk
    assert body["per_step_accepted"] is None
    assert sum(body["acceptance_histogram"]) == body["num_spec_steps"]


def test_logprobs_have_one_entry_per_token(spec: Sim) -> None:
    """Both forms; token counts can be read from them."""
    events = streamed(spec, logprobs=2)
    counts = [len(e["choices"][0]["logprobs"]["tokens"]) for e in events[:-1]]  # type: ignore[index]
    assert sum(counts) == 24
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 6, "logprobs": True}
    content = spec.post(CHAT, {**body, "top_logprobs": 3}).json()["choices"][0]["logprobs"]
    assert [len(t["top_logprobs"]) for t in content["content"]] == [3] * 6


def test_stream_interval_gathers_tokens(base: Sim) -> None:
    """The first token comes alone, then every fourth: more than k+1 tokens in one event."""
    events = streamed(base, stream_interval=4, return_token_ids=True)
    sizes = [len(e["choices"][0]["token_ids"]) for e in events[:-1]]  # type: ignore[index]
    assert sizes == [1, 4, 4, 4, 4, 4, 3]


def test_prefix_cache_is_seen_in_counters(base: Sim) -> None:
    """A prompt sent twice: hits in tokens of full blocks; POST /reset_prefix_cache forgets."""
    hits = "vllm:prefix_cache_hits_total"
    prompt = list(range(500, 580))
    base.post(COMP, ask(prompt=prompt, max_tokens=1))
    before = base.metric(hits)
    base.post(COMP, ask(prompt=prompt, max_tokens=1))
    assert base.metric(hits) - before == 64
    base.send(b"POST /reset_prefix_cache HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    before = base.metric(hits)
    base.post(COMP, ask(prompt=prompt, max_tokens=1))
    assert base.metric(hits) == before


# -- clients that leave, or lag -------------------------------------------------------------------


def wait_until(sim: Sim, name: str, value: float) -> bool:
    """Poll a gauge; bounded, and not so often that the page is all the server does."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if sim.metric(name) == value:
            return True
        POLL.wait(0.02)
    return False


@pytest.mark.parametrize("stream", [True, False])
def test_client_abort_frees_the_slot_and_no_metric_counts_it(stream: bool) -> None:
    """Fact 8: running goes to 0 soon, request_success has no abort, generation stops."""
    config = ServeConfig(engine_config("8b-h100"), max_model_len=100_000)
    with serving(config) as sim:
        body = ask(max_tokens=50_000, stream=stream)
        with socket.create_connection(("127.0.0.1", sim.port)) as connection:
            connection.sendall(post_bytes(COMP, body))
            assert wait_until(sim, "vllm:num_requests_running", 1)
        assert wait_until(sim, "vllm:num_requests_running", 0)
        assert sim.metric("vllm:request_success_total") == 0
        assert sim.metric("vllm:kv_cache_usage_perc") == 0
        stopped = sim.metric(G)
        sim.post(COMP, ask(max_tokens=1))
        assert sim.metric(G) == stopped + 1


def test_deltas_merge_when_the_client_lags() -> None:
    """A reader that stops reading gets fewer, larger events; no token is lost."""
    config = ServeConfig(engine_config("8b-h100"), time_scale=400, max_model_len=100_000)
    # 30 alternatives per token: about a kilobyte each, more than any socket buffer holds.
    body = ask(max_tokens=4_000, stream=True, logprobs=30, return_token_ids=True)
    with serving(config) as sim, socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", sim.port))
        connection.sendall(post_bytes(COMP, body))
        assert wait_until(sim, "vllm:request_success_total", 1)
        parts = []
        while part := connection.recv(65536):
            parts.append(part)
    sizes = [
        len(choice["token_ids"])
        for event in parse_response(b"".join(parts)).data
        for choice in event["choices"]
    ]
    assert sum(sizes) == 4_000
    assert max(sizes) > 10


# -- limits ---------------------------------------------------------------------------------------


def test_queue_limit_answers_as_recorded() -> None:
    """503 with the recorded body for what is above --max-num-queued-reqs; counted by reason."""
    config = ServeConfig(engine_config("8b-h100", max_num_seqs=2), max_num_queued_reqs=3)
    recorded = parse_response((DATA / "admission/r08.raw").read_bytes())
    with serving(config) as sim:
        held = []
        for _ in range(3):
            held.append(socket.create_connection(("127.0.0.1", sim.port)))
            held[-1].sendall(post_bytes(COMP, ask(max_tokens=50_000, stream=True)))
        assert wait_until(sim, "vllm:num_requests_waiting", 1)
        assert sim.metric("vllm:num_requests_running") == 2
        refused = sim.post(COMP, ask())
        rejections = sim.metric("vllm:admission_rejections_total", reason="max_num_queued_reqs")
        for connection in held:
            connection.close()
    assert (refused.status, refused.body) == (recorded.status, recorded.body)
    assert [k for k, _ in refused.headers] == [k for k, _ in recorded.headers]
    assert rejections == 1


def test_prefill_backlog_limit() -> None:
    """--max-num-queued-tokens counts prompts without a first token."""
    config = ServeConfig(
        engine_config("8b-h100", max_num_seqs=1), max_num_queued_tokens=6, max_model_len=100_000
    )
    with serving(config) as sim:
        with socket.create_connection(("127.0.0.1", sim.port)) as one:
            one.sendall(post_bytes(COMP, ask(max_tokens=50_000, stream=True)))
            assert wait_until(sim, "vllm:num_requests_running", 1)
            with socket.create_connection(("127.0.0.1", sim.port)) as two:
                two.sendall(post_bytes(COMP, ask(prompt=[1] * 7, stream=True)))
                assert wait_until(sim, "vllm:num_requests_waiting", 1)
                assert sim.post(COMP, ask()).status == 503
        reason = sim.metric("vllm:admission_rejections_total", reason="max_num_queued_tokens")
        assert reason == 1


def test_head_and_keep_alives_come_while_queued() -> None:
    """200 at once, comments while waiting, as recorded with a full engine (admission/r04)."""
    recorded = parse_response((DATA / "admission/r04.raw").read_bytes())
    comment = recorded.events[0] + b"\n\n"
    assert comment == b": keep-alive\n\n"
    config = ServeConfig(
        engine_config("8b-h100", max_num_seqs=1),
        sse_keep_alive_interval_s=0.05,
        max_model_len=100_000,
    )
    with serving(config) as sim:
        first = socket.create_connection(("127.0.0.1", sim.port))
        first.sendall(post_bytes(COMP, ask(max_tokens=50_000, stream=True)))
        assert wait_until(sim, "vllm:num_requests_running", 1)
        with socket.create_connection(("127.0.0.1", sim.port), timeout=20) as second:
            second.sendall(post_bytes(COMP, ask(max_tokens=3, stream=True)))
            got = b""
            while comment not in got:
                got += second.recv(4096)
            first.close()
            while part := second.recv(4096):
                got += part
    response = parse_response(got)
    assert response.status == 200
    assert [k for k, _ in response.headers] == [k for k, _ in recorded.headers]
    assert response.events[0] == recorded.events[0]
    assert response.ended


def test_context_is_bounded_by_the_kv_cache() -> None:
    """A prompt that could never run is refused with vLLM's error, not queued for ever."""
    config = ServeConfig(replace(engine_config("8b-h100", kv_tokens=512), max_num_seqs=4))
    with serving(config) as sim:
        answer = sim.post(COMP, {"prompt": [1] * 600, "max_tokens": 5})
    assert answer.status == 400
    assert answer.json()["error"]["param"] == "input_tokens"


def test_error_bodies_quote_no_prompt(base: Sim) -> None:
    """Validation errors name the parameter; they never echo content."""
    canary = "canary-91c2"
    bodies: list[dict[str, object]] = [
        {"prompt": canary, "max_tokens": "x"},
        {"prompt": canary, "temperature": -1},
        {"prompt": canary, "n": 0},
        {"prompt": canary + " word" * 200_000},
        {"prompt": {"text": canary}},
        {"prompt": [canary, 3]},
    ]
    for body in bodies:
        answer = base.post(COMP, body)
        assert answer.status == 400, body
        assert canary.encode() not in answer.body
    broken = b'{"prompt": "%b' % canary.encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
    kind = b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(broken)
    answer = base.send(head + kind + broken)
    assert answer.status == 400
    assert canary.encode() not in answer.body


def test_request_ids(base: Sim) -> None:
    """X-Request-Id or request_id becomes the id; no x-request-id header without the flag."""
    named = base.post(COMP, ask(max_tokens=1), "x-request-id: abc")
    assert named.json()["id"] == "cmpl-abc"
    assert named.header("x-request-id") is None
    assert base.post(COMP, ask(max_tokens=1, request_id="def")).json()["id"] == "cmpl-def"


def test_connections_are_kept_alive(base: Sim) -> None:
    """Two requests on one connection; a stream ends with the last chunk, not with a close."""
    body = post_bytes(COMP, ask(max_tokens=2, stream=True)).replace(b"connection: close\r\n", b"")
    with socket.create_connection(("127.0.0.1", base.port), timeout=20) as connection:
        for _ in range(2):
            connection.sendall(body)
            got = b""
            while not got.endswith(b"\r\n0\r\n\r\n"):
                got += connection.recv(4096)
            response = parse_response(got)
            assert response.ended
            assert response.header("connection") is None
            assert response.events[-1] == b"data: [DONE]"


def test_whole_responses_route(base: Sim) -> None:
    """/v1/responses without stream: one response object, usage in its own words."""
    body = {"input": "hello there", "max_output_tokens": 7, "ignore_eos": True}
    answer = base.post("/v1/responses", body).json()
    assert answer["object"] == "response"
    assert answer["usage"]["output_tokens"] == 7
    assert answer["usage"]["input_tokens"] == 2 + 3 + 2
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]


@pytest.mark.parametrize(
    ("choice", "finish"),
    [
        ("required", "tool_calls"),
        ({"type": "function", "function": {"name": "get_weather"}}, "stop"),
    ],
)
def test_tool_calls_with_the_flag(choice: object, finish: str) -> None:
    """--enable-auto-tool-choice: a call with valid arguments, streamed in parts or whole.

    No recording has a tool call; fact 5 of the recordings' README is what it follows.
    """
    body = {
        "messages": [{"role": "user", "content": "x"}],
        "tools": TOOLS,
        "tool_choice": choice,
    }
    config = ServeConfig(
        engine_config("8b-h100"), time_scale=FAST, options=Options(tool_calls=True)
    )
    with serving(config) as sim:
        whole = sim.post(CHAT, body).json()["choices"][0]
        events = sim.post(CHAT, {**body, "stream": True}).data
    (call,) = whole["message"]["tool_calls"]
    assert (whole["message"]["content"], whole["finish_reason"]) == (None, finish)
    assert call["function"] == {"name": "get_weather", "arguments": '{"city":"river"}'}
    deltas = [e["choices"][0]["delta"] for e in events[1:]]
    assert all(d["content"] is None for d in deltas)
    parts = [d["tool_calls"][0]["function"] for d in deltas]
    assert parts[0]["name"] == "get_weather"
    assert "".join(p["arguments"] for p in parts) == call["function"]["arguments"]
    assert events[-1]["choices"][0]["finish_reason"] == finish
