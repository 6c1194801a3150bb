"""From a grid to the facts of each candidate: margins with intervals, floors, what is missing.

Here: the order of the comparisons. Not here: the tests themselves (statistics, floors), the table
that reads the facts (core decision).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from breakeven.facts import ALL, MIN_GAIN, Cell, Facts, Interval, Word, word_of
from breakeven.provenance import Labels, weakest

from ..replay.gates import GateResult
from . import floors as floor_tests
from . import gates, quality
from .dataset import ArmRecord, ContractRecord, Grid, Traffic
from .demands import cohort_floor, quality_floors, unsupported, unverified
from .figures import PROMPT_CLASSES, summed
from .headroom import Capacity, capacity
from .money import ArmCost, arm_cost, cost_ratio
from .pairs import Book, Pair, faults, s_per_token, unstable
from .statistics import ALPHA, MIN_BLOCKS, Effect, blocks_needed, difference, holm, log_ratio
from .worksheet_fit import Sheet, depth, sheet

UNSTABLE_SHARE = 0.5
"""From this share of blocks with a growing queue on, a rate counts as unstable."""
BEFORE_PROMOTION: tuple[Traffic, ...] = ("warm_cache", "long_context", "cancellation")
"""Cells beside the main traffic; each is a cohort of its own."""


@dataclass(frozen=True, slots=True)
class Line:
    """One candidate, cohort and rate with everything the report shows of it."""

    cell: Cell
    sheet: Sheet
    effect: Effect | None
    traffic: Traffic = "main"


@dataclass(frozen=True, slots=True)
class Candidate:
    """All that was found out about one candidate."""

    arm: ArmRecord
    facts: Facts
    gates: tuple[GateResult, ...]
    lines: tuple[Line, ...]
    flags: tuple[str, ...]
    unproven: tuple[str, ...]
    capacity: Capacity
    k: int | None

    def line(self, cohort: str, load: str) -> Line | None:
        """One line of the main traffic."""
        for one in self.lines:
            if one.traffic == "main" and (one.cell.cohort, one.cell.load) == (cohort, load):
                return one
        return None


@dataclass(frozen=True, slots=True)
class Assessment:
    """The whole grid, assessed."""

    grid: Grid
    labels: Labels
    candidates: tuple[Candidate, ...]
    baseline_capacity: Capacity
    costs: tuple[ArmCost, ...]
    bottleneck: str | None


def assess(grid: Grid) -> Assessment:
    """Assess every candidate of a grid against its baseline."""
    book = Book(grid)
    record = grid.record
    contract = record.contract or ContractRecord()
    bottleneck = baseline_bottleneck(book)
    costs = [
        cost
        for arm in record.arms
        for load in record.rates
        if (cost := arm_cost(grid, book, arm, load)) is not None
    ]
    candidates = tuple(
        _candidate(book, arm, contract, bottleneck, costs) for arm in record.candidates
    )
    return Assessment(
        grid,
        weakest([run.labels for run in grid.runs]),
        candidates,
        arm_capacity(book, record.baseline.name),
        tuple(costs),
        bottleneck,
    )


def _candidate(
    book: Book,
    arm: ArmRecord,
    contract: ContractRecord,
    bottleneck: str | None,
    costs: list[ArmCost],
) -> Candidate:
    grid = book.grid
    loads = sorted(grid.record.rates, key=lambda name: grid.record.rates[name])
    found_gates = gates.grid_gates(book, arm.name)
    prices = {cost.load: cost for cost in costs if cost.arm == arm.name}
    lines = [_whole_line(book, arm, load, contract, prices.get(load)) for load in loads]
    lines += _corrected(_cohort_lines(book, arm, loads, contract))
    lines += _promotion_lines(book, arm)
    ttft_share, output = _ttft_share(book, arm.name, loads)
    k = depth([pair for load in loads for pair in book.pairs(arm.name, load)], arm.k)
    control = grid.quality.get(grid.record.baseline.name, {})
    shown = grid.quality.get(arm.name, {})
    seen = (
        gates.coalescing(book, arm.name, loads, k),
        gates.epsilon_among_gaps(book, arm.name, loads),
    )
    facts = Facts(
        arm=arm.name,
        cells=tuple(line.cell for line in lines if line.traffic == "main"),
        invalid=tuple(
            f"{gate.name}: {gate.reason}" for gate in found_gates if gate.passed is False
        ),
        unsupported=unsupported(grid, arm, contract),
        unverified=unverified(arm),
        quality=quality.faults(shown, control),
        ttft_share=ttft_share,
        median_output=output,
        bottleneck=bottleneck,
    )
    return Candidate(
        arm, facts, tuple(found_gates), tuple(lines),
        tuple(flag for flag in (*seen, *_by_length(facts), *_small_cohorts(lines),
                                *_promotion_flags(lines)) if flag),
        quality.unproven(shown), arm_capacity(book, arm.name), k,
    )  # fmt: skip


# --- cells --------------------------------------------------------------------------------------


def _word(effect: Effect | None) -> Word:
    """The word of the interval; a gain needs the exact sign-flip test to agree."""
    word = word_of(_margin(effect))
    if word is Word.PAYS and effect is not None and effect.p_flip > ALPHA:
        return Word.INCONCLUSIVE
    return word


def _margin(effect: Effect | None) -> Interval | None:
    """margin = 1 - ratio of seconds per token; the interval turns round with the sign."""
    if effect is None:
        return None
    value, low, high = effect.ratio
    return Interval(1 - value, 1 - high, 1 - low)


def _whole_line(
    book: Book, arm: ArmRecord, load: str, contract: ContractRecord, price: ArmCost | None
) -> Line:
    record = book.grid.record
    pairs = book.pairs(arm.name, load)
    effect = log_ratio(*s_per_token(pairs))
    cost = cost_ratio(book, arm, pairs)
    kept = list(floor_tests.floors(pairs, record.slo, contract, cost))
    bound = floor_tests.price_floor(price.usd_per_good if price else None, contract)
    if bound is not None:
        kept.append(bound)
    kept += quality_floors(book, arm.name, load, contract)
    margin, word, shaky = _margin(effect), _word(effect), _unstable(pairs)
    if shaky:
        margin, word = None, _by_completion(pairs)
    found = sheet(pairs, depth(pairs, arm.k), whole=True)
    cell = Cell(
        cohort=ALL,
        load=load,
        rate=record.rates[load],
        margin=margin,
        word=word,
        floors=tuple(kept),
        cost_ratio=cost,
        m=found.m,
        inflation=found.inflation,
        blocks=len(pairs),
        blocks_needed=_needed(effect, word),
        unstable=shaky,
    )
    return Line(cell, found, effect)


def _needed(effect: Effect | None, word: Word) -> int | None:
    if effect is None:
        return MIN_BLOCKS
    if word is not Word.INCONCLUSIVE:
        return None
    # Plan for the gain that would matter, not for the accident of the estimate.
    return blocks_needed(max(abs(effect.mean), MIN_GAIN), effect.sd)


def _unstable(pairs: list[Pair]) -> bool:
    """A queue grew in most blocks of either arm: its figures depend on the window's length."""
    if not pairs:
        return False
    base = sum(unstable(pair.base_run) for pair in pairs) / len(pairs)
    arm = sum(unstable(pair.arm_run) for pair in pairs) / len(pairs)
    return max(base, arm) >= UNSTABLE_SHARE


