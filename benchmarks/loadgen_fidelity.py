"""How faithful `loadgen replay` is to its schedule, by an independent server's arrival log.

Prints, per case, what was measured beside the bar of design/peers-loadgen.md, and the same for
`vllm bench serve` where .venv-vllm is installed (make install-vllm). Not a test: on a busy machine
a MISS says as much about the machine; loadgen's own gates say so with exit 4.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks._host import stolen_s
from numpy.typing import NDArray

from breakeven_loadgen.traffic.formats import load_trace

ROOT = Path(__file__).resolve().parents[1]
LOADGEN = Path(sys.executable).with_name("loadgen")
VLLM = ROOT / ".venv-vllm/bin/vllm"
SLICE = ROOT / "tests/data/traces/azure-slice-40s.csv"
Floats = NDArray[np.float64]


@contextmanager
def witness(folder: Path, *stall: float) -> Iterator[tuple[str, Path]]:
    """(url, log): the log is there once the context is left."""
    log = folder / "arrivals.log"
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks._loadgen_server", str(log), *map(str, stall)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip(), log
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)
        process.stdout.close()


def stamps(log: Path) -> Floats:
    return np.array([float(line) for line in log.read_text().split()])


def generate(name: str, *args: str, stall: tuple[float, ...] = ()) -> dict[str, Any]:
    """One `loadgen replay` against the witness."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        out = folder / "out"
        with witness(folder, *stall) as (url, log):
            began, stolen = time.time(), stolen_s()
            done = subprocess.run(
                [str(LOADGEN), "replay", *args, "--url", url, "--out", str(out), "--json"],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            took_s = time.time() - began
            stolen = stolen_s() - stolen
        if not (out / "summary.json").exists():
            raise RuntimeError(f"{name}: {done.stderr.strip()}")
        return {
            "summary": json.loads((out / "summary.json").read_text()),
            "record": json.loads((out / "provenance.json").read_text()),
            "arrivals": stamps(log),
            "exit": done.returncode,
            "began": began,
            "took_s": took_s,
            "stolen_s": stolen,
        }


def lateness(run: dict[str, Any], offsets: Floats) -> Floats:
    """Arrival at the witness minus intended time, seconds, k-th against k-th."""
    intended = run["record"]["start"]["unix_s"] + offsets[: len(run["arrivals"])]
    late: Floats = np.sort(run["arrivals"]) - intended
    return late


def line(what: str, value: str, bar: str, met: bool) -> None:
    print(f"  {what:<44} {value:>18}   bar {bar:<18} {'ok' if met else 'MISS'}")


def constant(rate: float, seconds: float, tokens: str, p99_bar_s: float) -> None:
    run = generate(
        f"constant {rate:g}/s", tokens, "--arrival", "constant", "--rate", f"{rate:g}",
        "--duration", f"{seconds:g}s", "--max-inflight", "4000",
    )  # fmt: skip
    offsets = np.arange(int(rate * seconds)) / rate
    late = lateness(run, offsets)
    arrivals = np.sort(run["arrivals"])
    sd = float(np.std(np.diff(arrivals)))
    delivered = (len(arrivals) - 1) / float(arrivals[-1] - arrivals[0])
    print(f"constant {rate:g}/s for {seconds:g} s: {len(arrivals)} of {len(offsets)}, exit "
          f"{run['exit']} {failed(run)}")  # fmt: skip
    if rate == 20:
        line("gap sd", f"{sd * 1e3:.3f} ms", "<= 0.5 ms", sd <= 0.0005)
    p99 = float(np.quantile(late, 0.99))
    line("lateness p99 (max)", f"{p99 * 1e3:.2f} ({np.max(late) * 1e3:.1f}) ms",
         f"<= {p99_bar_s * 1e3:g} ms", p99 <= p99_bar_s)  # fmt: skip
    line("delivered", f"{delivered:.2f}/s", f"{rate:g} ± {rate / 1000:g}/s",
         abs(delivered - rate) <= rate / 1000)  # fmt: skip
    if rate == 20:
        around = run["took_s"] - seconds
        line("time around the run", f"{around:.1f} s", "< 2 s", around < 2)


def failed(run: dict[str, Any]) -> str:
    names = [gate["name"] for gate in run["summary"]["gates"] if gate["passed"] is False]
    gates = f"gate {', '.join(names)}; " if names else ""
    return f"({gates}{run['stolen_s']:.2f} CPU s stolen by the host)"


def trace_slice() -> None:
    run = generate("slice", str(SLICE))
    offsets = np.array([a.t for a in load_trace(str(SLICE)).arrivals])
    late = lateness(run, offsets)
    print(f"Azure slice, 250 bursty arrivals in 40 s: {len(late)} of 250, exit {run['exit']} "
          f"{failed(run)}")  # fmt: skip
    worst = float(np.max(late))
    line("max lag", f"{worst * 1e3:.2f} ms", "<= 5 ms", worst <= 0.005)


def long_prompts() -> None:
    run = generate(
        "prompts", "synthetic:in=20000,out=4", "--arrival", "constant", "--rate", "20",
        "--requests", "200",
    )  # fmt: skip
    first = float(np.min(run["arrivals"])) - run["began"]
    print(f"200 prompts of 20,000 tokens: {len(run['arrivals'])} of 200, exit {run['exit']} "
          f"{failed(run)}")  # fmt: skip
    line("process start to first request", f"{first:.2f} s", "< 1 s", first < 1)


def stall() -> None:
    run = generate(
        "stall", "synthetic:in=16,out=16", "--arrival", "constant", "--rate", "20", "--duration",
        "15s", "--max-inflight", "10", stall=(5.0, 3.0),
    )  # fmt: skip
    summary = run["summary"]
    p95 = summary["latency"]["ttft_s"]["p95"]
    bound = "≥ " if "p95" in summary["latency"]["ttft_s"]["lower_bound"] else ""
    print(f"3 s stall at 20/s, bound 10: exit {run['exit']} {failed(run)}")
    line("offered", f"{summary['arrivals']['offered']} of 300", "300 of 300",
         summary["arrivals"]["offered"] == 300)  # fmt: skip
    line("TTFT p95 from intended time", f"{bound}{p95:.2f} s", ">= 2.4 s", p95 >= 2.4)


def peer(rate: float, n: int) -> None:
    """`vllm bench serve` at the same constant rate against the same witness."""
    models = sorted((ROOT / ".venv-vllm/models").glob("*/config.json"))
    if not VLLM.exists() or not models:
        print(f"peer vllm bench serve at {rate:g}/s: not installed (make install-vllm)")
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with witness(folder) as (url, log):
            done = subprocess.run(
                [str(VLLM), "bench", "serve", "--backend", "openai", "--base-url", url,
                 "--endpoint", "/v1/completions", "--model", "witness", "--tokenizer",
                 str(models[0].parent), "--dataset-name", "random", "--random-input-len", "16",
                 "--random-output-len", "16", "--num-prompts", str(n), "--request-rate",
                 f"{rate:g}", "--burstiness", "1000000", "--disable-tqdm"],
                capture_output=True, text=True, check=False, cwd=folder,
                env=os.environ | {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1",
                                  "VLLM_TARGET_DEVICE": "cpu"},
                timeout=180,
            )  # fmt: skip
        if done.returncode or len(stamps(log)) < n:
            print(f"peer vllm bench serve at {rate:g}/s: did not run (exit {done.returncode})")
            return
        arrivals = np.sort(stamps(log))[-n:]  # its own probe request comes first
    offsets = np.arange(n) / rate
    late = arrivals - arrivals[0] - offsets
    late = late - np.min(late)  # it does not tell its start: relative to its least late request
    sd = float(np.std(np.diff(arrivals)))
    delivered = (n - 1) / float(arrivals[-1] - arrivals[0])
    p99 = float(np.quantile(late, 0.99))
    print(
        f"peer vllm bench serve at {rate:g}/s: gap sd {sd * 1e3:.2f} ms, lateness p99 "
        f"{p99 * 1e3:.1f} ms (relative), delivered {delivered:.2f}/s"
    )


def main() -> int:
    """Run all cases; 0 unless one could not be run at all."""
    load = os.getloadavg()
    print(f"{os.cpu_count()} cores, load average {load[0]:.1f} before the start")
    constant(20, 15, "synthetic:in=16,out=16", 0.002)
    peer(20, 300)
    constant(200, 10, "synthetic:in=16,out=16", 0.003)
    peer(200, 2000)
    trace_slice()
    constant(1000, 5, "synthetic:in=8,out=1", 0.010)
    long_prompts()
    stall()
    return 0


if __name__ == "__main__":
    sys.exit(main())
