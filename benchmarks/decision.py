"""Truth study: grids on the engine model, offline, with margins that are known. `python -m
benchmarks.decision [GRIDS [FIRST]]`; prints the table that stands in RESULTS.md. Grids are numbered
and the number is the seed: FIRST 0 to 199 is what the judge's rules were made with, so a study
that is to prove something starts at 200 or later.

Each grid draws a candidate whose true margin (no noise, a long window of its own) lies anywhere
between losing and paying: reversals between the swept rates, a bad cohort of 10-25 % of traffic,
broken quality, and A/A. Labels are set to evidence so that the table speaks as on real data: this
checks the judge, and is itself a method check on a simulated engine.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from tests.support.offline import Arm, Noise, Plan, Shape, grid, true_margin

from breakeven.decision import Decision
from breakeven.facts import Word
from breakeven.slo import SLO
from breakeven_loadgen.judge.dataset import ContractRecord
from breakeven_loadgen.judge.decide import decide_grid
from breakeven_sim.drafts import Draft
from breakeven_sim.model import Engine

CLEAR = 0.10
"""True margins at least this large must be decided rightly."""
NEAR = 0.05
"""A true margin nearer to 0 is measured again, longer."""
ENGINE = Engine("study", 5.5e-3, 160e-6, 1.5, 39e-9, 1.2e-3, 410_000, "8B")
"""The 8B preset with an eightfold compute cost per token: its knee lies at 34 tokens instead of
270, so that reversals happen at batches that can be simulated by the thousand."""
SHAPE = Shape(prompt=(150.0, 0.5), output=(60.0, 0.4), output_clip=(16, 200))
RATES = {"low": 2.0, "normal": 6.0, "peak": 12.0}
WINDOW_S = 10.0
SEED = 20261130
GRIDS = 200
LOOSE = SLO(ttft_s=5.0, e2e_s=60.0, objective=0.99)
"""No floor in the way: what is tested is the judgement of margins, cohorts and quality."""
KINDS = ("free", "free", "free", "free", "free", "reversal", "cohort", "broken", "aa")
KEEPS = (Decision.CANARY, Decision.LIMIT_TO_RATE, Decision.BASELINE_FOR_COHORT)


@dataclass
class Case:
    """One grid: what was true, and what was decided."""

    kind: str
    truth: dict[float, float]
    cohort_truth: dict[float, float]
    decision: Decision
    rates: tuple[float, float] | None
    denied: tuple[str, ...]
    words: dict[float, Word]
    faults: list[str] = field(default_factory=list)

    @property
    def clear(self) -> bool:
        """Every rate's true margin is at least CLEAR away from 0."""
        return self.kind != "aa" and all(abs(m) >= CLEAR for m in self.truth.values())


def study(grids: int, truth_s: float = 90.0, workers: int = 1, first: int = 0) -> Iterator[Case]:
    """Run the grids from number `first` on, in as many processes as asked for."""
    numbers = range(first, first + grids)
    if workers == 1:
        yield from map(partial(case, truth_s=truth_s), numbers)
        return
    with ProcessPoolExecutor(workers) as pool:
        yield from pool.map(partial(case, truth_s=truth_s), numbers)


def case(index: int, truth_s: float) -> Case:
    """The grid of this number."""
    kind, seed = KINDS[index % len(KINDS)], SEED + index
    rng = random.Random(seed)
    plan, extras = draw(kind, rng, seed)
    truth = {rate: truth_at(plan, rate, truth_s) for rate in plan.rates.values()}
    cohort_truth: dict[float, float] = {}
    if kind == "cohort":
        only = replace(plan, traffic=replace(plan.traffic, cohorts={"bad": 1.0}))
        cohort_truth = {r: truth_at(only, r, truth_s) for r in plan.rates.values()}
    decided = decide_grid(grid(plan, **extras), now=datetime(2026, 11, 30, tzinfo=UTC))
    outcome = decided.outcome
    cells = decided.assessment.candidates[0].facts.whole
    found = Case(
        kind, truth, cohort_truth, outcome.decision, outcome.rates, outcome.denied,
        {cell.rate: cell.word for cell in cells},
    )  # fmt: skip
    found.faults = judge(found)
    return found


