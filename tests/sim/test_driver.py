"""Real time: a late simulator says that it is late, and does not look like a slow engine."""

from __future__ import annotations

import asyncio
import threading
import time

import uvloop
from tests.sim.serving import Response, Sim, serving

from breakeven_sim.config import ServeConfig, engine_config
from breakeven_sim.driver import Driver
from breakeven_sim.server import SimServer

COMP = "/v1/completions"
BODY = {"prompt": [1, 2, 3], "max_tokens": 120, "ignore_eos": True, "stream": True}
S, TOTAL = "vllm:inter_token_latency_seconds_count", "vllm:inter_token_latency_seconds_sum"


def held_up(sim: Sim, seconds: float) -> Response:
    """A stream during which the server's loop is blocked once."""
    found: list[Response] = []
    client = threading.Thread(target=lambda: found.append(sim.post(COMP, BODY)))
    client.start()
    while not sim.server.engine.running:
        pass
    sim.call(time.sleep, seconds)
    client.join(timeout=60)
    return found[0]


def test_lag_is_booked_and_is_not_the_engines() -> None:
    """A blocked loop shows in the lag, not in the engine's gaps; every step keeps its own event."""
    with serving(ServeConfig(engine_config("8b-h100"))) as sim:
        response = held_up(sim, 0.4)
        lag = sim.metric("breakeven_sim_step_lag_max_seconds")
        late = sim.metric("breakeven_sim_step_lag_seconds_count") - sim.metric(
            "breakeven_sim_step_lag_seconds_bucket", le="0.1"
        )
        gap = sim.metric(TOTAL) / sim.metric(S)
        worst = sim.metric(S) - sim.metric("vllm:inter_token_latency_seconds_bucket", le="0.01")
    assert lag > 0.3
    assert late > 10
    # T(1) of the model is 6.7 ms: no gap of the engine's is longer than its step.
    assert 0.0067 < gap < 0.007
    assert worst == 0
    assert len(response.data) == 120


def test_model_time_is_absolute() -> None:
    """Steps are contiguous on the model's clock, whatever the delays of their delivery."""

    async def main() -> list[float]:
        server = SimServer(ServeConfig(engine_config("8b-h100")))
        engine, starts = server.engine, list[float]()
        begin = engine.begin

        def watched(now_s: float, stall_s: float = 0.0) -> object:
            step = begin(now_s, stall_s)
            if step is not None:
                starts.append(step.start_s)
                starts.append(step.end_s)
                # The loop is busy with something else for a while.
                time.sleep(0.003 * (len(starts) % 5))
            return step

        engine.begin = watched  # type: ignore[method-assign, assignment]
        driver = Driver(engine, server.metrics, time_scale=50)
        reader = Counting()
        driver.submit(reader, 10, 40, eos_at=None, block_keys=())
        running = asyncio.create_task(driver.run())
        await reader.done.wait()
        running.cancel()
        return starts

    times = uvloop.run(main())
    assert times[2::2] == times[1:-1:2]
    assert len(times) == 80


class Counting:
    """A reader that waits for 40 tokens."""

    def __init__(self) -> None:
        self.done = asyncio.Event()
        self.tokens = 0

    def receive_tokens(self, _: object, tokens: int) -> None:
        self.tokens += tokens
        if self.tokens == 40:
            self.done.set()

    def receive_failure(self) -> None:
        raise AssertionError


def test_time_scale_changes_real_time_only() -> None:
    """Ten model seconds in a fraction of one: the counters are in model seconds."""
    with serving(ServeConfig(engine_config("8b-h100"), time_scale=200)) as sim:
        began = time.monotonic()
        sim.post(COMP, {**BODY, "max_tokens": 1500, "stream": False})
        real = time.monotonic() - began
        model = sim.metric(TOTAL)
    assert model > 10
    assert real < model
