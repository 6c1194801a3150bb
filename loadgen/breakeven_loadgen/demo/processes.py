"""Child processes of the demo: started on free loopback ports, always ended.

A child prints one line on stdout once it listens (`listening http://…`). It is ended by its pid,
SIGTERM first; should the demo itself be killed, the kernel sends the child SIGTERM.
"""

from __future__ import annotations

import re
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

from breakeven.errors import NotReadyError

from ..replay.process import dies_with_parent

START_S = 30.0
"""Longest wait for a child's first line; a cold import on a busy machine takes ten seconds."""
END_S = 10.0
"""From SIGTERM to SIGKILL."""
_URL = re.compile(r"http://[\w.\-\[\]:]+:\d+")


class Child:
    """A running command and the addresses that it printed."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name = name
        self.process = process
        self.log = log
        self.urls: list[str] = []

    def wait_ready(self) -> Child:
        """Wait for the line that says where it listens.

        Raises:
            NotReadyError: it ended, or printed no address in time; its log is named.
        """
        self.urls = _URL.findall(_first_line(self.process))
        if not self.urls:
            raise NotReadyError(f"{self.name} did not start; its log is {self.log}")
        return self

    def alive(self) -> bool:
        """Whether it still runs."""
        return self.process.poll() is None

    def end(self) -> None:
        """SIGTERM, then SIGKILL; returns when it is gone."""
        if self.alive():
            self.process.terminate()
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


class Children:
    """All children of the demo; leaving the context ends them, the last started first."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._children: list[Child] = []

    def start(self, name: str, module: str, args: list[str]) -> Child:
        """Run the entry point of a package; `wait_ready` gives its addresses."""
        log = self._logs / f"{name}.log"
        with log.open("wb") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-c", f"from {module}.cli import main; main()", *args],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                # Ctrl-C is ours to handle: a child in our group would die in the middle of a run.
                start_new_session=True,
                preexec_fn=dies_with_parent(signal.SIGTERM),
            )
        child = Child(name, process, log)
        self._children.append(child)
        return child

    def dead(self) -> list[str]:
        """Names of children that ended although nobody asked them to."""
        return [child.name for child in self._children if not child.alive()]

    def end(self) -> None:
        """End all."""
        while self._children:
            self._children.pop().end()

    def __enter__(self) -> Children:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()


def _first_line(process: subprocess.Popen[bytes]) -> str:
    """The child's first line; empty when it ended or said nothing in time."""
    assert process.stdout is not None
    end_s = time.monotonic() + START_S
    line = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while not line.endswith(b"\n"):
            if not selector.select(max(0.0, end_s - time.monotonic())):
                return ""
            part = process.stdout.read1(4096)  # type: ignore[attr-defined]  # a BufferedReader
            if not part:
                return ""
            line += part
    return line.decode("utf-8", "replace")
