"""`loadgen demo`: the whole loop on the simulated engine."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import click

from breakeven.exitcodes import ExitCode

from ..replay.prepare import make_folder


@click.command("demo", epilog="\b\nExample:\n  loadgen demo --out out/demo")
@click.option("--out", help="Result folder (default: out/demo-DATE-TIME).")
@click.option("--force", is_flag=True, help="Use --out although it holds something.")
def demo_command(out: str | None, force: bool) -> ExitCode:
    """See where a draft pays and where it loses: about a minute, no GPU, nothing to set up.

    Two simulated engines (baseline; n-gram draft, k = 5) with a proxy before each replay a slice
    of the Azure 2023 conversation trace at 2/s and 28/s.
    """
    from ..demo.loop import demo
    from ..demo.show import Screen

    stamp = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    folder = make_folder(out or str(Path("out") / f"demo-{stamp}"), force)
    return demo(folder, Screen())
