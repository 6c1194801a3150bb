"""Trace formats: recorded public heads, both BurstGPT schemas, bad input named."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from breakeven.errors import InputError, TraceError
from breakeven_loadgen.traffic.formats import load_trace

TRACES = Path(__file__).resolve().parents[1] / "data" / "traces"
BURST_1 = (
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,1087,230,1317,API log\n"
)
BURST_2 = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,7,1.5,ChatGPT,472,18,490,Conversation log\n45,7,2.0,ChatGPT,1087,230,1317,Conversation log\n"
)


@pytest.mark.parametrize(
    ("name", "kind", "n", "duration_s", "first"),
    [
        ("azure-2023-conv-head1000.csv", "azure", 1000, 216.027393, (374, 44)),
        ("azure-2023-code-head2000.csv", "azure", 2000, 853.079347, (4808, 10)),
        ("azure-slice-40s.csv", "azure", 250, 39.953535, (64, 11)),
        ("mooncake-conversation-head1500.jsonl", "mooncake", 1500, 509.999, (6758, 500)),
        ("relative-seconds-conv-head1000.csv", "relative-seconds", 1000, 216.027, (374, 44)),
    ],
)
def test_public_heads(
    name: str,
    kind: str,
    n: int,
    duration_s: float,
    first: tuple[int, int],
) -> None:
    """Each public trace is recognised by its columns and read whole."""
    source = load_trace(str(TRACES / name))
    assert source.format == kind
    assert len(source.arrivals) == n
    assert source.trace.duration_s == pytest.approx(duration_s, abs=1e-3)
    assert (source.arrivals[0].in_tokens, source.arrivals[0].out_tokens) == first


def test_azure_and_relative_seconds_are_the_same_trace() -> None:
    """Two foreign encodings of the same rows give the same times (to the µs) and lengths."""
    azure = load_trace(str(TRACES / "azure-2023-conv-head1000.csv")).arrivals
    plain = load_trace(str(TRACES / "relative-seconds-conv-head1000.csv")).arrivals
    assert [(a.in_tokens, a.out_tokens) for a in azure] == [
        (p.in_tokens, p.out_tokens) for p in plain
    ]
    assert all(abs(a.t - p.t) < 1e-6 for a, p in zip(azure, plain, strict=True))


def test_seven_fractional_digits_are_kept(tmp_path: Path) -> None:
    """100 ns of an Azure timestamp are not rounded away."""
    path = tmp_path / "a.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 23:59:59.9999998,1,1\n2023-11-17 00:00:00.0000001,1,1\n"
    )
    assert load_trace(str(path)).arrivals[1].t == pytest.approx(3e-7, abs=1e-12)


def test_mooncake_prefixes() -> None:
    """Hash ids become prefix ids; the block is 512 tokens; the first two rows share one block."""
    source = load_trace(str(TRACES / "mooncake-conversation-head1500.jsonl"))
    first, second = source.arrivals[0].prefix, source.arrivals[1].prefix
    assert first is not None
    assert second is not None
    assert first[0] == second[0]
    assert set(first[1:]).isdisjoint(second[1:])
    assert (source.trace.header.block.unit, source.trace.header.block.size) == ("tokens", 512)


def test_burstgpt_without_sessions(tmp_path: Path) -> None:
    """The first release: no session columns, log types become tasks."""
    path = tmp_path / "b.csv"
    path.write_text(BURST_1)
    arrivals = load_trace(str(path)).arrivals
    assert [(a.t, a.in_tokens, a.out_tokens, a.task) for a in arrivals] == [
        (0.0, 472, 18, "chat"), (40.0, 1087, 230, "api"),
    ]  # fmt: skip
    assert arrivals[0].session is None


def test_burstgpt_with_sessions(tmp_path: Path) -> None:
    """The second release: a session's turns share its id."""
    path = tmp_path / "b.csv"
    path.write_text(BURST_2)
    arrivals = load_trace(str(path)).arrivals
    assert [a.session for a in arrivals] == ["7", "7"]


def test_zero_output_is_refused_or_left_out(tmp_path: Path) -> None:
    """Failed requests in a trace are an error by default, and counted when left out."""
    path = tmp_path / "b.csv"
    path.write_text(BURST_1 + "46,ChatGPT,10,0,10,API log\n")
    with pytest.raises(TraceError, match=r"b\.csv:4: Response tokens: .*--skip-empty"):
        load_trace(str(path))
    source = load_trace(str(path), skip_empty=True)
    assert (len(source.arrivals), source.skipped) == (2, 1)


