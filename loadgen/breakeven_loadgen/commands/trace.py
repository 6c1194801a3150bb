"""`loadgen trace inspect|convert|freeze|verify`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import orjson

from breakeven.errors import InputError
from breakeven.exitcodes import ExitCode
from breakeven.trace import Trace, read_trace, write_trace
from breakeven.units import parse_duration

from ..report.tables import results_console
from ..report.trace_tables import print_facts
from ..traffic.formats import TraceSource, load_trace
from ..traffic.freeze import DEFAULT_MIN_COUNT, freeze
from ..traffic.inspect import facts


def reading(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of every command that reads a public format."""
    for option in (
        click.option("--block-size", type=int, help="Tokens per hash block (512)."),
        click.option("--time-unit", type=click.Choice(["s", "ms"]), help="Of JSONL timestamps."),
        click.option("--skip-empty", is_flag=True, help="Leave out rows with 0 output tokens."),
    ):
        command = option(command)
    return click.argument("file")(command)


@click.group("trace", epilog="\b\nExample:\n  loadgen trace inspect azure.csv")
def trace_group() -> None:
    """Arrival traces: look at them, convert them, make them safe to keep."""


@trace_group.command("inspect", epilog="\b\nExample:\n  loadgen trace inspect azure.csv --json")
@reading
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
def inspect_command(file: str, as_json: bool, **options: Any) -> ExitCode:
    """Rate, gaps, lengths and labels of FILE, and a picture of its arrivals."""
    source = load_trace(file, **options)
    found = facts(source.trace, source.format)
    if as_json:
        click.echo(orjson.dumps(found.as_json(), option=orjson.OPT_INDENT_2))
    else:
        print_facts(found, _name(file), results_console())
    return ExitCode.OK


@trace_group.command(
    "convert", epilog="\b\nExample:\n  loadgen trace convert azure.csv azure.jsonl"
)
@reading
@click.argument("output")
@click.option("--force", is_flag=True, help="Overwrite OUTPUT.")
def convert_command(file: str, output: str, force: bool, **options: Any) -> ExitCode:
    """Write FILE as a redacted trace, times and lengths unchanged; ids are keyed."""
    source = load_trace(file, **options)
    frozen = freeze(source.trace, min_count=1, notes={"source": _source(source, file)})
    _write(output, frozen.trace, force)
    click.echo(f"{len(frozen.trace.arrivals):,} arrivals written to {output}")
    return ExitCode.OK


@trace_group.command(
    "freeze",
    epilog="\b\nExample:\n  loadgen trace freeze recorded.jsonl frozen.jsonl --step 10ms",
)
@reading
@click.argument("output")
@click.option("--step", metavar="TIME", help="Quantise arrival times to this step.")
@click.option(
    "--min-count",
    type=int,
    default=DEFAULT_MIN_COUNT,
    show_default=True,
    help="Labels of fewer arrivals become other.",
)
@click.option(
    "--salt-file", metavar="FILE", help="Secret salt; a fresh one is used and forgotten without it."
)
@click.option("--force", is_flag=True, help="Overwrite OUTPUT.")
def freeze_command(
    file: str,
    output: str,
    step: str | None,
    min_count: int,
    salt_file: str | None,
    force: bool,
    **options: Any,
) -> ExitCode:
    """Write FILE as a frozen trace: allowed fields only, no time offset, no rare labels."""
    source = load_trace(file, **options)
    frozen = freeze(
        source.trace,
        salt=_salt(salt_file),
        step_s=None if step is None else parse_duration(step),
        min_count=min_count,
    )
    _write(output, frozen.trace, force)
    for warning in frozen.warnings:
        click.echo(f"warning: {warning}", err=True)
    merged = f", {frozen.merged_labels:,} rare labels merged" if frozen.merged_labels else ""
    click.echo(f"{len(frozen.trace.arrivals):,} arrivals written to {output}{merged}")
    return ExitCode.OK


@trace_group.command("verify", epilog="\b\nExample:\n  loadgen trace verify frozen.jsonl")
@click.argument("file")
def verify_command(file: str) -> ExitCode:
    """Prove that FILE holds nothing but the allowed fields; exit 2 names the first that is not."""
    try:
        data = Path(file).read_bytes()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", file=file, mend="check it") from None
    trace = read_trace(data.split(b"\n"), file=_name(file))
    click.echo(f"{_name(file)}: {len(trace.arrivals):,} arrivals, only allowed fields")
    return ExitCode.OK


def _name(file: str) -> str:
    return "stdin" if file == "-" else os.path.basename(file)


def _source(source: TraceSource, file: str) -> str:
    name = "".join(c if c.isalnum() or c in "._-" else "-" for c in _name(file))
    return f"{source.format} {name}"[:200]


def _salt(path: str | None) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes().strip()
    except OSError as error:
        raise InputError(
            f"cannot be read: {error.strerror}", key="--salt-file", value=path, mend="check it"
        ) from None


def _write(output: str, trace: Trace, force: bool) -> None:
    """Write line by line beside the target, then put it in place."""
    path = Path(output)
    if path.exists() and not force:
        raise InputError("exists", file=output, mend="choose another name, or pass --force")
    new = path.with_name(f".{path.name}.new")
    try:
        with new.open("wb") as file:
            file.writelines(write_trace(trace))
        new.replace(path)
    except OSError as error:
        raise InputError(
            f"cannot be written: {error.strerror}", file=output, mend="choose another place"
        ) from None
