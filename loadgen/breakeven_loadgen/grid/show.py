"""The grid on a terminal: cells, order, time and cost; empty where nothing was measured.

Here: tables with rich. Not here: figures of a filled grid (judge report).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from breakeven.units import format_duration

from ..judge.dataset import POLICY, GridRecord
from .cells import CELLS, arms_of
from .gateway import CELL
from .plan import Estimate, Windows, estimate

RESULT_COLUMNS = ("good", "TTFT", "TPOT", "gap", "M", "C/T", "margin", "$")


def print_plan(record: GridRecord, windows: Windows, console: Console) -> None:
    """The unfilled grid, the order, the time and the cost."""
    console.print(_cells(record))
    console.print(_order(record))
    for note in windows.notes:
        console.print(note, style="yellow", highlight=False)
    if record.contract is None:
        console.print(
            "no contract: the grid can run, but nothing can be decided (contract: in GRID.yaml)",
            style="yellow", highlight=False,
        )  # fmt: skip
    found = estimate(record)
    console.print(estimate_line(found), highlight=False)


def estimate_line(found: Estimate) -> str:
    """Runs, time and cost in one line."""
    usd = "no price given" if found.usd is None else f"${found.usd:,.2f}"
    least = format_duration(found.seconds)
    return f"{found.runs} runs, at least {least}, fleets for that time: {usd}"


def _cells(record: GridRecord) -> Table:
    """One row per cell, arm and rate, with empty result columns: nothing predicted stands there."""
    table = Table(
        title="grid (unfilled)", title_justify="left", box=box.SIMPLE, padding=(0, 1, 0, 0)
    )
    for heading in ("cell", "arm", "rate/s", "blocks", *RESULT_COLUMNS):
        left = heading in ("cell", "arm")
        table.add_column(heading, justify="left" if left else "right", no_wrap=True)
    baseline = record.baseline.name
    candidates = [arm.name for arm in record.candidates]
    empty = [""] * len(RESULT_COLUMNS)
    for name in record.cells:
        cell = CELLS[name]
        if cell.rates == "gateway":
            continue
        arms = arms_of(name, baseline, candidates)
        if not arms:
            table.add_row(name, "(no arm)", "", "", *empty, style="dim")
        for arm in arms:
            for rate in _rates(record, cell.rates):
                blocks = "" if cell.traffic == "restart" else str(record.blocks)
                label = f"{arm} (separate resources)" if _separate(record, arm) else arm
                table.add_row(name, label, f"{rate:g}", blocks, *empty)
    if record.gateway is None:
        table.add_row(CELL, "(not configured)", "", "", *empty, style="dim")
    else:
        rates = f"{record.gateway.low_rps:g}, {record.gateway.high_rps:g}"
        table.add_row(CELL, "(the gateway)", rates, "", *empty)
    return table


def _separate(record: GridRecord, name: str) -> bool:
    return next(arm.separate for arm in record.arms if arm.name == name)


def _rates(record: GridRecord, which: str) -> list[float]:
    rates = sorted(record.rates.values())
    return {"all": rates, "peak": rates[-1:], "low": rates[:1]}[which]


def _order(record: GridRecord) -> Table:
    table = Table(title="order", title_justify="left", box=box.SIMPLE)
    for heading in ("load", "traffic", "block", "runs in order"):
        table.add_column(heading)
    rows: dict[tuple[str, str, int], list[str]] = {}
    for run in record.runs:
        name = f"{run.arm} (A/A)" if run.repeat else run.arm
        rows.setdefault((run.load, run.traffic, run.block), []).append(name)
    for (load, traffic, block), arms in rows.items():
        table.add_row(load, traffic, str(block), " → ".join(arms))
    if record.gateway is not None:
        g = record.gateway
        steps = " → ".join([f"{g.high_rps:g}/s", f"{g.low_rps:g}/s"] * g.cycles)
        table.add_row("", CELL, "", f"{steps} → {g.high_rps:g}/s, {format_duration(g.seconds)}")
    return table


def plan_json(record: GridRecord, windows: Windows) -> dict[str, Any]:
    """The plan for scripts."""
    found = estimate(record)
    return {
        "runs": [
            {"cell": r.cell, "arm": r.arm, "load": r.load, "rate": r.rate, "block": r.block,
             "position": r.position, "aa": r.repeat, "traffic": r.traffic, "folder": r.folder}
            for r in record.runs
        ],
        "policy": None if record.gateway is None else {
            "low_rps": record.gateway.low_rps, "high_rps": record.gateway.high_rps,
            "cycles": record.gateway.cycles, "seconds": record.gateway.seconds, "folder": POLICY,
        },
        "seconds": found.seconds,
        "usd": found.usd,
        "notes": list(windows.notes),
        "can_decide": record.contract is not None,
        "results": None,
    }  # fmt: skip


def where(folder: Path) -> str:
    """How a path is printed."""
    return str(folder)
