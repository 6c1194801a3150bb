"""The discrete-step engine: continuous batching, chunked prefill, KV blocks, speculation.

Pure: it knows model time only. `begin(now)` schedules a step and says how long it takes,
`finish()` commits its tokens at the step's end. `run` drives it on a virtual clock; the server
drives it in real time. Nothing it prints is a measurement: it is a model (model.py, drafts.py).

Rules (engine-model.md): decodes first, with k + 1 tokens each; then running prefills; then
admissions in arrival order while sequences, KV blocks and the token budget allow. When the
lookahead of a decode does not fit, the last admitted sequence is preempted and recomputed.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from .defaults import MAX_NUM_BATCHED_TOKENS, MAX_NUM_SEQS
from .drafts import Draft
from .errors import SimInputError
from .kv import BLOCK_TOKENS, BlockPool
from .model import Engine
from .sequences import Emission, FinishReason, Sequence


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What is simulated. `k_by_batch` rows (low, high, k) override `k` by the number of decodes."""

    engine: Engine
    draft: Draft | None = None
    k: int = 0
    k_by_batch: tuple[tuple[int, int, int], ...] = ()
    max_num_seqs: int = MAX_NUM_SEQS
    max_num_batched_tokens: int = MAX_NUM_BATCHED_TOKENS
    prefix_caching: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        if self.draft is not None:
            self.draft.survival(self.max_k)
        elif self.k or self.k_by_batch:
            raise SimInputError(f"k={self.max_k} without a draft: choose --draft, or leave k out")
        if self.max_num_batched_tokens < self.max_num_seqs * (self.max_k + 1):
            raise SimInputError(
                f"max_num_batched_tokens={self.max_num_batched_tokens} is too small for "
                f"{self.max_num_seqs} sequences of {self.max_k + 1} tokens: raise it"
            )

    @property
    def max_k(self) -> int:
        """The largest number of drafted tokens per step."""
        return max((k for _, _, k in self.k_by_batch), default=self.k)

    @property
    def kv_capacity_tokens(self) -> int:
        """Tokens that fit: the draft's weights and its KV per token take their share."""
        if self.draft is None:
            return self.engine.kv_tokens
        return int((self.engine.kv_tokens - self.draft.held_tokens) / self.draft.kv_factor)

    def k_at(self, batch: int) -> int:
        """Drafted tokens per sequence when `batch` sequences decode."""
        for low, high, k in self.k_by_batch:
            if low <= batch <= high:
                return k
        return 0 if self.k_by_batch else self.k


@dataclass(frozen=True, slots=True)
class Step:
    """One scheduled step: `tokens` = decodes·(k+1) + prefill tokens; times in seconds."""

    start_s: float
    duration_s: float
    decodes: int
    k: int
    prefill_tokens: int
    kv_tokens: int

    @property
    def end_s(self) -> float:
        """When its tokens are committed."""
        return self.start_s + self.duration_s