def truth_at(plan: Plan, rate: float, truth_s: float) -> float:
    """The true margin; near 0, where its sign decides, over a window ten times as long.

    Arrivals and lengths are random without any noise of the machine too: grid 280 has -1.3 % over
    90 s and +1.6 % over 900 s.
    """
    margin = true_margin(plan, "draft", rate, truth_s)
    return margin if abs(margin) >= NEAR else true_margin(plan, "draft", rate, 10 * truth_s)


def draw(kind: str, rng: random.Random, seed: int) -> tuple[Plan, dict[str, Any]]:
    """A random candidate, and what the contract questions showed of it."""
    k = rng.randint(2, 5)
    accept = rng.uniform(0.55, 0.92)
    d_fix = cost_for(rng.uniform(-0.40, 0.40), k, accept, RATES["normal"])
    shape = SHAPE
    by_cohort: dict[str, tuple[float, ...]] = {}
    if kind == "reversal":
        k, accept = 5, rng.uniform(0.5, 0.7)
        d_fix = cost_for(rng.uniform(0.10, 0.30), k, accept, RATES["low"])
    if kind == "cohort":
        share = rng.uniform(0.10, 0.25)
        shape = replace(SHAPE, cohorts={"chat": 1 - share, "bad": share})
        k, accept, d_fix = 3, rng.uniform(0.75, 0.9), rng.uniform(0.5e-3, 0.9e-3)
        by_cohort = {"bad": (0.03,) * k}
    draft = Draft("study", d_fix, 0.0, 0.0, 0.2e-3, False, (accept,) * k, 1.0, 0, 0.4)
    arm = Arm(draft, k, ENGINE, by_cohort=by_cohort)
    if kind == "aa":
        arm = Arm(engine=ENGINE)
    plan = Plan(
        {"base": Arm(engine=ENGINE), "draft": arm}, RATES, 8, WINDOW_S, shape,
        Noise(rng.uniform(0.02, 0.08), rng.uniform(0.01, 0.03)),
        contract=ContractRecord(error_budget=0.02, features=("structured_output",)),
        slo=LOOSE, seed=seed, aa=False,
    )  # fmt: skip
    support = "failed" if kind == "broken" and seed % 2 else "supported"
    probes = {name: {"structured_output": {"support": s, "detail": ""}}
              for name, s in (("base", "supported"), ("draft", support))}  # fmt: skip
    hard = 12 if kind == "broken" and not seed % 2 else 0
    quality = {"base": {"l1": {"pairs": 200, "hard": 0}},
               "draft": {"l1": {"pairs": 200, "hard": hard}}}  # fmt: skip
    return plan, {"probes": probes, "quality": quality}


def cost_for(margin: float, k: int, accept: float, rate: float) -> float:
    """Draft cost per token at which the step model gives about this margin at this rate."""
    m = sum(accept**i for i in range(k + 1))
    per_token = ENGINE.step_s(1, 200)
    for _ in range(8):  # batch and time per token depend on each other
        batch = max(1.0, rate * SHAPE.output[0] * per_token)
        base = ENGINE.step_s(round(batch), round(200 * batch))
        per_token = base * (1 - margin)
    verify = ENGINE.step_s(round(batch * (k + 1)), round(200 * batch))
    return max(2e-5, ((1 - margin) * m * base - verify - 0.2e-3) / k)


