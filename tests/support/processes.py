"""Starts the project's own commands as child processes for end-to-end tests, and always ends them.

Each command prints one machine-readable line on stdout once it listens (`listening http://…`); the
helper waits for that line, never for a time. Children are ended by pid, with SIGTERM first.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

BIN = Path(sys.executable).parent
START_DEADLINE_S = 30.0
URL = re.compile(r"http://127\.0\.0\.1:\d+")


@dataclass
class Child:
    """A running command: the addresses it printed, and all it wrote so far."""

    process: subprocess.Popen[bytes]
    urls: list[str]
    first_line: str
    out: list[bytes] = field(default_factory=list)
    err: list[bytes] = field(default_factory=list)
    pumps: list[threading.Thread] = field(default_factory=list)

    @property
    def url(self) -> str:
        return self.urls[0]

    def text(self) -> str:
        """Everything that it wrote to stdout and stderr so far."""
        return b"".join([self.first_line.encode(), *self.out, *self.err]).decode("utf-8", "replace")

    def end(self, deadline_s: float = 20.0) -> int:
        """SIGTERM, then SIGKILL after the deadline; returns the exit status."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            status = self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        for pump in self.pumps:
            pump.join()
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe:
                pipe.close()
        return status


def _pump(pipe: object, into: list[bytes]) -> threading.Thread:
    def run() -> None:
        into.extend(iter(pipe.readline, b""))  # type: ignore[attr-defined]

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def start(command: str, *args: str, cwd: Path | None = None) -> Child:
    """Starts `.venv/bin/COMMAND ARGS` and returns once it has printed where it listens."""
    process = subprocess.Popen(
        [str(BIN / command), *args],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=cwd,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    err: list[bytes] = []
    pump = _pump(process.stderr, err)
    timer = threading.Timer(START_DEADLINE_S, process.kill)
    timer.start()
    seen: list[str] = []
    for line in iter(process.stdout.readline, b""):
        seen.append(line.decode("utf-8", "replace"))
        if urls := URL.findall(seen[-1]):
            timer.cancel()
            child = Child(process, urls, "".join(seen), err=err, pumps=[pump])
            child.pumps.append(_pump(process.stdout, child.out))
            return child
    timer.cancel()
    process.wait()
    pump.join()
    process.stdout.close()
    process.stderr.close()
    raise AssertionError(f"{command} did not start: {''.join(seen)}{b''.join(err).decode()}")


@contextlib.contextmanager
def running(command: str, *args: str, cwd: Path | None = None) -> Iterator[Child]:
    """`start`, ended at the end of the block whatever happens in it."""
    child = start(command, *args, cwd=cwd)
    try:
        yield child
    finally:
        child.end()


def run(command: str, *args: str, deadline_s: float = 100.0) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end; its output is text."""
    return subprocess.run(
        [str(BIN / command), *args],
        capture_output=True,
        text=True,
        check=False,
        timeout=deadline_s,
        stdin=subprocess.DEVNULL,
    )
