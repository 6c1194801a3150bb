"""Validity gates across the arms of a grid: named constants, one function each.

Here: blocks, single runs, workload equality, identity, A/A, plausibility. Not here: the gates of
one run (replay.gates), whose verdicts are read. `passed` None: could not be evaluated, which
fails nothing but is printed. Source: docs/definitions.md, "Experiment".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from breakeven.facts import MIN_GAIN

from ..replay.gates import GateResult
from ..replay.summary import NEAR_EPSILON
from .dataset import Grid, RunData
from .figures import Figures, summed
from .pairs import Book, faults, s_per_token
from .statistics import MIN_BLOCKS, noise_floor

LENGTH_RATIO = (0.97, 1.03)
"""Mean output tokens per answer, candidate over baseline: other lengths, other work."""
HIT_RATE_POINTS = 0.02
"""Difference of prefix-cache hit rates: a warm arm against a cold one compares caches."""
FINISH_MIX = 0.05
"""Total variation distance of the finish reasons' shares."""
ANSWERED_MIN = 0.98
"""Below this answered share lengths say who failed, not what was asked: not evaluated."""
AA_P = 0.01
"""An A/A difference with a smaller p, and larger than MIN_GAIN, is a fault of the setup."""
FAILED_RUNS_MAX = 0.25
"""Above this share of failed runs it is no accident of single runs."""
M_SLACK = 1e-6
MIN_TRAILING = 0.999
"""Rounding allowed where one sum must not exceed another."""


def grid_gates(book: Book, arm: str) -> list[GateResult]:
    """All gates of one candidate over the whole grid."""
    loads = list(book.grid.record.rates)
    return [
        single_runs(book.grid, arm),
        blocks(book, arm, loads),
        workload(book, arm, loads),
        identity(book.grid, arm),
        aa(book, loads),
        plausibility(book, arm, loads),
    ]


def single_runs(grid: Grid, arm: str) -> GateResult:
    """Runs whose own gates failed, of the baseline or this candidate; their blocks do not count.

    Single ones are left out with their block; many say that the setup itself is unsound.
    """
    names = {grid.record.baseline.name, arm}
    mine = [run for run in grid.runs if run.plan.arm in names and not run.plan.repeat]
    bad = [(run, fault) for run in mine for fault in faults(run)[:1]]
    figures = {"runs": float(len(mine)), "failed": float(len(bad))}
    if not bad:
        return GateResult("runs", True, f"all {len(mine)} runs passed their own gates", figures)
    run, fault = bad[0]
    reason = f"{len(bad)} of {len(mine)} runs failed, the first ({run.plan.folder}) {fault}"
    return GateResult("runs", len(bad) <= FAILED_RUNS_MAX * len(mine), reason, figures)


def blocks(book: Book, arm: str, loads: Iterable[str]) -> GateResult:
    """At least MIN_BLOCKS blocks of sound runs in both arms, at every rate."""
    counts = {load: len(book.pairs(arm, load)) for load in loads}
    least = min(counts.values(), default=0)
    figures = {f"blocks@{load}": float(count) for load, count in counts.items()}
    if least >= MIN_BLOCKS:
        return GateResult("blocks", True, f"at least {least} blocks at every rate", figures)
    load = min(counts, key=lambda name: counts[name], default="?")
    first = next((f for r in book.grid.runs if r.plan.load == load for f in faults(r)), None)
    why = f"; runs failed with {first}" if first else ""
    reason = f"{least} sound blocks at {load}, {MIN_BLOCKS} are needed{why}"
    return GateResult("blocks", False, reason, figures)


def workload(book: Book, arm: str, loads: Iterable[str]) -> GateResult:
    """Both arms did the same work: arrivals, prompts, lengths, ends, sampling, cache."""
    found: dict[str, float] = {}
    for load in loads:
        pairs = book.pairs(arm, load)
        if not pairs:
            continue
        for pair in pairs:
            fault = _same_inputs(pair.base_run, pair.arm_run)
            if fault:
                return GateResult("workload", False, f"{fault} at {load}, block {pair.block}")
        base = summed([pair.base for pair in pairs])
        other = summed([pair.arm for pair in pairs])
        fault = _same_work(base, other, load, found)
        fault = fault or _same_cache(pairs, load, found)
        if fault:
            return GateResult("workload", False, fault, found)
    if not found:
        return GateResult("workload", None, "no answers to compare")
    return GateResult("workload", True, "same prompts, lengths, ends, sampling and cache", found)


