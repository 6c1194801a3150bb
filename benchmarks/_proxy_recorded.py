"""The proxy with a notebook: keeps each read's stamp beside the engine's own send times.

`python -m benchmarks._proxy_recorded URL kernel|loop STALL_MS OUT`: prints its address, relays and
meters as `breakeven-proxy serve` does, and writes the gap errors (µs) to OUT when ended.
"""

from __future__ import annotations

import asyncio
import io
import json
import re
import sys
import time
from pathlib import Path

import uvloop
from benchmarks._proxy_load import START_S

from breakeven.settings import parse_settings
from breakeven_proxy.config import ProxySettings
from breakeven_proxy.observe.log import Log, make_logger
from breakeven_proxy.observe.meter import RequestObservation
from breakeven_proxy.server import Proxy

SENT_AT = re.compile(rb'"content":"(\d{19})"')
STALL_EVERY_S = 0.1


class Notebook:
    """Every read with its stamp; looked through at the end, so that it takes no time meanwhile."""

    def __init__(self) -> None:
        self.reads: list[tuple[object, bytes, float]] = []

    def result(self) -> dict[str, object]:
        """Errors (µs) of the gaps between reads of one event each, reads, merged reads."""
        last: dict[int, tuple[float, int]] = {}
        errors_us, reads, merged = [], 0, 0
        begin = self.reads[0][2] + START_S if self.reads else 0.0
        for observation, data, stamp in self.reads:
            sent = SENT_AT.findall(data)
            if not sent or stamp < begin:
                continue
            reads += 1
            key = id(observation)
            before = last.pop(key, None)
            if len(sent) > 1:
                merged += 1
                continue
            at = int(sent[0])
            if before is not None:
                errors_us.append(abs((stamp - before[0]) * 1e6 - (at - before[1]) / 1e3))
            last[key] = (stamp, at)
        return {"errors_us": errors_us, "reads": reads, "merged": merged}


async def stall(stall_s: float) -> None:
    """Holds the loop, as a badly written callback would."""
    while True:
        await asyncio.sleep(STALL_EVERY_S)
        end = time.monotonic() + stall_s
        while time.monotonic() < end:
            pass


async def run(url: str, stamps: str, stall_s: float) -> Notebook:
    values = {
        "listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "stamps": stamps,
        "arms": {"baseline": {"url": url}},
        "admission": {"max_inflight": 10000, "max_queue": 0},
    }  # fmt: skip
    settings = parse_settings(values, file="benchmark", model=ProxySettings)
    notebook = Notebook()
    one, several = RequestObservation.body, RequestObservation.bodies

    def body(self: RequestObservation, data: bytes, stamp: float, paused: bool) -> None:
        notebook.reads.append((self, data, stamp))
        one(self, data, stamp, paused)

    def bodies(self: RequestObservation, reads: list[tuple[bytes, float]]) -> bool:
        notebook.reads += [(self, data, stamp) for data, stamp in reads]
        return several(self, reads)

    RequestObservation.body = body  # type: ignore[method-assign]
    RequestObservation.bodies = bodies  # type: ignore[method-assign]
    proxy = Proxy(settings, Log(make_logger(io.StringIO())))
    bound = await proxy.start()
    print(f"listening http://{bound.listen} admin http://{bound.admin}", flush=True)
    stalling = asyncio.create_task(stall(stall_s)) if stall_s else None
    await proxy.wait()
    if stalling is not None:
        stalling.cancel()
    return notebook


def main(argv: list[str]) -> None:
    """See the module's docstring."""
    url, stamps, stall_ms, out = argv
    notebook = uvloop.run(run(url, stamps, float(stall_ms) / 1000))
    Path(out).write_text(json.dumps(notebook.result()))


if __name__ == "__main__":
    main(sys.argv[1:])
