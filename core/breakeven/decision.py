"""The decision: a table whose first fitting row says what to do with a draft, and why.

Here: the rows and their wording. Not here: the facts (facts), how they are measured or tested
(judge), files. The rows only compare figures that were measured; each names the gate
that chose it, the figures, and the risk to test next. Source: docs/definitions.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from .facts import ALL, MIN_GAIN, SPECULATES, Cell, Facts, Word
from .provenance import Evidence


class Decision(StrEnum):
    """What to do; fixed words of decision.json."""

    CANARY = "canary"
    LIMIT_TO_RATE = "limit_to_rate"
    CHEAPER_DRAFT = "cheaper_draft"
    BASELINE_FOR_COHORT = "baseline_for_cohort"
    FIX_PREFILL = "fix_prefill"
    DO_NOT_ENABLE = "do_not_enable"
    KEEP_OFF = "keep_off"
    INCONCLUSIVE = "inconclusive"
    INVALID = "invalid"


class Action(StrEnum):
    """What follows for the configuration that was measured."""

    RETAIN = "retain"
    TUNE = "tune"
    DISABLE = "disable"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the table says of one candidate.

    Attributes:
        decision, action: see the enums; `action` is what it would be on evidence.
        gate: name of the gate or floor that chose the row; None for canary.
        reason: one sentence with the figures.
        numbers: the figures that chose it.
        risk: what to test next.
        rates: (lowest, highest) proven rate, req/s, where something is kept.
        denied: cohorts that stay on the baseline.
        blocks_needed: for inconclusive.
    """

    arm: str
    decision: Decision
    action: Action
    gate: str | None
    reason: str
    numbers: Mapping[str, float | str | None] = field(default_factory=dict)
    risk: str = ""
    rates: tuple[float, float] | None = None
    denied: tuple[str, ...] = ()
    blocks_needed: int | None = None

    def on(self, evidence: Evidence) -> Action:
        """The action that may be printed: a method check never retains."""
        if evidence is Evidence.METHOD_CHECK and self.action is Action.RETAIN:
            return Action.NONE
        return self.action


SHORT_OUTPUT = 64
"""Median output tokens below which the first token is most of what a user waits for."""
TTFT_DOMINATES = 0.5
"""Share of the response time above which TTFT, not decoding, is what to mend."""


def decide(facts: Facts) -> Outcome:
    """The first row of ROWS that fits."""
    for row in ROWS:
        outcome = row(facts)
        if outcome is not None:
            return outcome
    raise AssertionError("the last row always fits")


# --- rows: each returns an outcome or None ------------------------------------------------------

Row = Callable[[Facts], Outcome | None]


def _invalid(facts: Facts) -> Outcome | None:
    if not facts.invalid:
        return None
    gate = facts.invalid[0].split(":")[0]
    return Outcome(
        facts.arm, Decision.INVALID, Action.NONE, gate,
        f"not evidence: the gate {facts.invalid[0]}",
        risk="mend the gate and run again; no figure of this run may be quoted",
    )  # fmt: skip


def _do_not_enable(facts: Facts) -> Outcome | None:
    found = [("contract", one) for one in facts.unsupported]
    found += [("quality", one) for one in facts.quality]
    found += [("sampler", one) for one in facts.unverified]
    if not found:
        return None
    gate, what = found[0]
    rest = "" if len(found) == 1 else f" (and {len(found) - 1} more)"
    return Outcome(
        facts.arm, Decision.DO_NOT_ENABLE, Action.DISABLE, gate,
        f"{what}{rest}: a faster wrong answer is no gain",
        {"faults": float(len(found))},
        "test the feature on the next engine version, with the same probe",
    )  # fmt: skip


def _fix_prefill(facts: Facts) -> Outcome | None:
    share, output = facts.ttft_share, facts.median_output
    if share is None or output is None or share < TTFT_DOMINATES or output > SHORT_OUTPUT:
        return None
    return Outcome(
        facts.arm, Decision.FIX_PREFILL, Action.NONE, "ttft",
        f"TTFT is {share:.0%} of the baseline's response time at the lowest rate and the median "
        f"output {output:.0f} tokens: decoding faster cannot help much; mend prefill and queue",
        {"ttft_share": share, "median_output_tokens": output},
        "measure again after chunked prefill, prefix cache or more prefill capacity",
    )  # fmt: skip


def _inconclusive_everywhere(facts: Facts) -> Outcome | None:
    """No cell of the whole traffic can be told, and none loses: more blocks, not a verdict."""
    cells = facts.whole
    if cells and any(cell.word in (Word.PAYS, Word.LOSES, Word.EVEN) for cell in cells):
        return None
    return _more_blocks(facts, cells)


