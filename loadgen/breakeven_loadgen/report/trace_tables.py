"""`loadgen trace inspect` as people see it."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..traffic.inspect import Facts
from . import words

BLOCKS = " ▁▂▃▄▅▆▇█"


def print_facts(facts: Facts, name: str, console: Console) -> None:
    """Tables and the picture of arrivals over time."""
    head = Text.assemble((name, "bold"), (f"  {facts.format}", "dim"))
    console.print(head)
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column()
    table.add_row("arrivals", f"{facts.arrivals:,} in {facts.duration_s:,.1f} s")
    table.add_row("mean rate", f"{words.number(facts.rate, 3)}/s")
    table.add_row(
        "gaps",
        f"CV {words.number(facts.gap_cv)}, p50 {words.seconds(facts.gap_p50_s)}, "
        f"p99 {words.seconds(facts.gap_p99_s)}, max {words.seconds(facts.gap_max_s)}; "
        f"{facts.same_time:,} arrivals at the time of the one before",
    )
    for title, lengths in (("prompt", facts.in_tokens), ("output", facts.out_tokens)):
        table.add_row(
            f"{title} tokens",
            f"mean {lengths['mean']:,.0f}, p50 {lengths['p50']:,.0f}, p95 {lengths['p95']:,.0f}, "
            f"max {lengths['max']:,.0f}; {lengths['sum']:,.0f} in all",
        )
    for field, labels in facts.labels.items():
        shown = ", ".join(f"{label} {n:,}" for label, n in list(labels.items())[:6])
        more = f" and {len(labels) - 6} more" if len(labels) > 6 else ""
        table.add_row(field, shown + more)
    table.add_row("streams", f"{facts.streams:,} of {facts.arrivals:,}")
    if facts.sessions:
        table.add_row("sessions", f"{facts.sessions:,}")
    if facts.with_prefix:
        table.add_row(
            "prefixes",
            f"{facts.with_prefix:,} arrivals; {words.share(facts.shared_prefix_tokens)} of prompt "
            "tokens were seen before",
        )
    console.print(table)
    console.print()
    console.print(Text("arrivals over time", style="dim"))
    console.print(Text(sparkline(facts.counts), style="cyan"))
    peak = max(facts.counts)
    width_s = facts.duration_s / len(facts.counts)
    console.print(
        Text(f"0 s … {facts.duration_s:,.0f} s, a column is {width_s:.3g} s, peak {peak}", "dim")
    )


def sparkline(counts: tuple[int, ...]) -> str:
    """One character a bin; an occupied bin is never blank."""
    peak = max(max(counts), 1)
    top = len(BLOCKS) - 1
    return "".join(BLOCKS[0 if not n else max(1, round(n / peak * top))] for n in counts)
