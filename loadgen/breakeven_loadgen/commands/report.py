"""`loadgen report DIR`: tables of a result folder, also of a run that was killed."""

from __future__ import annotations

from pathlib import Path

import click
import orjson

from breakeven.exitcodes import ExitCode

from ..replay.recover import load
from ..report.tables import print_summary


@click.command("report", epilog="\b\nExample:\n  loadgen report out/run1")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print summary.json instead of tables.")
def report_command(folder: Path, as_json: bool) -> ExitCode:
    """Show the result in FOLDER; recovers a run that was killed from its spool."""
    _, _, result = load(folder)
    if as_json:
        click.echo(orjson.dumps(result.summary, option=orjson.OPT_INDENT_2))
    else:
        print_summary(result)
    return ExitCode.OK