def judge(found: Case) -> list[str]:
    """What the decision got wrong; empty where it is right or inconclusive."""
    outcome = found
    faults = []
    if outcome.decision in KEEPS:
        if found.kind == "broken":
            faults.append("kept a broken arm")
        assert outcome.rates is not None
        kept = [r for r in found.truth if r <= outcome.rates[1]]
        if "bad" not in outcome.denied and any(m < -0.02 for m in found.cohort_truth.values()):
            faults.append("kept a losing cohort")
        if any(found.truth[r] < 0 for r in kept) and not outcome.denied:
            faults.append("kept a losing arm")
    if found.kind == "broken":
        return faults if outcome.decision is Decision.DO_NOT_ENABLE else [*faults, "not refused"]
    if not found.clear or outcome.decision is Decision.INCONCLUSIVE:
        return faults
    right = expected(found)
    if outcome.decision not in right:
        faults.append(f"{outcome.decision.value}, where {sorted(d.value for d in right)} is right")
    return faults


def expected(found: Case) -> set[Decision]:
    """Right decisions of a clear case, by its true margins."""
    margins = [found.truth[rate] for rate in sorted(found.truth)]
    if found.cohort_truth and margins[0] > 0:
        return {Decision.BASELINE_FOR_COHORT, Decision.LIMIT_TO_RATE}
    if all(m > 0 for m in margins):
        return {Decision.CANARY}
    if margins[0] > 0:
        return {Decision.LIMIT_TO_RATE}
    return {Decision.CHEAPER_DRAFT, Decision.KEEP_OFF}


@dataclass(frozen=True)
class Score:
    """Sums over a study."""

    grids: int
    clear: int
    right: int
    wrong: int
    inconclusive: int
    kept_bad: int
    words: int
    words_right: int
    words_open: int


def score(cases: list[Case]) -> Score:
    """Grid by grid, and rate by rate for the words of the whole traffic."""
    clear = [c for c in cases if c.clear or c.kind == "broken"]
    open_ = [c for c in clear if c.decision is Decision.INCONCLUSIVE]
    wrong = [c for c in clear if c.faults]
    words: Counter[str] = Counter()
    for one in cases:
        for rate, word in one.words.items():
            true = one.truth[rate]
            if abs(true) >= CLEAR and one.kind != "aa":
                right = Word.PAYS if true > 0 else Word.LOSES
                kind = "right" if word is right else "open"
                words[kind if word in (right, Word.INCONCLUSIVE) else "wrong"] += 1
    return Score(
        len(cases), len(clear), len(clear) - len(wrong) - len(open_), len(wrong), len(open_),
        sum(any(f.startswith("kept") for f in c.faults) for c in cases),
        sum(words.values()), words["right"], words["open"],
    )  # fmt: skip


def main(grids: int = GRIDS, first: int = 0) -> int:
    """Print one line per grid and the sums; 1 when the study's bounds are missed."""
    began = time.monotonic()
    cases = []
    for found in study(grids, workers=os.cpu_count() or 1, first=first):
        cases.append(found)
        margins = " ".join(f"{m:+.3f}" for _, m in sorted(found.truth.items()))
        fault = f"  WRONG: {'; '.join(found.faults)}" if found.faults else ""
        print(f"{first + len(cases) - 1:4} {found.kind:9} true {margins}  "
              f"{found.decision.value}{fault}", flush=True)  # fmt: skip
    s = score(cases)
    decided = s.clear - s.inconclusive
    print(f"grids {s.grids} from number {first}, clear {s.clear}: right {s.right} of {decided} "
          f"decided ({s.right / decided:.1%}), wrong {s.wrong}, inconclusive {s.inconclusive} "
          f"({s.inconclusive / s.clear:.1%}); losing or broken kept: {s.kept_bad}")  # fmt: skip
    print(f"words at |margin| >= {CLEAR}: {s.words}, right {s.words_right}, open {s.words_open}")
    decisions = Counter(c.decision.value for c in cases)
    print("decisions:", dict(decisions), f"in {time.monotonic() - began:.0f} s")
    return int(s.kept_bad > 0 or s.right < 0.95 * decided or s.inconclusive > 0.20 * s.clear)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:3])))
