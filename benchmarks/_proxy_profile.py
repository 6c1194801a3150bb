"""What one request and one event cost inside the proxy: calls counted, CPU of its thread.

`python -m benchmarks._proxy_profile [loop|kernel] [requests|events] [--where]`: the proxy runs in
this process, engine and client in children. Calls do not depend on what else the machine does, so
they show whether a change made the path shorter; the CPU figure is the best of many short windows.
`--where` prints the profile by function. Not a benchmark against anybody: that is proxy_relay.
"""

from __future__ import annotations

import asyncio
import cProfile
import io
import pstats
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import uvloop
from benchmarks import _proxy_load as load
from benchmarks.proxy_relay import start_engine

from breakeven.settings import parse_settings
from breakeven_proxy.config import ProxySettings
from breakeven_proxy.observe.log import Log, make_logger
from breakeven_proxy.server import Proxy

SECONDS = 3.0
WINDOW_S = 0.2


def units(proxy: Proxy, what: str) -> float:
    """Requests or events so far."""
    arm = proxy.meter.arms["baseline"]
    if what == "requests":
        return arm.overhead.count
    return sum(cohort.sink.event_gaps.count for cohort in arm.cohorts.values())


async def windows(proxy: Proxy, what: str, found: list[float]) -> None:
    """µs of this thread per unit, window after window."""
    while True:
        before, began = units(proxy, what), time.thread_time()
        await asyncio.sleep(WINDOW_S)
        made = units(proxy, what) - before
        if made > 20:
            found.append((time.thread_time() - began) / made * 1e6)


async def one(what: str, stamps: str, engine: int, mode: str) -> tuple[float, Any]:
    """Runs the load once; units, and what the mode gathers: "cpu", "calls" or "where"."""
    values = {
        "listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "stamps": stamps,
        "arms": {"baseline": {"url": f"http://127.0.0.1:{engine}"}},
        "admission": {"max_inflight": 10000, "max_queue": 0}, "scrape_interval_s": 600,
    }  # fmt: skip
    settings = parse_settings(values, file="benchmark", model=ProxySettings)
    proxy = Proxy(settings, Log(make_logger(io.StringIO())))
    bound = await proxy.start()
    port = bound.listen.rsplit(":", 1)[1]
    await asyncio.sleep(0.5)
    child = await asyncio.create_subprocess_exec(
        *client(int(port), what), stdout=asyncio.subprocess.DEVNULL
    )
    while units(proxy, what) < 500:  # noqa: ASYNC110 - no event says that the load runs
        await asyncio.sleep(0.1)
    found: Any = None
    before = units(proxy, what)
    if mode == "cpu":
        found = []
        watch = asyncio.create_task(windows(proxy, what, found))
        await asyncio.sleep(SECONDS)
        watch.cancel()
    elif mode == "calls":
        found = Counter()

        def count(frame: FrameType, event: str, arg: object) -> None:  # noqa: ARG001
            found[event] += 1

        sys.setprofile(count)
        await asyncio.sleep(SECONDS)
        sys.setprofile(None)
    else:
        found = cProfile.Profile()
        found.enable()
        await asyncio.sleep(SECONDS)
        found.disable()
    made = units(proxy, what) - before
    child.terminate()
    await child.wait()
    await proxy.close()
    return made, found


def client(port: int, what: str) -> list[str]:
    """The load: a closed loop of one-event streams, or 20 streams of 50 events a second."""
    if what == "requests":
        return load.closed_command(port, 16, 10 * SECONDS)
    return load.paced_command(port, 20, 20, 10 * SECONDS)  # one event a read, however busy


def main(argv: list[str]) -> int:
    """See the module's docstring."""
    which = [what for what in ("requests", "events") if what in argv] or ["requests", "events"]
    kinds = [stamps for stamps in ("loop", "kernel") if stamps in argv] or ["loop", "kernel"]
    with tempfile.TemporaryDirectory() as folder:
        process, engine = start_engine(Path(folder))
        try:
            for what in which:
                for stamps in kinds:
                    if "--where" in argv:
                        made, profile = uvloop.run(one(what, stamps, engine, "where"))
                        print(f"{what}, {stamps} stamps: {made:.0f}")
                        pstats.Stats(profile).sort_stats("tottime").print_stats(60)
                        continue
                    made, calls = uvloop.run(one(what, stamps, engine, "calls"))
                    _, cpu = uvloop.run(one(what, stamps, engine, "cpu"))
                    ordered = sorted(cpu)
                    print(
                        f"{what[:-1]}, {stamps} stamps: {calls['call'] / made:.1f} Python calls, "
                        f"{calls['c_call'] / made:.1f} C calls; CPU {ordered[0]:.1f} µs best, "
                        f"{ordered[len(ordered) // 2]:.1f} µs median of {len(ordered)} windows",
                        flush=True,
                    )
        finally:
            process.terminate()
            process.wait()
            load.remove()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
