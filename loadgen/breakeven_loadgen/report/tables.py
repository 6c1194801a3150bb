"""A run's summary as terminal tables. Computes nothing: every figure is in summary.json."""

from __future__ import annotations

from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..replay.results import RunResult
from ..replay.summary import NEAR_EPSILON
from . import words

QUANTILES = ("p50", "p90", "p95", "p99", "max")
LATENCIES = (
    ("TTFT, from intended time", "ttft_s"),
    ("TTFT, from send", "ttft_sent_s"),
    ("e2e, from intended time", "e2e_s"),
    ("e2e, from send", "e2e_sent_s"),
    ("TPOT", "tpot_s"),
    ("gap between bursts", "gap_s"),
    ("worst gap of a request", "request_gap_max_s"),
    ("schedule lag", "lag_s"),
)
VERDICT_STYLES = {"good": "green", "cancelled": "dim", "interrupted": "yellow"}
GATE_MARKS = {
    True: ("passed", "green"),
    False: ("FAILED", "bold red"),
    None: ("not evaluated", "yellow"),
}
PLAIN_WIDTH = 112
"""Columns of output that goes into a file or pipe."""
BAR = 24
"""Width of a verdict's bar, characters."""


def results_console() -> Console:
    """Stdout; where it is no terminal, wide enough for every table."""
    console = Console()
    return console if console.is_terminal else Console(width=PLAIN_WIDTH)


def print_summary(result: RunResult, console: Console | None = None) -> None:
    """All tables of one run, and where its files are."""
    console = console or results_console()
    summary = result.summary
    console.print()
    console.print(headline(summary))
    console.print(Padding(latency_table(summary["latency"]), (1, 0, 0, 0)))
    console.print(Padding(verdict_table(summary), (1, 0, 0, 0)))
    console.print(Padding(token_lines(summary), (1, 0, 0, 0)))
    console.print(Padding(gate_table(summary["gates"]), (1, 0, 0, 0)))
    for note in notes(summary):
        console.print(note)
    console.print()
    console.print(Text.assemble(("results  ", "dim"), (str(result.folder), "bold")))


def headline(summary: dict[str, Any]) -> RenderableType:
    """Goodput, rates and labels, in three lines."""
    rate, good = summary["rate"], summary["goodput"]
    share = good["share"]
    style = "bold green" if share is not None and share >= 0.99 else "bold yellow"
    first = Text.assemble(
        ("goodput ", "bold"),
        (words.share(share, 2), style),
        (f"   {words.number(good['per_s'])}/s good", ""),
        (f"   SLO {slo_words(good['slo'])}", "dim"),
    )
    arrivals = summary["arrivals"]
    second = Text.assemble(
        (f"offered {words.number(rate['offered'])}/s", ""),
        (f" (target {words.number(rate['target'])}/s)" if rate["target"] else "", "dim"),
        (f"   sent {words.number(rate['sent'])}/s", ""),
        (f"   answered {words.number(rate['answered'])}/s", ""),
        (f"   {arrivals['offered']:,} arrivals in {summary['window_s']:.1f} s", "dim"),
    )
    return Group(first, second, label_line(summary))


def label_line(summary: dict[str, Any]) -> Text:
    """The labels that every output carries."""
    labels = summary["labels"]
    text = f"engine {labels['engine']} · content {labels['content']} · acceptance "
    text += f"{labels['acceptance']} · {summary['evidence'].replace('_', ' ')}"
    return Text(text, style="dim" if summary["evidence"] == "evidence" else "magenta")


def slo_words(slo: dict[str, Any] | None) -> str:
    """An SLO in one line."""
    if slo is None:
        return "none: any whole answer is good"
    kinds = {"ttft_s": "TTFT", "tpot_s": "TPOT", "gap_p99_s": "gap p99", "e2e_s": "e2e"}
    return ", ".join(
        f"{name} ≤ {words.seconds(slo[key])}" for key, name in kinds.items() if slo.get(key)
    )


def latency_table(latency: dict[str, Any]) -> Table:
    """Quantiles in milliseconds."""
    table = Table(box=None, pad_edge=False, header_style="dim", title_justify="left")
    table.add_column("ms", style="bold")
    for name in QUANTILES:
        table.add_column(name, justify="right", min_width=9)
    table.add_column("n", justify="right", style="dim")
    table.add_column("unanswered", justify="right", style="dim")
    for title, key in LATENCIES:
        found = latency[key]
        if found is None:
            continue
        cells = [words.quantile(found, name) for name in QUANTILES]
        missing = found.get("unanswered")
        table.add_row(title, *cells, f"{found['n']:,}", f"{missing:,}" if missing else "")
    return table