def _same_inputs(base: RunData, other: RunData) -> str | None:
    for name, what in (("schedule", "arrivals"), ("content", "prompts")):
        left, right = base.facts.get(name), other.facts.get(name)
        if left is not None and right is not None and left != right:
            return f"the arms got different {what}"
    left_set, right_set = set(base.rows.sampling), set(other.rows.sampling)
    if left_set != right_set:
        return "the arms sampled differently"
    return None


def _same_work(base: Figures, other: Figures, load: str, found: dict[str, float]) -> str | None:
    answered = [1 - f.failed / f.offered if f.offered else 0.0 for f in (base, other)]
    if min(answered) < ANSWERED_MIN:
        return None  # the failures are counted elsewhere; lengths of the rest are no comparison
    prompts = [f.prompt_tokens for f in (base, other)]
    if min(answered) == 1 and prompts[0] != prompts[1]:
        return f"prompt tokens differ at {load}: {prompts[0]:.0f} against {prompts[1]:.0f}"
    lengths = [f.output_tokens / max(1, f.offered - f.failed) for f in (base, other)]
    if lengths[0] > 0:
        ratio = lengths[1] / lengths[0]
        found[f"length_ratio@{load}"] = ratio
        if not LENGTH_RATIO[0] <= ratio <= LENGTH_RATIO[1]:
            return (
                f"output lengths are unequal at {load}: {lengths[1]:.0f} against "
                f"{lengths[0]:.0f} tokens per answer (ratio {ratio:.3f})"
            )
    apart = _variation(base.finish, other.finish)
    found[f"finish_mix@{load}"] = apart
    if apart > FINISH_MIX:
        return f"finish reasons differ at {load}: {apart:.1%} of answers ended otherwise"
    return None


def _variation(left: Mapping[str, int], right: Mapping[str, int]) -> float:
    """Total variation distance of two distributions of words, 0..1."""
    n, m = sum(left.values()), sum(right.values())
    if not n or not m:
        return 0.0
    return sum(abs(left.get(k, 0) / n - right.get(k, 0) / m) for k in {*left, *right}) / 2


def _same_cache(pairs: list[Any], load: str, found: dict[str, float]) -> str | None:
    rates = [hit_rate([getattr(pair, side) for pair in pairs]) for side in ("base_run", "arm_run")]
    if rates[0] is None or rates[1] is None:
        return None
    found[f"hit_rate_base@{load}"], found[f"hit_rate_arm@{load}"] = rates[0], rates[1]
    if abs(rates[0] - rates[1]) > HIT_RATE_POINTS:
        return (
            f"prefix-cache hit rates differ at {load}: {rates[1]:.1%} against {rates[0]:.1%}: "
            "workloads do not match"
        )
    return None


def hit_rate(runs: Iterable[RunData]) -> float | None:
    """Prefix-cache hits over queries of all pages; None where not exposed."""
    hits = queries = 0.0
    for run in runs:
        for page in run.engine:
            counters = page.get("counters") or {}
            if "prefix_cache_queries" in counters and "prefix_cache_hits" in counters:
                queries += counters["prefix_cache_queries"]
                hits += counters["prefix_cache_hits"]
    return hits / queries if queries > 0 else None


IDENTITY = ("model", "max_model_len", "tokenize", "sampling")
"""What engines are asked, and must answer alike: served model, its longest context, the token ids
of the same prompts (template included), default sampling."""


def identity(grid: Grid, arm: str) -> GateResult:
    """The same target behind both arms, as far as the engines show it; the rest is listed."""
    base, other = grid.identity.get(grid.record.baseline.name, {}), grid.identity.get(arm, {})
    for name in (grid.record.baseline.name, arm):
        seen = {run.facts.get("engine_version") for run in grid.runs if run.plan.arm == name}
        if len(seen) > 1:
            shown = ", ".join(sorted(str(one) for one in seen))
            return GateResult("identity", False, f"{name} changed its engine version: {shown}")
    unverified = []
    for name in IDENTITY:
        left, right = base.get(name), other.get(name)
        if left is None or right is None:
            unverified.append(name)
        elif left != right:
            return GateResult("identity", False, f"{name} differs: {right} against {left}")
    if len(unverified) == len(IDENTITY):
        return GateResult("identity", None, "unverified: no engine showed what it serves")
    note = f"; unverified: {', '.join(unverified)}" if unverified else ""
    return GateResult("identity", True, f"the engines show the same target{note}")