def test_jsonl_in_seconds(tmp_path: Path) -> None:
    """timed_trace files whose timestamps are seconds."""
    path = tmp_path / "t.jsonl"
    path.write_text(
        '{"timestamp": 0.5, "input_length": 3, "output_length": 4}\n'
        '{"timestamp": 2.0, "input_length": 3, "output_length": 4, "hash_ids": [1]}\n'
    )
    assert load_trace(str(path), time_unit="s").arrivals[1].t == 1.5
    assert load_trace(str(path)).arrivals[1].t == 0.0015


def test_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    """`-` reads standard input."""
    stdin = io.TextIOWrapper(io.BytesIO(BURST_1.encode()))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert len(load_trace("-").arrivals) == 2


def test_synthetic() -> None:
    """`synthetic:` gives lengths, in either order."""
    arrival = load_trace("synthetic:out=7,in=3").arrivals[0]
    assert (arrival.in_tokens, arrival.out_tokens) == (3, 7)


@pytest.mark.parametrize(
    "source",
    ["synthetic:", "synthetic:in=3", "synthetic:in=3,out=0", "synthetic:in=-3,out=1",
     "synthetic:in=3,out=1,in=4", "synthetic:in=x,out=1", "synthetic:in=3;out=1"],
)  # fmt: skip
def test_bad_synthetic(source: str) -> None:
    """Anything but in=N,out=N with N ≥ 1 is refused and quoted."""
    with pytest.raises(TraceError, match=r"synthetic:in=512,out=128|at least 1"):
        load_trace(source)


AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the trace is empty"),
        ("a,b,c\n1,2,3\n", "unknown columns (got 'a,b,c')"),
        (AZURE.replace("GeneratedTokens", "ContextTokens,GeneratedTokens"), "given twice"),
        (AZURE + "2023-11-16 18:15:47.0,1,234,5\n", "t.csv:3: more cells than columns"),
        (AZURE + "2023-11-16 18:15:45.0,1,1\n", "t.csv:3: TIMESTAMP: times decrease"),
        (AZURE + "yesterday,1,1\n", "t.csv:3: TIMESTAMP: unusable value"),
        (AZURE + "2023-11-16 18:15:47.0,x,1\n", "t.csv:3: ContextTokens: unusable value"),
        (AZURE + "2023-11-16 18:15:47.0,nan,1\n", "t.csv:3: ContextTokens: unusable value"),
        (AZURE + "2023-11-16 18:15:47.0,1,-4\n", "t.csv:3: GeneratedTokens: unusable value"),
        (AZURE + "2023-11-16 18:15:47.0,1,0\n", "at least one token"),
        (AZURE + "2023-11-16 18:15:47.0,1\n", "t.csv:3: GeneratedTokens: unusable value"),
        ('{"timestamp": 1, "input_length": 1}\n', "unknown keys"),
        ('{"timestamp": 1, "input_length": 1, "output_length": 1}\n{x\n', "t.csv:2: no JSON"),
        ('{"breakeven_trace": 9}\n', "unknown trace version"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "holds no arrival"),
    ],
)
def test_bad_files_name_the_place(tmp_path: Path, text: str, words: str) -> None:
    """Every fault of a file names file, line and column where there is one."""
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(TraceError) as caught:
        load_trace(str(path))
    assert words in str(caught.value)


def test_text_in_place_of_a_header_is_not_quoted(tmp_path: Path) -> None:
    """Somebody's prompts given as TRACE by mistake: the message has none of their words."""
    path = tmp_path / "t.txt"
    for text in ("Dear CANARY, how are you\n", '{"prompt CANARY": 1}\n', "CANARY\n" * 2):
        path.write_text(text)
        with pytest.raises(TraceError, match="unknown") as caught:
            load_trace(str(path))
        assert "CANARY" not in str(caught.value)


def test_invalid_utf8_names_the_line(tmp_path: Path) -> None:
    """Bytes that are no UTF-8 are refused with their line."""
    path = tmp_path / "t.csv"
    path.write_bytes(AZURE.encode() + b"\xff\n")
    with pytest.raises(TraceError, match=r"t\.csv:3: invalid UTF-8"):
        load_trace(str(path))


@pytest.mark.parametrize("size", [0, -4])
def test_a_block_without_tokens_is_refused(size: int) -> None:
    """For replay, inspect, convert and freeze alike."""
    with pytest.raises(InputError, match="--block-size: must be at least 1"):
        load_trace(str(TRACES / "mooncake-conversation-head1500.jsonl"), block_size=size)


def test_missing_file(tmp_path: Path) -> None:
    """A path that is not there is bad input."""
    with pytest.raises(InputError, match="cannot be read"):
        load_trace(str(tmp_path / "none.csv"))
