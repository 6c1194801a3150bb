"""Request bodies: deterministic per (seed, block, index), so that every arm gets the same bytes.

Here: synthetic prompts of exact length (token ids, or calibrated words) and the JSON around any
prompt. Not here: the user's own prompts (pool), when a body is sent (pacer).
Nothing here uses the language's salted hash(): shared prefixes come from BLAKE2b of their ids.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import orjson
from numpy.typing import NDArray

from breakeven.errors import InputError
from breakeven.trace import Block

from .arrivals import Purpose, generator
from .plan import Planned
from .words import WORDS

Endpoint = Literal["chat", "completions"]
PATHS: dict[str, str] = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}

TOKEN_IDS = (1000, 9000)
"""Ids drawn for synthetic prompts: above the control tokens of the usual vocabularies and below
the smallest vocabulary in use (32,000)."""

BYTES_PER_TOKEN = 4
"""Rule of thumb for English text; used only to place byte-sized blocks of a redacted trace."""

HASH_BYTES = 8


@dataclass(frozen=True, slots=True)
class Body:
    """One request body and what it asks for.

    `data` is the JSON sent; `content_hash` a keyed hash of it (hex), which tells equal bodies
    from different ones and gives nothing of the text away.
    """

    data: bytes
    content_hash: str


class Prompts(Protocol):
    """Where prompts come from: fields of the body that carry the prompt, for one arrival."""

    label: str

    def fields(self, planned: Planned) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class BodyFormat:
    """Everything of the body that is not the prompt.

    Attributes:
        forced_length: ask for exactly `out` tokens (`max_tokens`, `min_tokens`, `ignore_eos`);
            otherwise `out` is only the upper bound.
        continuous_usage: ask for cumulative usage in each event (tokens per event are known).
    """

    model: str
    forced_length: bool
    seed: int
    continuous_usage: bool = True

    def wrap(self, planned: Planned, fields: dict[str, Any]) -> bytes:
        arrival = planned.arrival
        body: dict[str, Any] = {"model": self.model, **fields, "stream": arrival.stream}
        body.setdefault("max_tokens", arrival.out_tokens)
        if self.forced_length:
            body |= {"min_tokens": arrival.out_tokens, "ignore_eos": True}
        if arrival.stream:
            usage = {"include_usage": True}
            if self.continuous_usage:
                usage["continuous_usage_stats"] = True
            body["stream_options"] = usage
        if arrival.sampling == "sampled":
            # A seed of its own per request: arms sample from the same stream of numbers.
            body |= {"temperature": 1.0, "seed": (self.seed * 1_000_003 + planned.index) % 2**31}
        else:
            body["temperature"] = 0.0
        return orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)


class Bodies:
    """Builds the body of an arrival from prompts, format and hash key."""

    def __init__(self, prompts: Prompts, body_format: BodyFormat, hash_key: bytes) -> None:
        self._prompts = prompts
        self._format = body_format
        self._key = hash_key

    @property
    def label(self) -> str:
        """`synthetic`, `real` or `public-proxy`."""
        return self._prompts.label

    def body(self, planned: Planned) -> Body:
        """The same bytes for the same (seed, block, index), in every process."""
        data = self._format.wrap(planned, self._prompts.fields(planned))
        digest = hashlib.blake2b(data, digest_size=HASH_BYTES, key=self._key)
        return Body(data, digest.hexdigest())


def block_tokens(block: Block, in_tokens: int, blocks: int) -> int:
    """Tokens that one prefix block stands for. Byte blocks (redacted traces) cover whole blocks
    of the message bytes, so `blocks` of them never stand for more than the prompt has."""
    if block.unit == "tokens":
        return block.size
    return max(1, min(block.size // BYTES_PER_TOKEN, in_tokens // max(1, blocks)))


class Synthetic:
    """Pieces of a prompt drawn as integers: shared blocks from their ids, the rest per arrival."""

    def __init__(self, seed: int, block: int, block_size: Block, low: int, high: int) -> None:
        self._seed = seed
        self._block = block
        self._size = block_size
        self._low = low
        self._high = high

    def ids(self, planned: Planned, length: int) -> NDArray[np.int64]:
        """`length` integers in [low, high); equal prefix ids give equal leading integers."""
        parts: list[NDArray[np.int64]] = []
        left = length
        prefix = planned.arrival.prefix or ()
        per_block = block_tokens(self._size, length, len(prefix)) if prefix else 0
        for name in prefix:
            take = min(per_block, left)
            if take <= 0:
                break
            parts.append(self._shared(str(name), per_block)[:take])
            left -= take
        if left > 0:
            rng = generator(self._seed, self._block, Purpose.CONTENT, planned.index)
            parts.append(rng.integers(self._low, self._high, left))
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def _shared(self, name: str, length: int) -> NDArray[np.int64]:
        text = f"{self._seed}/{self._block}/{name}".encode()
        words = np.frombuffer(hashlib.blake2b(text, digest_size=16).digest(), np.uint32)
        rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence(words.tolist())))
        return rng.integers(self._low, self._high, length)


class TokenIdPrompts:
    """Prompts as token ids on /v1/completions: exact length, no tokenizer needed."""

    label = "synthetic"

    def __init__(
        self, seed: int, block: int, block_size: Block, token_ids: tuple[int, int] = TOKEN_IDS
    ) -> None:
        self._synthetic = Synthetic(seed, block, block_size, *token_ids)

    def fields(self, planned: Planned) -> dict[str, Any]:
        return {"prompt": self._synthetic.ids(planned, planned.arrival.in_tokens)}


@dataclass(frozen=True, slots=True)
class Calibration:
    """prompt tokens = overhead + per_word × words, fitted on the target's own tokenizer."""

    overhead: float
    per_word: float

    def words(self, tokens: int) -> int:
        """Words to write for a prompt of `tokens` tokens, at least one."""
        return max(1, round((tokens - self.overhead) / self.per_word))

    @classmethod
    def fit(cls, points: Sequence[tuple[int, int]]) -> Calibration:
        """Line through (words, tokens) points.

        Raises:
            InputError: fewer than two different word counts, or tokens that do not grow.
        """
        words = np.array([w for w, _ in points], dtype=float)
        tokens = np.array([t for _, t in points], dtype=float)
        if len(set(words)) < 2 or np.ptp(tokens) <= 0:
            raise InputError(
                "the target's token counts do not grow with the prompt",
                key="--endpoint",
                value="chat",
                mend="use --endpoint completions, or give prompts with --content",
            )
        slope, intercept = np.polyfit(words, tokens, 1)
        return cls(float(intercept), float(slope))


class WordPrompts:
    """Prompts as calibrated words, for chat (or a completions route that takes no token ids)."""

    label = "synthetic"

    def __init__(
        self, seed: int, block: int, block_size: Block, calibration: Calibration, endpoint: Endpoint
    ) -> None:
        self._synthetic = Synthetic(seed, block, block_size, 0, len(WORDS))
        self._calibration = calibration
        self._endpoint = endpoint
        self._words = np.array(WORDS, dtype=object)

    def fields(self, planned: Planned) -> dict[str, Any]:
        count = self._calibration.words(planned.arrival.in_tokens)
        return prompt_fields(
            " ".join(self._words[self._synthetic.ids(planned, count)]), self._endpoint
        )


def prompt_fields(text: str, endpoint: Endpoint) -> dict[str, Any]:
    """The prompt in the form that the endpoint takes."""
    if endpoint == "chat":
        return {"messages": [{"role": "user", "content": text}]}
    return {"prompt": text}
