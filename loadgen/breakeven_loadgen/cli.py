"""The command `loadgen`: flags in, one config dataclass, exit codes out.

Here: the group of commands, messages, `sys.exit`. Not here: what a command does.
"""

from __future__ import annotations

import difflib
import gc
import importlib
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import click

from breakeven import __version__
from breakeven.errors import BreakevenError, InputError, NotReadyError
from breakeven.exitcodes import ExitCode, help_text

EPILOG = "\b\nExit codes:\n" + help_text()
COMMANDS = {
    "replay": "commands.replay:replay_command",
    "trace": "commands.trace:trace_group",
    "engine": "engine_report:engine_command",
    "worksheet": "worksheet_report:worksheet_command",
    "grid": "grid.command:grid_group",
    "decide": "judge.command:decide_command",
    "report": "commands.report:report_command",
    "merge": "commands.merge:merge_command",
    "demo": "commands.demo:demo_command",
}
"""Command -> module and name: imported when used, so that `--help` does not wait for pyarrow."""


class Commands(click.Group):
    """Loads a command when it is asked for; an unknown one names the nearest."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = COMMANDS.get(cmd_name)
        if place is None:
            close = difflib.get_close_matches(cmd_name, COMMANDS, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(COMMANDS)}"
            raise click.UsageError(f"unknown command {cmd_name!r}; {hint}", ctx)
        module, _, name = place.partition(":")
        command: click.Command = getattr(_load(f"breakeven_loadgen.{module}"), name)
        return command


def _load(module: str) -> ModuleType:
    """Import once, without garbage collections: imports leave tens of thousands of objects that
    stay, and looking through them over and over takes a tenth of the start."""
    if module in sys.modules or not gc.isenabled():
        return importlib.import_module(module)
    gc.disable()
    try:
        return importlib.import_module(module)
    finally:
        gc.freeze()
        gc.enable()


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=EPILOG,
)
@click.version_option(__version__, prog_name="loadgen", message="%(prog)s %(version)s")
def cli() -> None:
    """Open-loop load for LLM serving, and what it shows about speculative decoding.

    \b
    Example:
      loadgen demo
      loadgen replay trace.csv --rate 8 --url http://127.0.0.1:8000 --out out/run1
    """


def run(argv: Sequence[str] | None = None) -> ExitCode:
    """Run one command; every error is printed and becomes its exit code."""
    try:
        code = cli.main(args=argv, prog_name="loadgen", standalone_mode=False)
        return code if isinstance(code, ExitCode) else ExitCode.OK
    except click.exceptions.Exit as done:
        return next((c for c in ExitCode if c == done.exit_code), ExitCode.ERROR)
    except click.UsageError as error:
        error.show()
        return ExitCode.USAGE
    except click.ClickException as error:
        error.show()
        return ExitCode.ERROR
    except (KeyboardInterrupt, click.Abort):
        click.echo("loadgen: interrupted", err=True)
        return ExitCode.INTERRUPTED
    except InputError as error:
        return _say(error, ExitCode.USAGE)
    except NotReadyError as error:
        return _say(error, ExitCode.UNREACHABLE)
    except BreakevenError as error:
        return _say(error, ExitCode.ERROR)
    except BrokenPipeError:
        sys.stderr.close()  # the reader went away: nothing to tell it
        return ExitCode.ERROR
    except OSError as error:  # a full disk behind `> file`, say: what a command wrote is kept
        click.echo(f"loadgen: {error.strerror or 'input or output failed'}; free space or choose "
                   "another output, then: loadgen report FOLDER", err=True)  # fmt: skip
        return ExitCode.ERROR
    except Exception as error:  # noqa: BLE001 - the last resort, at the edge of the process
        return _bug(error)


def _say(error: BreakevenError, code: ExitCode) -> ExitCode:
    click.echo(f"loadgen: {error}", err=True)
    return code


def _bug(error: Exception) -> ExitCode:
    """A fault of ours: its kind and place. Not its message, which may quote what was sent."""
    frames = traceback.extract_tb(error.__traceback__)[-4:]
    place = " < ".join(f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in reversed(frames))
    click.echo(f"loadgen: internal error: {type(error).__name__} at {place}; this is a fault of "
               "loadgen, please report this line", err=True)  # fmt: skip
    return ExitCode.ERROR


def main() -> None:
    """Entry point."""
    sys.exit(int(run()))