def aa(book: Book, loads: Iterable[str]) -> GateResult:
    """The baseline against itself shows no difference."""
    figures: dict[str, float] = {}
    for load in loads:
        pairs = book.aa_pairs(load)
        second, first = s_per_token(pairs)
        floor = noise_floor(first, second, len(pairs))
        if floor is None:
            continue
        ratio = floor.effect.ratio[0]
        figures[f"aa_ratio@{load}"] = ratio
        figures[f"smallest_effect@{load}"] = floor.smallest
        if floor.effect.p < AA_P and abs(ratio - 1) > MIN_GAIN:
            reason = f"the baseline differs from itself at {load} by {ratio - 1:+.1%}"
            return GateResult("aa", False, reason, figures)
    if not figures:
        return GateResult("aa", None, "no A/A runs: the noise floor is unknown")
    smallest = max(v for k, v in figures.items() if k.startswith("smallest"))
    return GateResult("aa", True, f"effects from {smallest:.1%} on can be told", figures)


def plausibility(book: Book, arm: str, loads: Iterable[str]) -> GateResult:
    """Figures that cannot be: acceptance outside 0..1, M outside 1..k+1, a part above its whole."""
    for load in loads:
        for run in book.grid.of(arm, load).values():
            found = book.figures(run)
            fault = impossible(run, found) if found else None
            if fault:
                reason = f"{fault} at {load}, block {run.plan.block}"
                return GateResult("plausibility", False, reason)
    return GateResult("plausibility", True, "acceptance, M and sums are possible")


def impossible(run: RunData, found: Figures) -> str | None:
    """Why the figures of one run cannot be, or None."""
    made = [page.get("g") for page in run.engine]
    if made and all(g is not None for g in made):
        total = sum(g for g in made if g is not None)
        if total < found.output_tokens * MIN_TRAILING:
            return f"the engine made {total:.0f} tokens, the client got {found.output_tokens:.0f}"
    for page in run.engine:
        acceptance, m, k = page.get("acceptance"), page.get("m"), page.get("k")
        if acceptance is not None and not 0 <= acceptance <= 1 + M_SLACK:
            return f"acceptance {acceptance:.3f} is outside 0..1"
        if m is not None and m < 1 - 0.01:
            return f"M {m:.3f} is below 1"
        if m is not None and k is not None and page.get("drafts") and m > k + 1 + M_SLACK:
            return f"M {m:.3f} exceeds k + 1 = {k + 1}"
    if found.e2e_sum_s < found.ttft_sum_s * MIN_TRAILING:
        return "TTFT exceeds the whole response time"
    if found.tpot_s and found.tpot_s["p50"] < 0:
        return "a negative time per token"
    return None


def coalescing(book: Book, arm: str, loads: Iterable[str], k: int | None) -> str | None:
    """A flag, no gate: bursts of more than k + 1 tokens are merged outputs, never acceptance."""
    if k is None:
        return None
    most = 0.0
    for load in loads:
        for run in book.grid.of(arm, load).values():
            found = book.figures(run)
            most = max(most, (found.max_burst_tokens or 0.0) if found else 0.0)
    if most <= k + 1:
        return None
    return (
        f"bursts of up to {most:.0f} tokens where k + 1 = {k + 1}: outputs are merged on the way "
        "(engine front end, proxy or client), so M from the stream is too high; use the counters'"
    )


def epsilon_among_gaps(book: Book, arm: str, loads: Iterable[str]) -> str | None:
    """A flag, no gate: gaps that lie around ε are cut off or swallowed by chance.

    Both arms are looked at: the baseline's runs and this arm's.
    """
    arms = dict.fromkeys((book.grid.record.baseline.name, arm))
    near = [
        (run.near_epsilon, name, load)
        for name in arms
        for load in loads
        for run in book.grid.of(name, load).values()
        if run.near_epsilon is not None
    ]
    if not near or max(near)[0] <= NEAR_EPSILON:
        return None
    share, name, load = max(near)
    return (
        f"ε {book.grid.record.epsilon_s * 1e3:g} ms lies among the gaps: {share:.0%} of them are "
        f"within a factor of two of it ({name}, {load}), so bursts are cut or joined by chance; "
        "set epsilon in GRID.yaml to a time that lies between gaps inside bursts and gaps of steps"
    )


def mean_of(values: Iterable[float | None]) -> float | None:
    """Mean of the known values; None without any."""
    known = [value for value in values if value is not None and np.isfinite(value)]
    return float(np.mean(known)) if known else None
