"""Pages of the admin port. None of them can stall the traffic: each yields to the loop."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from aiohttp import web

from breakeven_proxy.observe.metrics import Metrics

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Pages:
    """The admin application.

    Args:
        metrics: what /metrics shows.
        status: the content of /status, JSON-able.
        ready: None when ready, else why not.
        engine_page: an arm's own /metrics text, by arm name; None when there is no such arm.
    """

    def __init__(
        self,
        metrics: Metrics,
        status: Callable[[], dict[str, Any]],
        ready: Callable[[], str | None],
        engine_page: Callable[[str], Awaitable[tuple[int, bytes] | None]],
    ) -> None:
        self._metrics = metrics
        self._status = status
        self._ready = ready
        self._engine_page = engine_page

    def application(self) -> web.Application:
        """The routes."""
        app = web.Application(client_max_size=65536)
        app.add_routes(
            [
                web.get("/metrics", self.metrics),
                web.get("/livez", self.livez),
                web.get("/readyz", self.readyz),
                web.get("/status", self.status),
                web.get("/engine/metrics", self.engine_metrics),
            ]
        )
        return app

    async def metrics(self, _: web.Request) -> web.Response:
        """The exposition text of this process."""
        begun = time.monotonic()
        page = await self._metrics.page()
        self._metrics["scrape_seconds"].set(time.monotonic() - begun)
        return web.Response(body=page, headers={"Content-Type": METRICS_TYPE})

    async def livez(self, _: web.Request) -> web.Response:
        """The loop turns."""
        return web.Response(text="ok\n")

    async def readyz(self, _: web.Request) -> web.Response:
        """Whether traffic should come here."""
        why_not = self._ready()
        if why_not is None:
            return web.Response(text="ok\n")
        return web.Response(status=503, text=f"not ready: {why_not}\n")

    async def status(self, _: web.Request) -> web.Response:
        """Arms, gauges and coverage, for a person."""
        body = orjson.dumps(self._status(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
        return web.Response(body=body, content_type="application/json")

    async def engine_metrics(self, request: web.Request) -> web.Response:
        """An arm's own page, through us: the engine's port need not be reachable."""
        found = await self._engine_page(request.query.get("arm", ""))
        if found is None:
            return web.Response(status=404, text="no such arm: /engine/metrics?arm=NAME\n")
        status, body = found
        return web.Response(status=status, body=body, headers={"Content-Type": METRICS_TYPE})