def _by_completion(pairs: list[Pair]) -> Word:
    """Where a queue builds up only completion within the SLO is compared."""
    effect = difference([pair.arm.goodput for pair in pairs], [pair.base.goodput for pair in pairs])
    if effect is None:
        return Word.INCONCLUSIVE
    if effect.low > 0:
        return Word.PAYS
    return Word.LOSES if effect.high < 0 else Word.INCONCLUSIVE


def _cohort_lines(
    book: Book, arm: ArmRecord, loads: list[str], contract: ContractRecord
) -> list[Line]:
    out = []
    for load in loads:
        for cohort in book.cohorts(load):
            pairs = book.pairs(arm.name, load, cohort)
            effect = log_ratio(*s_per_token(pairs))
            found = sheet(pairs, depth(pairs, arm.k), whole=False)
            whole = book.pairs(arm.name, load)
            rows = sum(pair.base.rows for pair in whole)
            shaky = _unstable(pairs)
            kept = cohort_floor(cohort, pairs, contract)
            cell = Cell(
                cohort=cohort,
                load=load,
                rate=book.grid.record.rates[load],
                margin=None if shaky else _margin(effect),
                word=Word.INCONCLUSIVE if shaky else _word(effect),
                floors=kept,
                m=found.m,
                inflation=found.inflation,
                share=sum(pair.base.rows for pair in pairs) / rows if rows else 0.0,
                blocks=len(pairs),
                blocks_needed=_needed(effect, _word(effect)),
                unstable=shaky,
            )
            out.append(Line(cell, found, effect))
    return out