def _more_blocks(facts: Facts, cells: Sequence[Cell]) -> Outcome:
    needed = [cell.blocks_needed for cell in cells if cell.blocks_needed is not None]
    used = max((cell.blocks for cell in cells), default=0)
    most = max(needed, default=None)
    more = f"about {most} blocks could carry the claim" if most else "more of them are needed"
    what = "tell gain from loss"
    unshown = next((c for c in cells if c.word is Word.PAYS and c.open_floors), None)
    if unshown is not None:
        what = f"show at {unshown.rate:g}/s that {unshown.open_floors[0].detail}"
    margins = {f"margin_low@{c.rate:g}": c.margin.low for c in cells if c.margin}
    margins |= {f"margin_high@{c.rate:g}": c.margin.high for c in cells if c.margin}
    return Outcome(
        facts.arm, Decision.INCONCLUSIVE, Action.NONE, "blocks",
        f"{used} blocks do not {what}: {more}",
        margins, "run more blocks of the same grid: loadgen grid resume", blocks_needed=most,
    )  # fmt: skip


def _canary(facts: Facts) -> Outcome | None:
    proven = facts.proven
    if not proven or len(proven) < len(facts.whole) or facts.losing_cohorts:
        return None
    return Outcome(
        facts.arm, Decision.CANARY, Action.RETAIN, None,
        f"decoding is {_margins(proven)} cheaper per token at every rate measured "
        f"({_rates(proven)}), and goodput and quality keep their floors: canary exactly this "
        "configuration",
        _numbers(proven), "a canary on live traffic: longer contexts, other cohorts, cancellation",
        rates=(proven[0].rate, proven[-1].rate),
    )  # fmt: skip


def _limit_to_rate(facts: Facts) -> Outcome | None:
    proven = facts.proven
    if not proven or len(proven) == len(facts.whole):
        return None
    beyond = facts.whole[len(proven)]
    denied = facts.losing_cohorts
    aside = f"; {', '.join(denied)} stay on the baseline" if denied else ""
    return Outcome(
        facts.arm, Decision.LIMIT_TO_RATE, Action.TUNE, _why_not(beyond)[0],
        f"it pays ({_margins(proven)}) at {_rates(proven)}, but at {beyond.rate:g}/s "
        f"{_why_not(beyond)[1]}: limit it to the proven load range{aside}",
        _numbers(facts.whole), "the way back at peak: rollback headroom of the baseline",
        rates=(proven[0].rate, proven[-1].rate), denied=denied,
    )  # fmt: skip


def _baseline_for_cohort(facts: Facts) -> Outcome | None:
    denied = facts.losing_cohorts
    proven = facts.proven
    keeps = proven and len(proven) == len(facts.whole)
    some = not proven and facts.paying_cohorts
    if not denied or not (keeps or some):
        return None
    cells = [c for c in facts.cells if c.cohort in denied and c.word is Word.LOSES]
    worst = min(cells, key=lambda c: c.margin.value if c.margin else 0.0, default=None)
    figure = f" (worst {worst.cohort}: {_margin(worst)} at {worst.rate:g}/s)" if worst else ""
    rates = (proven[0].rate, proven[-1].rate) if proven else None
    if rates is None:
        kept = [c for c in facts.cells if c.cohort in facts.paying_cohorts and c.clears]
        rates = (min(c.rate for c in kept), max(c.rate for c in kept))
        denied = tuple(sorted({c.cohort for c in facts.cells} - {ALL, *facts.paying_cohorts}))
    return Outcome(
        facts.arm, Decision.BASELINE_FOR_COHORT, Action.TUNE, "cohort",
        f"{', '.join(denied)} lose by it, or are not shown to gain{figure}, while others gain: "
        "keep the baseline for them",
        _numbers(facts.whole) | {f"margin[{c.cohort}]@{c.rate:g}": c.margin.value
                                 for c in cells if c.margin},
        "whether new traffic falls into the losing cohorts: watch rejection per cohort",
        rates=rates, denied=denied,
    )  # fmt: skip


def _cheaper_draft(facts: Facts) -> Outcome | None:
    """Drafts are accepted (M well above 1), and yet time or cost per response gets worse."""
    bad = [c for c in facts.whole if c.word is Word.LOSES or c.broken or _dearer(c)]
    bad = [c for c in bad if c.m is not None and c.m >= SPECULATES]
    if not bad or facts.proven:
        return None
    worst = min(bad, key=lambda c: c.margin.value if c.margin else 0.0)
    gate, why = _why_not(worst)
    pair = ""
    if worst.inflation is not None:
        pair = f"M {worst.m:.2f}, but a cycle costs {worst.inflation:.2f} baseline steps (C/T)"
    return Outcome(
        facts.arm, Decision.CHEAPER_DRAFT, Action.TUNE, gate,
        f"drafts are accepted ({pair or f'M {worst.m:.2f}'}) and at {worst.rate:g}/s {why}: take "
        "a cheaper or shorter draft, or the baseline",
        _numbers(facts.whole), "a smaller depth k: the k-sweep shows where the next token pays",
    )  # fmt: skip


