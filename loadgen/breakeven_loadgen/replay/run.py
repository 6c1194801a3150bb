"""`replay(config)`: one run against one target, from settings to a result folder.

Here: the order of things. Not here: any of them. The call is synchronous; it knows nothing of
arms or blocks beyond the labels that it passes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop

from breakeven.errors import InputError, NotReadyError
from breakeven_wire import Deadlines, EnginePool, Headers, Origin

from .. import config as settings
from ..config import ReplayConfig
from ..traffic.pacer import Pacer
from ..traffic.plan import Plan
from . import results
from .ahead import Ahead
from .attempt import Sending
from .clientload import ClientLoad, SelfWatch
from .engine import EngineSampler
from .glance import Glance, Progress
from .offer import Offer
from .prepare import Prepared, bodies, drop_if_empty, make_folder, needs_calibration, prepare
from .process import quiet_gc, raise_file_limit, start_time
from .results import RunResult
from .spool import Spool
from .target import calibrate, look_at

if TYPE_CHECKING:
    from .metrics import MetricsPage

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
FLUSH_EARLY = 64
"""Records that may be written before a second has passed, in a gap."""
ABORT_WINDOW = 10
"""Seconds over which --abort-below compares sent with offered."""
ABORT_MIN_OFFERED = 20
"""Fewer arrivals than this in the window decide nothing."""


@dataclass(slots=True)
class RunState:
    """A run's state as progress and /metrics see it."""

    scheduled: int
    last_offset_s: float
    offer: Offer
    watch: SelfWatch
    start_s: float = 0.0
    phase: str = "offering"

    @classmethod
    def of(cls, plan: Plan, offer: Offer) -> RunState:
        """The state before the start of a plan."""
        last_s = plan.arrivals[-1].offset_s if plan.arrivals else 0.0
        return cls(len(plan.arrivals), last_s, offer, SelfWatch())

    def begin(self, start_s: float) -> None:
        """Fix the run's start on the monotonic clock."""
        self.start_s = start_s
        self.offer.start_s = start_s

    def both_clocks(self) -> dict[str, float]:
        """The start on both clocks, so that another process's log can be laid over the rows."""
        offset_s = time.time() - time.monotonic()
        return {"monotonic_s": self.start_s, "unix_s": self.start_s + offset_s}

    def glance(self) -> Glance:
        """The numbers of this moment."""
        counts = self.offer.counts
        return Glance(
            phase=self.phase,
            elapsed_s=self.elapsed_s,
            last_offset_s=self.last_offset_s,
            scheduled=self.scheduled,
            offered=counts.offered,
            ended=counts.ended,
            inflight=self.offer.inflight.value,
            dropped=counts.verdicts["dropped"],
            good=counts.verdicts["good"],
            lag_s=counts.last_lag_s,
        )

    @property
    def elapsed_s(self) -> float:
        """Seconds since the run's start; negative before it."""
        return time.monotonic() - self.start_s


@dataclass(frozen=True, slots=True)
class _Work:
    """What housekeeping works on."""

    ahead: Ahead
    spool: Spool
    sampler: EngineSampler
    state: RunState


@dataclass(slots=True)
class Outcome:
    """What the event loop leaves for the finish."""

    clients: list[ClientLoad]
    engine: list[dict[str, Any]]
    proxy_tokens: int | None
    interrupted: bool
    drained_s: float
    offered: int
    start: dict[str, float]
    record: dict[str, Any]
    aborted: str | None = None
    notes: list[str] = field(default_factory=list)


Start = Callable[[], Awaitable[float]]
"""Tells a prepared run its start on the monotonic clock."""
Orphaned = Callable[[Callable[[], None]], None]
"""Told, once the run has its start, what to call when the process that ordered it is gone."""


