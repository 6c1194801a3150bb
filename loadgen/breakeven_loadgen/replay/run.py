"""`replay(config)`: one run against one target, from settings to a result folder.

Here: the order of things. Not here: any of them. The call is synchronous; it knows nothing of
arms or blocks beyond the labels that it passes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import resource
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import uvloop

from breakeven.errors import InputError
from breakeven_wire import Deadlines, EnginePool, Origin

from .. import config as settings
from ..config import ReplayConfig
from ..traffic.pacer import Pacer
from . import results
from .ahead import Ahead
from .attempt import Sending
from .clientload import ClientLoad, SelfWatch
from .engine import EngineSampler
from .metrics import MetricsPage
from .offer import Offer
from .prepare import Prepared, bodies, make_folder, needs_calibration, prepare
from .results import RunResult
from .spool import Spool
from .target import calibrate, look_at

LEAD_S = 0.05
"""Between the last preparation and the first possible arrival."""
TICK_S = 0.01
"""Housekeeping period: bodies ahead, spool, samples."""
FLUSH_S = 1.0
"""The spool reaches the kernel at least this often."""
FLUSH_GAP_S = 0.004
"""A flush takes a millisecond or two: it waits for a gap of this length while it can."""
SECOND_S = 1.0
"""Between two looks at progress and clock."""
MAX_SAMPLES = 1200
"""Samples of the engine's metrics per run: one a second for 20 minutes, fewer in longer runs."""
MAX_OPEN_FILES = 65536


class Progress(Protocol):
    """Who hears how the run goes; called a few times a second from the event loop."""

    def update(self, state: RunState) -> None: ...


@dataclass(slots=True)
class RunState:
    """A run's state as progress and /metrics see it."""

    scheduled: int
    offer: Offer
    watch: SelfWatch
    start_s: float
    last_offset_s: float
    phase: str = "offering"

    @property
    def elapsed_s(self) -> float:
        """Seconds since the run's start; negative before it."""
        return time.monotonic() - self.start_s


@dataclass(slots=True)
class Outcome:
    """What the event loop leaves for the finish."""

    clients: list[ClientLoad]
    engine: list[dict[str, Any]]
    interrupted: bool
    drained_s: float
    record: dict[str, Any]
    aborted: str | None = None
    notes: list[str] = field(default_factory=list)


def replay(config: ReplayConfig, *, progress: Progress | None = None) -> RunResult:
    """Run one replay and write its result folder.

    Returns:
        folder, summary, gates and the exit code that the run deserves.

    Raises:
        InputError: bad input; nothing was sent and nothing written (exit 2).
        NotReadyError: the target cannot be reached or is not ready (exit 3).
        BreakevenError: the results could not be written; what was written is kept.
    """
    prepared = prepare(config)
    if config.workers > 1:
        from .shards import replay_workers

        return replay_workers(prepared, progress=progress)
    folder = make_folder(config.out, config.force)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        outcome = runner.run(_Run(prepared, folder, progress).main())
    return results.finish(folder, results.final_record(outcome.record, outcome))


