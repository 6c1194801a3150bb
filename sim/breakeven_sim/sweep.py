"""Offline tables of the model: static batches, and open-loop rates on a virtual clock.

No server, no real time: the same engine as the served one, driven by `engine.run`. Everything here
is simulated; the figures are compared with published shapes by tests/sim/test_published.py.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np

from .config import engine_config
from .defaults import BATCHES, CONTEXT_TOKENS, USD_PER_HOUR
from .drafts import Draft, k_rows
from .engine import EngineConfig, SimEngine, Step, run
from .errors import SimInputError
from .model import Engine
from .sequences import Emission, Sequence
from .workload import Arrival


@dataclass(frozen=True, slots=True)
class Arm:
    """One configuration to compare: `name` as given, e.g. `eagle3:3`; the baseline is `none`."""

    name: str
    config: EngineConfig


def arm_named(spec: str, preset: str, seed: int) -> Arm:
    """`none`, `eagle3:3`, `FILE.json:4`, or `eagle3@1-8:7,9-32:3,33-:0` (k by batch)."""
    draft, _, rows = spec.partition("@")
    if rows:
        return Arm(spec, engine_config(preset, draft, seed=seed, k_by_batch=k_rows(rows)))
    draft, _, depth = spec.partition(":")
    if depth and not depth.isdecimal():
        raise SimInputError(f"arm {spec!r}: write DRAFT:K, e.g. eagle3:3")
    return Arm(spec, engine_config(preset, draft, int(depth) if depth else None, seed=seed))


# -- static ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StaticRow:
    """M and the speed-up over no draft, per batch size."""

    arm: str
    m: float
    speedup: tuple[float, ...]


def static_speedup(engine: Engine, draft: Draft, k: int, batch: int, context: int) -> float:
    """M·T(B) / (T(B·(k+1)) + D(B) + H), every sequence with `context` cached tokens."""
    kv = batch * context
    cycle = engine.step_s(batch * (k + 1), kv) + draft.cost_s(batch, kv, k)
    return draft.committed_per_cycle(k) * engine.step_s(batch, kv) / cycle


def static_row(arm: Arm, batches: Seq[int] = BATCHES, context: int = CONTEXT_TOKENS) -> StaticRow:
    """The static row of one arm."""
    draft, k = arm.config.draft, arm.config.k
    if draft is None or k == 0:
        return StaticRow(arm.name, 1.0, tuple(1.0 for _ in batches))
    speedups = (static_speedup(arm.config.engine, draft, k, b, context) for b in batches)
    return StaticRow(arm.name, draft.committed_per_cycle(k), tuple(speedups))


@dataclass(frozen=True, slots=True)
class Fit:
    """Step time ≈ fixed + per_token·n + per_kv_token·KV, seconds; largest relative error."""

    fixed_s: float
    per_token_s: float
    per_kv_token_s: float
    worst: float


def linear_fit(engine: Engine) -> Fit:
    """Least squares on relative errors over 1..8192 tokens and 0..256k cached tokens."""
    tokens = [2**i for i in range(14)]
    cached = [0, 16_000, 64_000, 256_000]
    grid = [(n, kv) for n in tokens for kv in cached]
    times = np.array([engine.step_s(n, kv) for n, kv in grid])
    columns = np.array([(1.0, n, kv) for n, kv in grid])
    answer, *_ = np.linalg.lstsq(columns / times[:, None], np.ones(len(grid)), rcond=None)
    worst = float(np.max(np.abs(columns @ answer / times - 1.0)))
    return Fit(float(answer[0]), float(answer[1]), float(answer[2]), worst)


# -- open loop ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Window:
    """Which arrivals count, when the run is cut, and what is good. Seconds."""

    warmup_s: float = 60.0
    duration_s: float = 240.0
    drain_s: float = 120.0
    slo_ttft_s: float = 0.5
    slo_tpot_s: float = 0.03
    usd_per_hour: float = USD_PER_HOUR


@dataclass(frozen=True, slots=True)
class RateRow:
    """One arm at one rate. None: undefined (nothing completed, or no baseline). Seconds, USD.

    `mean_batch` is the mean number of decodes per step of the whole run, drain included.
    margin = 1 − (decode seconds per token ÷ the baseline's at the same rate); `c_over_t` is the
    cycle over that T, to be read beside `m`.
    """

    arm: str
    rate_per_s: float
    offered: int
    completed: int
    good_share: float | None
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    tpot_p50_s: float | None
    usd_per_1000_good: float | None
    m: float | None
    cycle_s: float | None
    s_per_token: float | None
    mean_batch: float
    preemptions: int
    margin: float | None = None
    c_over_t: float | None = None
    verdict: Literal["pays", "loses"] | None = None
    simulated: bool = True


def play(arm: Arm, arrivals: Seq[Arrival], rate_per_s: float, window: Window) -> RateRow:
    """Run one arm over the arrivals and sum up the window."""
    engine = SimEngine(arm.config)
    sequences = [
        engine.submit(a.t_s, a.prompt_tokens, a.output_tokens, block_keys=a.block_keys)
        for a in arrivals
    ]
    steps = decodes = 0

    def observe(step: Step, _: list[Emission]) -> None:
        nonlocal steps, decodes
        steps += 1
        decodes += step.decodes

    run(engine, window.duration_s + window.drain_s, observe)
    counted = [s for s in sequences if window.warmup_s <= s.arrival_s < window.duration_s]
    return _row(arm, rate_per_s, counted, window, decodes / max(steps, 1), engine.preemptions)


def _row(
    arm: Arm,
    rate: float,
    counted: list[Sequence],
    window: Window,
    mean_batch: float,
    preemptions: int,
) -> RateRow:
    done = [s for s in counted if s.finish is not None]
    started = [s for s in counted if s.first_s is not None]
    good = sum(_good(s, window) for s in done)
    decoded = [s for s in started if s.output > 1]
    seconds = sum(_decode_s(s) for s in decoded)
    tokens = sum(s.output - 1 for s in decoded)
    cycles = sum(s.steps - 1 for s in decoded)
    # A request that never started waited at least until the run was cut.
    end = window.duration_s + window.drain_s
    waits = [(end if s.first_s is None else s.first_s) - s.arrival_s for s in counted]
    tpots = [_tpot(s) for s in done if s.output > 1]
    hours = (window.duration_s - window.warmup_s) / 3600
    return RateRow(
        arm=arm.name,
        rate_per_s=rate,
        offered=len(counted),
        completed=len(done),
        good_share=good / len(counted) if counted else None,
        ttft_p50_s=_quantile(waits, 0.5),
        ttft_p99_s=_quantile(waits, 0.99),
        tpot_p50_s=_quantile(tpots, 0.5),
        usd_per_1000_good=window.usd_per_hour * hours / good * 1000 if good else None,
        m=tokens / cycles if cycles else None,
        cycle_s=seconds / cycles if cycles else None,
        s_per_token=seconds / tokens if tokens else None,
        mean_batch=mean_batch,
        preemptions=preemptions,
    )


def _decode_s(sequence: Sequence) -> float:
    if sequence.first_s is None or sequence.last_s is None:
        return 0.0
    return sequence.last_s - sequence.first_s


def _tpot(sequence: Sequence) -> float:
    return _decode_s(sequence) / (sequence.output - 1)


def _good(sequence: Sequence, window: Window) -> bool:
    if sequence.first_s is None or sequence.first_s - sequence.arrival_s > window.slo_ttft_s:
        return False
    return sequence.output < 2 or _tpot(sequence) <= window.slo_tpot_s


def _quantile(values: list[float], q: float) -> float | None:
    return float(np.quantile(values, q)) if values else None


def with_margins(rows: Seq[RateRow]) -> list[RateRow]:
    """Compare each row with the `none` row of the same rate."""
    base = {row.rate_per_s: row for row in rows if row.arm == "none"}
    return [_compared(row, base.get(row.rate_per_s)) for row in rows]


def _compared(row: RateRow, base: RateRow | None) -> RateRow:
    if base is None or base is row or not base.s_per_token or row.s_per_token is None:
        return row
    margin = 1.0 - row.s_per_token / base.s_per_token
    return RateRow(
        **{
            **asdict(row),
            "margin": margin,
            "c_over_t": (row.cycle_s or 0.0) / base.s_per_token,
            "verdict": "pays" if margin > 0 else "loses",
        }
    )
