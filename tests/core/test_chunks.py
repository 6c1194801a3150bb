"""`breakeven.chunks`: what an event or a body says, and that no text is kept."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from tests.support.captures import DATA, response, streams

from breakeven.chunks import (
    MALFORMED,
    OTHER,
    Body,
    ChoiceDelta,
    Chunk,
    ErrorInfo,
    SpecBlock,
    Usage,
    parse_body,
    parse_chunk,
)

CANARY = "canary-7f3a"


def chunk(**fields: Any) -> Chunk:
    return parse_chunk(json.dumps(fields).encode())


def chat(delta: dict[str, Any], **more: Any) -> ChoiceDelta:
    """The one choice of a chat chunk with this delta."""
    (choice,) = chunk(choices=[{"index": 0, "delta": delta, "finish_reason": None, **more}]).choices
    return choice


def text(text: str, **more: Any) -> ChoiceDelta:
    (choice,) = chunk(choices=[{"index": 0, "text": text, "finish_reason": None, **more}]).choices
    return choice


@pytest.mark.parametrize(
    ("delta", "has_token", "reasoning"),
    [
        ({"content": " are"}, True, False),
        ({"content": " "}, True, False),  # spaces only are output
        ({"content": "\n"}, True, False),
        ({"role": "assistant", "content": ""}, False, False),  # the role chunk of vLLM
        ({"role": "assistant"}, False, False),
        ({"role": "assistant", "content": "Hi"}, True, False),  # engines that repeat the role
        ({}, False, False),
        ({"content": None}, False, False),
        ({"reasoning": "hm"}, True, True),
        ({"reasoning_content": "hm", "content": None}, True, True),
        ({"reasoning": "hm", "content": "so"}, True, False),  # both: output is in it
        ({"refusal": "No"}, True, False),
        ({"content": None, "tool_calls": [{"index": 0, "function": {"name": "f"}}]}, True, False),
        ({"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}, True, False),
        ({"tool_calls": []}, False, False),
        ({"function_call": {"arguments": "{"}}, True, False),
        ({"annotations": None, "audio": None}, False, False),
    ],
)
def test_chat_deltas(delta: dict[str, Any], has_token: bool, reasoning: bool) -> None:
    """Content, reasoning, refusal and tool deltas are tokens; role and empty deltas are none."""
    choice = chat(delta)
    assert (choice.has_token, choice.reasoning) == (has_token, reasoning)
    assert choice.tokens is None  # never 1 per chunk


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({}, None),
        ({"token_ids": None, "logprobs": None}, None),
        ({"token_ids": [1, 2, 3]}, 3),
        ({"token_ids": []}, 0),
        ({"logprobs": {"tokens": ["a", "b"], "token_logprobs": [-1, -1]}}, 2),
        ({"logprobs": {"content": [{"token": "a"}]}}, 1),
        ({"logprobs": {"content": None, "refusal": [{"token": "a"}, {"token": "b"}]}}, 2),
        ({"logprobs": {"content": []}}, None),  # lists none: says nothing
        ({"logprobs": {}}, None),
        ({"token_ids": [1], "logprobs": {"tokens": ["a", "b"]}}, 1),  # ids come first
        # echo: logprobs list the prompt's 3 tokens before the new one
        ({"logprobs": {"tokens": ["p", "q", "r", "n"]}, "prompt_token_ids": [7, 8, 9]}, 1),
        ({"logprobs": {"tokens": ["p", "q", "r"]}, "prompt_token_ids": [7, 8, 9]}, 0),
        ({"logprobs": {"tokens": ["n"]}, "prompt_token_ids": [7, 8, 9]}, None),
        ({"token_ids": [4], "prompt_token_ids": [7, 8, 9]}, 1),  # return_token_ids' first event
    ],
)
def test_own_counts(fields: dict[str, Any], tokens: int | None) -> None:
    """Token ids, else logprobs, else unknown; the prompt's tokens are never counted."""
    assert text("x", **fields).tokens == tokens


@pytest.mark.parametrize(
    ("reason", "kept"),
    [(None, None), ("stop", "stop"), ("length", "length"), ("tool_calls", "tool_calls"),
     ("content_filter", "content_filter"), ("abort", "abort"), (CANARY, OTHER), ("", OTHER)],
)  # fmt: skip
def test_finish_reasons(reason: str | None, kept: str | None) -> None:
    """Only the protocol's words are kept; null stays None."""
    assert chat({"content": "x"}, finish_reason=reason).finish_reason == kept