def replay(
    config: ReplayConfig,
    *,
    progress: Progress | None = None,
    start: Start | None = None,
    orphaned: Orphaned | None = None,
) -> RunResult:
    """Run one replay and write its result folder.

    `start` is asked when everything is prepared, instead of `--start-at`; `orphaned` gets the
    clean end of the run, for a worker whose parent may be killed.

    Returns:
        folder, summary, gates and the exit code that the run deserves.

    Raises:
        InputError: bad input; nothing was sent and nothing written (exit 2).
        NotReadyError: the target cannot be reached or is not ready (exit 3).
        BreakevenError: the results could not be written; what was written is kept.
    """
    prepared = prepare(config)
    folder = make_folder(config.out, config.force)
    try:
        if config.workers > 1:
            from .shards import replay_workers  # here: it imports this module

            return replay_workers(prepared, folder, progress)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            outcome = runner.run(_Run(prepared, folder, progress, start, orphaned).main())
    except (InputError, NotReadyError):
        drop_if_empty(folder)
        raise
    return results.finish(folder, results.final_record(outcome.record, outcome))


async def _listen(address: str) -> MetricsPage:
    from .metrics import MetricsPage  # here: its libraries take a while to import

    return await MetricsPage.serve(address)


class _Run:
    """One run's event-loop part: prepare, offer, drain, settle."""

    def __init__(
        self,
        prepared: Prepared,
        folder: Path,
        progress: Progress | None,
        start: Start | None,
        orphaned: Orphaned | None,
    ) -> None:
        self._start = start
        self._orphaned = orphaned
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
        self._recent: deque[tuple[int, int]] = deque(maxlen=ABORT_WINDOW + 1)

    async def main(self) -> Outcome:
        config = self._config
        start_time(config.start_at)  # a time that has passed is refused before anything is sent
        raise_file_limit()
        pool = EnginePool(Origin.parse(config.url), stamps=config.stamps)
        sampler = EngineSampler.of(config.metrics_url, config.proxy_metrics_url)
        page: MetricsPage | None = None
        try:
            headers = settings.headers_of(config)
            target = await look_at(pool, headers, config.model)
            calibration = None
            if needs_calibration(self._prepared):
                endpoint = settings.endpoint_of(config)
                calibration = await calibrate(pool, headers, target.model, endpoint)
            await sampler.before()
            if config.metrics_listen is not None:
                page = await _listen(config.metrics_listen)
            record = results.first_record(self._prepared, target, pool.stamps)
            # Every refusal came before: what an earlier run left is removed only now.
            results.clean(self._folder)
            results.write_record(self._folder, record)
            maker = bodies(self._prepared, target.model, calibration)
            ahead = Ahead(maker, self._prepared.plan.arrivals)
            ahead.before_start()
            with Spool(self._folder) as spool, quiet_gc():
                offer = Offer(
                    self._prepared.plan,
                    ahead,
                    self._sending(pool, headers),
                    spool,
                    max_inflight=self._prepared.max_inflight,
                    labels=(config.arm, config.block),
                )
                work = _Work(ahead, spool, sampler, RunState.of(self._prepared.plan, offer))
                if page is not None:
                    page.show(work.state)
                drained_s = await self._offer(work)
            sampler.write(self._folder)
            return self._outcome(work, record, drained_s)
        finally:
            if page is not None:
                await page.close()
            await sampler.close()
            await pool.close()

    def _sending(self, pool: EnginePool, headers: Headers) -> Sending:
        config = self._config
        return Sending(
            pool=pool,
            target=settings.path_of(config),
            headers=headers,
            deadlines=Deadlines(first_byte_s=None, idle_s=None, total_s=config.timeout),
            slo=self._prepared.slo,
            epsilon_s=config.epsilon,
            forced_length=settings.forced_length(config),
        )

    async def _offer(self, work: _Work) -> float:
        """Offer everything and wait for the answers; seconds from the start to the last one."""
        state = work.state
        # The last thing before the first arrival: whatever came before cannot make it late.
        state.begin(await self._start_s())
        pacer = Pacer(state.start_s, self._prepared.plan.offsets, state.offer.fire)
        state.offer.poke = pacer.poke
        with self._signals(pacer, state.offer):
            state.watch.start()
            pacer.start()
            await self._until(pacer.done, pacer, work)
            state.watch.mark()
            state.phase = "draining"
            await self._until(asyncio.ensure_future(state.offer.idle.wait()), pacer, work)
        state.watch.stop()
        drained_s = state.elapsed_s
        if self._sampling is not None:
            await self._sampling
        await work.sampler.after(drained_s)
        if self._progress is not None:
            self._progress.update(state.glance())
        return drained_s

    async def _start_s(self) -> float:
        if self._start is not None:
            return await self._start()
        return start_time(self._config.start_at)

    async def _until(self, done: asyncio.Future[Any], pacer: Pacer, work: _Work) -> None:
        """Housekeeping until `done`; every piece of it fits into a gap between arrivals."""
        spool = work.spool
        while not done.done():
            free_s = pacer.until_next_s()
            while work.ahead.in_gap(free_s):
                free_s = pacer.until_next_s()
            now = time.monotonic()
            late = now - self._flushed_s >= FLUSH_S
            if spool.waiting and late:
                self._flushed_s = now
                spool.flush()
            elif spool.waiting >= FLUSH_EARLY and free_s > FLUSH_GAP_S:
                spool.flush(limit=FLUSH_EARLY)
            if now - self._looked_s >= SECOND_S:
                self._looked_s = now
                self._look(pacer, work)
            await asyncio.wait([done], timeout=TICK_S)

    def _look(self, pacer: Pacer, work: _Work) -> None:
        """Once a second: clock, engine sample, progress, --abort-below."""
        state = work.state
        state.watch.check()
        period_s = max(SECOND_S, state.last_offset_s / MAX_SAMPLES)
        now = time.monotonic()
        if now - self._sampled_s >= period_s and (self._sampling is None or self._sampling.done()):
            self._sampled_s = now
            self._sampling = asyncio.ensure_future(work.sampler.sample(state.elapsed_s))
        if self._progress is not None:
            self._progress.update(state.glance())
        self._abort_if_too_slow(pacer, state)

    def _abort_if_too_slow(self, pacer: Pacer, state: RunState) -> None:
        """--abort-below: the target cannot take the offered rate, so stop instead of going on."""
        limit, counts = self._config.abort_below, state.offer.counts
        self._recent.append((counts.offered, counts.sent))
        if limit is None or self._aborted or pacer.done.done():
            return
        offered = counts.offered - self._recent[0][0]
        sent = counts.sent - self._recent[0][1]
        if offered >= ABORT_MIN_OFFERED and sent * 100 < limit * offered:
            self._aborted = (
                f"only {sent} of {offered} arrivals of the last {len(self._recent) - 1} s could be "
                f"sent, below --abort-below {limit:g} %"
            )
            pacer.stop()
            state.offer.stop()

    def _outcome(self, work: _Work, record: dict[str, Any], drained_s: float) -> Outcome:
        watch, inflight = work.state.watch, work.state.offer.inflight
        client = ClientLoad(
            cpu_share=watch.cpu_share,
            loop_lag_p99_s=watch.lag_p99_s(),
            clock_steps=watch.steps,
            inflight_integral_s=inflight.integral_s,
            inflight_peak=inflight.peak,
        )
        return Outcome(
            clients=[client],
            engine=work.sampler.deltas(),
            proxy_tokens=work.sampler.proxy_tokens(),
            interrupted=self._interrupted,
            drained_s=drained_s,
            offered=work.state.offer.counts.offered,
            start=work.state.both_clocks(),
            record=record,
            aborted=self._aborted,
        )

    @contextlib.contextmanager
    def _signals(self, pacer: Pacer, offer: Offer) -> Iterator[None]:
        """Ctrl-C and SIGTERM end the run cleanly; a second one has its usual effect."""
        loop = asyncio.get_running_loop()
        caught = (signal.SIGINT, signal.SIGTERM)

        def stop() -> None:
            self._interrupted = True
            for number in caught:
                with contextlib.suppress(ValueError, RuntimeError):
                    loop.remove_signal_handler(number)
            pacer.stop()
            offer.stop()

        if self._orphaned is not None:
            self._orphaned(stop)
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


__all__ = ["Progress", "RunResult", "RunState", "replay"]