def _corrected(lines: list[Line]) -> list[Line]:
    """Benefit claims per cohort are many: a gain stays one only after Holm's correction.

    A loss is not corrected away: overlooking one costs users, a false one costs a gain.
    """
    claims = [i for i, line in enumerate(lines) if line.cell.word is Word.PAYS and line.effect]
    adjusted = holm([_p(lines[i]) for i in claims])
    out = list(lines)
    for i, p in zip(claims, adjusted, strict=True):
        if p >= ALPHA:
            out[i] = replace(lines[i], cell=replace(lines[i].cell, word=Word.INCONCLUSIVE))
    return out


def _p(line: Line) -> float:
    return line.effect.p if line.effect is not None else 1.0


def _promotion_lines(book: Book, arm: ArmRecord) -> list[Line]:
    """Cells before promotion: warm cache, long contexts, cancellation; each by itself."""
    out = []
    for traffic in BEFORE_PROMOTION:
        for load, rate in book.grid.record.rates.items():
            pairs = book.pairs(arm.name, load, ALL, traffic)
            if len(pairs) < 2:
                continue
            effect = log_ratio(*s_per_token(pairs))
            found = sheet(pairs, depth(pairs, arm.k), whole=True)
            margin = _margin(effect)
            cell = Cell(traffic, load, rate, margin, _word(effect), m=found.m,
                        inflation=found.inflation, blocks=len(pairs))  # fmt: skip
            out.append(Line(cell, found, effect, traffic))
    return out


def _by_length(facts: Facts) -> list[str]:
    """Losing prompt lengths: a router knows cohorts, not lengths."""
    lengths = [name for name, _, _ in PROMPT_CLASSES if name in facts.losing_cohorts]
    return [
        f"{name} loses, and the proxy routes by cohort, not by length: give such traffic a cohort"
        for name in lengths
    ]


def _small_cohorts(lines: list[Line]) -> list[str]:
    """Cohorts that too few blocks can speak for: nothing is shown of them, either way."""
    thin = [line.cell for line in lines if line.traffic == "main" and line.cell.blocks < MIN_BLOCKS]
    return [
        f"{cell.cohort} at {cell.rate:g}/s: {cell.blocks} blocks with enough answers, too few to "
        "judge it by itself"
        for cell in thin
        if cell.cohort != ALL
    ]


def _promotion_flags(lines: list[Line]) -> list[str]:
    return [
        f"{line.traffic} at {line.cell.rate:g}/s: it loses there (margin "
        f"{line.cell.margin.value:+.2f})"
        for line in lines
        if line.traffic != "main" and line.cell.word is Word.LOSES and line.cell.margin
    ]


# --- the baseline by itself -----------------------------------------------------------------------


def _ttft_share(book: Book, arm: str, loads: list[str]) -> tuple[float | None, float | None]:
    """(share of TTFT in the baseline's response time, median output) at the lowest rate."""
    pairs = book.pairs(arm, loads[0]) if loads else []
    if not pairs:
        return None, None
    base = summed([pair.base for pair in pairs])
    share = base.ttft_sum_s / base.e2e_sum_s if base.e2e_sum_s > 0 else None
    return share, base.median_output


def arm_capacity(book: Book, arm: str) -> Capacity:
    """Highest rate that an arm carries within the SLO, over the swept ones."""
    record = book.grid.record
    points = []
    for load, rate in record.rates.items():
        runs = [r for r in book.grid.of(arm, load).values() if not faults(r)]
        found = [f for r in runs if (f := book.figures(r)) is not None]
        if found:
            share = summed(found).goodput
            if math.isfinite(share):
                points.append((rate, share))
    return capacity(points, record.slo.objective)


def baseline_bottleneck(book: Book) -> str | None:
    """Which bottleneck the baseline's own figures show, in words, at the highest rate."""
    record = book.grid.record
    load = max(record.rates, key=lambda name: record.rates[name])
    runs = [run for run in book.grid.of(record.baseline.name, load).values() if not faults(run)]
    found = [f for run in runs if (f := book.figures(run)) is not None]
    if not found:
        return None
    whole = summed(found)
    share = whole.ttft_sum_s / whole.e2e_sum_s if whole.e2e_sum_s > 0 else 0.0
    preempted = gates.mean_of(
        (page.get("counters") or {}).get("preemptions") for run in runs for page in run.engine
    )
    if preempted:
        return f"KV cache: {preempted:.0f} preemptions per run at {load}"
    if any(unstable(run) for run in runs):
        return f"capacity: a queue grows at {load}"
    if share > 0.5:
        return f"queue or prefill: TTFT is {share:.0%} of the response time at {load}"
    return f"decoding: {1 - share:.0%} of the response time at {load}"
