"""The pictures of a grid's report: which figures stand in which chart. Computes nothing.

Margin against rate with intervals and the break-even band, goodput and cost against rate, C/T
against M, tails of gap and TTFT, acceptance by position, cohorts as a forest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from breakeven.facts import ALL, Word

from .capture import Captured
from .decide import Decided
from .report_svg import Chart, ForestRow, Point, Series, chart, forest

COLORS = ("--arm0", "--arm1", "--arm2", "--arm3", "--arm4", "--arm5")
WORD_COLORS = {
    Word.PAYS: "--good", Word.LOSES: "--bad", Word.EVEN: "--arm0", Word.INCONCLUSIVE: "--open",
}  # fmt: skip


def color_of(decided: Decided, arm: str) -> str:
    """An arm's colour, the same in every chart; the baseline is neutral."""
    names = [one.name for one in decided.assessment.grid.record.arms]
    return COLORS[names.index(arm) % len(COLORS)]


def margin_chart(decided: Decided) -> str:
    """Margin against offered rate, with 95 % intervals and the break-even band."""
    series = []
    for candidate in decided.assessment.candidates:
        points = [
            Point(c.rate, c.margin.value, c.margin.low, c.margin.high,
                  f"{candidate.arm.name} at {c.rate:g}/s: {c.margin.value:+.3f} "
                  f"[{c.margin.low:+.3f}, {c.margin.high:+.3f}], {c.word.value}")
            for c in candidate.facts.whole
            if c.margin is not None
        ]  # fmt: skip
        series.append(Series(candidate.arm.name, points, color_of(decided, candidate.arm.name)))
    bands = [(b.low, b.high) for b in decided.bands[decided.outcome.arm].estimate]
    note = f"Shaded: rates at which {decided.outcome.arm} pays, by interpolation."
    return chart(Chart("Margin against offered rate", "offered rate, req/s",
                       "decode time saved", series, bands, zero=True, percent_y=True,
                       note=note))  # fmt: skip


def rate_chart(
    decided: Decided,
    cells: Sequence[Captured],
    title: str,
    label: str,
    value: Callable[[Captured], float | None],
    *,
    percent: bool = False,
    log: bool = False,
    note: str = "",
) -> str:
    """One figure per arm against the offered rate; what is not known is left out."""
    series = []
    for arm in decided.assessment.grid.record.arms:
        mine = [(c, value(c)) for c in cells if c.arm == arm.name and c.traffic == "main"]
        points = [
            Point(c.rate, v, text=f"{arm.name} at {c.rate:g}/s: {v:.4g}")
            for c, v in mine
            if v is not None and (v > 0 or not log)
        ]
        series.append(Series(arm.name, points, color_of(decided, arm.name)))
    known = [p.y for s in series for p in s.points]
    shares = (max(0.0, min(known) - 0.1), 1.02) if percent and known else None
    return chart(Chart(title, "offered rate, req/s", label, series, percent_y=percent, log_y=log,
                       y_range=shares, note=note))  # fmt: skip


def map_chart(decided: Decided) -> str:
    """C/T against M: below the diagonal it pays."""
    series = []
    for candidate in decided.assessment.candidates:
        points = [
            Point(c.m, c.inflation, text=f"{candidate.arm.name} at {c.rate:g}/s: "
                  f"M {c.m:.2f}, C/T {c.inflation:.2f}")
            for c in candidate.facts.whole
            if c.m is not None and c.inflation is not None
        ]  # fmt: skip
        name = candidate.arm.name
        series.append(Series(name, points, color_of(decided, name), line=False))
    return chart(Chart("What a cycle costs against what it commits", "M, tokens per cycle",
                       "C/T, baseline steps per cycle", series, diagonal=True,
                       note="Below the line (C/T < M) it pays."))  # fmt: skip


def tail_chart(decided: Decided, cells: Sequence[Captured], kind: str, title: str) -> str:
    """p99 of one latency against the offered rate, log scale."""

    def p99(c: Captured) -> float | None:
        found = c.latency[kind]
        return None if found is None else found["p99"] * 1e3

    return rate_chart(decided, cells, title, "ms, log scale", p99, log=True,
                      note="Median over blocks of each block's p99.")  # fmt: skip


def position_chart(decided: Decided, cells: Sequence[Captured]) -> str:
    """Survival of drafts by position, at the lowest rate."""
    low = min(decided.assessment.grid.record.rates.values())
    series = []
    for arm in decided.assessment.grid.record.candidates:
        mine = (c for c in cells if c.arm == arm.name and c.rate == low and c.traffic == "main")
        found = next((c.survival for c in mine), None)
        points = [Point(i + 1, s, text=f"{arm.name}, position {i + 1}: {s:.3f}")
                  for i, s in enumerate(found or ())]  # fmt: skip
        series.append(Series(arm.name, points, color_of(decided, arm.name)))
    return chart(Chart("Acceptance by position", "draft position", "drafts accepted so far",
                       series, percent_y=True, y_range=(0.0, 1.0),
                       note="Never alone: M and the cycle decide."))  # fmt: skip


def cohort_forest(decided: Decided) -> str:
    """Margins of every cohort and rate."""
    rows = []
    for candidate in decided.assessment.candidates:
        for line in candidate.lines:
            cell = line.cell
            if cell.margin is not None and (cell.cohort != ALL or line.traffic != "main"):
                name = f"{candidate.arm.name} · {cell.cohort} · {cell.rate:g}/s"
                m = cell.margin
                rows.append(ForestRow(name, m.value, m.low, m.high, WORD_COLORS[cell.word]))
    return forest("Margin per cohort", rows)
