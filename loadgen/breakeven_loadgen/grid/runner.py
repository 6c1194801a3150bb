"""Runs a planned grid: contract questions, every run in order, the policy and the restart cell.

Here: the order of things, what is skipped on resume, progress. Not here: one run (replay), what
an arm is asked (contract), decisions (judge). A killed grid loses the run it was in, no more.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from breakeven.errors import BreakevenError, InputError, NotReadyError
from breakeven.exitcodes import ExitCode
from breakeven.units import format_duration
from breakeven_wire import EnginePool, Headers, Origin

from .. import config as settings
from ..config import DEFAULT_EPSILON_S, ReplayConfig
from ..judge.dataset import (
    GRID,
    POLICY,
    GridRecord,
    PlannedRun,
    read_policy,
    read_record,
    write_extra,
    write_record,
)
from ..replay import results
from ..replay.columns import Columns
from ..replay.run import replay
from ..report.progress import progress_for
from ..traffic.formats import SYNTHETIC
from ..traffic.pool import read_pool
from .asking import PROBE_PROMPT, Asker
from .config import GridConfig, goodput_text
from .contract import Messages, ask_arm, quality_counts
from .engines import Engine, Engines
from .gateway import look_ahead, policy_cell_of, run_policy
from .plan import Windows, resolve, skip_of
from .policy_profile import PolicyCell
from .restart import restart_cell, served_model

CALIBRATION = "calibration"
CALIBRATION_REQUESTS = 12
EPSILON_SHARE = 0.3
"""Of the baseline's median event gap: bursts are told from steps well below one step."""
BLOCK_STRIDE = 1000
"""Blocks of different rates draw different prompts: block number + stride * place of the rate."""
BUILT_IN = 8
"""Prompts for greedy answers where no pool is given."""

Say = Callable[[str], None]


class Interrupted(BreakevenError):
    """Ctrl-C or SIGTERM in a run; `grid resume` goes on with it."""


@dataclass(slots=True)
class Job:
    """One grid on disk, being run."""

    folder: Path
    config: GridConfig
    record: GridRecord
    windows: Windows
    base: Path
    say: Say

    @property
    def policy(self) -> PolicyCell | None:
        """The cell of the gateway, if one is given."""
        if self.config.gateway is None:
            return None
        return policy_cell_of(
            self.config.gateway, self.folder / POLICY, model=self.model, seed=self.config.seed,
            timeout_s=self.config.timeout, api_key_env=self.config.api_key_env,
        )  # fmt: skip

    @property
    def model(self) -> str | None:
        """The model that requests ask for; None takes the only one served."""
        return self.config.target.get("model")

    @property
    def headers(self) -> Headers:
        """Request headers; the key is read from the environment by replay's own rule."""
        found = ReplayConfig(api_key_env=self.config.api_key_env)
        headers: Headers = settings.headers_of(found)
        return headers


def start(job: Job) -> None:
    """Write the plan of a new grid, or take up the one that is there.

    Raises:
        InputError: the folder holds another grid, or something else.
    """
    path = job.folder / GRID
    if path.exists():
        stored = read_record(job.folder)
        if replace(stored, epsilon_s=0.0) != replace(job.record, epsilon_s=0.0):
            raise InputError(
                "the folder holds another grid", key="--out", value=str(job.folder),
                mend="resume with the GRID.yaml it was planned from, or choose another folder",
            )  # fmt: skip
        job.record = stored
        return
    held = [p.name for p in job.folder.iterdir()] if job.folder.exists() else []
    if held:
        raise InputError(
            f"the folder holds {held[0]}", key="--out", value=str(job.folder),
            mend="choose an empty folder",
        )  # fmt: skip
    job.folder.mkdir(parents=True, exist_ok=True)
    write_record(job.folder, job.record)


@dataclass(frozen=True, slots=True)
class Finished:
    """What did not go as it should.

    `gates`: "FOLDER: gate NAME failed" for each run that is no evidence; `policy`: why the policy
    cell did not pass.
    """

    gates: tuple[str, ...]
    policy: tuple[str, ...]


def run(job: Job) -> Finished:
    """Run whatever has not finished yet.

    Raises:
        InputError: the policy cell cannot judge the gateway that is given.
        NotReadyError: an arm or the gateway cannot be reached. Interrupted: stopped by the user.
    """
    start(job)
    if job.policy is not None:
        look_ahead(job.policy, job.say)
    with Engines(job.folder / "logs", job.model) as engines:
        _contract(job, engines)
        _calibrate(job, engines)
        failed = _runs(job, engines)
        try:
            policy = _policy(job)  # before the restarts: they end engines that may stand behind it
        except NotReadyError:
            _restarts(job, engines)  # a gateway that is not there holds nothing else up
            raise
        _restarts(job, engines)
    return Finished(tuple(failed), tuple(policy))


