"""`loadgen worksheet`: does a draft pay, by arithmetic alone.

Here: the command and its table. Not here: the sum itself (core worksheet). Nothing here is
measured, and the output says so.
"""

from __future__ import annotations

import math
from typing import Any

import click
import orjson
from rich.console import Console
from rich.table import Table

from breakeven.errors import InputError
from breakeven.worksheet import (
    Worksheet,
    committed_from_survival,
    committed_per_cycle,
    worksheet,
)

CAVEAT = "arithmetic on the figures given, not a measurement"


@click.command("worksheet")
@click.option("--baseline-ms", type=float, required=True, help="T: baseline ms per token.")
@click.option("--k", type=int, default=None, help="Draft tokens per cycle (with --alpha).")
@click.option("--alpha", type=float, default=None, help="Constant acceptance per position, 0 to 1.")
@click.option("--survival", default=None, help="Instead: S1,S2,… accepted up to each position.")
@click.option("--draft-ms", type=float, required=True, help="D: draft time per cycle.")
@click.option("--verify-ms", type=float, required=True, help="V: verify time per cycle.")
@click.option("--overhead-ms", type=float, default=0.0, show_default=True, help="H: the rest.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def worksheet_command(
    baseline_ms: float,
    k: int | None,
    alpha: float | None,
    survival: str | None,
    draft_ms: float,
    verify_ms: float,
    overhead_ms: float,
    as_json: bool,
) -> None:
    """Break-even of one draft: D + V + H < M · T per committed token.

    \b
    Example:
      loadgen worksheet --baseline-ms 10 --k 4 --alpha 0.7 \\
        --draft-ms 4 --verify-ms 12 --overhead-ms 2
    """
    _check_times(baseline_ms, draft_ms, verify_ms, overhead_ms)
    m, depth = committed(k, alpha, survival)
    sheet = worksheet(
        baseline_ms / 1e3, draft_ms / 1e3, verify_ms / 1e3, overhead_ms / 1e3, m, depth
    )
    if as_json:
        click.echo(orjson.dumps(worksheet_json(sheet), option=orjson.OPT_INDENT_2))
        return
    print_worksheet(sheet, Console())


def _check_times(baseline_ms: float, draft_ms: float, verify_ms: float, overhead_ms: float) -> None:
    """The core checks seconds; a message must quote what was typed."""
    for name, value in (("draft", draft_ms), ("verify", verify_ms), ("overhead", overhead_ms)):
        if not (math.isfinite(value) and value >= 0):
            raise InputError("a time must be finite and at least 0", key=f"--{name}-ms",
                             value=value, mend="give milliseconds, e.g. 4")  # fmt: skip
    if not (math.isfinite(baseline_ms) and baseline_ms > 0):
        raise InputError("a time must be finite and above 0", key="--baseline-ms",
                         value=baseline_ms, mend="give milliseconds, e.g. 10")  # fmt: skip
    if draft_ms + verify_ms + overhead_ms <= 0:
        raise InputError("a cycle must take time", key="--verify-ms", value=verify_ms,
                         mend="give the time of one verification in milliseconds")  # fmt: skip


def committed(k: int | None, alpha: float | None, survival: str | None) -> tuple[float, int | None]:
    """(M, k) from --k and --alpha, or from --survival.

    Raises:
        InputError: both ways given, or neither, or a value that cannot be.
    """
    mend = "give --k and --alpha, or --survival"
    if survival is not None:
        if alpha is not None:
            raise InputError("--alpha and --survival exclude each other", key="alpha", mend=mend)
        shares = _shares(survival)
        if k is not None and k != len(shares):
            raise InputError("--k differs from the number of survival shares", key="k", value=k,
                             mend=f"leave --k, or give {k} shares")  # fmt: skip
        return committed_from_survival(shares), len(shares)
    if k is None or alpha is None:
        raise InputError("M cannot be computed", key="alpha" if k is not None else "k", mend=mend)
    return committed_per_cycle(k, alpha), k


def _shares(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(
            "survival is a list of numbers", key="survival", value=text, mend="e.g. 0.7,0.5,0.3"
        ) from None


def worksheet_json(sheet: Worksheet) -> dict[str, Any]:
    """The sum as JSON; times in seconds."""
    return {
        "m": sheet.m,
        "k": sheet.k,
        "baseline_s": sheet.baseline_s,
        "cycle_s": sheet.cycle_s,
        "s_per_token": sheet.s_per_token,
        "margin": sheet.margin,
        "inflation": sheet.inflation,
        "verdict": sheet.word,
        "break_even_alpha": sheet.break_even_alpha,
        "break_even_draft_s": sheet.break_even_draft_s,
        "note": CAVEAT,
    }


def print_worksheet(sheet: Worksheet, console: Console) -> None:
    """The sum as a table and one line of verdict."""
    table = Table(title="break-even worksheet", title_justify="left")
    for heading in ("", "value", "how"):
        table.add_column(heading, justify="right" if heading == "value" else "left")
    alpha = "none pays" if sheet.break_even_alpha is None else f"{sheet.break_even_alpha:.4f}"
    draft = sheet.break_even_draft_s
    for row in (
        ("M, committed tokens per cycle", f"{sheet.m:.4f}", "1 + S1 + … + Sk"),
        ("cycle, D + V + H", f"{sheet.cycle_s * 1e3:.2f} ms", "given"),
        ("per committed token", f"{sheet.s_per_token * 1e3:.2f} ms", "cycle / M"),
        ("baseline T", f"{sheet.baseline_s * 1e3:.2f} ms", "given"),
        ("C/T, to be beaten by M", f"{sheet.inflation:.4f}", "cycle / T"),
        ("margin", f"{sheet.margin:+.4f}", "1 − cycle / (M · T)"),
        ("break-even α", alpha, "where M(k, α) = C/T"),
        ("break-even D", f"{draft * 1e3:.2f} ms" if draft > 0 else "none pays", "M · T − V − H"),
    ):
        table.add_row(*row)
    console.print(table)
    style = "bold green" if sheet.pays else "bold red"
    console.print(f"{sheet.word} ({CAVEAT})", style=style, highlight=False)
