"""`loadgen report DIR`: tables, report.html and CSV of a result folder, also of a killed run."""

from __future__ import annotations

from pathlib import Path

import click
import orjson

from breakeven.exitcodes import ExitCode

from ..judge.command import report_grid
from ..judge.dataset import GRID
from ..replay.recover import load
from ..replay.spool import disk_error
from ..report.export import write_csv
from ..report.page import html_page
from ..report.tables import print_summary

PAGE = "report.html"


@click.command("report", epilog="\b\nExample:\n  loadgen report out/run1 --csv rows.csv")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--csv", "csv_file", metavar="FILE", help="Write the rows as CSV, too.")
@click.option("--json", "as_json", is_flag=True, help="Print summary.json instead of tables.")
def report_command(folder: Path, csv_file: str | None, as_json: bool) -> ExitCode:
    """Show the result in FOLDER and write its report.html.

    A run that was killed is recovered from its spool first, and says that it is partial. A grid's
    folder gives the tables and pictures of its decision.
    """
    if (folder / GRID).exists():
        return report_grid(folder, as_json=as_json)
    rows, record, result = load(folder)
    path = folder / PAGE
    try:
        path.write_text(html_page(rows, result.summary, record, folder), "utf-8")
    except OSError as error:
        raise disk_error(error, path) from None
    if csv_file is not None:
        write_csv(rows, Path(csv_file))
    if as_json:
        click.echo(orjson.dumps(result.summary, option=orjson.OPT_INDENT_2))
    else:
        print_summary(result)
        click.echo(f"page     {path}")
    return ExitCode.OK
