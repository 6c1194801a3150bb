"""One worker process of `--workers N`: offers its shard, told by the parent when to start.

Dialogue: the parent writes the settings as one line of JSON; the worker prepares and prints
`ready`; the parent writes the common start on the monotonic clock (one clock per machine); the
worker prints a glance a second, and exits when its folder is written. Errors go to stderr.
The parent's end of stdin stays open: when it closes, the parent is gone (killed, perhaps), and the
worker ends cleanly. No signal says that as well: PR_SET_PDEATHSIG comes once per *thread* of a
dying parent (kernel/exit.c, forget_original_parent), and the second one killed the worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import orjson

from breakeven.errors import BreakevenError, InputError, NotReadyError
from breakeven.exitcodes import ExitCode
from breakeven.settings import parse_settings

from ..config import ReplayConfig
from .glance import Glance
from .run import replay

READY = b"ready\n"


def config_line(config: ReplayConfig) -> bytes:
    """Settings as one line of JSON."""
    values = {item.name: getattr(config, item.name) for item in fields(config)}
    return orjson.dumps(values) + b"\n"


def read_config(line: bytes) -> ReplayConfig:
    """Back from a line."""
    values: dict[str, Any] = orjson.loads(line)
    return parse_settings(values, file="worker", model=ReplayConfig)


class _Pipe:
    """Progress to the parent."""

    def update(self, glance: Glance) -> None:
        with contextlib.suppress(BrokenPipeError):  # the parent was killed: stdin says so
            sys.stdout.buffer.write(glance.line())
            sys.stdout.buffer.flush()


async def told_start() -> float:
    """Say that everything is prepared, and wait to be told the start.

    Raises:
        BreakevenError: the parent has gone.
    """
    sys.stdout.buffer.write(READY)
    sys.stdout.buffer.flush()
    line = await asyncio.to_thread(sys.stdin.buffer.readline)
    if not line:
        raise BreakevenError("the parent process is gone")
    return float(line)


def watch_parent(gone: Callable[[], None]) -> None:
    """Calls `gone` once the parent's end of stdin is closed."""
    loop, fd = asyncio.get_running_loop(), sys.stdin.fileno()

    def readable() -> None:
        if not os.read(fd, 1024):
            loop.remove_reader(fd)
            gone()

    loop.add_reader(fd, readable)


def main() -> None:
    """Entry point of a worker; the exit status is the run's."""
    try:
        result = replay(
            read_config(sys.stdin.buffer.readline()),
            progress=_Pipe(),
            start=told_start,
            orphaned=watch_parent,
        )
        code = result.exit_code
    except InputError as error:
        code = _say(error, ExitCode.USAGE)
    except NotReadyError as error:
        code = _say(error, ExitCode.UNREACHABLE)
    except BreakevenError as error:
        code = _say(error, ExitCode.ERROR)
    sys.exit(int(code))


def _say(error: BreakevenError, code: ExitCode) -> ExitCode:
    sys.stderr.write(f"{error}\n")
    return code


if __name__ == "__main__":
    main()