class _Run:
    """One run's event-loop part."""

    def __init__(self, prepared: Prepared, folder: Path, progress: Progress | None) -> None:
        self._prepared = prepared
        self._config = prepared.config
        self._folder = folder
        self._progress = progress
        self._interrupted = False
        self._aborted: str | None = None
        self._flushed_s = 0.0
        self._looked_s = 0.0
        self._sampled_s = 0.0
        self._sampling: asyncio.Task[None] | None = None

    async def main(self) -> Outcome:
        config = self._config
        pool = EnginePool(Origin.parse(config.url), stamps=config.stamps)
        sampler = EngineSampler.of(config.metrics_url)
        raise_file_limit()
        try:
            headers = settings.headers_of(config)
            target = await look_at(pool, headers, config.model)
            calibration = None
            if needs_calibration(self._prepared):
                endpoint = settings.endpoint_of(config)
                calibration = await calibrate(pool, headers, target.model, endpoint)
            ahead = Ahead(
                bodies(self._prepared, target.model, calibration), self._prepared.plan.arrivals
            )
            await sampler.before()
            results.clean(self._folder)
            record = results.first_record(self._prepared, target, pool.stamps)
            results.write_record(self._folder, record)
            ahead.before_start()
            sending = Sending(
                pool=pool,
                target=settings.path_of(config),
                headers=headers,
                deadlines=Deadlines(first_byte_s=None, idle_s=None, total_s=config.timeout),
                slo=self._prepared.slo,
                epsilon_s=config.epsilon,
                forced_length=settings.forced_length(config),
            )
            return await self._offer(ahead, sending, sampler, record)
        finally:
            await sampler.close()
            await pool.close()

    async def _offer(
        self, ahead: Ahead, sending: Sending, sampler: EngineSampler, record: dict[str, Any]
    ) -> Outcome:
        plan = self._prepared.plan
        config = self._config
        watch = SelfWatch()
        start_s = start_time(config.start_at)
        with Spool(self._folder) as spool, quiet_gc():
            offer = Offer(
                plan,
                ahead,
                sending,
                spool,
                start_s=start_s,
                max_inflight=self._prepared.max_inflight,
                labels=(config.arm, config.block),
            )
            last_s = plan.arrivals[-1].offset_s if plan.arrivals else 0.0
            state = RunState(len(plan.arrivals), offer, watch, start_s, last_s)
            pacer = Pacer(start_s, plan.offsets, offer.fire)
            page = await MetricsPage.serve(config.metrics_listen, state)
            with self._signals(pacer, offer):
                watch.start()
                pacer.start()
                await self._until(pacer.done, pacer, state, ahead, spool, sampler)
                watch.mark()
                state.phase = "draining"
                drained = asyncio.ensure_future(offer.idle.wait())
                await self._until(drained, pacer, state, ahead, spool, sampler)
            watch.stop()
            if self._sampling is not None:
                await self._sampling
            drained_s = time.monotonic() - start_s
            await sampler.after(drained_s)
            if self._progress is not None:
                self._progress.update(state)
            await page.close()
            spool.flush()
        sampler.write(self._folder)
        client = ClientLoad(
            cpu_share=watch.cpu_share,
            loop_lag_p99_s=watch.lag_p99_s(),
            clock_steps=watch.steps,
            inflight_integral_s=offer.inflight.integral_s,
            inflight_peak=offer.inflight.peak,
        )
        return Outcome(
            [client], sampler.deltas(), self._interrupted, drained_s, record, self._aborted
        )

    async def _until(
        self,
        done: asyncio.Future[Any],
        pacer: Pacer,
        state: RunState,
        ahead: Ahead,
        spool: Spool,
        sampler: EngineSampler,
    ) -> None:
        """Housekeeping until `done`; every piece of it fits into a gap between arrivals."""
        while not done.done():
            free_s = pacer.until_next_s()
            while ahead.in_gap(free_s):
                free_s = pacer.until_next_s()
            now = time.monotonic()
            late = now - self._flushed_s >= FLUSH_S
            if spool.waiting and (late or (free_s > FLUSH_GAP_S and spool.waiting >= 64)):
                if late or free_s > FLUSH_GAP_S:
                    spool.flush(limit=None if late else 128)
                if late:
                    self._flushed_s = now
            if now - self._looked_s >= SECOND_S:
                self._looked_s = now
                self._look(state, sampler)
            await asyncio.wait([done], timeout=TICK_S)

    def _look(self, state: RunState, sampler: EngineSampler) -> None:
        state.watch.check()
        period_s = max(SECOND_S, state.last_offset_s / MAX_SAMPLES)
        now = time.monotonic()
        if now - self._sampled_s >= period_s and (self._sampling is None or self._sampling.done()):
            self._sampled_s = now
            self._sampling = asyncio.ensure_future(sampler.sample(now - state.start_s))
        if self._progress is not None:
            self._progress.update(state)

    @contextlib.contextmanager
    def _signals(self, pacer: Pacer, offer: Offer) -> Iterator[None]:
        """Ctrl-C and SIGTERM end the run cleanly; a second one has its usual effect."""
        loop = asyncio.get_running_loop()
        caught = (signal.SIGINT, signal.SIGTERM)

        def stop() -> None:
            self._interrupted = True
            for number in caught:
                loop.remove_signal_handler(number)
            pacer.stop()
            offer.stop()

        try:
            for number in caught:
                loop.add_signal_handler(number, stop)
        except (ValueError, RuntimeError):
            pass  # not the main thread: the caller handles signals
        try:
            yield
        finally:
            for number in caught:
                with contextlib.suppress(ValueError, RuntimeError):
                    loop.remove_signal_handler(number)


def start_time(start_at: float | None) -> float:
    """The run's start on the monotonic clock: a moment from now, or the given Unix time.

    Raises:
        InputError: the Unix time has passed.
    """
    now = time.monotonic()
    if start_at is None:
        return now + LEAD_S
    wait_s = start_at - time.time()
    if wait_s <= 0:
        raise InputError(
            f"that was {-wait_s:.1f} s ago", key="--start-at", value=start_at,
            mend="give a Unix time in the future, after every shard is ready",
        )  # fmt: skip
    return now + wait_s


@contextlib.contextmanager
def quiet_gc() -> Iterator[None]:
    """No full collections during a run: one over a plan of a million arrivals takes a second."""
    gc.collect()
    gc.freeze()
    thresholds = gc.get_threshold()
    gc.set_threshold(50_000, 50, 1_000_000)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


def raise_file_limit() -> None:
    """One file descriptor per request in flight: lift the soft limit to the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


__all__ = ["Progress", "RunResult", "RunState", "replay"]