def test_usage_only_and_done() -> None:
    """`choices: []` with usage is a usage; [DONE] is the end."""
    usage = {"prompt_tokens": 43, "total_tokens": 107, "completion_tokens": 64}
    assert chunk(choices=[], usage=usage) == Chunk(usage=Usage(43, 64))
    assert chunk(choices=[], usage=None) == Chunk()
    details = {"completion_tokens": 9, "completion_tokens_details": {"reasoning_tokens": 4}}
    assert chunk(choices=[], usage=details).usage == Usage(None, 9, 4)
    assert parse_chunk(b"[DONE]") == Chunk(done=True)


@pytest.mark.parametrize(
    ("obj", "error"),
    [
        ({"error": {"message": CANARY, "type": "InternalServerError", "code": 500}},
         ErrorInfo(500, "InternalServerError")),
        ({"error": {"message": CANARY, "type": CANARY, "code": CANARY}}, ErrorInfo(None, OTHER)),
        ({"error": CANARY}, ErrorInfo(None, None)),
        ({"error": {"type": {"x": CANARY}}}, ErrorInfo(None, OTHER)),
        ({"object": "error", "message": CANARY, "type": "BadRequestError", "code": 400},
         ErrorInfo(400, "BadRequestError")),
        ({"type": "error", "code": "server_error", "message": CANARY}, ErrorInfo(None, OTHER)),
        ({"error": None, "choices": []}, None),
        ({"choices": []}, None),
    ],
)  # fmt: skip
def test_error_frames(obj: dict[str, Any], error: ErrorInfo | None) -> None:
    """An error after 200 is seen in each form that engines use; its message is dropped."""
    assert chunk(**obj).error == error
    assert parse_body(json.dumps(obj).encode()).error == error


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"null", b"[]", b"7", b'"x"', b"data: {}", b"\xff", b'{"choices": 7}',
     b'{"choices": "x"}', b'{"choices": [7]}', b'{"choices": [{"index": 0, "delta": 7}]}',
     b'{"choices": [{"token_ids": 7}]}', b'{"choices": [{"finish_reason": []}]}',
     b'{"choices": [], "usage": 7}', b'{"choices": [], "metrics": 7}',
     b'{"choices": [], "metrics": {"speculative_decoding": {"k": 1}}}',
     b'{"type": "response.completed"}'],
)  # fmt: skip
def test_malformed(data: bytes) -> None:
    """What is not JSON, or not of the API's shape, is malformed; nothing is raised."""
    assert parse_chunk(data) == MALFORMED


def test_unknown_objects_are_no_events() -> None:
    """JSON that says nothing we know of (a ping object, a new field) is tolerated."""
    assert chunk(type="ping") == Chunk()
    assert chunk(detail="Not Found") == Chunk()


SPEC = {
    "num_spec_steps": 12, "num_draft_tokens": 47, "num_accepted_draft_tokens": 39,
    "num_spec_tokens": 4, "acceptance_histogram": [2, 0, 0, 1, 9],
}  # fmt: skip


def test_spec_block() -> None:
    """vLLM's block: Σ i·histogram = accepted, Σ histogram = cycles; committed is their sum."""
    block = chunk(choices=[], metrics={"speculative_decoding": SPEC}).spec
    assert block == SpecBlock(12, 47, 39, (2, 0, 0, 1, 9), 4)
    assert sum(i * n for i, n in enumerate(block.by_accepted_length)) == 39
    assert (sum(block.by_accepted_length), block.committed) == (12, 51)
    assert chunk(choices=[], metrics={"speculative_decoding": None}).spec is None
    assert chunk(choices=[], metrics=None).spec is None


@pytest.mark.parametrize(
    ("value", "kept"),
    [("vllm-0.32.0-2408950a", "vllm-0.32.0-2408950a"), ("fp_44709d6fcb", "fp_44709d6fcb"),
     ("a prompt", None), ("x" * 65, None), ("", None), (7, None), (None, None), ("a\n", None)],
)  # fmt: skip
def test_fingerprints(value: object, kept: str | None) -> None:
    """A fingerprint is kept only if it looks like one."""
    assert chunk(choices=[], system_fingerprint=value).system_fingerprint == kept