def verdict_table(summary: dict[str, Any]) -> Table:
    """One line a verdict, with its share as a bar."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("verdict", style="bold")
    table.add_column("n", justify="right")
    table.add_column("share", justify="right")
    table.add_column("", min_width=BAR)
    table.add_column("", style="dim")
    total = sum(summary["verdicts"].values())
    for name, n in sorted(summary["verdicts"].items(), key=lambda item: -item[1]):
        if not n:
            continue
        style = VERDICT_STYLES.get(name, "red")
        bar = "█" * max(1, round(BAR * n / total))
        meaning = words.VERDICT_WORDS[name]
        if name == "good" and summary["goodput"]["slo"] is None:
            meaning = "whole answers"
        table.add_row(
            Text(name, style=style), f"{n:,}", f"{n / total:.1%}", Text(bar, style), meaning
        )
    return table


def token_lines(summary: dict[str, Any]) -> RenderableType:
    """Tokens, speculation, cost: a line each where there is something to say."""
    tokens, spec, decode = summary["tokens"], summary["speculation"], summary["decode"]
    lines = [
        Text.assemble(
            ("tokens      ", "bold"),
            f"{tokens['prompt']:,} in, {tokens['output']:,} out, "
            f"{words.number(tokens['output_per_s'], 0)} out/s, "
            f"{words.ms(decode['s_per_token'], 2)} ms of decode per token",
        )
    ]
    if tokens["burst"] is not None:
        burst = tokens["burst"]
        lines.append(
            Text.assemble(
                ("bursts      ", "bold"),
                f"{burst['mean']:.2f} tokens a burst, at most {burst['max']:.0f}; "
                f"{tokens['merged_reads']:,} merged reads{_coalesced(tokens)}",
            )
        )
    m = spec["m_counters"]
    if m is not None or spec["m_block"] is not None:
        parts = [f"M {words.number(m if m is not None else spec['m_block'], 3)} tokens a cycle"]
        if spec["cycle_s"] is not None:
            parts.append(f"cycle {words.ms(spec['cycle_s'], 2)} ms")
        if spec["acceptance"] is not None:
            parts.append(f"acceptance {words.share(spec['acceptance'])} (never alone)")
        lines.append(Text.assemble(("speculation ", "bold"), ", ".join(parts)))
    if summary["cost"] is not None:
        cost = summary["cost"]
        lines.append(
            Text.assemble(
                ("cost        ", "bold"),
                f"{words.usd(cost['usd_per_good'])} per good response "
                f"({words.usd(cost['usd'])} for {cost['fleet_s']:.0f} s of fleet)",
            )
        )
    return Group(*lines)


def _coalesced(tokens: dict[str, Any]) -> str:
    n = tokens["coalesced_bursts"]
    return f"; {n:,} above k + 1: events were merged on the way" if n else ""


def gate_table(gates: list[dict[str, Any]]) -> Table:
    """The validity gates; what could not be evaluated says why."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("validity gate", style="bold", min_width=13)
    table.add_column("")
    table.add_column("", style="dim")
    for gate in gates:
        word, style = GATE_MARKS[gate["passed"]]
        table.add_row(gate["name"], Text(word, style=style), gate["reason"])
    return table


def notes(summary: dict[str, Any]) -> list[Text]:
    """Partial results, missed thresholds, notes of the plan."""
    lines = []
    partial = words.PARTIAL.get(summary["state"])
    if partial is not None:
        n = summary["arrivals"]["never_started"]
        lines.append(f"partial: {partial}; {n:,} scheduled arrivals were never started")
    lines += [f"missed: {text}" for text in summary["thresholds"]]
    failed = [gate["name"] for gate in summary["gates"] if gate["passed"] is False]
    if failed:
        lines.append(f"not evidence: gate {', '.join(failed)} failed")
    epsilon = summary["epsilon"]
    if (epsilon["near_share"] or 0.0) > NEAR_EPSILON:
        lines.append(
            f"ε {words.seconds(epsilon['used_s'])} lies among the gaps: "
            f"{epsilon['near_share']:.0%} of them are within a factor of two of it"
        )
    found = [Text("\n" + line if not i else line, style="yellow") for i, line in enumerate(lines)]
    return found + [Text(f"note: {note}", style="dim") for note in summary["notes"]]
