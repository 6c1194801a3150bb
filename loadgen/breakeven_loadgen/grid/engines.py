"""Engines that the grid starts itself: `sim:` and `launch:` arms, one process each.

Here: start, wait until ready, peak memory, stop; always by pid. Not here: what runs on them.
A child is sent SIGTERM by the kernel should we be killed; its log holds what it printed itself
(vLLM logs no prompts unless told to, and the grid does not tell it to).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from breakeven.errors import BreakevenError, InputError, NotReadyError
from breakeven_wire import Deadlines, EnginePool, Origin

from ..replay.process import dies_with_parent
from .config import ArmConfig, SimArm

END_S = 30.0
"""From SIGTERM to SIGKILL; an engine with a GPU takes its time."""
POLL_S = 0.1
PROBE = Deadlines(connect_s=1.0, first_byte_s=2.0, idle_s=2.0, total_s=3.0)


class Engine:
    """One running engine.

    Attributes:
        url: where it is reached. ready_s: from start to the first healthy answer; None for an
            engine that was there already.
    """

    def __init__(self, name: str, url: str, process: subprocess.Popen[bytes] | None) -> None:
        self.name = name
        self.url = url
        self.process = process
        self.ready_s: float | None = None

    def alive(self) -> bool:
        """Whether its process still runs; an engine that is not ours counts as alive."""
        return self.process is None or self.process.poll() is None

    def memory_peak_bytes(self) -> int | None:
        """Highest resident memory of the process and its children; None where not exposed."""
        return None if self.process is None else peak_memory(self.process.pid)

    def stop(self, *, now: bool = False) -> None:
        """SIGTERM (or SIGKILL at once), and wait until it is gone, its children with it."""
        process = self.process
        if process is None or process.poll() is not None:
            return
        _signal(process.pid, signal.SIGKILL if now else signal.SIGTERM)
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            _signal(process.pid, signal.SIGKILL)
            process.wait()


def _signal(pid: int, number: signal.Signals) -> None:
    """To the process group that we made for it: vLLM has worker processes."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


class Engines:
    """The engines of a grid; leaving the context stops those that we started."""

    def __init__(self, logs: Path, model: str | None) -> None:
        self._logs = logs
        self._model = model
        self._running: dict[str, Engine] = {}

    def __enter__(self) -> Engines:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for engine in reversed(list(self._running.values())):
            engine.stop()
        self._running.clear()

    def ready(self, name: str, arm: ArmConfig) -> Engine:
        """The arm's engine, started when it does not run yet.

        Raises:
            NotReadyError: it ended or was not healthy in time; its log is named.
        """
        engine = self._running.get(name)
        if engine is not None and engine.alive():
            return engine
        if arm.sim is None and not arm.launch:
            assert arm.url is not None
            engine = Engine(name, arm.url, None)
        else:
            engine = self.start(name, arm)
        self._running[name] = engine
        return engine

    def release(self, name: str, arm: ArmConfig) -> None:
        """After a run: a launched arm that shares hardware stops, the others stay."""
        if arm.launch and arm.alone:
            self.stop(name)

    def stop(self, name: str, *, now: bool = False) -> None:
        """Stop one engine that we started."""
        engine = self._running.pop(name, None)
        if engine is not None:
            engine.stop(now=now)

    def start(self, name: str, arm: ArmConfig) -> Engine:
        """Start an arm's command and wait until /health is 200.

        Raises:
            NotReadyError: see `ready`. InputError: the command does not exist.
        """
        port = free_port()
        self._logs.mkdir(parents=True, exist_ok=True)
        log = self._logs / f"{name}.log"
        command = command_of(arm, port, self._model)
        began = time.monotonic()
        process = spawn(command, arm.env, log)
        url = arm.url or f"http://127.0.0.1:{port}"
        engine = Engine(name, url, process)
        try:
            asyncio.run(_until_healthy(engine, arm.ready_timeout, log))
        except BaseException:
            engine.stop(now=True)
            raise
        engine.ready_s = time.monotonic() - began
        return engine


def command_of(arm: ArmConfig, port: int, model: str | None) -> list[str]:
    """The command line of a `sim:` or `launch:` arm."""
    if arm.sim is not None:
        return _sim_command(arm.sim, port, model)
    return [part.replace("{port}", str(port)) for part in arm.launch]


def _sim_command(sim: SimArm, port: int, model: str | None) -> list[str]:
    """The simulator's own command, as a user would call it: no import of another room."""
    beside = Path(sys.executable).with_name("breakeven-sim")
    command = [str(beside) if beside.exists() else "breakeven-sim", "serve",
               "--listen", f"127.0.0.1:{port}", "--preset", sim.preset, "--draft", sim.draft,
               "--seed", str(sim.seed), "--exit-with-parent"]  # fmt: skip
    if sim.k is not None:
        command += ["--k", str(sim.k)]
    if model is not None:
        command += ["--model", model]
    return [*command, *sim.flags]


def spawn(command: Sequence[str], env: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Start a command in a process group of its own, output to the log.

    Raises:
        InputError: it cannot be started.
    """
    if not command:
        raise InputError("an empty command", key="launch", mend="launch: [vllm, serve, MODEL, …]")
    try:
        with log.open("ab") as out:
            return subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **env},
                start_new_session=True,
                preexec_fn=dies_with_parent(signal.SIGTERM),
            )
    except OSError as error:
        raise InputError(
            f"cannot be started: {error.strerror}", key="launch", value=shlex.join(command)[:80],
            mend="check the command",
        ) from None  # fmt: skip


async def _until_healthy(engine: Engine, timeout_s: float, log: Path) -> None:
    pool = EnginePool(Origin.parse(engine.url), stamps="loop")
    deadline = time.monotonic() + timeout_s
    try:
        while True:
            if not engine.alive():
                raise NotReadyError(f"{engine.name} ended while starting; its log is {log}")
            if await healthy(pool):
                return
            if time.monotonic() > deadline:
                raise NotReadyError(
                    f"{engine.name} was not ready after {timeout_s:g} s; its log is {log}; raise "
                    "ready_timeout if it needs longer"
                )
            await asyncio.sleep(POLL_S)
    finally:
        await pool.close()


async def healthy(pool: EnginePool) -> bool:
    """Whether /health answers 200 (or, where there is no such path, /v1/models does)."""
    for path in ("/health", "/v1/models"):
        try:
            response = await pool.fetch("GET", path, deadlines=PROBE)
        except BreakevenError:
            return False
        if response.status == 200:
            return True
        if response.status != 404:
            return False
    return False


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB", re.MULTILINE)


def peak_memory(pid: int) -> int | None:
    """Sum of the peak resident sizes of a process and its descendants (Linux /proc), bytes."""
    total = 0
    for one in _family(pid):
        with contextlib.suppress(OSError):
            found = _PEAK.search(Path(f"/proc/{one}/status").read_text())
            total += int(found[1]) * 1024 if found else 0
    return total or None


def _family(pid: int) -> list[int]:
    out, queue = [], [pid]
    while queue:
        one = queue.pop()
        out.append(one)
        for task in Path(f"/proc/{one}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                queue += [int(child) for child in task.read_text().split()]
    return out
