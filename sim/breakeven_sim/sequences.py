"""One sequence in the engine: what was asked, and how far it is. State only, no rules."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Literal

from .kv import Holding

FinishReason = Literal["stop", "length", "abort"]


@dataclass(slots=True, eq=False)
class Sequence:
    """A prompt and the tokens generated for it.

    Asked for: `arrival_s` (engine clock), `prompt_tokens`, `max_tokens`, `eos_at` (the output token
    that is the end-of-sequence token, counted from 1; None: never), `block_keys` (one per full
    prompt block, for the prefix cache). `survival` are this request's S_1..S_k.
    """

    id: int
    arrival_s: float
    prompt_tokens: int
    max_tokens: int
    eos_at: int | None
    block_keys: tuple[int, ...]
    survival: tuple[float, ...]
    rng: random.Random
    keep_events: bool = False

    # Where it is. `context` tokens are in the KV cache, `target` have to be before it decodes.
    context: int = 0
    target: int = 0
    output: int = 0
    capacity: int = 0
    holding: Holding = field(default_factory=Holding)
    finish: FinishReason | None = None

    # What happened, seconds on the engine clock.
    scheduled_s: float | None = None
    first_s: float | None = None
    last_s: float | None = None
    cached_tokens: int = 0
    computed_tokens: int = 0
    preemptions: int = 0
    accepted_steps: list[int] = field(default_factory=list)
    drafted_steps: list[int] = field(default_factory=list)
    event_s: list[float] = field(default_factory=list)
    event_tokens: list[int] = field(default_factory=list)
    wanted: int = 0
    steps: int = 0
    event_before_s: float = 0.0

    def __post_init__(self) -> None:
        self.target = self.prompt_tokens
        self.wanted = self.max_tokens
        if self.eos_at is not None:
            self.wanted = min(self.max_tokens, self.eos_at)

    @property
    def natural_finish(self) -> FinishReason:
        """Why it ends when all wanted tokens are there: vLLM checks the stop token first."""
        return "stop" if self.eos_at is not None and self.wanted == self.eos_at else "length"


# (sequence, committed tokens, accepted drafts before any cut, drafted tokens; drafted 0: no draft)
Emission = tuple[Sequence, int, int, int]
