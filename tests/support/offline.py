"""Grids on the engine model, offline: the simulator's discrete steps on a virtual clock.

Builds the judge's `Grid` in memory, as a grid folder would give it, or writes that folder. Used
by the judge's tests, the scenario suite and the truth study. The judge itself imports no
simulator: here two rooms meet, as they would over HTTP.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from breakeven.costs import Fleet
from breakeven.provenance import AcceptanceKind, ContentKind, EngineKind, Labels
from breakeven.slo import SLO
from breakeven_loadgen.judge.dataset import (
    ArmRecord,
    ContractRecord,
    Grid,
    GridRecord,
    PlannedRun,
    RunData,
    Traffic,
)
from breakeven_loadgen.judge.figures import COLUMNS, Rows
from breakeven_sim.drafts import Draft
from breakeven_sim.engine import EngineConfig, SimEngine, run
from breakeven_sim.model import ENGINES, Engine

WORD_COLUMNS = ("cohort", "verdict", "finish_reason", "sampling", "stream", "warmup",
                "content_hash", "system_fingerprint")  # fmt: skip
EVIDENCE = Labels(EngineKind.REAL, ContentKind.REAL, AcceptanceKind.MEASURED)
"""Labels that let the table speak as it would on real data; tests that use them say so."""
SIMULATED = Labels(EngineKind.SIMULATED, ContentKind.SYNTHETIC, AcceptanceKind.SYNTHETIC)

TIGHT_SLO = SLO(ttft_s=0.5, tpot_s=0.03, gap_p99_s=0.2, e2e_s=20.0, objective=0.99)
DRAIN_S = 60.0
KNEE_34 = Engine("knee-34", 5.5e-3, 160e-6, 1.5, 39e-9, 1.2e-3, 410_000, "8B")
"""The 8B preset with an eightfold compute cost per token: verification stops being nearly free at
34 tokens instead of 270, so that reversals happen at batches that a test can simulate."""


@dataclass(frozen=True)
class Shape:
    """What arrives: Poisson, log-normal lengths, cohorts by share."""

    prompt: tuple[float, float] = (180.0, 0.8)
    output: tuple[float, float] = (100.0, 0.5)
    prompt_clip: tuple[int, int] = (16, 4000)
    output_clip: tuple[int, int] = (8, 400)
    cohorts: Mapping[str, float] = field(default_factory=lambda: {"chat": 1.0})
    prefixes: int = 0


@dataclass(frozen=True)
class Arm:
    """One simulated arm. `by_cohort` gives a cohort other conditional acceptance."""

    draft: Draft | None = None
    k: int = 0
    engine: Engine = ENGINES["8b-h100"]
    by_cohort: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    prefix_caching: bool = True
    fleet: Fleet = field(default_factory=lambda: Fleet(usd_per_gpu_hour=3.0))
    method: str | None = "strict"
    family: str | None = None
    decay: float = 0.0
    """Share of acceptance lost per 1,000 prompt tokens."""


@dataclass(frozen=True)
class Noise:
    """Measurement noise: shared by a block (cancels in ratios), and of each run by itself."""

    block: float = 0.05
    run: float = 0.02


QUIET = Noise(0.0, 0.0)
Alter = Callable[[RunData], RunData]


@dataclass(frozen=True)
class Arrived:
    """One arrival of a window."""

    at_s: float
    prompt: int
    output: int
    cohort: str
    prefix: int


def window(traffic: Shape, rate: float, seconds: float, seed: int) -> list[Arrived]:
    """The arrivals of one trace window; the same for every arm."""
    rng = random.Random(seed)
    names, weights = list(traffic.cohorts), list(traffic.cohorts.values())
    out: list[Arrived] = []
    at = rng.expovariate(rate)
    while at < seconds:
        prompt = _length(rng, *traffic.prompt, traffic.prompt_clip)
        output = _length(rng, *traffic.output, traffic.output_clip)
        cohort = rng.choices(names, weights)[0]
        prefix = rng.randrange(traffic.prefixes) if traffic.prefixes else -1
        out.append(Arrived(at, prompt, output, cohort, prefix))
        at += rng.expovariate(rate)
    return out


def _length(rng: random.Random, median: float, sigma: float, clip: tuple[int, int]) -> int:
    return max(clip[0], min(clip[1], round(median * math.exp(rng.gauss(0.0, sigma)))))


def simulate(
    arm: Arm, arrivals: Sequence[Arrived], seconds: float, seed: int, slo: SLO, factor: float = 1.0
) -> tuple[Rows, dict[str, Any], float]:
    """One run: (rows, accounting of the metrics page, seconds until the last response)."""
    config = EngineConfig(
        arm.engine, arm.draft, arm.k, prefix_caching=arm.prefix_caching, seed=seed
    )
    engine = SimEngine(config)
    sequences = []
    for one in arrivals:
        keys: tuple[int, ...] = ()
        if one.prefix >= 0:
            keys = tuple(one.prefix * 10_000 + i for i in range(one.prompt // 16))
        sequence = engine.submit(
            one.at_s, one.prompt, one.output, block_keys=keys, keep_events=True
        )
        _shape(sequence, arm, one)
        sequences.append(sequence)
    counts = {"accepted": 0, "drafted": 0, "drafts": 0}
    positions = [0.0] * arm.k
    step_s = [0.0]

    def observe(step: Any, emissions: Any) -> None:
        step_s[0] += step.duration_s * step.decodes
        for _, _, accepted, drafted in emissions:
            if drafted:
                for i in range(accepted):
                    positions[i] += 1
                counts["accepted"] += accepted
                counts["drafted"] += drafted
                counts["drafts"] += 1

    end_s = run(engine, seconds + DRAIN_S, observe)
    rows = _rows(arrivals, sequences, slo, factor)
    g = sum(s.output for s in sequences)
    f = sum(1 for s in sequences if s.first_s is not None)
    events = sum(len(s.event_s) for s in sequences)
    steps = events - f
    page: dict[str, Any] = {
        "schema": "vllm-v1",
        "g": float(g), "f": float(f), "s": float(steps),
        "m": (g - f) / steps if steps else None,
        "k": arm.k or None,
        "drafts": float(counts["drafts"]) if arm.draft else None,
        "acceptance": counts["accepted"] / counts["drafted"] if counts["drafted"] else None,
        "draft_tokens": float(counts["drafted"]) if arm.draft else None,
        "accepted": float(counts["accepted"]) if arm.draft else None,
        "accepted_per_position": positions if arm.draft else None,
        "step_s": step_s[0],
        "kv_capacity_tokens": config.kv_capacity_tokens,
        "counters": {
            "preemptions": float(engine.preemptions),
            "prefix_cache_queries": float(engine.prefix_queries),
            "prefix_cache_hits": float(engine.prefix_hits),
        },
        "resets": (),
    }  # fmt: skip
    return rows, page, max(end_s, seconds)


def _shape(sequence: Any, arm: Arm, one: Arrived) -> None:
    """Acceptance of one request by its cohort and its context."""
    if arm.draft is None:
        return
    if one.cohort in arm.by_cohort:
        other = replace(arm.draft, conditional=arm.by_cohort[one.cohort])
        sequence.survival = other.survival(arm.k)
    if arm.decay:
        kept = math.exp(-arm.decay * one.prompt / 1000)
        sequence.survival = tuple(s * kept for s in sequence.survival)


def _rows(arrivals: Sequence[Arrived], sequences: Sequence[Any], slo: SLO, factor: float) -> Rows:
    n = len(arrivals)
    names = tuple(name for name in COLUMNS if name not in WORD_COLUMNS)
    columns = {name: np.full(n, np.nan) for name in names}
    verdicts = []
    for i, (one, sequence) in enumerate(zip(arrivals, sequences, strict=True)):
        verdicts.append(_fill(columns, i, one, sequence, slo, factor))
    return Rows(
        columns,
        np.array([one.cohort for one in arrivals], np.str_),
        np.array(verdicts, np.str_),
        np.array([s.finish or "" for s in sequences], np.str_),
        np.array(["greedy"] * n, np.str_),
        np.ones(n, bool),
    )


def _fill(
    c: dict[str, np.ndarray], i: int, one: Arrived, sequence: Any, slo: SLO, factor: float
) -> str:
    if sequence.finish is None or sequence.first_s is None:
        return "timeout"
    events = np.asarray(sequence.event_s)
    gaps = np.sort(np.diff(events)) * factor
    c["ttft_s"][i] = (sequence.first_s - one.at_s) * factor
    c["e2e_s"][i] = (sequence.last_s - one.at_s) * factor
    c["decode_s"][i] = (sequence.last_s - sequence.first_s) * factor
    c["decode_tokens"][i] = sequence.output - 1
    c["events"][i] = len(events)
    c["prompt_tokens"][i] = one.prompt
    c["output_tokens"][i] = sequence.output
    c["max_burst_tokens"][i] = max(sequence.event_tokens)
    if sequence.output > 1:
        c["tpot_s"][i] = c["decode_s"][i] / (sequence.output - 1)
    if len(gaps):
        c["gap_p99_s"][i] = gaps[max(0, math.ceil(0.99 * len(gaps)) - 1)]
        c["gap_max_s"][i] = gaps[-1]
    for name, word in (("ttft_s", "slow_ttft"), ("gap_p99_s", "slow_gap"), ("tpot_s", "slow_tpot"),
                       ("e2e_s", "slow_e2e")):  # fmt: skip
        bound = slo.bounds().get(name)
        if bound is not None and c[name][i] > bound:
            return word
    return "good"


@dataclass(frozen=True)
class Plan:
    """An offline grid. `alter` maps an arm's name to a change of its finished runs."""

    arms: Mapping[str, Arm]
    rates: Mapping[str, float] = field(
        default_factory=lambda: {"low": 2.0, "normal": 12.0, "peak": 30.0}
    )
    blocks: int = 8
    window_s: float = 12.0
    traffic: Shape = field(default_factory=Shape)
    noise: Noise = field(default_factory=Noise)
    slo: SLO = TIGHT_SLO
    contract: ContractRecord | None = field(default_factory=ContractRecord)
    labels: Labels = EVIDENCE
    seed: int = 1
    aa: bool = True
    alter: Mapping[str, Alter] = field(default_factory=dict)
    cells: Mapping[Traffic, Shape] = field(default_factory=dict)
    """Cells before promotion: what they replay, at the lowest rate."""


