"""`--workers N`: processes on this machine that share one schedule, and their merge.

Every worker computes the whole plan and offers its own arrivals of it, so the union is the single
run: same arrivals, intended times and bytes. The parent samples the engine, because only it knows
when the last worker is done. Not here: how a plan is divided (traffic.plan), joining (merge).
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import uvloop

from breakeven.errors import BreakevenError, InputError, NotReadyError
from breakeven.exitcodes import ExitCode

from . import results
from .engine import EngineSampler
from .glance import Glance, Progress, together
from .merge import merge
from .prepare import Prepared
from .results import WORKERS, RunResult
from .worker import READY, config_line

LEAD_S = 0.25
"""From the last worker's `ready` to the common start: time for the message to reach all."""
SAMPLE_S = 1.0


def replay_workers(prepared: Prepared, folder: Path, progress: Progress | None = None) -> RunResult:
    """Run the workers and merge what they leave.

    Raises:
        InputError, NotReadyError, BreakevenError: as the first worker that failed said.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        parts, sampler, interrupted = runner.run(_Parent(prepared, folder, progress).main())
    return collect(folder, parts, sampler, interrupted)


def collect(
    folder: Path, parts: list[Path], sampler: EngineSampler, interrupted: bool
) -> RunResult:
    """Merge the workers' folders, add what the parent saw, and remove them."""
    merge(folder, parts)
    sampler.write(folder)  # over the workers' own, which are empty: only the parent samples
    record = results.read_record(folder)
    record |= {"engine": sampler.deltas(), "proxy_tokens": sampler.proxy_tokens()}
    if interrupted:
        record["state"] = "interrupted"
    results.write_record(folder, record)
    for part in parts:
        results.clean(part)
        part.rmdir()
    (folder / WORKERS).rmdir()
    return results.summarise(folder, results.read_rows(folder), record)


class _Parent:
    """The parent's event-loop part."""

    def __init__(self, prepared: Prepared, folder: Path, progress: Progress | None) -> None:
        self._config = prepared.config
        self._folder = folder
        self._progress = progress
        self._glances: dict[int, Glance] = {}
        self._interrupted = False

    async def main(self) -> tuple[list[Path], EngineSampler, bool]:
        config = self._config
        sampler = EngineSampler.of(config.metrics_url, config.proxy_metrics_url)
        processes: list[asyncio.subprocess.Process] = []
        try:
            await sampler.before()
            parts = [self._folder / WORKERS / str(i) for i in range(config.workers)]
            for i, part in enumerate(parts):
                processes.append(await self._spawn(i, part))
            self._forward_signals(processes)
            await asyncio.gather(*(self._ready(process) for process in processes))
            results.clean(self._folder, keep=parts)  # every refusal came before: nothing is lost
            start_s = time.monotonic() + LEAD_S
            if config.start_at is not None:
                start_s = time.monotonic() + config.start_at - time.time()
            for process in processes:
                assert process.stdin is not None
                process.stdin.write(b"%.9f\n" % start_s)  # kept open: see worker
            await self._watch(processes, sampler, start_s)
            await sampler.after(time.monotonic() - start_s)
        finally:
            for process in processes:
                if process.returncode is None:
                    process.terminate()
                    await process.wait()
            await sampler.close()
        return parts, sampler, self._interrupted

    async def _spawn(self, number: int, part: Path) -> asyncio.subprocess.Process:
        config = replace(
            self._config,
            workers=1,
            shard=f"{number}/{self._config.workers}",
            out=str(part),
            metrics_url=(),
            proxy_metrics_url=None,
            metrics_listen=None,
            start_at=None,
        )
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "breakeven_loadgen.replay.worker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stdin is not None
        process.stdin.write(config_line(config))
        return process

    async def _ready(self, process: asyncio.subprocess.Process) -> None:
        """Wait for `ready`.

        Raises:
            InputError, NotReadyError, BreakevenError: the worker ended instead; its words.
        """
        assert process.stdout is not None
        if await process.stdout.readline() == READY:
            return
        assert process.stderr is not None
        words = (await process.stderr.read()).decode("utf-8", "replace").strip().splitlines()
        kinds = {ExitCode.USAGE.value: InputError, ExitCode.UNREACHABLE.value: NotReadyError}
        status = await process.wait()
        raise kinds.get(status, BreakevenError)(words[-1] if words else "a worker ended")

    async def _watch(
        self, processes: list[asyncio.subprocess.Process], sampler: EngineSampler, start_s: float
    ) -> None:
        """Draw progress and sample the engine until every worker has ended."""
        readers = [asyncio.ensure_future(self._read(i, p)) for i, p in enumerate(processes)]
        done = asyncio.gather(*readers)
        while not done.done():
            await asyncio.wait([done], timeout=SAMPLE_S)
            if not done.done():
                await sampler.sample(time.monotonic() - start_s)
            if self._progress is not None and self._glances:
                self._progress.update(together(list(self._glances.values())))
        await done
        for process in processes:
            await process.wait()

    async def _read(self, number: int, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            self._glances[number] = Glance.of_line(line)

    def _forward_signals(self, processes: list[asyncio.subprocess.Process]) -> None:
        """Ctrl-C ends every worker cleanly (they are in sessions of their own)."""
        loop = asyncio.get_running_loop()

        def stop() -> None:
            self._interrupted = True
            for process in processes:
                if process.returncode is None:
                    process.send_signal(signal.SIGINT)

        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                loop.add_signal_handler(number, stop)
            except (ValueError, RuntimeError):
                return  # not the main thread
