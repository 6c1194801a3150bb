"""Two simulated arms behind the gateway: the candidate is killed, slowed and restored under load.

Requests that were in flight on the candidate when it was killed may fail; no other may. Nothing
here is timed: each step waits for what /status says.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import urllib.request
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from tests.support import processes
from tests.support.processes import Child

CLIENTS = 6
GAP_S = 0.25  # between a sound engine's 7 ms on a machine that others load, and a slow one's 350
STEP_S = 60.0  # no step of the story waits longer

BODY = {
    "model": "m",
    "messages": [{"role": "user", "content": "one two three four five six seven eight"}],
    "max_tokens": 24,
    "stream": True,
}


@dataclass
class Load:
    """Closed-loop clients that go on until told to stop; each request ends in one row."""

    url: str
    running: set[int] = field(default_factory=set)
    failed: dict[int, str] = field(default_factory=dict)
    done: int = 0
    started: int = 0
    stop: bool = False

    async def run(self) -> None:
        timeout = aiohttp.ClientTimeout(total=60)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
            await asyncio.gather(*(self._client(session) for _ in range(CLIENTS)))

    async def _client(self, session: aiohttp.ClientSession) -> None:
        while not self.stop:
            number = self.started
            self.started += 1
            self.running.add(number)
            try:
                why = await self._ask(session)
            except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
                why = type(error).__name__
            self.running.discard(number)
            self.done += 1
            if why is not None:
                self.failed[number] = why

    async def _ask(self, session: aiohttp.ClientSession) -> str | None:
        """None, or why it failed: a status, or a stream that did not end with [DONE]."""
        async with session.post(f"{self.url}/v1/chat/completions", json=BODY) as response:
            body = await response.read()
        if response.status != 200:
            return f"status {response.status}"
        return None if body.endswith(b"data: [DONE]\n\n") else "no [DONE]"

    async def more(self, requests: int = 3 * CLIENTS) -> None:
        """Waits until that many more have ended."""
        upto = self.done + requests
        await until(lambda: self.done >= upto)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(STEP_S):
        while not condition():  # noqa: ASYNC110 - other processes have no event to wait for
            await asyncio.sleep(0.02)


async def poll(
    look: Callable[[], Awaitable[dict[str, Any]]], good: Callable[[dict[str, Any]], object]
) -> dict[str, Any]:
    async with asyncio.timeout(STEP_S):
        while not good(found := await look()):  # noqa: ASYNC110 - /status has no event
            await asyncio.sleep(0.03)
    return found


def fetch(url: str, data: bytes | None = None) -> bytes:
    with urllib.request.urlopen(url, data=data, timeout=30) as response:
        body: bytes = response.read()
    return body


class Gateway:
    """The admin port of the proxy under test."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.url, self.admin = child.urls

    async def status(self) -> dict[str, Any]:
        parsed: dict[str, Any] = json.loads(await asyncio.to_thread(fetch, f"{self.admin}/status"))
        return parsed

    async def candidate(self, arm: str = "draft") -> dict[str, Any]:
        found: dict[str, Any] = (await self.status())["routing"]["candidates"][arm]
        return found

    async def state(self, wanted: str, arm: str = "draft") -> dict[str, Any]:
        """Waits until the candidate is in that state."""
        return await poll(lambda: self.candidate(arm), lambda found: found["state"] == wanted)

    async def order(self, path: str, body: bytes = b"") -> dict[str, Any]:
        answer = await asyncio.to_thread(fetch, f"{self.admin}{path}", body)
        parsed: dict[str, Any] = json.loads(answer)
        return parsed

    async def sample(self, name: str, **labels: str) -> float:
        """Sum of the samples of one name whose labels are these."""
        page = (await asyncio.to_thread(fetch, f"{self.admin}/metrics")).decode()
        total = 0.0
        for line in page.splitlines():
            match = re.match(rf"breakeven_{name}(?:{{(.*)}})? (\S+)$", line)
            if match and all(f'{k}="{v}"' in (match[1] or "") for k, v in labels.items()):
                total += float(match[2])
        return total


def sim(port: int = 0, *, slow: bool = False) -> Child:
    """A simulated engine; a slow one lets a second of its own last fifty."""
    args = ["serve", "--listen", f"127.0.0.1:{port}", "--model", "m", "--preset", "8b-h100"]
    return processes.start("breakeven-sim", *args, *(["--time-scale", "0.02"] if slow else []))


def config(tmp_path: Path, base: Child, draft: Child, **more: Any) -> str:
    settings = {
        "listen": "127.0.0.1:0",
        "admin": "127.0.0.1:0",
        "arms": {
            "base": {"url": base.url, "role": "baseline"},
            "draft": {"url": draft.url, "role": "candidate"},
        },
        "slo": {"ttft_s": 20, "gap_p99_s": GAP_S},
        "routing": {
            "policy": "single",
            "arm": "draft",
            "health": {"interval_s": 0.1, "timeout_s": 5, "rise_after": 2, "hold_s": 0.2},
            "guard": {
                "window_s": 10, "min_requests": 10,
                # a killed engine is health's matter in this story
                "error_share": None, "error_excess": None, "goodput_burn": None,
                "goodput_excess": None,
            },
        },
    } | more  # fmt: skip
    path = tmp_path / "proxy.yaml"
    path.write_text(yaml.safe_dump(settings))
    return str(path)