def grid(plan: Plan, **extras: Any) -> Grid:
    """The grid in memory: the baseline is the first arm. `extras` as in judge.dataset."""
    baseline = next(iter(plan.arms))
    planned: list[PlannedRun] = []
    runs: list[RunData] = []
    for traffic, load, block, name, repeat in _order(plan, baseline):
        index = len(planned)
        suffix = "-aa" if repeat else ""
        one = PlannedRun(
            index, "baseline" if name == baseline else name, name, load, plan.rates[load], block,
            index % (len(plan.arms) + 1), f"runs/{index:04d}-{load}-b{block}-{name}{suffix}",
            repeat, traffic,
        )  # fmt: skip
        planned.append(one)
        found = run_of(plan, one)
        alter = plan.alter.get(name)
        runs.append(alter(found) if alter and not repeat else found)
    record = GridRecord(
        target={"target_model": "model", "hardware": "1x H100", "engine_version": None},
        arms=tuple(
            ArmRecord(
                name, "baseline" if name == baseline else "candidate", arm.fleet,
                arm.k or None, arm.family, arm.method if arm.draft else None,
                arm.fleet.draft_gpus > 0, "offline",
            )
            for name, arm in plan.arms.items()
        ),
        rates=plan.rates,
        blocks=plan.blocks,
        window_s=plan.window_s,
        warmup_s=0.0,
        slo=plan.slo,
        contract=plan.contract,
        runs=tuple(planned),
        seed=plan.seed,
        cells=("baseline", "short_draft"),
    )  # fmt: skip
    return Grid(record, tuple(runs), **extras)


