"""The engine in real time: steps on absolute model time, tokens handed to their readers.

A late simulator must not look like a slow engine: a step starts where the last one ended on the
model's clock, never where the event loop happened to be. What is late is delivered at once, and the
lateness is booked (`breakeven_sim_step_lag_seconds`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Protocol

from .engine import SimEngine, Step
from .metrics import EngineMetrics
from .sequences import Emission, FinishReason, Sequence

# uvloop's timers count whole milliseconds; sleeping for less than half of one would spin.
TIMER_GRAIN_S = 0.0005


class Reader(Protocol):
    """Who waits for the tokens of a sequence."""

    def receive_tokens(self, sequence: Sequence, tokens: int) -> None:
        """`tokens` more are there; `sequence.finish` says whether these were the last."""

    def receive_failure(self) -> None:
        """The engine died; no more tokens will come."""


class Driver:
    """Runs one SimEngine. `time_scale` is model seconds per real second."""

    def __init__(
        self,
        engine: SimEngine,
        metrics: EngineMetrics,
        *,
        time_scale: float = 1.0,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.engine = engine
        self.metrics = metrics
        self.dead = False
        self.stall_s = 0.0
        self._clock = clock
        self._scale = time_scale
        self._zero = clock()
        self._model_s = 0.0
        self._wake = asyncio.Event()
        self._readers: dict[int, Reader] = {}

    def now(self) -> float:
        """The model's clock, seconds."""
        return (self._clock() - self._zero) * self._scale

    def submit(
        self,
        reader: Reader,
        prompt_tokens: int,
        max_tokens: int,
        *,
        eos_at: int | None,
        block_keys: tuple[int, ...],
    ) -> Sequence:
        """Queue a sequence that arrives now."""
        sequence = self.engine.submit(
            max(self.now(), self._model_s),
            prompt_tokens,
            max_tokens,
            eos_at=eos_at,
            block_keys=block_keys,
        )
        self._readers[sequence.id] = reader
        self._wake.set()
        return sequence

    def abort(self, sequence: Sequence, reason: FinishReason = "abort") -> None:
        """Stop a sequence (client gone, or a stop string was found) and free its slot."""
        self._readers.pop(sequence.id, None)
        self.engine.abort(sequence, reason)

    def stall(self, seconds: float) -> None:
        """The next step takes that much longer, model seconds: a slow engine, not a late one."""
        self.stall_s += seconds

    def _take_stall(self) -> float:
        seconds, self.stall_s = (self.stall_s, 0.0) if self.engine.running else (0.0, self.stall_s)
        return seconds

    def die(self) -> None:
        """The engine process is gone: every reader hears it, nothing runs any more."""
        self.dead = True
        readers, self._readers = self._readers, {}
        for reader in readers.values():
            reader.receive_failure()
        self._wake.set()

    async def run(self) -> None:
        """Step until cancelled or dead."""
        while self._alive():
            step = self.engine.begin(self._model_s, self._take_stall())
            if step is None:
                await self._idle()
                continue
            if not await self._until(step.end_s):
                # Catching up: let the readers write the last step's tokens before this one's, or
                # a late simulator would merge events as a busy engine does.
                await asyncio.sleep(0)
            if not self._alive():
                return
            self._deliver(step, self.engine.finish())

    def _alive(self) -> bool:
        return not self.dead

    async def _idle(self) -> None:
        arrival = self.engine.next_arrival_s
        if arrival is None:
            self._wake.clear()
            await self._wake.wait()
        else:
            self._model_s = max(self._model_s, arrival)

    async def _until(self, model_s: float) -> bool:
        """Wait for a model time; False when it had passed already."""
        waited = False
        while self._alive():
            due = self._zero + model_s / self._scale
            left = due - self._clock()
            if left < TIMER_GRAIN_S:
                break
            await asyncio.sleep(left)
            waited = True
        return waited

    def _deliver(self, step: Step, emissions: list[Emission]) -> None:
        self._model_s = step.end_s
        self.metrics.on_lag(self._clock() - self._zero - step.end_s / self._scale)
        self.metrics.on_step(step, emissions)
        readers = self._readers
        for sequence, tokens, accepted, drafted in emissions:
            if drafted:
                sequence.accepted_steps.append(accepted)
                sequence.drafted_steps.append(drafted)
            reader = readers.get(sequence.id)
            if reader is not None:
                if sequence.finish is not None:
                    del readers[sequence.id]
                reader.receive_tokens(sequence, tokens)
