"""A decision on a terminal: the paragraph, the cells, gates and costs. Computes nothing."""

from __future__ import annotations

from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from breakeven.facts import Interval, Word

from .assess import Candidate
from .decide import Decided
from .policy_cell import HEADINGS, cells

STYLES = {Word.PAYS: "green", Word.LOSES: "red", Word.EVEN: "dim", Word.INCONCLUSIVE: "yellow"}


def print_decision(decided: Decided, folder: Path, console: Console) -> None:
    """Everything a reader needs before opening report.html."""
    record = decided.record
    console.print()
    console.print(
        f"[bold]{record['decision']}[/] · action [bold]{record['action']}[/] · "
        f"{record['evidence']}",
        highlight=False,
    )
    console.print(str(record["reasons"]), highlight=False)
    for candidate in decided.assessment.candidates:
        console.print(margins(candidate))
    console.print(gate_table(decided))
    for arm, flags in record["flags"].items():
        for flag in flags:
            console.print(f"{arm}: {flag}", style="yellow", highlight=False)
    policy = record["checklist"]["policy_cell"]
    if policy["state"] != "not_configured":
        words = zip(HEADINGS[1:], cells(policy)[1:], strict=True)
        line = ", ".join(f"{name} {word}".strip() for name, word in words if word)
        console.print(f"policy cell: {line}", highlight=False)
    if any(cost.usd_per_good is not None for cost in decided.assessment.costs):
        console.print(costs(decided))
    also = ", certificate.json" if decided.certificate else ""
    console.print(
        f"written: {folder}/decision.json, report.html, policy.json{also}", highlight=False
    )


def margins(candidate: Candidate) -> Table:
    """Cohort by rate: word, margin with interval, C/T beside M, broken floors."""
    title = f"{candidate.arm.name} against the baseline"
    table = Table(title=title, title_justify="left", box=box.SIMPLE, padding=(0, 1, 0, 0))
    for heading in ("cohort", "/s", "word", "margin [95 %]", "M", "C/T", "n", "floors"):
        left = heading in ("cohort", "floors")
        table.add_column(heading, justify="left" if left else "right", no_wrap=heading != "floors")
    for line in candidate.lines:
        cell = line.cell
        broken = ", ".join(floor.name for floor in cell.broken)
        shaky = ", ".join(f"{floor.name}?" for floor in cell.open_floors)
        table.add_row(
            cell.cohort,
            f"{cell.rate:g}",
            f"[{STYLES[cell.word]}]{cell.word.value}[/]",
            interval(cell.margin) if not cell.unstable else "unstable",
            number(cell.m),
            number(cell.inflation),
            str(cell.blocks),
            ", ".join(part for part in (broken, shaky) if part) or "kept",
        )
    return table


def gate_table(decided: Decided) -> Table:
    """Validity gates per candidate."""
    table = Table(title="validity gates", title_justify="left", box=box.SIMPLE)
    for heading in ("arm", "gate", "", "figures"):
        table.add_column(heading)
    words = {True: "[green]passed[/]", False: "[red]failed[/]", None: "[dim]not evaluated[/]"}
    for candidate in decided.assessment.candidates:
        for gate in candidate.gates:
            table.add_row(candidate.arm.name, gate.name, words[gate.passed], gate.reason)
    return table


def costs(decided: Decided) -> Table:
    """Dollars per 1,000 good responses, pooled over blocks."""
    table = Table(title="cost per 1,000 good responses", title_justify="left", box=box.SIMPLE)
    for heading in ("arm", "rate/s", "$", "$/h of the fleet"):
        table.add_column(heading, justify="left" if heading == "arm" else "right")
    for cost in decided.assessment.costs:
        usd = "undefined" if cost.usd_per_good is None else f"{cost.usd_per_good * 1000:.3f}"
        table.add_row(cost.arm, f"{cost.rate:g}", usd, number(cost.usd_per_hour))
    return table


def interval(found: Interval | None) -> str:
    """value [low, high], signed."""
    if found is None:
        return "not measurable"
    return f"{found.value:+.3f} [{found.low:+.3f}, {found.high:+.3f}]"


def number(value: float | None) -> str:
    """Two decimals; – is not exposed."""
    return "–" if value is None else f"{value:.2f}"