# /v1/responses -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ({"type": "response.output_text.delta", "delta": "x", "logprobs": []},
         [ChoiceDelta(0, None, True, False, None)]),
        ({"type": "response.output_text.delta", "delta": "x", "logprobs": [{}, {}]},
         [ChoiceDelta(0, 2, True, False, None)]),
        ({"type": "response.output_text.delta", "delta": ""}, []),
        ({"type": "response.reasoning_text.delta", "delta": "x"},
         [ChoiceDelta(0, None, True, True, None)]),
        ({"type": "response.reasoning_summary_text.delta", "delta": "x"},
         [ChoiceDelta(0, None, True, True, None)]),
        ({"type": "response.refusal.delta", "delta": "x"},
         [ChoiceDelta(0, None, True, False, None)]),
        ({"type": "response.function_call_arguments.delta", "delta": "{"},
         [ChoiceDelta(0, None, True, False, None)]),
        # these repeat what the deltas said
        ({"type": "response.output_text.done", "text": "x"}, []),
        ({"type": "response.content_part.done", "part": {"text": "x"}}, []),
        ({"type": "response.created", "response": {"usage": None}}, []),
    ],
)  # fmt: skip
def test_response_events(event: dict[str, Any], expected: list[ChoiceDelta]) -> None:
    """Deltas are tokens, their repetition is none."""
    assert chunk(**event) == Chunk(choices=tuple(expected))


@pytest.mark.parametrize(
    ("kind", "response_", "finish", "error"),
    [
        ("response.completed", {"status": "completed"}, "stop", None),
        # vLLM 0.32 ends with `completed` and says incomplete inside
        ("response.completed",
         {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}},
         "length", None),
        ("response.incomplete",
         {"status": "incomplete", "incomplete_details": {"reason": "content_filter"}},
         "content_filter", None),
        ("response.incomplete", {"status": "incomplete", "incomplete_details": None}, OTHER, None),
        ("response.failed", {"status": "failed", "error": {"code": "server_error"}}, None,
         ErrorInfo(None, None)),
        ("response.failed", {"status": "failed"}, None, ErrorInfo(None, None)),
    ],
)  # fmt: skip
def test_response_ends(
    kind: str, response_: dict[str, Any], finish: str | None, error: ErrorInfo | None
) -> None:
    """The terminal event gives the finish reason of chat, the usage, and the error."""
    usage = {
        "input_tokens": 34,
        "output_tokens": 24,
        "output_tokens_details": {"reasoning_tokens": 3},
    }
    found = chunk(type=kind, response={**response_, "usage": usage})
    assert found.usage == Usage(34, 24, 3)
    assert (found.choices[0].finish_reason, found.error, found.done) == (finish, error, True)


# bodies ------------------------------------------------------------------------------------


def body(**fields: Any) -> Body:
    return parse_body(json.dumps(fields).encode())


def message(message: dict[str, Any] | None, finish: str | None = "stop") -> Body:
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return body(object="chat.completion", choices=[choice])


@pytest.mark.parametrize(
    ("found", "empty", "malformed"),
    [
        (message({"content": "x"}), False, False),
        (message({"content": " "}), False, False),
        (message({"content": ""}), True, False),
        (message({"content": None}), True, False),
        (message(None), True, False),
        (message({"content": None, "reasoning": "hm"}), False, False),
        (message({"tool_calls": [{"function": {"arguments": '{"a": 1}'}}]}), False, False),
        (message({"tool_calls": [{"function": {"arguments": '{"a": '}}]}), False, True),
        (body(choices=[{"text": "x", "finish_reason": "stop"}]), False, False),
        (body(choices=[{"text": "", "finish_reason": "stop"}]), True, False),
        (body(choices=[]), True, False),
        (body(detail="x"), True, True),
        (parse_body(b""), True, True),
        (parse_body(b"<html>"), True, True),
        (parse_body(b"[]"), True, True),
        (body(object="response", status="completed", output=[
            {"type": "message", "content": [{"type": "output_text", "text": "x"}]}]), False, False),
        (body(object="response", status="completed", output=[
            {"type": "message", "content": [{"type": "output_text", "text": ""}]}]), True, False),
        (body(object="response", status="completed", output=[]), True, False),
        (body(object="response", status="completed", output=[
            {"type": "function_call", "arguments": "{}"}]), False, False),
        (body(object="response", status="completed", output=[
            {"type": "function_call", "arguments": "{"}]), False, True),
        (body(object="response", status="completed", output=[
            {"type": "reasoning", "summary": [{"text": "x"}], "content": None}]), False, False),
    ],
)  # fmt: skip
def test_bodies(found: Body, empty: bool, malformed: bool) -> None:
    """An answer without output is empty; no JSON of the API, or no JSON arguments, is malformed."""
    assert (found.empty, found.malformed) == (empty, malformed)


