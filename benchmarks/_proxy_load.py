"""The two ends of the proxy's benchmark: `_proxy_ends.c`, built when first used."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

SOURCE = Path(__file__).with_name("_proxy_ends.c")
START_S = 1.0
"""Until paced streams all run."""


@functools.cache
def ends() -> str:
    """The program, compiled; gcc comes from Debian when there is none and we are root."""
    if shutil.which("cc") is None and os.geteuid() == 0 and shutil.which("apt-get"):
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "gcc", "libc6-dev"]
        subprocess.run(["apt-get", "update", "-qq"], check=False, stdout=subprocess.DEVNULL)
        subprocess.run(install, check=False, stdout=subprocess.DEVNULL)
    if shutil.which("cc") is None:
        raise SystemExit("this benchmark's load is in C and there is no `cc`: install gcc")
    program = Path(tempfile.gettempdir()) / f"breakeven-bench-ends-{os.getpid()}"
    subprocess.run(["cc", "-O2", "-Wall", "-o", program, SOURCE], check=True)
    return str(program)


def remove() -> None:
    """Removes what `ends` built, at the end of the run."""
    if ends.cache_info().currsize:
        Path(ends()).unlink(missing_ok=True)


def paced_command(
    port: int, streams: int, gap_ms: int, seconds: float, *, idle: bool = False
) -> list[str]:
    """Reads `streams` streams to their ends. `idle`: only where nobody else wants the core."""
    events = max(int(seconds * 1000 / gap_ms), 1)
    numbers = [str(number) for number in (port, streams, events, gap_ms, seconds)]
    return [ends(), "paced", *numbers, *(["idle"] if idle else [])]


def closed_command(port: int, connections: int, seconds: float) -> list[str]:
    """One-event streams on kept connections, one after another."""
    return [ends(), "closed", str(port), str(connections), str(seconds)]


def paced(
    port: int,
    streams: int,
    gap_ms: int,
    seconds: float,
    cpu_s: Callable[[], float],
    *,
    idle: bool = False,
) -> tuple[float, list[float]]:
    """`paced_command` for `seconds` once the streams run: their requests are no part of it.

    `cpu_s`: the peer's seconds on a core so far. Returns those of an event, in µs, and the events'
    delays, in µs (engine's send → client's read).
    """
    command = paced_command(port, streams, gap_ms, seconds + 2 * START_S, idle=idle)
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        time.sleep(START_S)
        began, before = time.time_ns(), cpu_s()
        time.sleep(seconds)
        ended, spent = time.time_ns(), cpu_s() - before
        out = process.communicate()[0]
    if process.returncode:
        raise SystemExit(f"the clients ended with {process.returncode}")
    sent, read = np.frombuffer(out, dtype=np.int64).reshape(-1, 2).T
    delays = ((read - sent) / 1e3)[(sent >= began) & (sent < ended)]
    return spent / max(len(delays), 1) * 1e6, delays.tolist()


def closed_loop(port: int, connections: int, seconds: float) -> int:
    """`closed_command`, run; how many were answered."""
    command = closed_command(port, connections, seconds)
    return int(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def request(events: int, gap_ms: float = 0, **more: object) -> bytes:
    """A streaming chat request; the wish stands in its message (see `_proxy_ends.c`)."""
    wish = json.dumps({"events": events, "gap_ms": gap_ms, **more})
    message = {"role": "user", "content": wish}
    body = json.dumps({"model": "m", "stream": True, "messages": [message]}).encode()
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    )
