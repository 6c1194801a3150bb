"""One request in flight: its choices, their text, and what each delivery adds.

The engine counts tokens; here they become text and are checked for stop strings as they arrive.
What the writer has not taken yet merges with what comes next, as vLLM merges deltas when the
consumer lags.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from .driver import Driver
from .kv import BLOCK_TOKENS
from .requests import Generation
from .sequences import Sequence
from .text import Script, block_keys, holdback


class EngineDead(Exception):
    """The engine died while the request was in flight."""


class Delta(NamedTuple):
    """What one event of a choice carries; `tokens` is the choice's total so far."""

    text: str
    token_ids: list[int]
    logprobs: list[tuple[str, float]]
    finish: str | None
    stop: str | None
    tokens: int


@dataclass(slots=True, eq=False)
class Choice:
    """One choice: its engine sequence, its script, what it said, and how much of it was sent.

    `words` are the texts of its tokens. Only where stop strings are looked for, `text` grows with
    them (cut at the stop); else it is joined when asked: adding to a long text costs its length.
    """

    index: int
    prompt: int
    sequence: Sequence
    script: Script
    tokens: int = 0
    words: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finish: str | None = None
    stop: str | None = None
    sent_tokens: int = 0
    _text: str = ""
    _sent_text: int = 0

    @property
    def text(self) -> str:
        """All text, cut at a stop string."""
        return self._text or "".join(self.words)

    def say(self, tokens: int, generation: Generation) -> bool:
        """Add tokens to the text; True when one of them completed a stop string.

        Tokens after it are dropped: they were generated and are in the engine's counters, but no
        client sees them.
        """
        ends = not generation.ignore_eos
        for _ in range(tokens):
            token, word = self.script.token(self.tokens, ends)
            self.token_ids.append(token)
            self.words.append(word)
            self.tokens += 1
            if generation.stops:
                self._text += word
                if self.tokens >= generation.min_tokens and self._stopped(len(word), generation):
                    return True
        return False

    def _stopped(self, fresh: int, generation: Generation) -> bool:
        for stop in generation.stops:
            at = self._text.find(stop, max(0, len(self._text) - fresh - len(stop) + 1))
            if at >= 0:
                self.stop = stop
                self._text = self._text[: at + len(stop) if generation.include_stop else at]
                return True
        return False

    def take(self, generation: Generation) -> Delta:
        """What was not sent yet, stop-string holdback apart."""
        since, self.sent_tokens = self.sent_tokens, self.tokens
        text = self._unsent(generation) if generation.stops else "".join(self.words[since:])
        logprobs: list[tuple[str, float]] = []
        if generation.logprobs is not None:
            logprobs = self.logprobs(since)
        ids = self.token_ids[since:]
        return Delta(text, ids, logprobs, self.finish, self.stop, self.tokens)

    def logprobs(self, since: int = 0) -> list[tuple[str, float]]:
        """(text, log probability) per token from position `since` on."""
        return [(self.words[i], self.script.logprob(i)) for i in range(since, len(self.words))]

    def _unsent(self, generation: Generation) -> str:
        end = len(self._text)
        if self.finish is None:
            end = max(self._sent_text, holdback(end, generation.stops, generation.include_stop))
        text, self._sent_text = self._text[self._sent_text : end], end
        return text


class Flight:
    """A request's choices from submission to the last token; the driver's Reader."""

    def __init__(self, driver: Driver, generation: Generation, seed: int) -> None:
        self.generation = generation
        self.choices: list[Choice] = []
        self._driver = driver
        self._wake = asyncio.Event()
        self._failed = False
        # Called with each delivery; True: it was written. False or None: the task is woken.
        self.on_news: Callable[[Choice], bool] | None = None
        self._by_id: dict[int, Choice] = {}
        for prompt, ids in enumerate(generation.prompts):
            keys = block_keys(ids, BLOCK_TOKENS)
            for _ in range(generation.n):
                self._submit(prompt, ids, keys, seed)

    def _submit(self, prompt: int, ids: tuple[int, ...], keys: tuple[int, ...], seed: int) -> None:
        generation = self.generation
        index = len(self.choices)
        key = (seed, generation.seed, index % generation.n, ids)
        first_word = 1 if generation.endpoint == "completions" else 0
        script = Script(key, generation.fixed, first_word, generation.min_tokens)
        sequence = self._driver.submit(
            self,
            len(ids),
            generation.max_tokens,
            eos_at=None if generation.ignore_eos else script.eos_at,
            block_keys=keys,
        )
        choice = Choice(index, prompt, sequence, script)
        self.choices.append(choice)
        self._by_id[sequence.id] = choice

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens of all prompts; those of n choices count once."""
        return sum(len(ids) for ids in self.generation.prompts)

    @property
    def completion_tokens(self) -> int:
        """Tokens that the client is given, all choices."""
        return sum(choice.tokens for choice in self.choices)

    @property
    def open(self) -> bool:
        """Whether any choice has something to come or to send."""
        return any(choice.finish is None or self._news(choice) for choice in self.choices)

    # -- the driver's side ------------------------------------------------------------------------

    def receive_tokens(self, sequence: Sequence, tokens: int) -> None:
        """Tokens of one step."""
        choice = self._by_id[sequence.id]
        if choice.say(tokens, self.generation):
            choice.finish = "stop"
            self._driver.abort(sequence, "stop")
            sequence.finish = "stop"
        elif sequence.finish is not None:
            choice.finish = sequence.finish
        if choice.finish is not None:
            self._driver.metrics.on_finish(
                sequence, self.generation.n, self.generation.requested_max_tokens
            )
        elif self.on_news is not None and self._news(choice) and self.on_news(choice):
            return
        self._wake.set()

    def receive_failure(self) -> None:
        """The engine died."""
        self._failed = True
        self._wake.set()

    # -- the writer's side ------------------------------------------------------------------------

    async def wait(self, idle_s: float | None = None) -> bool:
        """Wait for news; False after `idle_s` seconds without (time for a keep-alive comment)."""
        if idle_s is None:
            await self._wake.wait()
        else:
            try:
                async with asyncio.timeout(idle_s):
                    await self._wake.wait()
            except TimeoutError:
                return False
        self._wake.clear()
        return True

    def take(self) -> Iterator[tuple[Choice, Delta]]:
        """What each choice has to send now. Raises EngineDead."""
        if self._failed:
            raise EngineDead
        for choice in self.choices:
            if self._news(choice):
                yield choice, choice.take(self.generation)

    async def finished(self) -> None:
        """Wait for the last token of the last choice. Raises EngineDead."""
        while any(choice.finish is None for choice in self.choices):
            await self.wait()
            if self._failed:
                raise EngineDead

    def close(self) -> None:
        """Abort what is not finished (client gone); the engine frees the slots."""
        for choice in self.choices:
            if choice.finish is None:
                self._driver.abort(choice.sequence)

    def _news(self, choice: Choice) -> bool:
        fresh = choice.tokens - choice.sent_tokens
        if choice.finish is not None:
            return fresh > 0
        return fresh > 0 and (choice.sent_tokens == 0 or fresh >= self.generation.stream_interval)