def _order(plan: Plan, baseline: str) -> list[tuple[Traffic, str, int, str, bool]]:
    out: list[tuple[Traffic, str, int, str, bool]] = []
    lowest = min(plan.rates, key=lambda name: plan.rates[name])
    for traffic, loads in (("main", list(plan.rates)), *((t, [lowest]) for t in plan.cells)):
        for load in loads:
            for block in range(plan.blocks):
                out += [(traffic, load, block, name, False) for name in plan.arms]  # type: ignore[misc]
                if plan.aa and traffic == "main":
                    out.append(("main", load, block, baseline, True))
    return out


DONE_MAX = 512
_DONE: dict[str, tuple[Rows, dict[str, Any], float]] = {}
"""Runs that were simulated already: most scenarios share their baseline. Never changed in place."""


def run_of(plan: Plan, one: PlannedRun) -> RunData:
    """One run of an offline grid."""
    traffic = plan.cells[one.traffic] if one.traffic != "main" else plan.traffic
    seed = plan.seed * 1_000_003 + one.block * 101 + round(one.rate * 10)
    arrivals = window(traffic, one.rate, plan.window_s, seed)
    weather = np.random.default_rng([seed, 7]).normal(0, 1) * plan.noise.block
    own = np.random.default_rng([seed, one.index]).normal(0, 1) * plan.noise.run
    arm, factor = plan.arms[one.arm], math.exp(weather + own)
    key = repr((arm, traffic, one.rate, plan.window_s, seed + one.index, plan.slo, factor))
    if key not in _DONE:
        if len(_DONE) >= DONE_MAX:
            _DONE.clear()
        _DONE[key] = simulate(arm, arrivals, plan.window_s, seed + one.index, plan.slo, factor)
    rows, page, drained_s = _DONE[key]
    gates = dict.fromkeys(("schedule", "accounting", "client", "tokens"), (True, ""))
    return RunData(
        plan=one,
        rows=rows,
        labels=plan.labels,
        gates=gates | {"stability": (None, "not evaluated offline")},
        engine=(page,),
        facts={
            "schedule": f"s{seed}", "content": f"c{seed}", "engine_version": "0.33.0",
            "model": "model", "system_fingerprint": f"fp-{one.arm}",
        },
        drained_s=drained_s,
    )  # fmt: skip


def true_margin(plan: Plan, arm: str, rate: float, seconds: float = 150.0, seed: int = 99) -> float:
    """Margin of an arm without noise, on one long window of its own (no block of the grid)."""
    baseline = next(iter(plan.arms))
    arrivals = window(plan.traffic, rate, seconds, seed * 7919 + plan.seed)
    per_token = []
    for name in (baseline, arm):
        rows, _, _ = simulate(plan.arms[name], arrivals, seconds, seed, plan.slo)
        whole = rows["decode_tokens"] > 0
        per_token.append(
            float(np.sum(rows["decode_s"][whole]) / np.sum(rows["decode_tokens"][whole]))
        )
    return 1 - per_token[1] / per_token[0]
