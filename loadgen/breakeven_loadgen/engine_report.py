"""`loadgen engine BEFORE AFTER`: what an engine did between two /metrics pages.

Here: the command and its table. Not here: the arithmetic (core engine_metrics).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import orjson
from rich.console import Console
from rich.table import Table

from breakeven.engine_metrics import EngineDelta, delta, read_counters
from breakeven.errors import EngineError, InputError

NOT_EXPOSED = "not exposed"


def engine_delta(before: Path, after: Path) -> EngineDelta:
    """Account for two stored pages (exposition text, or a recorded HTTP response).

    Raises:
        InputError: a file cannot be read, or is no engine's metrics page: names the file.
    """
    pages = []
    for path in (before, after):
        try:
            pages.append(read_counters(path.read_bytes()))
        except OSError as error:
            raise InputError(
                f"cannot read the page: {error.strerror}", file=str(path), mend="check the path"
            ) from None
        except EngineError as error:
            raise InputError(
                str(error), file=str(path), mend="save the engine's /metrics, e.g. with curl -i"
            ) from None
    try:
        return delta(*pages)
    except EngineError as error:
        raise InputError(str(error), file=str(after), mend="take both from one engine") from None


def delta_json(found: EngineDelta) -> dict[str, Any]:
    """The fixed keys of `--json`, then what else is known; null where not known, with reasons."""
    return {
        "schema": found.schema,
        "m": found.m,
        "cycle_s": found.cycle_s,
        "g": _count(found.g),
        "f": _count(found.f),
        "s": _count(found.s),
        "drafts": _count(found.drafts),
        "draft_tokens": _count(found.draft_tokens),
        "accepted": _count(found.accepted),
        "accepted_per_position": found.accepted_per_position
        and [_count(n) for n in found.accepted_per_position],
        "k": found.k,
        "s_per_token": found.s_per_token,
        "acceptance": found.acceptance,
        "per_drafted_step": found.per_drafted_step,
        "cut_tokens": _count(found.cut_tokens),
        "survival": found.survival,
        "conditional": found.conditional,
        "prefix_hit_rate": found.prefix_hit_rate,
        "resets": found.resets,
        "reasons": dict(found.reasons),
    }


def _count(value: float | None) -> int | float | None:
    """Counters are floats on the page; whole ones print as whole numbers."""
    return int(value) if value is not None and value == int(value) else value


@click.command("engine")
@click.argument("before", type=click.Path(path_type=Path, dir_okay=False))
@click.argument("after", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def engine_command(before: Path, after: Path, as_json: bool) -> None:
    """Committed tokens per cycle, cycle time and acceptance between two /metrics pages.

    BEFORE and AFTER hold exposition text or a recorded HTTP response, whose head is skipped.

    \b
    Example:
      curl -s http://127.0.0.1:8000/metrics > before.txt
      … traffic …
      curl -s http://127.0.0.1:8000/metrics > after.txt
      loadgen engine before.txt after.txt
    """
    found = engine_delta(before, after)
    if as_json:
        click.echo(orjson.dumps(delta_json(found), option=orjson.OPT_INDENT_2))
        return
    print_delta(found, Console())


def print_delta(found: EngineDelta, console: Console) -> None:
    """The accounting as a table, and what is not known with its reason."""
    table = Table(title=f"engine accounting ({found.schema})", title_justify="left")
    for heading in ("", "value", "how"):
        table.add_column(heading, justify="right" if heading == "value" else "left")
    for name, value, how in _rows(found):
        table.add_row(name, value, how)
    console.print(table)
    if found.accepted_per_position:
        console.print(_positions(found))
    if found.resets:
        console.print(f"counters that went down: {', '.join(found.resets)}", style="bold red")
    for name, why in found.reasons.items():
        console.print(f"{name}: {why}", style="dim", highlight=False)


def _rows(found: EngineDelta) -> list[tuple[str, str, str]]:
    def number(value: float | None, digits: int = 0) -> str:
        return NOT_EXPOSED if value is None else f"{value:,.{digits}f}"

    def ms(value: float | None) -> str:
        return NOT_EXPOSED if value is None else f"{value * 1e3:.1f} ms"

    return [
        ("M, committed tokens per cycle", number(found.m, 3), "(G − F) / S"),
        ("cycle, D + V + H", ms(found.cycle_s), "Σ step gap / S"),
        ("per committed token", ms(found.s_per_token), "Σ step gap / (G − F)"),
        ("G, generation tokens", number(found.g), "counter"),
        ("F, first tokens", number(found.f), "TTFT samples"),
        ("S, steps after the first", number(found.s), "inter-token samples"),
        ("drafts", number(found.drafts), "counter; a step may go undrafted"),
        ("draft tokens", number(found.draft_tokens), "counter"),
        ("accepted draft tokens", number(found.accepted), "counter"),
        ("acceptance", number(found.acceptance, 3), "accepted / drafted: never alone, not α"),
        ("per drafted step", number(found.per_drafted_step, 3), "1 + accepted / drafts: not M"),
        ("accepted, then cut by a stop", number(found.cut_tokens), "F + S + A − G"),
        ("K, depth", number(found.k), "number of position labels"),
        ("prefix cache hit rate", number(found.prefix_hit_rate, 3), "hits / queries, tokens"),
    ]


def _positions(found: EngineDelta) -> Table:
    table = Table(title="acceptance by position", title_justify="left")
    for heading in ("position", "accepted", "survival S", "conditional c"):
        table.add_column(heading, justify="right")
    positions = found.accepted_per_position or ()
    survival = found.survival or (None,) * len(positions)
    conditional = found.conditional or (None,) * len(positions)
    for i, accepted in enumerate(positions):
        cells = [survival[i], conditional[i]]
        table.add_row(
            str(i), f"{accepted:,.0f}", *("–" if c is None else f"{c:.3f}" for c in cells)
        )
    return table
