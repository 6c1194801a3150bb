"""`loadgen grid plan|run|resume GRID.yaml --out DIR`."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import orjson

from breakeven.errors import InputError
from breakeven.exitcodes import ExitCode, first_of

from .policy_command import policy_command


@click.group("grid")
def grid_group() -> None:
    """Run cells in blocks over arms and offered rates; then: loadgen decide DIR.

    \b
    Example:
      loadgen grid plan grid.yaml
      loadgen grid run grid.yaml --out out/grid
      loadgen decide out/grid
    """


grid_group.add_command(policy_command)

GRID_FILE = click.argument("grid", type=click.Path(path_type=Path, dir_okay=False))


@grid_group.command("plan")
@GRID_FILE
@click.option("--out", help="Also write the plan there, for run and resume.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def plan_command(grid: Path, out: str | None, as_json: bool) -> None:
    """Print the unfilled grid, the order of runs, the time and the cost. Sends nothing."""
    from ..judge.dataset import write_record
    from ..report.tables import results_console
    from .config import read_grid_config
    from .plan import make_plan
    from .show import plan_json, print_plan

    config = read_grid_config(grid)
    record, windows = make_plan(config, grid.parent)
    if as_json:
        click.echo(orjson.dumps(plan_json(record, windows), option=orjson.OPT_INDENT_2))
    else:
        print_plan(record, windows, results_console())
    if out is not None:
        folder = Path(out)
        if folder.exists() and any(folder.iterdir()):
            raise InputError(
                "the folder is not empty", key="--out", value=out, mend="choose an empty folder"
            )
        folder.mkdir(parents=True, exist_ok=True)
        write_record(folder, record)


@grid_group.command("run")
@GRID_FILE
@click.option("--out", required=True, help="Result folder of the grid.")
def run_command(grid: Path, out: str) -> ExitCode:
    """Run the grid into --out; a grid that was killed goes on at the next run.

    Exits 4 where a run's gate failed (no evidence), 5 where only the policy cell did not pass.
    """
    return _run(grid, Path(out))


@grid_group.command("resume")
@GRID_FILE
@click.option("--out", required=True, help="Result folder of the grid that was killed.")
def resume_command(grid: Path, out: str) -> ExitCode:
    """Go on with a grid at the first run that has not finished."""
    from ..judge.dataset import GRID

    if not (Path(out) / GRID).exists():
        raise InputError(
            "no grid to resume", key="--out", value=out, mend="loadgen grid run GRID.yaml --out DIR"
        )
    return _run(grid, Path(out))


def _run(grid: Path, folder: Path) -> ExitCode:
    from .config import read_grid_config
    from .plan import make_plan
    from .runner import Interrupted, Job, run

    config = read_grid_config(grid)
    record, windows = make_plan(config, grid.parent)
    job = Job(folder, config, record, windows, grid.parent, _progress)
    try:
        finished = run(job)
    except Interrupted as stop:
        click.echo(f"loadgen: {stop} {grid} --out {folder}", err=True)
        return ExitCode.INTERRUPTED
    for line in (*finished.gates, *finished.policy):
        click.echo(line, err=True)
    click.echo(f"{folder}: finished; next: loadgen decide {folder}")
    return first_of([
        ExitCode.NOT_EVIDENCE if finished.gates else ExitCode.OK,
        ExitCode.THRESHOLD_MISSED if finished.policy else ExitCode.OK,
    ])  # fmt: skip


def _progress(line: str) -> None:
    """Progress is for somebody who watches: only on a terminal."""
    if sys.stderr.isatty():
        click.echo(line, err=True)
