"""The restart-and-fallback cell: a cold start, a death under load, and the way back.

Here: readiness time, peak memory, lost work, time until the baseline answers. Not here: warm
serving, which never shares a run with loading. Only engines that the grid started can be killed;
for the others the cell says so.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from breakeven.engine_metrics import read_counters
from breakeven.errors import BreakevenError, NotReadyError
from breakeven_wire import EnginePool, Headers, Origin

from .asking import ASK, Asker
from .config import ArmConfig
from .engines import POLL_S, Engine, Engines

INFLIGHT = 8
"""Requests that are running when the candidate dies."""
TOKENS = 512
WAIT_S = 30.0
NOT_OURS = "not exposed: the grid did not start this engine, so it does not kill it"


def restart_cell(
    engines: Engines,
    candidate: tuple[str, ArmConfig],
    baseline: tuple[str, ArmConfig],
    model: str | None,
    headers: Headers,
) -> dict[str, Any]:
    """Run the cell for one candidate.

    Raises:
        NotReadyError: an engine did not come up.
    """
    name, arm = candidate
    if arm.sim is None and not arm.launch:
        return {"note": NOT_OURS}
    engines.stop(name)
    engine = engines.start(name, arm)
    try:
        served = asyncio.run(served_model(engine.url, headers, model))
        found = asyncio.run(_die_under_load(engine, served, headers))
    finally:
        engine.stop(now=True)
    began = time.monotonic()
    back = engines.ready(*baseline)
    asyncio.run(_first_answer(back.url, headers, model))
    back_s = time.monotonic() - began
    engines.release(*baseline)
    return {
        "ready_s": engine.ready_s,
        **found,
        "back_s": back_s,
    }


async def served_model(url: str, headers: Headers, model: str | None) -> str:
    """The name to ask for: the given one, or the only one that is served.

    Raises:
        NotReadyError: no list of models.
    """
    if model is not None:
        return model
    pool = EnginePool(Origin.parse(url), stamps="loop")
    try:
        listed = await Asker(pool, headers, "").get("/v1/models")
        if listed is None:
            raise NotReadyError(f"{url}: /v1/models does not answer")
        return str(listed["data"][0]["id"])
    except (TypeError, KeyError, IndexError):
        raise NotReadyError(f"{url}: /v1/models lists no model") from None
    finally:
        await pool.close()


async def _die_under_load(engine: Engine, model: str, headers: Headers) -> dict[str, Any]:
    """Peak memory, requests running and answers lost when the process is killed under load."""
    pool = EnginePool(Origin.parse(engine.url), stamps="loop")
    ask = Asker(pool, headers, model)
    body = {"prompt": "once upon a time", "max_tokens": TOKENS, "ignore_eos": True}
    tasks = [asyncio.ensure_future(ask.post("/v1/completions", body)) for _ in range(INFLIGHT)]
    try:
        running = await _until_running(pool)
        memory = engine.memory_peak_bytes()
        engine.stop(now=True)
        answers = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await pool.close()
    lost = sum(status != 200 for status, _ in answers)
    return {"memory_peak_bytes": memory, "inflight": running, "lost": lost}


async def _until_running(pool: EnginePool) -> int:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        try:
            page = await pool.fetch("GET", "/metrics", deadlines=ASK)
            running = read_counters(page.body).gauges.get("requests_running", 0.0)
        except BreakevenError:
            running = 0.0
        if running >= 1:
            return int(running)
        await asyncio.sleep(POLL_S / 4)
    return 0


async def _first_answer(url: str, headers: Headers, model: str | None) -> None:
    served = await served_model(url, headers, model)
    pool = EnginePool(Origin.parse(url), stamps="loop")
    try:
        status, _ = await Asker(pool, headers, served).chat(max_tokens=1)
    finally:
        await pool.close()
    if status != 200:
        raise NotReadyError(f"{url}: the baseline does not answer (status {status})")
