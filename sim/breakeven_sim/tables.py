"""Sweep results as text and as JSON; every output says `simulated`."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import asdict

import orjson
from rich.console import Console
from rich.table import Table

from .sweep import Fit, RateRow, StaticRow

LABEL = "simulated: a model of an engine, no evidence"
_WIDTH = 160


def as_json(
    preset: str,
    fit: Fit,
    batches: Sequence[int],
    static: Sequence[StaticRow],
    rates: Sequence[RateRow],
) -> str:
    """One JSON object."""
    value = {
        "simulated": True,
        "preset": preset,
        "step_time_fit": asdict(fit),
        "batches": list(batches),
        "static": [asdict(row) for row in static],
        "rates": [asdict(row) for row in rates],
    }
    return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()


def as_text(
    preset: str,
    fit: Fit,
    batches: Sequence[int],
    static: Sequence[StaticRow],
    rates: Sequence[RateRow],
) -> str:
    """Tables for a terminal."""
    console = Console(file=io.StringIO(), width=_WIDTH, force_terminal=False)
    console.print(
        f"{preset} ({LABEL})\nstep ≈ {fit.fixed_s * 1e3:.3f} ms + {fit.per_token_s * 1e6:.2f} "
        f"µs/token + {fit.per_kv_token_s * 1e9:.2f} ns/KV token (largest error {fit.worst:.0%})"
    )
    if static:
        console.print(_static(batches, static))
    if rates:
        console.print(_rates(rates))
    text = console.file
    assert isinstance(text, io.StringIO)
    return text.getvalue().rstrip("\n")


def _static(batches: Sequence[int], rows: Sequence[StaticRow]) -> Table:
    table = Table(title=f"Static speed-up by batch ({LABEL})", title_justify="left")
    table.add_column("arm")
    for head in ("M", *map(str, batches)):
        table.add_column(head, justify="right")
    for row in rows:
        table.add_row(row.arm, f"{row.m:.2f}", *(f"{x:.2f}" for x in row.speedup))
    return table


def _rates(rows: Sequence[RateRow]) -> Table:
    table = Table(title=f"Open loop on a virtual clock ({LABEL})", title_justify="left")
    heads = ("req/s", "offered", "good", "TTFT p50", "TTFT p99", "TPOT p50", "M", "cycle", "C/T",
             "margin", "", "batch", "$/1000 good")  # fmt: skip
    table.add_column("arm")
    for head in heads:
        table.add_column(head, justify="right")
    for row in rows:
        table.add_row(
            row.arm, f"{row.rate_per_s:g}", str(row.offered), _number(row.good_share, 3),
            _ms(row.ttft_p50_s), _ms(row.ttft_p99_s), _ms(row.tpot_p50_s), _number(row.m, 3),
            _ms(row.cycle_s), "" if row.c_over_t is None else f"{row.c_over_t:.2f}",
            _signed(row.margin), row.verdict or "",
            f"{row.mean_batch:.1f}", _number(row.usd_per_1000_good, 3),
        )  # fmt: skip
    return table


def _number(value: float | None, digits: int) -> str:
    return "undefined" if value is None else f"{value:.{digits}f}"


def _signed(value: float | None) -> str:
    return "" if value is None else f"{value:+.3f}"


def _ms(value: float | None) -> str:
    return "undefined" if value is None else f"{value * 1e3:.1f} ms"
