"""`loadgen decide DIR`: decision.json, certificate.json, policy.json, one paragraph of reasons."""

from __future__ import annotations

from pathlib import Path

import click
import orjson

from breakeven.exitcodes import ExitCode


@click.command("decide", epilog="\b\nExample:\n  loadgen decide out/grid")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print decision.json instead of tables.")
@click.option(
    "--exit-code", "use_exit_code", is_flag=True, help="Exit 7 when the decision is do_not_enable."
)
def decide_command(folder: Path, as_json: bool, use_exit_code: bool) -> ExitCode:
    """Decide on the grid in FOLDER: retain, tune, disable, or what is missing for that.

    Exits 4 when a validity gate failed: such a grid is not evidence.
    """
    from breakeven.decision import Decision

    from ..report.tables import results_console
    from .decide import decide_folder
    from .report_html import write_report
    from .tables import print_decision

    decided = decide_folder(folder)
    write_report(folder, decided)
    if as_json:
        click.echo(orjson.dumps(decided.record, option=orjson.OPT_INDENT_2))
    else:
        print_decision(decided, folder, results_console())
    decision = decided.outcome.decision
    if decision is Decision.INVALID:
        return ExitCode.NOT_EVIDENCE
    if use_exit_code and decision is Decision.DO_NOT_ENABLE:
        return ExitCode.DO_NOT_ENABLE
    return ExitCode.OK


def report_grid(folder: Path, *, as_json: bool) -> ExitCode:
    """`loadgen report` on a grid: tables and report.html; the decision's exit code is decide's."""
    from ..report.tables import results_console
    from .decide import decide_folder
    from .report_html import write_report
    from .tables import print_decision

    decided = decide_folder(folder)
    path = write_report(folder, decided)
    if as_json:
        click.echo(orjson.dumps(decided.record, option=orjson.OPT_INDENT_2))
    else:
        print_decision(decided, folder, results_console())
        click.echo(f"pictures: {path}")
    return ExitCode.OK