def test_a_body_finish_reason_a_choice() -> None:
    """One finish reason a choice, null where the engine gave none."""
    choices = [{"text": "x", "finish_reason": "stop"}, {"text": "y", "finish_reason": None}]
    assert body(choices=choices).finish_reasons == ("stop", None)
    assert body(object="response", status="incomplete", output=[]).finish_reasons == (OTHER,)


def recorded(pattern: str) -> list[Path]:
    return [path for arm in ("base", "ngram") for path in sorted((DATA / arm).glob(pattern))]


@pytest.mark.parametrize("path", recorded("err_*.raw"), ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_recorded_error_bodies(path: Path) -> None:
    """Every recorded error body is known for one: an error with its code, or no answer at all."""
    found = response(path)
    parsed = parse_body(found.body)
    if found.status in (405,) or path.stem == "err_ping_get_404":  # the web framework's own words
        assert parsed == Body(malformed=True)
        return
    assert parsed.error is not None
    assert parsed.error.code == found.status
    assert parsed.error.type not in (None, OTHER)
    assert (parsed.empty, parsed.finish_reasons) == (True, ())


@pytest.mark.parametrize(
    "path", sorted((DATA / "admission").glob("r*.raw"))[6:], ids=lambda p: p.stem
)
def test_recorded_refusals(path: Path) -> None:
    """The queue limit answers 503 with an error body."""
    found = response(path)
    assert (found.status, parse_body(found.body).error) == (
        503,
        ErrorInfo(503, "Service Unavailable"),
    )


@pytest.mark.parametrize(
    ("name", "prompt", "completion", "finish", "spec"),
    [
        ("base/chat", 43, 64, ("length",), None),
        ("base/chat_n2", 43, 24, ("length", "length"), None),
        ("base/comp", 24, 23, ("stop",), None),
        ("ngram/chat", 43, 64, ("length",), SpecBlock(12, 47, 39, (2, 0, 0, 1, 9), 4)),
        ("ngram/comp", 24, 23, ("stop",), SpecBlock(2, 8, 7, (0, 0, 0, 1, 1), 4)),
    ],
)
def test_recorded_bodies(
    name: str, prompt: int, completion: int, finish: tuple[str, ...], spec: SpecBlock | None
) -> None:
    """Usage, finish reasons and speculation block of recorded bodies."""
    parsed = parse_body(response(DATA / f"{name}.raw").body)
    assert parsed.usage is not None
    assert (parsed.usage.prompt_tokens, parsed.usage.completion_tokens) == (prompt, completion)
    assert (parsed.finish_reasons, parsed.spec) == (finish, spec)
    assert not parsed.empty
    assert not parsed.malformed
    assert (parsed.system_fingerprint or "").startswith("vllm-0.32.0-")


# privacy -----------------------------------------------------------------------------------


# They steer the parser, or are the engine's own configuration id, which is kept on purpose.
NOT_PLANTED = ("object", "status", "system_fingerprint")


def plant(value: Any, key: str | None = None) -> Any:
    """The same JSON with the canary in every string."""
    if isinstance(value, dict):
        return {name: plant(item, name) for name, item in value.items()}
    if isinstance(value, list):
        return [plant(item, key) for item in value]
    if isinstance(value, str) and key not in NOT_PLANTED and not value.startswith("response."):
        return CANARY + value
    return value


BODIES = [*recorded("err_*.raw"), *recorded("ch*.raw"), *recorded("comp*.raw")]


@pytest.mark.parametrize(
    "path",
    [*streams("base", "ngram"), *BODIES],
    ids=lambda p: f"{p.parent.name}-{p.stem}",
)
def test_no_text_is_kept(path: Path) -> None:
    """A canary in every string of a recording is in no value that comes out of it."""
    found = response(path)
    events = [line[6:] for line in found.body.split(b"\n") if line.startswith(b"data: {")]
    values: list[Chunk | Body] = []
    for data in events or [found.body]:
        planted = json.dumps(plant(json.loads(data))).encode()
        assert CANARY.encode() in planted
        values += [parse_chunk(planted), parse_body(planted)]
    assert CANARY not in repr(values)
    assert CANARY.encode() not in pickle.dumps(values)
