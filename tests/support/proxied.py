"""A proxy in this process, on free ports, as the dialogues of tests/proxy use it."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import uvloop
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from tests.support.engine import Peer, close_peers, dial, soon, until

from breakeven.settings import parse_settings
from breakeven_proxy.config import ProxySettings, check
from breakeven_proxy.observe.log import Log, make_logger
from breakeven_proxy.server import Proxy


def dialogue(script: Coroutine[Any, Any, None]) -> None:
    """Runs a script on the loop that the proxy runs on in production."""

    async def bounded() -> None:
        try:
            async with asyncio.timeout(30):
                await script
        finally:
            await close_peers()

    uvloop.run(bounded())


class Proxied:
    """A running proxy, as its clients and its scraper see it."""

    def __init__(self, proxy: Proxy, listen: str, admin: str, log: io.StringIO) -> None:
        self.proxy = proxy
        self.port = int(listen.rsplit(":", 1)[1])
        self.admin_port = int(admin.rsplit(":", 1)[1])
        self.log = log

    async def dial(self, *, rcvbuf: int | None = None) -> Peer:
        return await dial(self.port, rcvbuf=rcvbuf)

    async def admin(self, path: str) -> tuple[int, bytes]:
        """A page of the admin port."""
        peer = await dial(self.admin_port)
        await peer.send(f"GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode())
        message = await peer.message()
        peer.close()
        return message.status, message.body

    async def samples(self, name: str = "") -> list[Sample]:
        """The samples of families whose name begins so, as a scraper reads the page."""
        _, body = await self.admin("/metrics")
        starts = (f"breakeven_{name}", f"# TYPE breakeven_{name}") if name else ("",)
        lines = [line for line in body.decode().splitlines() if line.startswith(starts)]
        families = text_string_to_metric_families("\n".join([*lines, ""]))
        return [sample for family in families for sample in family.samples]

    async def total(self, name: str, **labels: str) -> float:
        """The sum of a family's samples whose labels are these."""
        return sum(
            sample.value
            for sample in await self.samples(name)
            if sample.name == f"breakeven_{name}" and labels.items() <= sample.labels.items()
        )

    async def verdicts(self) -> dict[str, int]:
        """Metered requests by verdict, those above 0."""
        found: dict[str, int] = {}
        for sample in await self.samples("requests_total"):
            if sample.value:
                verdict = sample.labels["verdict"]
                found[verdict] = found.get(verdict, 0) + int(sample.value)
        return found

    async def status(self) -> dict[str, Any]:
        _, body = await self.admin("/status")
        parsed: dict[str, Any] = json.loads(body)
        return parsed

    async def idle(self) -> None:
        """Waits until no request is in the relay and no place is taken."""
        arms = self.proxy.arms.values()
        await until(
            lambda: not self.proxy.relay.active and not any(a.inflight + a.queued for a in arms)
        )


def settings_of(engine: str | dict[str, str], **settings: Any) -> ProxySettings:
    """Checked settings for one engine URL, or for several arms by name."""
    urls = engine if isinstance(engine, dict) else {"baseline": engine}
    arms = settings.pop("arms", None) or {name: {"url": url} for name, url in urls.items()}
    values = {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "arms": arms, **settings}
    parsed = parse_settings(values, file="test", model=ProxySettings)
    check(parsed, "test")
    return parsed


@contextlib.asynccontextmanager
async def proxied(engine: str | dict[str, str], **settings: Any) -> AsyncIterator[Proxied]:
    """A running proxy for one engine URL, or for several arms by name."""
    parsed = settings_of(engine, **settings)
    lines = io.StringIO()
    proxy = Proxy(parsed, Log(make_logger(lines)))
    bound = await proxy.start()
    try:
        yield Proxied(proxy, bound.listen, bound.admin, lines)
    finally:
        await soon(proxy.close())
