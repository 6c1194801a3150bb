"""What the demo prints. Computes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from ..report import words
from .cells import GOODPUT, LOADS, PRESET, TRACE_WORDS, USD_PER_HOUR
from .figures import NOTHING, Cell

if TYPE_CHECKING:
    from .loop import Arm

PLAIN_WIDTH = 112


class Screen:
    """Progress on stderr (only a terminal), the result on stdout."""

    def __init__(self, out: Console | None = None, err: Console | None = None) -> None:
        out = out or Console()
        self._out = out if out.is_terminal else Console(file=out.file, width=PLAIN_WIDTH)
        self._err = err or Console(stderr=True)

    def _step(self, text: Text | str) -> None:
        if self._err.is_terminal:
            self._err.print(text)

    def opening(self, folder: Path) -> None:
        """What is about to happen."""
        seconds = sum(load.window_s for load in LOADS) * 2
        self._step(
            Text.assemble(
                ("Does a draft pay for itself? ", "bold"),
                ("Two simulated engines, a proxy before each, one public trace; ", ""),
                (f"{seconds:.0f} s of load, about a minute in all.", ""),
            )
        )
        self._step(Text(f"results go to {folder}", style="dim"))

    def started(self, arms: Sequence[Arm]) -> None:
        """Engines and proxies stand."""
        for arm in arms:
            line = f"  ✓ {arm.plan.name:<9} engine {arm.engine_url}  proxy {arm.proxy_url}"
            self._step(Text(line, style="green"))

    def measured(self, c: Cell) -> None:
        """One run is done."""
        line = f"  ✓ {c.arm:<9} {c.rate:>3g}/s  {c.offered} arrivals, "
        line += f"{c.tokens.generator:,} tokens, goodput {words.share(c.goodput)}"
        self._step(Text(line, style="green"))

    def result(
        self,
        cells: Sequence[Cell],
        sentence: str,
        problems: Sequence[str],
        folder: Path,
        took_s: float,
    ) -> None:
        """Table, token check, gates, verdict, folder."""
        out = self._out
        out.print()
        out.print(table(cells))
        out.print(_legend())
        out.print()
        out.print(_client_line(cells))
        out.print(_token_line(cells))
        out.print(_gate_line(cells))
        out.print()
        if problems:
            text = Text("\n".join(problems))
            out.print(Panel(text, title="failed", title_align="left", border_style="red"))
        else:
            out.print(
                Panel(Text(sentence), title="verdict", title_align="left", border_style="cyan")
            )
        out.print(
            Text.assemble(
                ("results ", "dim"), (str(folder), "bold"), (f"   ({took_s:.0f} s)", "dim")
            )
        )
        out.print(
            Text(f"next: loadgen report {folder}/{cells[-1].arm}-{cells[-1].rate:g}", style="dim")
        )


def table(cells: Sequence[Cell]) -> Table:
    """One row per arm and rate; the rates apart."""
    found = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    found.title = f"{PRESET}, simulated · {TRACE_WORDS}"
    found.title_justify = "left"
    found.title_style = "dim"
    for name in ("rate", "arm"):
        found.add_column(name, justify="left", no_wrap=True)
    for name in ("goodput", "TTFT p50/p95", "TPOT", "gap p99", "M", "cycle", "C/T", "margin"):
        found.add_column(name, justify="right", no_wrap=True)
    found.add_column("$/1k good", justify="right", no_wrap=True)
    last = None
    for c in cells:
        if last is not None and c.rate != last:
            found.add_section()
        found.add_row(*_row(c, first=c.rate != last))
        last = c.rate
    return found


def _row(c: Cell, *, first: bool) -> list[str | Text]:
    cost = words.UNKNOWN if c.usd_per_good is None else f"{c.usd_per_good * 1000:,.3f}"
    return [
        Text(f"{c.rate:g}/s" if first else "", style="bold"),
        c.arm,
        _shaded(words.share(c.goodput), c.goodput is not None and c.goodput >= 0.99),
        f"{words.ms(c.ttft_p50_s, 0)} / {words.ms(c.ttft_p95_s, 0)}",
        words.ms(c.tpot_p50_s, 2),
        words.ms(c.gap_p99_s, 1),
        words.number(c.m, 2),
        words.ms(c.cycle_s, 2),
        words.number(c.inflation, 2),
        _margin(c.margin),
        cost,
    ]


def _shaded(text: str, good: bool) -> Text:
    return Text(text, style="green" if good else "yellow")


def _margin(value: float | None) -> Text:
    if value is None:
        return Text(words.UNKNOWN, style="dim")
    style = "dim" if abs(value) < NOTHING else ("bold green" if value > 0 else "bold red")
    return Text(f"{value * 100:+.1f} %".replace("-", "−"), style=style)


def _legend() -> Text:
    text = (
        "ms where nothing else stands. M: tokens committed per cycle. C/T: cycle over the "
        "baseline's. A draft pays where M > C/T; margin = 1 − (C/T) ÷ M, by the engines' counters. "
        f"Good: {GOODPUT.replace(',', ', ')}. ${USD_PER_HOUR:g}/h assumed per replica."
    )
    return Text(text, style="dim")


def _client_line(cells: Sequence[Cell]) -> Text:
    seen = [
        f"{c.client_margin * 100:+.0f} % at {c.rate:g}/s".replace("-", "−")
        for c in cells
        if c.client_margin is not None
    ]
    return Text(f"  margin in decode time as the clients saw it: {', '.join(seen)}", style="dim")


def _token_line(cells: Sequence[Cell]) -> Text:
    agree = all(c.tokens.agree for c in cells)
    total = sum(c.tokens.generator for c in cells)
    if agree:
        line = f"✓ generator, proxy and engine agree on every one of {total:,} tokens"
        return Text(line, style="green")
    return Text("✗ token counts of generator, proxy and engine differ", style="bold red")


def _gate_line(cells: Sequence[Cell]) -> Text:
    failed = [f"{c.arm} {c.rate:g}/s: {', '.join(c.failed_gates)}" for c in cells if c.failed_gates]
    if not failed:
        return Text("✓ every validity gate passed", style="green")
    line = "! validity gates that failed: " + "; ".join(failed)
    if any({"schedule", "client"} & set(c.failed_gates) for c in cells):
        line += ". This machine was too busy to keep the schedule: read the times as rough."
    return Text(line, style="yellow")
