"""Cost of the stream observer per event, against a bare `orjson.loads` of the same event.

Thread CPU, both measured in turns in one process, in many short rounds: the microseconds are the
best round's, the ratio is the median of the pairs. The machine is shared: the ratio counts.
The budget (proxy-path.md: "the cheap path is the accuracy") is 5 × the bare parse, i.e. 2.5 µs
where that takes 0.5 µs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import orjson

from breakeven.stream import GapSink, StreamObserver

EVENTS = 60  # an answer's worth: short enough to fit between two interruptions
ROUNDS = 300
BUDGET = 5.0


def chunk(usage: int | None = None, content: str = " are the fruits of the season,") -> bytes:
    """A chat chunk as vLLM 0.32 writes it (tests/data/vllm)."""
    told = "" if usage is None else (
        f',"usage":{{"prompt_tokens":43,"total_tokens":{43 + usage},"completion_tokens":{usage}}}'
    )  # fmt: skip
    return (
        'data: {"id":"chatcmpl-9e01442cf3de3ab5","object":"chat.completion.chunk",'
        '"created":1796046956,"model":"smol","choices":[{"index":0,"delta":{"content":"'
        f'{content}"}},"logprobs":null,"finish_reason":null,"token_ids":null}}]{told}}}\n\n'
    ).encode()


def parse(reads: list[bytes]) -> Callable[[], float]:
    """Seconds of thread CPU to parse every event, and nothing else."""
    payloads = [event[6:] for read in reads for event in read.split(b"\n\n") if event]

    def run() -> float:
        loads = orjson.loads
        began = time.thread_time()
        for payload in payloads:
            loads(payload)
        return time.thread_time() - began

    return run


def observe(reads: list[bytes], *, metrics: bool, keep: bool) -> Callable[[], float]:
    """Seconds of thread CPU to observe the reads, one every 10 ms."""

    def run() -> float:
        sink = GapSink() if metrics else None
        observer = StreamObserver(0.0, sink=sink, gap_bound_s=0.1, keep_events=keep)
        receive, now = observer.receive_data, 0.1
        began = time.thread_time()
        for read in reads:
            now += 0.01
            receive(read, now)
        return time.thread_time() - began

    return run


def pieces(reads: list[bytes], size: int) -> list[bytes]:
    body = b"".join(reads)
    return [body[start : start + size] for start in range(0, len(body), size)]


def cases() -> list[tuple[str, list[bytes], dict[str, bool]]]:
    plain = [chunk()] * EVENTS
    told = [chunk(number) for number in range(1, EVENTS + 1)]
    merged = [b"".join(told[start : start + 4]) for start in range(0, EVENTS, 4)]
    return [
        (f"one event a read, {len(plain[0])} bytes", plain, {"metrics": False, "keep": False}),
        ("  with histograms (proxy)", plain, {"metrics": True, "keep": False}),
        (f"cumulative usage, {len(told[0])} bytes", told, {"metrics": False, "keep": False}),
        ("  with histograms (proxy)", told, {"metrics": True, "keep": False}),
        ("  with event columns (loadgen)", told, {"metrics": False, "keep": True}),
        ("four events a read", merged, {"metrics": True, "keep": False}),
        ("CRLF", [read.replace(b"\n", b"\r\n") for read in told], {"metrics": True, "keep": False}),
        ("reads of 100 bytes", pieces(told, 100), {"metrics": True, "keep": False}),
    ]


def main() -> int:
    """0: the common case keeps its budget; 1: it does not."""
    print(f"{'observer, µs per event':38}{'observed':>9}{'parse':>8}{'ratio':>7}")
    worst = 0.0
    for number, (name, reads, options) in enumerate(cases()):
        ours, bare = observe(reads, **options), parse(
            [read.replace(b"\r\n", b"\n") for read in reads] if name == "CRLF" else
            [b"".join(reads)]
        )  # fmt: skip
        pairs = [(bare(), ours()) for _ in range(ROUNDS)]
        best_bare, best_ours = (min(side) for side in zip(*pairs, strict=True))
        ratio = statistics.median(mine / parsed for parsed, mine in pairs)
        if number < 4:
            worst = max(worst, ratio)
        micro = 1e6 / EVENTS
        print(f"{name:38}{best_ours * micro:9.2f}{best_bare * micro:8.2f}{ratio:7.2f}")
    print(f"common case: {worst:.2f} × the bare parse (budget {BUDGET:g} ×)")
    return int(worst > BUDGET)


if __name__ == "__main__":
    raise SystemExit(main())
