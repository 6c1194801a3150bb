"""Bodies: exact lengths, shared prefixes, determinism, and the user's own pool."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from breakeven.errors import InputError
from breakeven.trace import Arrival, Block
from breakeven_loadgen.traffic.content import (
    Bodies,
    BodyFormat,
    Calibration,
    TokenIdPrompts,
    WordPrompts,
    block_tokens,
)
from breakeven_loadgen.traffic.plan import Planned
from breakeven_loadgen.traffic.pool import PoolPrompts, read_pool
from breakeven_loadgen.traffic.words import WORDS

FORMAT = BodyFormat("m", forced_length=True, seed=0)


def body(prompts: Any, planned: Planned, body_format: BodyFormat = FORMAT) -> dict[str, Any]:
    return dict(json.loads(Bodies(prompts, body_format, b"k").body(planned).data))


def planned(index: int = 0, in_tokens: int = 40, **fields: Any) -> Planned:
    return Planned(index, 0.0, Arrival(0.0, in_tokens, 8, **fields))


@pytest.mark.parametrize("length", [1, 7, 512, 20_000])
def test_token_ids_have_the_exact_length(length: int) -> None:
    """As many ids as the trace has prompt tokens, inside the range."""
    prompts = TokenIdPrompts(0, 0, Block("tokens", 512), (1000, 9000))
    ids = body(prompts, planned(in_tokens=length))["prompt"]
    assert len(ids) == length
    assert all(1000 <= i < 9000 for i in ids)


def test_shared_hash_blocks_share_their_tokens() -> None:
    """Equal leading ids give equal leading tokens, and only as many; the rest differs."""
    prompts = TokenIdPrompts(0, 0, Block("tokens", 8))
    a = body(prompts, planned(0, 40, prefix=("x", "y")))["prompt"]
    b = body(prompts, planned(1, 40, prefix=("x", "z")))["prompt"]
    assert a[:8] == b[:8]
    assert a[8:16] != b[8:16]
    assert a[16:] != b[16:]


def test_a_prefix_longer_than_the_prompt_is_cut() -> None:
    """The last hash block of a trace is partial: the prompt keeps its length."""
    prompts = TokenIdPrompts(0, 0, Block("tokens", 512))
    assert len(body(prompts, planned(0, 600, prefix=("x", "y")))["prompt"]) == 600


def test_another_block_has_other_prompts() -> None:
    """Distinct blocks of an experiment never hit each other's prefix cache."""
    one = body(TokenIdPrompts(0, 1, Block("tokens", 8)), planned(prefix=("x",)))["prompt"]
    two = body(TokenIdPrompts(0, 2, Block("tokens", 8)), planned(prefix=("x",)))["prompt"]
    assert one[:8] != two[:8]


def test_byte_blocks_never_stand_for_more_than_the_prompt() -> None:
    """2,048 message bytes are about 512 tokens, at most the prompt's share."""
    assert block_tokens(Block("bytes", 2048), 4000, 4) == 512
    assert block_tokens(Block("bytes", 2048), 400, 4) == 100
    assert block_tokens(Block("tokens", 512), 10, 4) == 512


def test_calibrated_words_hit_the_length() -> None:
    """tokens = 11 + 1.25 words: 136 tokens are 100 words."""
    calibration = Calibration.fit([(16, 31), (144, 191)])
    assert calibration.overhead == pytest.approx(11.0)
    assert calibration.words(136) == 100
    assert calibration.words(1) == 1, "never an empty prompt"
    prompts = WordPrompts(0, 0, Block("tokens", 8), calibration, "chat")
    message = body(prompts, planned(in_tokens=136))["messages"][0]
    assert len(message["content"].split()) == 100


def test_calibration_that_does_not_grow_is_refused() -> None:
    """A target that counts every prompt alike cannot be calibrated."""
    with pytest.raises(InputError, match="do not grow"):
        Calibration.fit([(16, 5), (144, 5)])


def test_words_are_plain() -> None:
    """Lower-case words without repetition: nothing that could be somebody's."""
    assert len(set(WORDS)) == len(WORDS) > 150
    assert all(word.isalpha() and word.islower() for word in WORDS)


def test_output_length_is_forced_or_capped() -> None:
    """forced: max, min and ignore_eos; capped: only max."""
    prompts = TokenIdPrompts(0, 0, Block())
    forced = body(prompts, planned())
    assert (forced["max_tokens"], forced["min_tokens"], forced["ignore_eos"]) == (8, 8, True)
    capped = body(prompts, planned(), BodyFormat("m", forced_length=False, seed=0))
    assert capped["max_tokens"] == 8
    assert "min_tokens" not in capped
    assert "ignore_eos" not in capped


def test_streams_ask_for_usage_in_every_event() -> None:
    """Tokens per event are known only so; non-streams ask for nothing."""
    prompts = TokenIdPrompts(0, 0, Block())
    assert body(prompts, planned())["stream_options"] == {
        "include_usage": True, "continuous_usage_stats": True,
    }  # fmt: skip
    assert "stream_options" not in body(prompts, planned(stream=False))


def test_sampled_requests_have_their_own_seed() -> None:
    """Every arm samples request i with the same seed; another request has another."""
    prompts = TokenIdPrompts(0, 0, Block())
    a, b = (body(prompts, planned(i, sampling="sampled")) for i in (0, 1))
    assert a["temperature"] == 1.0
    assert a["seed"] != b["seed"]
    assert body(prompts, planned(sampling="greedy"))["temperature"] == 0.0


