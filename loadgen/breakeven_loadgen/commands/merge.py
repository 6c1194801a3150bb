"""`loadgen merge OUT DIR…`: shards of one run, offered by several machines, into one result."""

from __future__ import annotations

from pathlib import Path

import click
import orjson

from breakeven.errors import InputError
from breakeven.exitcodes import ExitCode

from ..replay.merge import merge
from ..replay.prepare import drop_if_empty, make_folder
from ..report.tables import print_summary


@click.command("merge", epilog="\b\nExample:\n  loadgen merge out/all out/shard-*")
@click.argument("out")
@click.argument("parts", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Overwrite the results in OUT.")
@click.option("--json", "as_json", is_flag=True, help="Print summary.json instead of tables.")
def merge_command(out: str, parts: tuple[Path, ...], force: bool, as_json: bool) -> ExitCode:
    """Join the result folders PARTS of all shards into OUT."""
    folder = make_folder(out, force)
    try:
        result = merge(folder, parts)
    except InputError:
        drop_if_empty(folder)
        raise
    if as_json:
        click.echo(orjson.dumps(result.summary, option=orjson.OPT_INDENT_2))
    else:
        print_summary(result)
    return result.exit_code
