"""How many streams the simulator sustains in real time: events/s, CPU and lag.

Run: `.venv/bin/python -m benchmarks.sim_streams [--streams 500] [--seconds 15]`. The simulator runs
in its own process; this one only reads. The 8B preset at batch 500 steps about every 16 ms; slowed
down by a time scale of .65 that is 500 streams × about 40 events/s. The verdict is the simulator's
own: its step lag. Where the machine is busy with other work, it says so there.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import uvloop


class Stream(asyncio.Protocol):
    """Sends one request, counts event ends."""

    def __init__(self, request: bytes) -> None:
        self.request = request
        self.events = 0
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:

        transport.write(self.request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        self.events += data.count(b"\n\n")

    def connection_lost(self, _: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(None)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


async def load(port: int, pid: int, streams: int, tokens: int) -> tuple[int, float, float]:
    body = json.dumps(
        {"prompt": [7] * 16, "max_tokens": tokens, "ignore_eos": True, "stream": True}
    ).encode()
    request = (
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
        b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    )
    loop = asyncio.get_running_loop()
    before, start = cpu_seconds(pid), time.perf_counter()
    made = [
        (await loop.create_connection(lambda: Stream(request), "127.0.0.1", port))[1]
        for _ in range(streams)
    ]
    await asyncio.gather(*(stream.done for stream in made))
    wall = time.perf_counter() - start
    return sum(s.events for s in made), wall, cpu_seconds(pid) - before


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--preset", default="8b-h100")
    parser.add_argument("--time-scale", type=float, default=0.65)
    args, _ = parser.parse_known_args()
    command = [
        str(Path(sys.executable).with_name("breakeven-sim")), "serve", "--listen", "127.0.0.1:0",
        "--preset", args.preset, "--max-num-seqs", str(args.streams), "--exit-with-parent",
        "--time-scale", str(args.time_scale),
    ]  # fmt: skip
    sim = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert sim.stdout is not None
        found = re.match(r"listening http://127\.0\.0\.1:(\d+)", sim.stdout.readline())
        assert found is not None
        port = int(found[1])
        tokens = int(args.seconds * 40)
        events, wall, cpu = uvloop.run(load(port, sim.pid, args.streams, tokens))
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
            text = page.read().decode()
    finally:
        sim.terminate()
        sim.wait(10)
    spent = float(re.findall(r"^vllm:e2e_request_latency_seconds_sum\S* (\S+)", text, re.M)[0])
    pace = spent / args.streams / args.time_scale / wall
    count = float(re.findall(r"^breakeven_sim_step_lag_seconds_count (\S+)", text, re.M)[0])
    total = float(re.findall(r"^breakeven_sim_step_lag_seconds_sum (\S+)", text, re.M)[0])
    worst = float(re.findall(r"^breakeven_sim_step_lag_max_seconds (\S+)", text, re.M)[0])
    print(
        f"simulated {args.preset}: {args.streams} streams, {events} events in {wall:.1f} s = "
        f"{events / wall:.0f} events/s, {events / wall / args.streams:.1f} per stream and s; "
        f"{pace:.0%} of the model's pace, {cpu / wall:.0%} of a core, "
        f"{cpu / events * 1e6:.1f} µs per event; "
        f"step lag mean {total / count * 1e3:.2f} ms, max {worst * 1e3:.1f} ms"
    )

    return 0


if __name__ == "__main__":
    sys.exit(main())
