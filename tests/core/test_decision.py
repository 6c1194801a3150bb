"""The decision table, row by row: facts in, decision, gate and figures out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from breakeven.decision import Action, Decision, choose, decide
from breakeven.facts import ALL, Cell, Facts, Floor, Interval, Word, word_of
from breakeven.provenance import Evidence

KEPT = (Floor("goodput", True, "goodput keeps 99%"), Floor("ttft", True, "ttft"))


def cell(
    rate: float, margin: float | None, half: float = 0.03, cohort: str = ALL, **more: Any
) -> Cell:
    """A cell whose interval is margin ± half."""
    found = None if margin is None else Interval(margin, margin - half, margin + half)
    defaults = {"floors": KEPT, "m": 2.2, "inflation": 1.5, "blocks": 8}
    return Cell(cohort, f"r{rate:g}", rate, found, word_of(found), **(defaults | more))


def facts(*cells: Cell, **more: Any) -> Facts:
    return Facts("draft", cells, **more)


GAIN = (cell(2, 0.3), cell(8, 0.25), cell(20, 0.2))


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [
        (0.01, 0.05, Word.PAYS),
        (-0.05, -0.01, Word.LOSES),
        (-0.01, 0.015, Word.EVEN),
        (-0.03, 0.05, Word.INCONCLUSIVE),
        (0.0, 0.05, Word.INCONCLUSIVE),
    ],
)
def test_a_word_needs_the_whole_interval(low: float, high: float, word: Word) -> None:
    """Not the estimate."""
    assert word_of(Interval((low + high) / 2, low, high)) is word


def test_an_unmeasured_margin_is_inconclusive() -> None:
    """Absent is not zero."""
    assert word_of(None) is Word.INCONCLUSIVE


BROKEN = (Floor("ttft", False, "ttft above 500 ms in 9% of answers stays within 1%"),)
OPEN = (Floor("goodput", None, "goodput 98.7% keeps 99%"),)

TABLE = [
    # facts, decision, action, gate
    (facts(*GAIN), "canary", "retain", None),
    (facts(*GAIN, invalid=("workload: output lengths differ",)), "invalid", "none", "workload"),
    (facts(*GAIN, unsupported=("tools is failed",)), "do_not_enable", "disable", "contract"),
    (facts(*GAIN, quality=("L1: 9 of 200",)), "do_not_enable", "disable", "quality"),
    (facts(*GAIN, unverified=("fly is lossy",)), "do_not_enable", "disable", "sampler"),
    (facts(*GAIN, ttft_share=0.8, median_output=10.0), "fix_prefill", "none", "ttft"),
    (facts(*GAIN, ttft_share=0.8, median_output=400.0), "canary", "retain", None),
    (facts(*GAIN, ttft_share=0.2, median_output=10.0), "canary", "retain", None),
    (facts(cell(2, 0.3), cell(20, -0.2)), "limit_to_rate", "tune", "margin"),
    (facts(cell(2, 0.3), cell(20, 0.01, 0.2)), "limit_to_rate", "tune", "margin"),
    (facts(cell(2, 0.3), cell(20, 0.2, floors=BROKEN)), "limit_to_rate", "tune", "ttft"),
    (facts(cell(2, 0.3), cell(20, 0.2, floors=OPEN)), "limit_to_rate", "tune", "goodput"),
    (facts(*GAIN, cell(2, -0.3, cohort="xx")), "baseline_for_cohort", "tune", "cohort"),
    (
        facts(cell(2, -0.05, 0.02), cell(2, 0.3, cohort="en"), cell(2, -0.4, cohort="xx")),
        "baseline_for_cohort", "tune", "cohort",
    ),
    (facts(cell(2, -0.2), cell(20, -0.4)), "cheaper_draft", "tune", "margin"),
    (facts(cell(2, 0.3, floors=BROKEN)), "cheaper_draft", "tune", "ttft"),
    (facts(cell(2, 0.0, 0.01, m=1.02)), "keep_off", "disable", "margin"),
    (facts(cell(2, -0.1, m=1.05)), "keep_off", "disable", "margin"),
    (facts(cell(2, 0.05, 0.2)), "inconclusive", "none", "blocks"),
    (facts(cell(2, None)), "inconclusive", "none", "blocks"),
    (facts(cell(2, 0.05, 0.2), cell(20, -0.3, m=1.1)), "inconclusive", "none", "blocks"),
    (facts(cell(2, 0.3, floors=OPEN)), "inconclusive", "none", "blocks"),
    (facts(), "inconclusive", "none", "blocks"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "decision", "action", "gate"), TABLE)
def test_the_first_fitting_row_decides(
    given: Facts, decision: str, action: str, gate: str | None
) -> None:
    """Each row names the gate that chose it, a sentence and the risk to test next."""
    found = decide(given)
    assert (found.decision.value, found.action.value, found.gate) == (decision, action, gate)
    assert found.reason
    assert found.risk


@pytest.mark.parametrize("given", [row[0] for row in TABLE])
def test_nothing_is_kept_beyond_what_was_proven(given: Facts) -> None:
    """Rates are named only where something is kept, and then only rates that clear."""
    found = decide(given)
    keeps = found.decision in (
        Decision.CANARY, Decision.LIMIT_TO_RATE, Decision.BASELINE_FOR_COHORT,
    )  # fmt: skip
    assert (found.rates is not None) == keeps
    if found.decision in (Decision.CANARY, Decision.LIMIT_TO_RATE):
        assert found.rates is not None
        kept = [c for c in given.whole if c.rate <= found.rates[1]]
        assert all(c.clears for c in kept)


def test_a_gain_too_small_to_matter_does_not_clear() -> None:
    """1 % is not worth a second model."""
    assert not cell(2, 0.012, 0.005).clears
    assert cell(2, 0.03, 0.005).clears


def test_losing_cohorts_leave_the_range_with_it() -> None:
    """Limited to a rate, and one cohort stays on the baseline even there."""
    found = decide(facts(cell(2, 0.3), cell(20, -0.2), cell(2, -0.2, cohort="xx")))
    assert found.decision is Decision.LIMIT_TO_RATE
    assert found.denied == ("xx",)


def test_a_method_check_never_retains() -> None:
    """A simulated engine, synthetic content or acceptance."""
    found = decide(facts(*GAIN))
    assert found.action is Action.RETAIN
    assert found.on(Evidence.EVIDENCE) is Action.RETAIN
    assert found.on(Evidence.METHOD_CHECK) is Action.NONE
    tune = decide(facts(cell(2, 0.3), cell(20, -0.2)))
    assert tune.on(Evidence.METHOD_CHECK) is Action.TUNE


def test_the_grid_is_spoken_for_by_its_best_candidate() -> None:
    """A broken and a losing candidate do not hide one that pays; the larger gain wins."""
    small = decide(replace(facts(cell(2, 0.1)), arm="small"))
    large = decide(replace(facts(cell(2, 0.4)), arm="large"))
    broken = decide(replace(facts(*GAIN, quality=("L1",)), arm="broken"))
    losing = decide(replace(facts(cell(2, -0.4)), arm="losing"))
    assert choose([broken, losing, small, large]).arm == "large"
    assert choose([broken, losing]).arm == "losing"


def test_cells_are_read_in_order_of_rate() -> None:
    """Whatever the order they come in."""
    found = decide(facts(cell(20, -0.2), cell(2, 0.3), cell(8, 0.2)))
    assert found.rates == (2, 8)