def done(folder: Path, run_: PlannedRun) -> bool:
    """Whether a run has finished."""
    place = folder / run_.folder
    if not (place / results.SUMMARY).exists():
        return False
    return results.read_record(place).get("state") == "finished"


# --- before the runs ------------------------------------------------------------------------------


def _contract(job: Job, engines: Engines) -> None:
    """Identity, probes and greedy answers of every arm, once."""
    if (job.folder / "quality.json").exists():
        return
    prompts = _prompts(job)
    shown = {}
    for name, arm in job.config.arms.items():
        job.say(f"contract: asking {name}")
        engine = engines.ready(name, arm)
        model = asyncio.run(served_model(engine.url, job.headers, job.model))
        twice = arm.role == "baseline"
        shown[name] = asyncio.run(ask_arm(engine.url, job.headers, model, prompts, twice=twice))
        engines.release(name, arm)
    base = shown[job.config.baseline]
    write_extra(job.folder, "identity", {n: s.identity for n, s in shown.items()})
    write_extra(job.folder, "probes", {n: s.probes for n, s in shown.items()})
    counts = {
        n: quality_counts(base, None if n == job.config.baseline else s) for n, s in shown.items()
    }
    write_extra(job.folder, "quality", counts)


def _prompts(job: Job) -> list[Messages]:
    """Prompts for greedy answers: the user's own where a pool is given; they stay in memory."""
    count = job.config.contract.prompts if job.config.contract else BUILT_IN
    if job.config.content is None:
        texts = [f"{PROBE_PROMPT} ({i})" for i in range(min(count, BUILT_IN))]
        return [[{"role": "user", "content": text}] for text in texts]
    entries = read_pool(str(resolve(job.config.content, job.base))).entries[:count]
    out: list[Messages] = []
    for entry in entries:
        messages = entry.messages
        if messages is None:
            messages = ({"role": "user", "content": entry.prompt},)
        out.append([dict(one) for one in messages])
    return out


def _calibrate(job: Job, engines: Engines) -> None:
    """Fix the burst threshold before the first run: min(2 ms, 0.3 x the median event gap)."""
    finished = any(done(job.folder, run_) for run_ in job.record.runs)
    if job.config.epsilon is not None or finished or (job.folder / CALIBRATION).exists():
        return
    name = job.config.baseline
    job.say(f"calibrating the burst threshold on {name}")
    engine = engines.ready(name, job.config.arms[name])
    low = min(job.record.runs, key=lambda r: r.rate)
    config = replace(
        replay_config(job, low, engine),
        out=str(job.folder / CALIBRATION), duration=None, warmup=0.0,
        requests=CALIBRATION_REQUESTS, force=True,
    )  # fmt: skip
    replay(config)
    columns = Columns(results.read_rows(job.folder / CALIBRATION))
    gaps = columns.burst_gaps_s()
    epsilon = DEFAULT_EPSILON_S
    if len(gaps):
        epsilon = min(epsilon, EPSILON_SHARE * float(np.median(gaps)))
    job.record = replace(job.record, epsilon_s=epsilon)
    write_record(job.folder, job.record)
    engines.release(name, job.config.arms[name])


# --- the runs -------------------------------------------------------------------------------------


def _runs(job: Job, engines: Engines) -> list[str]:
    left = [run_ for run_ in job.record.runs if not done(job.folder, run_)]
    skipped = len(job.record.runs) - len(left)
    if skipped:
        job.say(f"{skipped} runs have finished already")
    failed: list[str] = []
    began = time.monotonic()
    for i, run_ in enumerate(left):
        job.say(_line(job, run_, i, len(left), time.monotonic() - began))
        failed += _one(job, engines, run_)
    return failed


def _line(job: Job, run_: PlannedRun, i: int, total: int, spent_s: float) -> str:
    each = spent_s / i if i else job.record.window_s + job.record.warmup_s
    gateway = job.record.gateway
    after_s = 0.0 if gateway is None or read_policy(job.folder) else gateway.seconds
    left = format_duration(each * (total - i) + after_s)
    again = " (A/A)" if run_.repeat else ""
    return (
        f"run {i + 1}/{total}: {run_.arm}{again} at {run_.rate:g}/s, block {run_.block}, "
        f"{run_.cell}; about {left} left"
    )