class SimEngine:
    """Scheduler and sampler of one simulated engine. Not thread-safe; one owner."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.pool = BlockPool(config.kv_capacity_tokens // BLOCK_TOKENS)
        self.preemptions = 0
        self.prefix_queries = 0
        self.prefix_hits = 0
        self._future: deque[Sequence] = deque()
        self._waiting: deque[Sequence] = deque()
        self._decoding: list[Sequence] = []
        self._prefilling: list[Sequence] = []
        self._admitted: list[Sequence] = []
        self._step: Step | None = None
        self._chunks: list[tuple[Sequence, int]] = []
        self._serial = 0

    # -- requests ---------------------------------------------------------------------------------

    def submit(
        self,
        arrival_s: float,
        prompt_tokens: int,
        max_tokens: int,
        *,
        eos_at: int | None = None,
        block_keys: tuple[int, ...] = (),
        keep_events: bool = False,
    ) -> Sequence:
        """Queue a request; arrivals must not decrease.

        Its logit shift and its acceptance draws depend only on (seed, number of requests before
        it), so that they do not change with the load. Raises SimInputError for what can never run.
        """
        if prompt_tokens < 1 or max_tokens < 1:
            raise SimInputError(
                f"prompt of {prompt_tokens} and output of {max_tokens} tokens: both must be ≥ 1"
            )
        longest = self.pool.total * BLOCK_TOKENS - self.config.max_k - 1
        if prompt_tokens + max_tokens > longest:
            raise SimInputError(
                f"{prompt_tokens} + {max_tokens} tokens can never fit in the KV cache of "
                f"{longest} tokens: shorten the request"
            )
        if self._future and arrival_s < self._future[-1].arrival_s:
            raise SimInputError(f"arrival at {arrival_s} s is before the last one: sort by time")
        rng = random.Random(self.config.seed * 1_000_003 + self._serial)
        draft = self.config.draft
        survival: tuple[float, ...] = ()
        if draft is not None:
            cohort = draft.cohort(rng.random()) if draft.mix else None
            shift = rng.gauss(0.0, draft.tau) if draft.tau else 0.0
            survival = draft.survival(self.config.max_k, shift, cohort)
        keys = block_keys if self.config.prefix_caching else ()
        sequence = Sequence(
            self._serial, arrival_s, prompt_tokens, max_tokens, eos_at, keys, survival, rng,
            keep_events,
        )  # fmt: skip
        self._serial += 1
        self._future.append(sequence)
        return sequence

    def abort(self, sequence: Sequence, reason: FinishReason = "abort") -> None:
        """Forget a sequence at once, wherever it is; its blocks are free for the next step."""
        if sequence.finish is not None:
            return
        sequence.finish = reason
        for queue in (self._future, self._waiting):
            if sequence in queue:
                queue.remove(sequence)
                return
        self._leave(sequence)

    @property
    def running(self) -> int:
        """Sequences in execution."""
        return len(self._admitted)

    @property
    def waiting(self) -> int:
        """Sequences that arrived and wait for admission."""
        return len(self._waiting) + len(self._future)

    @property
    def prefill_backlog_tokens(self) -> int:
        """Prompt tokens of sequences that have no first token yet."""
        queues = (self._future, self._waiting, self._prefilling)
        return sum(s.prompt_tokens for queue in queues for s in queue)

    @property
    def next_arrival_s(self) -> float | None:
        """When the next queued request arrives, None when nothing is queued."""
        return self._future[0].arrival_s if self._future else None

    # -- one step ---------------------------------------------------------------------------------

    def begin(self, now_s: float, stall_s: float = 0.0) -> Step | None:
        """Schedule the step that starts now; None when there is nothing to run.

        `stall_s` is added to its duration (fault injection).
        """
        while self._future and self._future[0].arrival_s <= now_s:
            self._waiting.append(self._future.popleft())
        k = self.config.k_at(len(self._decoding))
        preempted = self._fit_lookahead(k)
        decodes = self._decoding
        budget = self.config.max_num_batched_tokens - len(decodes) * (k + 1)
        self._chunks = []
        for sequence in self._prefilling:
            budget -= self._chunk(sequence, budget)
        if not preempted:
            self._admit(now_s, budget, k)
        prefill_tokens = sum(chunk for _, chunk in self._chunks)
        if not decodes and not prefill_tokens:
            return None
        kv_tokens = sum([s.context for s in decodes]) + sum(s.context for s, _ in self._chunks)
        self._step = Step(
            now_s, self._duration_s(len(decodes), k, prefill_tokens, kv_tokens) + stall_s,
            len(decodes), k, prefill_tokens, kv_tokens,
        )  # fmt: skip
        return self._step

    def finish(self) -> list[Emission]:
        """Commit the step begun last: one emission per sequence that got tokens."""
        step = self._step
        if step is None:
            raise RuntimeError("finish() without begin()")
        self._step = None
        emissions: list[Emission] = []
        done: list[Sequence] = []
        k, end_s = step.k, step.end_s
        # The hot loop of every offline study: locals, no calls. Chunks append to _decoding later.
        for sequence in self._decoding[: step.decodes]:
            accepted = 0
            if k:
                draw, survival = sequence.rng.random(), sequence.survival
                while accepted < k and draw < survival[accepted]:
                    accepted += 1
            tokens = accepted + 1
            left = sequence.wanted - sequence.output
            if tokens >= left:
                tokens = left
                done.append(sequence)
            sequence.context += tokens
            sequence.output += tokens
            sequence.steps += 1
            sequence.last_s = end_s
            if sequence.keep_events:
                sequence.event_s.append(end_s)
                sequence.event_tokens.append(tokens)
            emissions.append((sequence, tokens, accepted, k))
        for sequence, chunk in self._chunks:
            if sequence.finish is None and self._prefilled(sequence, chunk):
                emissions.append((sequence, 1, 0, 0))
                if self._first_or_resumed(sequence, end_s):
                    done.append(sequence)
        for sequence in done:
            sequence.finish = sequence.natural_finish
            self._leave(sequence)
        return emissions

    # -- rules ------------------------------------------------------------------------------------

    def _duration_s(self, decodes: int, k: int, prefill_tokens: int, kv_tokens: int) -> float:
        """T_step + D + H + draft prefill, seconds."""
        config = self.config
        total = config.engine.step_s(decodes * (k + 1) + prefill_tokens, kv_tokens)
        if config.draft is not None:
            total += config.draft.cost_s(decodes, kv_tokens, k)
            total += config.draft.prefill_token_s * prefill_tokens
        return total

    def _fit_lookahead(self, k: int) -> bool:
        """Give each decode room for k + 1 tokens; preempt the last admitted while one lacks it."""
        preempted = False
        ahead = k + 1
        for sequence in [s for s in self._decoding if s.context + ahead > s.capacity]:
            # A preemption may have taken it in the meantime: its capacity is 0 then.
            while sequence.capacity and not self._grow(
                sequence, sequence.context + ahead - sequence.capacity
            ):
                self._preempt(self._admitted[-1])
                preempted = True
        return preempted

    def _grow(self, sequence: Sequence, tokens: int) -> bool:
        blocks = -(-tokens // BLOCK_TOKENS)
        if not self.pool.grow(sequence.holding, blocks):
            return False
        sequence.capacity += blocks * BLOCK_TOKENS
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self._leave(sequence)
        sequence.target = sequence.prompt_tokens + sequence.output
        sequence.context = 0
        sequence.capacity = 0
        sequence.preemptions += 1
        self.preemptions += 1
        self._waiting.appendleft(sequence)

    def _leave(self, sequence: Sequence) -> None:
        self._admitted.remove(sequence)
        queue = self._decoding if sequence in self._decoding else self._prefilling
        queue.remove(sequence)
        self.pool.release(sequence.holding)

    def _chunk(self, sequence: Sequence, budget: int) -> int:
        chunk = min(budget, sequence.target - sequence.context)
        if chunk > 0:
            self._chunks.append((sequence, chunk))
        return max(chunk, 0)

    def _admit(self, now_s: float, budget: int, k: int) -> None:
        while self._waiting and budget > 0 and len(self._admitted) < self.config.max_num_seqs:
            sequence = self._waiting[0]
            if not self._seat(sequence, k):
                return
            self._waiting.popleft()
            if sequence.scheduled_s is None:
                sequence.scheduled_s = now_s
            self._admitted.append(sequence)
            self._prefilling.append(sequence)
            budget -= self._chunk(sequence, budget)

    def _seat(self, sequence: Sequence, k: int) -> bool:
        """Reserve blocks for the whole prompt and the first lookahead, cached prefix first."""
        hits = self.pool.cached_prefix(sequence.block_keys)
        while hits * BLOCK_TOKENS >= sequence.target:
            hits -= 1
        self.pool.share(sequence.holding, sequence.block_keys[:hits])
        sequence.capacity = hits * BLOCK_TOKENS
        if not self._grow(sequence, sequence.target + k + 1 - sequence.capacity):
            self.pool.release(sequence.holding)
            sequence.capacity = 0
            return False
        sequence.context = hits * BLOCK_TOKENS
        if sequence.preemptions == 0:
            sequence.cached_tokens = sequence.context
            if self.config.prefix_caching:
                self.prefix_queries += sequence.prompt_tokens
                self.prefix_hits += sequence.context
        return True

    def _prefilled(self, sequence: Sequence, chunk: int) -> bool:
        """Account a prefill chunk; True when the prompt is done and the first token is there."""
        sequence.context += chunk
        sequence.computed_tokens += chunk
        if sequence.context < sequence.target:
            return False
        missing = len(sequence.holding.shared)
        self.pool.publish(sequence.holding, sequence.block_keys[missing:])
        self._prefilling.remove(sequence)
        self._decoding.append(sequence)
        return True

    def _first_or_resumed(self, sequence: Sequence, end_s: float) -> bool:
        """Book the one token that ends a prefill; True when the sequence is complete."""
        sequence.output += 1
        sequence.steps += 1
        if sequence.first_s is None:
            sequence.first_s = end_s
        sequence.last_s = end_s
        if sequence.keep_events:
            sequence.event_s.append(end_s)
            sequence.event_tokens.append(1)
        return sequence.output >= sequence.wanted


Observer = Callable[[Step, list[Emission]], None]


def run(engine: SimEngine, until_s: float, observe: Observer | None = None) -> float:
    """Drive the engine on a virtual clock from 0 until it is idle or `until_s`; the end, seconds.

    Steps are contiguous: the next one starts when the last one ends, an idle engine jumps to the
    next arrival. A step that would end after `until_s` is not committed.
    """
    now_s = 0.0
    while True:
        step = engine.begin(now_s)
        if step is None:
            arrival = engine.next_arrival_s
            if arrival is None or arrival > until_s:
                return now_s
            now_s = arrival
            continue
        if step.end_s > until_s:
            return now_s
        emissions = engine.finish()
        now_s = step.end_s
        if observe is not None:
            observe(step, emissions)