def _still_open(facts: Facts) -> Outcome | None:
    """Some rate could still pay: more blocks before a verdict of keep_off."""
    cells = [c for c in facts.whole if c.word is Word.INCONCLUSIVE and not c.broken]
    cells += [c for c in facts.whole if c.word is Word.PAYS and not c.broken and c.open_floors]
    hopeful = [c for c in cells if c.margin is None or c.margin.high > MIN_GAIN]
    lowest = facts.whole[:1]
    if not hopeful or hopeful[0] not in lowest:
        return None
    return _more_blocks(facts, hopeful)


def _keep_off(facts: Facts) -> Outcome:
    cells = facts.whole
    shown = cells[0] if cells else None
    gate, why = _why_not(shown) if shown else ("margin", "nothing was measured")
    bottleneck = f"; the baseline shows: {facts.bottleneck}" if facts.bottleneck else ""
    at = f" at {shown.rate:g}/s" if shown else ""
    return Outcome(
        facts.arm, Decision.KEEP_OFF, Action.DISABLE, gate,
        f"it does not clear the gates: {why}{at}{bottleneck}",
        _numbers(cells), "another method (n-gram for code, EAGLE for chat), on the same grid",
    )  # fmt: skip


ROWS: tuple[Row, ...] = (
    _invalid,
    _do_not_enable,
    _fix_prefill,
    _inconclusive_everywhere,
    _canary,
    _limit_to_rate,
    _baseline_for_cohort,
    _still_open,
    _cheaper_draft,
    _keep_off,
)
"""In order of precedence: what makes figures worthless first, then what makes them harmful."""


# --- wording ----------------------------------------------------------------------------------


def _dearer(cell: Cell) -> bool:
    return cell.cost_ratio is not None and cell.cost_ratio.low > 1


def _why_not(cell: Cell) -> tuple[str, str]:
    """(gate, clause) for why a cell does not clear."""
    if cell.broken:
        return cell.broken[0].name, f"the floor {cell.broken[0].detail}"
    if cell.word is Word.LOSES:
        return "margin", f"it loses (margin {_margin(cell)})"
    if cell.word is Word.EVEN:
        return "margin", f"nothing is gained (margin {_margin(cell)})"
    if cell.unstable:
        return "stability", "a queue builds up and margins mean nothing"
    if cell.word is Word.PAYS and cell.open_floors:
        return cell.open_floors[0].name, f"it is not shown that {cell.open_floors[0].detail}"
    if cell.word is Word.PAYS and _dearer(cell):
        return "cost", "a good response costs more"
    return "margin", f"gain and loss cannot be told apart (margin {_margin(cell)})"


def _margin(cell: Cell) -> str:
    if cell.margin is None:
        return "not measurable"
    return f"{cell.margin.value:+.2f} [{cell.margin.low:+.2f}, {cell.margin.high:+.2f}]"


def _margins(cells: Sequence[Cell]) -> str:
    return ", ".join(f"{c.margin.value:.0%}" for c in cells if c.margin)


def _rates(cells: Sequence[Cell]) -> str:
    return ", ".join(f"{c.rate:g}/s" for c in cells)


def _numbers(cells: Sequence[Cell]) -> dict[str, float | str | None]:
    out: dict[str, float | str | None] = {}
    for c in cells:
        if c.margin is not None:
            out[f"margin@{c.rate:g}"] = c.margin.value
            out[f"margin_low@{c.rate:g}"] = c.margin.low
            out[f"margin_high@{c.rate:g}"] = c.margin.high
        out[f"m@{c.rate:g}"] = c.m
        out[f"inflation@{c.rate:g}"] = c.inflation
    return out


PREFERENCE = (
    Decision.CANARY,
    Decision.BASELINE_FOR_COHORT,
    Decision.LIMIT_TO_RATE,
    Decision.INVALID,
    Decision.INCONCLUSIVE,
    Decision.FIX_PREFILL,
    Decision.CHEAPER_DRAFT,
    Decision.KEEP_OFF,
    Decision.DO_NOT_ENABLE,
)
"""Which candidate speaks for the grid: the one of which most can be kept; then what is open."""


def choose(outcomes: Sequence[Outcome]) -> Outcome:
    """The outcome that stands for the grid; among equals the larger margin at the lowest rate.

    Raises:
        ValueError: no candidate.
    """

    def rank(outcome: Outcome) -> tuple[int, float]:
        margins = [v for k, v in outcome.numbers.items() if k.startswith("margin@")]
        gain = sum(v for v in margins if isinstance(v, int | float))
        return PREFERENCE.index(outcome.decision), -gain

    return min(outcomes, key=rank)