def test_bodies_are_deterministic_and_hashed_with_a_key() -> None:
    """Same inputs, same bytes and hash; another key, another hash of the same bytes."""
    prompts = TokenIdPrompts(0, 0, Block())
    one = Bodies(prompts, FORMAT, b"k").body(planned())
    assert one == Bodies(prompts, FORMAT, b"k").body(planned())
    other = Bodies(prompts, FORMAT, b"other").body(planned())
    assert one.data == other.data
    assert one.content_hash != other.content_hash


# --- the pool ------------------------------------------------------------------------------------


def pool_file(tmp_path: Path, *entries: dict[str, Any]) -> str:
    path = tmp_path / "pool.jsonl"
    path.write_text("\n".join(json.dumps(entry) for entry in entries), "utf-8")
    return str(path)


def chosen(path: str, plan: list[Planned], **options: Any) -> list[str]:
    values: dict[str, Any] = {"seed": 0, "block": 0, "endpoint": "completions"}
    prompts = PoolPrompts(read_pool(path), plan, **(values | options))
    return [body(prompts, p)["prompt"] for p in plan]


def test_entries_are_matched_by_cohort_and_length(tmp_path: Path) -> None:
    """An arrival gets an entry of its cohort, of about its length."""
    path = pool_file(
        tmp_path,
        {"prompt": "de " * 10, "cohort": "de"},
        {"prompt": "de " * 1000, "cohort": "de"},
        {"prompt": "any " * 10},
    )
    plan = [planned(0, 700, cohort="de"), planned(1, 8, cohort="de"), planned(2, 8, cohort="fr")]
    assert chosen(path, plan) == ["de " * 1000, "de " * 10, "any " * 10]


def test_choice_is_deterministic_and_without_repetition(tmp_path: Path) -> None:
    """Each entry once; the seed and block choose which arrival gets which."""
    path = pool_file(tmp_path, *({"prompt": f"p{i:02d}"} for i in range(20)))
    plan = [planned(i, 1) for i in range(20)]
    first = chosen(path, plan)
    assert sorted(first) == [f"p{i:02d}" for i in range(20)]
    assert first == chosen(path, plan)
    assert first != chosen(path, plan, block=1)


def test_small_pools_are_refused_unless_reuse_is_allowed(tmp_path: Path) -> None:
    """A repeated prompt would measure the prefix cache."""
    path = pool_file(tmp_path, {"prompt": "a"}, {"prompt": "b"})
    plan = [planned(i, 1) for i in range(3)]
    with pytest.raises(InputError, match="2 entries, too few for 3"):
        chosen(path, plan)
    assert sorted(chosen(path, plan, reuse=True))[0] in "ab"


def test_contracts_go_into_the_body(tmp_path: Path) -> None:
    """json_schema becomes response_format, stop and max_tokens stay what they are."""
    path = pool_file(
        tmp_path, {"prompt": "a", "contract": {"json_schema": {"type": "object"}, "max_tokens": 3}}
    )
    plan = [planned(0, 1)]
    prompts = PoolPrompts(read_pool(path), plan, seed=0, block=0, endpoint="completions")
    made = body(prompts, plan[0], BodyFormat("m", forced_length=False, seed=0))
    assert made["response_format"]["json_schema"]["schema"] == {"type": "object"}
    assert made["max_tokens"] == 3


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "no JSON"),
        ("[1]", "no JSON object"),
        ('{"prompt": "SECRET", "user": "x"}', "unknown key"),
        ('{"a SECRET text": 1}', "(a name that is no label): unknown key"),
        ('{"prompt": "x", "cohort": {"a": "SECRET"}}', "cohort must be a short label"),
        ('{"prompt": "x", "lang": "a SECRET text"}', "lang must be a short label"),
        ('{"prompt": "x", "contract": {"max_tokens": "SECRET"}}', "max_tokens must be a whole"),
        ('{"prompt": "x", "contract": {"max_tokens": 0}}', "max_tokens must be a whole"),
        ('{"cohort": "x"}', "either prompt or messages"),
        ('{"prompt": "SECRET", "messages": []}', "either prompt or messages"),
        ('{"prompt": 3}', "prompt must be text"),
        ('{"messages": "SECRET"}', "messages must be a list"),
        ('{"prompt": "SECRET", "contract": {"x": 1}}', "unknown contract"),
    ],
)
def test_bad_pools_name_the_line_and_never_the_text(tmp_path: Path, line: str, words: str) -> None:
    """The error has file, line and mend; nothing of the prompt."""
    path = tmp_path / "pool.jsonl"
    path.write_text('{"prompt": "fine"}\n' + line, "utf-8")
    with pytest.raises(InputError) as caught:
        read_pool(str(path))
    assert "pool.jsonl:2" in str(caught.value)
    assert words in str(caught.value)
    assert "SECRET" not in str(caught.value)


def test_a_pool_with_a_byte_order_mark_and_crlf_is_read(tmp_path: Path) -> None:
    """As some editors save it."""
    path = tmp_path / "pool.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\r\n{"prompt": "b"}\r\n')
    assert [entry.prompt for entry in read_pool(str(path)).entries] == ["a", "b"]


def test_messages_need_the_chat_endpoint(tmp_path: Path) -> None:
    """Messages on completions are refused."""
    path = pool_file(tmp_path, {"messages": [{"role": "user", "content": "x"}]})
    with pytest.raises(InputError, match="needs the chat endpoint"):
        chosen(path, [planned(0, 1)])