def told(story: Callable[[Gateway, Load], Awaitable[None]], gateway: Child) -> Load:
    """Runs the story while the clients ask; then lets them finish."""

    async def run() -> Load:
        load = Load(gateway.urls[0])
        clients = asyncio.create_task(load.run())
        try:
            await story(Gateway(gateway), load)
        finally:
            load.stop = True
            await asyncio.wait_for(clients, 90)
        return load

    return asyncio.run(run())


@pytest.mark.timeout(300)  # a busy machine may take its time over each step
def test_killed_slowed_restored(tmp_path: Path) -> None:
    """No request fails but those in flight on the killed candidate; the guard says why it acted."""
    children: dict[str, Child] = {"base": sim(), "draft": sim()}
    port = int(children["draft"].url.rsplit(":", 1)[1])
    in_flight: set[int] = set()

    async def restart(*, slow: bool) -> None:
        children["draft"].end()
        children["draft"] = await asyncio.to_thread(lambda: sim(port, slow=slow))

    async def story(gateway: Gateway, load: Load) -> None:
        # Everything goes to the candidate.
        await gateway.state("serving")
        await load.more()
        assert await gateway.sample("requests_total", arm="draft") > 0

        # Killed: the baseline serves at once, what follows does not fail.
        children["draft"].process.send_signal(signal.SIGKILL)
        # Until it is gone its socket takes connections. The loop does not turn meanwhile, so no
        # client starts a request: what runs now is all that can be on it.
        children["draft"].process.wait()
        in_flight.update(load.running)
        found = await gateway.state("unhealthy")
        assert found["reason"] == "health_down"
        await load.more()
        served = await gateway.sample("requests_total", arm="base", verdict="good")
        assert served >= CLIENTS

        # Restored, but fifty times slower: the guard takes it out, its streams finish.
        await restart(slow=True)
        await gateway.state("serving")
        found = await gateway.state("tripped")
        assert found["reason"] == "guard_gap_p99"
        assert f"above {GAP_S:g} (budget)" in found["tripped_because"]
        await load.more()
        await poll(gateway.status, lambda found: found["arms"]["draft"]["inflight"] == 0)

        # Restored for good: it stays out until a person arms it.
        await restart(slow=False)
        await load.more()
        assert (await gateway.candidate())["state"] == "tripped"
        assert (await gateway.order("/arms/draft/rearm"))["arm"] == "draft"
        await gateway.state("serving")
        before = await gateway.sample("requests_total", arm="draft", verdict="good")
        await load.more()
        assert await gateway.sample("requests_total", arm="draft", verdict="good") > before

        # The guard's reason in /status, metric and log.
        rows = (await gateway.status())["routing"]["transitions"]
        assert [row for row in rows if row["reason"] == "guard_gap_p99"]
        labels = {"arm": "draft", "reason": "guard_gap_p99"}
        assert await gateway.sample("route_transitions_total", **labels) == 1
        assert await gateway.sample("telemetry_errors_total") == 0
        assert await gateway.sample("route_errors_total") == 0

    path = config(tmp_path, children["base"], children["draft"])
    with processes.running("breakeven-proxy", "serve", "--config", path) as gateway:
        try:
            load = told(story, gateway)
        finally:
            for child in children.values():
                child.end()
    lines = [json.loads(line) for line in gateway.text().splitlines() if line.startswith("{")]
    moves = [line for line in lines if line["event"] == "route transition"]
    assert [line for line in moves if line["reason"] == "guard_gap_p99"]
    beyond = {n: why for n, why in load.failed.items() if n not in in_flight}
    assert beyond == {}
    assert len(load.failed) <= CLIENTS
    assert load.done == load.started


@pytest.mark.timeout(300)
def test_reload_under_load(tmp_path: Path) -> None:
    """SIGHUP moves the traffic from one arm to the other and adds an arm: no request fails."""
    base, draft = sim(), sim()
    path = config(tmp_path, base, draft)

    async def story(gateway: Gateway, load: Load) -> None:
        await gateway.state("serving")
        await load.more()

        async def reload(settings: dict[str, Any]) -> dict[str, Any]:
            before = (await gateway.status())["last_reload"]
            await asyncio.to_thread(Path(path).write_text, yaml.safe_dump(settings))
            gateway.child.process.send_signal(signal.SIGHUP)
            status = await poll(gateway.status, lambda found: found["last_reload"] != before)
            last: dict[str, Any] = status["last_reload"]
            return last

        settings = yaml.safe_load(await asyncio.to_thread(Path(path).read_text))
        settings["routing"] |= {"policy": "split", "weights": {"base": 1, "draft": 1}, "arm": None}
        assert (await reload(settings))["ok"] is True
        await load.more()
        assert await gateway.sample("requests_total", arm="base") > 0
        settings["arms"]["third"] = settings["arms"].pop("draft")
        settings["routing"]["weights"] = {"third": 1}
        assert (await reload(settings))["ok"] is True
        await gateway.state("serving", "third")  # once it was seen ready
        await load.more()
        assert await gateway.sample("requests_total", arm="third") > 0
        settings["listen"] = "127.0.0.1:1"
        refused = await reload(settings)
        assert "listen: cannot change while running" in refused["error"]
        await load.more()

    with processes.running("breakeven-proxy", "serve", "--config", path) as gateway:
        try:
            load = told(story, gateway)
        finally:
            base.end()
            draft.end()
    assert load.failed == {}
    assert load.done == load.started
