"""The plan of a grid: every run in its order, with its window of the trace, time and cost.

Here: from settings to `GridRecord`. Not here: running, printing (show). Nothing is predicted:
the plan holds no figure that a run would have to measure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from breakeven.errors import InputError

from ..judge.dataset import ArmRecord, GridRecord, PlannedRun, Traffic
from ..traffic.formats import SYNTHETIC, load_trace
from .blocks import orders
from .cells import CELLS, arms_of, cell_of
from .config import GridConfig, contract_of, fleet_of, slo_of
from .gateway import CELL, gateway_record

SETTLE_S = 2.0
"""Between two runs: connections close, the engine's last step ends."""
AA_SUFFIX = "-aa"


@dataclass(frozen=True, slots=True)
class Windows:
    """Which arrivals each block replays.

    Attributes:
        arrivals: in the trace; 0 for synthetic traffic, which is drawn anew per block.
        notes: what a reader should know, e.g. that windows overlap.
    """

    arrivals: int
    notes: tuple[str, ...] = ()


def make_plan(config: GridConfig, base: Path) -> tuple[GridRecord, Windows]:
    """The record of an unfilled grid.

    Raises:
        InputError: the trace cannot be read, or is too short for a window.
    """
    windows = _windows(config, base)
    runs = _runs(config)
    target = {"target_model": config.target.get("model"), **config.target}
    record = GridRecord(
        target=target,
        arms=tuple(_arm(name, config) for name in config.arms),
        rates=config.rates,
        blocks=config.blocks,
        window_s=config.window,
        warmup_s=config.warmup,
        slo=slo_of(config),
        contract=contract_of(config),
        runs=tuple(runs),
        epsilon_s=config.epsilon if config.epsilon is not None else 0.002,
        seed=config.seed,
        cells=_cells(config),
        gateway=gateway_record(config.gateway),
        previous_deployable=config.previous_deployable,
    )
    return record, windows


def _cells(config: GridConfig) -> tuple[str, ...]:
    """Those that were asked for, and `policy` where a gateway is given."""
    more = config.gateway is not None and CELL not in config.cells
    return (*config.cells, CELL) if more else config.cells


def _arm(name: str, config: GridConfig) -> ArmRecord:
    arm = config.arms[name]
    base = config.arms[config.baseline]
    bigger = (arm.gpus + arm.draft_gpus) > (base.gpus + base.draft_gpus)
    how = "sim" if arm.sim else "launch" if arm.launch else "url"
    family = arm.family or (arm.sim.draft if arm.sim and arm.sim.draft != "none" else None)
    k = arm.k if arm.k is not None else (arm.sim.k if arm.sim else None)
    return ArmRecord(
        name, arm.role, fleet_of(arm), k, family, arm.rejection_sample_method,
        arm.separate or bigger, how,
    )  # fmt: skip


def _runs(config: GridConfig) -> list[PlannedRun]:
    baseline = config.baseline
    candidates = [name for name in config.arms if name != baseline]
    loads = sorted(config.rates, key=lambda name: config.rates[name])
    runs: list[PlannedRun] = []
    for load in loads:
        names = _arms_at(config, load, loads, baseline, candidates)
        items = [*names, baseline + AA_SUFFIX] if config.aa and baseline in names else names
        if not items:
            continue
        seed = config.seed * 1009 + loads.index(load)
        for block, order in enumerate(orders(items, config.blocks, seed)):
            for position, item in enumerate(order):
                repeat = item == baseline + AA_SUFFIX
                arm = baseline if repeat else item
                cell = "baseline" if repeat else cell_of(arm, baseline, candidates)
                runs.append(_run(len(runs), cell, arm, load, config, block, position, repeat))
    for name in config.cells:
        extra = CELLS[name]
        if extra.traffic in ("main", "restart", "policy"):
            continue
        if extra.traffic == "long_context" and config.long_context is None:
            continue
        arms = arms_of(name, baseline, candidates)
        for block, order in enumerate(orders(arms, config.blocks, config.seed + 7919)):
            for position, arm in enumerate(order):
                runs.append(
                    _run(len(runs), name, arm, loads[0], config, block, position, False,
                         extra.traffic)
                )  # fmt: skip
    return runs


def _arms_at(
    config: GridConfig, load: str, loads: list[str], baseline: str, candidates: list[str]
) -> list[str]:
    """Arms of the main traffic at one rate: those whose cell is asked for, or `peak` at the top."""
    wanted: list[str] = []
    for name in config.cells:
        cell = CELLS[name]
        here = cell.rates == "all" or (cell.rates == "peak" and load == loads[-1])
        if cell.traffic == "main" and here:
            wanted += arms_of(name, baseline, candidates)
    return [name for name in [baseline, *candidates] if name in wanted]


def _run(
    index: int,
    cell: str,
    arm: str,
    load: str,
    config: GridConfig,
    block: int,
    position: int,
    repeat: bool,
    traffic: Traffic = "main",
) -> PlannedRun:
    tag = AA_SUFFIX if repeat else ""
    kind = "" if traffic == "main" else f"-{traffic}"
    folder = f"runs/{index:04d}-{load}{kind}-b{block}-{arm}{tag}"
    return PlannedRun(
        index, cell, arm, load, config.rates[load], block, position, folder, repeat, traffic
    )


def _windows(config: GridConfig, base: Path) -> Windows:
    if config.trace.startswith(SYNTHETIC) or (config.arrival or "trace") != "trace":
        return Windows(0)
    arrivals = len(load_trace(str(resolve(config.trace, base))).arrivals)
    top = max(config.rates.values())
    need = window_arrivals(top, config.window + config.warmup)
    if arrivals < need:
        raise InputError(
            f"the trace holds {arrivals} arrivals, a window at {top:g}/s takes {need}",
            key="trace", value=config.trace,
            mend="shorten window and warmup, lower the rate, or set arrival: poisson",
        )  # fmt: skip
    if arrivals < need * config.blocks:
        note = f"windows of different blocks overlap: {arrivals} arrivals, {need} in each window"
        return Windows(arrivals, (note,))
    return Windows(arrivals)


def window_arrivals(rate: float, seconds: float) -> int:
    """Arrivals of one window."""
    return max(1, math.ceil(rate * seconds))


def skip_of(windows: Windows, rate: float, seconds: float, block: int, blocks: int) -> int:
    """Arrivals to pass over for a block: windows side by side, or spread evenly if they overlap."""
    if windows.arrivals == 0 or blocks < 2:
        return 0
    need = window_arrivals(rate, seconds)
    if windows.arrivals >= need * blocks:
        return block * need
    return (windows.arrivals - need) * block // (blocks - 1)


def resolve(path: str, base: Path) -> Path:
    """A file named in GRID.yaml: beside it, or where the command was called."""
    beside = base / path
    return beside if beside.exists() else Path(path)


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a grid will take at least: seconds on the wall, and dollars of all arms' fleets."""

    runs: int
    seconds: float
    usd: float | None


def estimate(record: GridRecord, done: int = 0) -> Estimate:
    """Windows, warm-ups and settling; drains and launches come on top and are not guessed.

    The policy cell counts as one run: its whole profile.
    """
    each = record.window_s + record.warmup_s + SETTLE_S
    left = len(record.runs) - done
    seconds = left * each
    if record.gateway is not None:
        left, seconds = left + 1, seconds + record.gateway.seconds
    hourly = sum(arm.fleet.usd_per_hour for arm in record.arms)
    return Estimate(left, seconds, hourly * seconds / 3600 if hourly > 0 else None)