def _one(job: Job, engines: Engines, run_: PlannedRun) -> list[str]:
    arm = job.config.arms[run_.arm]
    engine = engines.ready(run_.arm, arm)
    config = replay_config(job, run_, engine)
    if job.config.prefix_cache == "reset":
        asyncio.run(_reset_prefix_cache(engine.url, job.headers))
    if run_.traffic == "warm_cache":
        warm = job.folder / "warm" / Path(run_.folder).name
        replay(replace(config, out=str(warm), force=True))
    with progress_for(sys.stderr, f"{run_.arm} {run_.rate:g}/s b{run_.block}") as progress:
        result = replay(config, progress=progress)
    if result.exit_code is ExitCode.INTERRUPTED:
        raise Interrupted("interrupted; go on with loadgen grid resume")
    engines.release(run_.arm, arm)
    return [f"{run_.folder}: gate {name} failed" for name in result.failed_gates]


def replay_config(job: Job, run_: PlannedRun, engine: Engine) -> ReplayConfig:
    """The replay of one planned run; the same for every arm but for where it goes."""
    config = job.config
    trace = config.trace
    if run_.traffic == "long_context" and config.long_context is not None:
        trace = config.long_context
    if not trace.startswith(SYNTHETIC):
        trace = str(resolve(trace, job.base))
    seconds = config.window + config.warmup
    loads = sorted(config.rates, key=lambda name: config.rates[name])
    content = None if config.content is None else str(resolve(config.content, job.base))
    same_trace = run_.traffic != "long_context"
    return ReplayConfig(
        trace=trace,
        url=engine.url,
        model=job.model,
        out=str(job.folder / run_.folder),
        rate=run_.rate,
        arrival=config.arrival,
        duration=config.window,
        warmup=config.warmup,
        skip=skip_of(job.windows, run_.rate, seconds, run_.block, config.blocks)
        if same_trace
        else 0,
        cancel_share=config.cancel_share if run_.traffic == "cancellation" else 0.0,
        seed=config.seed,
        endpoint=config.endpoint,
        content=content,
        content_label=config.content_label,
        reuse_content=config.reuse_content,
        output_length=config.output_length,
        sampling=config.sampling,
        max_inflight=config.max_inflight,
        timeout=config.timeout,
        api_key_env=config.api_key_env,
        stamps=config.stamps,
        epsilon=job.record.epsilon_s,
        goodput=goodput_text(job.record.slo),
        usd_per_hour=_price(job, run_.arm),
        acceptance=_acceptance(job, run_.arm),
        metrics_url=_metrics_urls(job, run_.arm, engine),
        force=True,
        arm=run_.arm,
        block=run_.block + BLOCK_STRIDE * loads.index(run_.load),
    )


def _price(job: Job, name: str) -> float | None:
    usd = next(arm.fleet.usd_per_hour for arm in job.record.arms if arm.name == name)
    return usd if usd > 0 else None


def _acceptance(job: Job, name: str) -> Any:
    """measured, unless stated otherwise, or the method is synthetic, or the engine simulated."""
    arm = job.config.arms[name]
    if arm.acceptance is not None:
        return arm.acceptance
    simulated = arm.sim is not None and arm.sim.draft != "none"
    return "synthetic" if simulated or arm.rejection_sample_method == "synthetic" else "measured"


def _metrics_urls(job: Job, name: str, engine: Engine) -> tuple[str, ...]:
    given = job.config.arms[name].metrics_url
    if given is None:
        # Only an engine that we started is known to have its metrics there.
        return (f"{engine.url}/metrics",) if engine.process is not None else ()
    return (given,) if isinstance(given, str) else given


async def _reset_prefix_cache(url: str, headers: Headers) -> bool:
    """Ask the engine to forget its prefix cache; False where it does not offer that."""
    pool = EnginePool(Origin.parse(url), stamps="loop")
    try:
        status, _ = await Asker(pool, headers, "").post("/reset_prefix_cache", {})
        return status == 200
    finally:
        await pool.close()


# --- after the runs -------------------------------------------------------------------------------


def _policy(job: Job) -> list[str]:
    if job.policy is None:
        return []
    found = run_policy(job.folder, job.policy, job.say)
    if found is None:
        raise Interrupted("interrupted; go on with loadgen grid resume")
    return found


def _restarts(job: Job, engines: Engines) -> None:
    if "restart_fallback" not in job.config.cells or (job.folder / "restart.json").exists():
        return
    baseline = (job.config.baseline, job.config.arms[job.config.baseline])
    found: dict[str, Any] = {}
    for name, arm in job.config.arms.items():
        if arm.role == "candidate":
            job.say(f"restart and fallback: {name}")
            found[name] = restart_cell(engines, (name, arm), baseline, job.model, job.headers)
    write_extra(job.folder, "restart", found)
