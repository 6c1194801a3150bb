"""The simulator's tokens and text: a documented stand-in for a tokenizer and a language model.

Tokenization. A prompt of token ids counts its ids. A text counts one token per whitespace-separated
word. A chat prompt counts 3 tokens per message (start, role, end), its words, and 2 for the
generation prompt. `/tokenize`, `usage` and `/metrics` all use this count.

Generation. Words come from the fixed vocabulary below, chosen by a hash of (seed, prompt token ids,
the request's own seed, choice index, position): the same request gives the same text on every arm
(greedy decoding is lossless), and no prompt text can appear in it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from statistics import NormalDist

from .defaults import OUTPUT_MEDIAN, OUTPUT_SIGMA

_WORDS = """
amber anchor apple arbor arrow aspen atlas autumn basin beacon birch bloom border bramble
breeze bridge brook bronze cabin café canal canyon cedar chalk cliff cloud clover coast
cobalt comet copper coral cotton crane creek crystal dale dawn delta desert dew dune eagle
earth echo elm ember falcon fern field fjörd flint forest fountain fox frost garden ginger
glacier glade granite grove gull harbor hazel heath heron hill hollow honey ice indigo
iris island ivory ivy jade jasper juniper kelp lagoon lake lantern larch laurel lichen
lilac lime linden lotus maple marble marsh meadow mist moon moss mountain naïve night
north oak oasis ocean olive opal orchard otter owl palm pebble pepper pine plain plum pond
poplar prairie quail quartz rain raven reed reef ridge river robin rock rose sable saffron
sage sand sea shadow shell shore silver sky slate snow south sparrow spring spruce star
stone storm stream summer sun swan thistle thunder tide timber trail tulip tundra valley
velvet violet walnut water wave west wheat willow wind winter wood yarrow zephyr über 山 川
海 空
"""
VOCABULARY: tuple[str, ...] = tuple(_WORDS.split())
EOS_TOKEN = 2
FIRST_WORD = 1_000
FIRST_HASHED = 2_000
VOCABULARY_SIZE = 128_256
_WORD_IDS = {word: FIRST_WORD + i for i, word in enumerate(VOCABULARY)}
_ROLE_TOKENS = {"system": 11, "user": 12, "assistant": 13, "tool": 14, "developer": 15}
MESSAGE_TOKENS = 3
GENERATION_PROMPT_TOKENS = 2


def _digest(*parts: object) -> int:
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def _mix(x: int) -> int:
    """SplitMix64's finaliser: neighbouring positions give unrelated words."""
    x = (x * 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    return x >> 31


def word_id(word: str) -> int:
    """The token id of one word: its place in the vocabulary, else a hash."""
    known = _WORD_IDS.get(word)
    if known is not None:
        return known
    return FIRST_HASHED + _digest(word) % (VOCABULARY_SIZE - FIRST_HASHED)


def encode(text: str) -> list[int]:
    """Token ids of a text: one per whitespace-separated word (a text of only spaces is 1 token)."""
    return [word_id(word) for word in text.split()] or ([FIRST_HASHED] if text else [])


def encode_chat(messages: Sequence[Mapping[str, object]]) -> list[int]:
    """Token ids of a chat prompt, template included (see the module docstring)."""
    ids: list[int] = []
    for message in messages:
        role = _ROLE_TOKENS.get(str(message.get("role")), 16)
        ids += [1, role, *encode(content_text(message.get("content"))), EOS_TOKEN]
    return [*ids, 1, _ROLE_TOKENS["assistant"]]


def content_text(content: object) -> str:
    """The text of a message's content: a string, or the text parts of a list."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = [p.get("text") for p in content if isinstance(p, Mapping)]
        return " ".join(p for p in parts if isinstance(p, str))
    return ""


def block_keys(ids: Sequence[int], block: int) -> tuple[int, ...]:
    """One key per full block: a hash over the block and the key before it."""
    keys: list[int] = []
    chain = 0
    for end in range(block, len(ids) + 1, block):
        chain = hash((chain, tuple(ids[end - block : end])))
        keys.append(chain)
    return tuple(keys)


class Script:
    """What one choice says: token i has an id and a text; `eos_at` is the natural end.

    `fixed` replaces the random words (structured output); it ends with an end-of-sequence token.
    """

    def __init__(
        self,
        key: tuple[object, ...],
        fixed: Sequence[str] | None = None,
        words_before: int = 0,
        min_tokens: int = 0,
    ) -> None:
        self._key = _digest(*key)
        self._fixed = fixed
        self._start = words_before
        natural = len(fixed) + 1 if fixed is not None else self._natural_length()
        self.eos_at = max(natural, min_tokens + 1)

    def _natural_length(self) -> int:
        uniform = (_digest(self._key, "length") % 999_999 + 0.5) / 1e6
        z = NormalDist().inv_cdf(uniform)
        return max(2, round(OUTPUT_MEDIAN * math.exp(OUTPUT_SIGMA * z)))

    def token(self, position: int, ends: bool) -> tuple[int, str]:
        """(id, text) of the output token at `position` (from 0); `ends`: it may be EOS."""
        if ends and position + 1 >= self.eos_at:
            return EOS_TOKEN, ""
        if self._fixed is not None and position < len(self._fixed):
            return word_id(self._fixed[position]), self._fixed[position]
        index = _mix(self._key ^ position) % len(VOCABULARY)
        word = VOCABULARY[index]
        return FIRST_WORD + index, word if position + self._start == 0 else " " + word

    def logprob(self, position: int) -> float:
        """A made-up log probability of the token, ≤ 0."""
        return -(_mix(self._key ^ position ^ 1 << 32) % 3000) / 1000.0


def holdback(text_end: int, stops: Sequence[str], include: bool) -> int:
    """How many characters vLLM keeps back while a stop string could still be forming."""
    if not stops or include:
        return text_end
    return max(0, text_end - (max(len(s) for s in stops) - 1))
