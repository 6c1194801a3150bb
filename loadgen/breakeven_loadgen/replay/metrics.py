"""The generator's own /metrics while it runs (`--metrics-listen HOST:PORT`).

Here: names and the page. Not here: the engine's metrics (engine), figures of a finished run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from breakeven.errors import InputError
from breakeven.slo import Verdict

from ..config import host_port

if TYPE_CHECKING:
    from .run import RunState

COUNTERS = {
    "loadgen_offered": "Arrivals that fell due.",
    "loadgen_admitted": "Arrivals whose request was sent.",
    "loadgen_dropped": "Arrivals recorded as dropped at --max-inflight.",
    "loadgen_served": "Requests that were sent and have ended, whatever their verdict.",
    "loadgen_output_tokens": "Output tokens of ended requests, as usage states them.",
}
GAUGES = {
    "loadgen_scheduled_arrivals": "Arrivals of the whole plan.",
    "loadgen_inflight_requests": "Requests in flight.",
    "loadgen_lag_seconds": "Send after the intended time, latest arrival.",
    "loadgen_lag_worst_seconds": "Send after the intended time, worst arrival so far.",
    "loadgen_event_loop_lag_seconds": "Worst lateness of the event loop in the last 15 to 30 s.",
}
REQUESTS = "loadgen_requests"


class RunCollector(Collector):
    """Reads a run's counts at scrape time; nothing is counted twice."""

    def __init__(self, state: RunState) -> None:
        self._state = state

    def collect(self) -> Iterable[Metric]:
        counts = self._state.offer.counts
        dropped = counts.verdicts["dropped"]
        values = {
            "loadgen_offered": counts.offered,
            "loadgen_admitted": counts.sent,
            "loadgen_dropped": dropped,
            "loadgen_served": counts.sent - self._state.offer.inflight.value,
            "loadgen_output_tokens": counts.output_tokens,
            "loadgen_scheduled_arrivals": self._state.scheduled,
            "loadgen_inflight_requests": self._state.offer.inflight.value,
            "loadgen_lag_seconds": counts.last_lag_s,
            "loadgen_lag_worst_seconds": counts.worst_lag_s,
            "loadgen_event_loop_lag_seconds": self._state.watch.recent_lag_s(),
        }
        for name, words in COUNTERS.items():
            yield CounterMetricFamily(name, words, value=values[name])
        for name, words in GAUGES.items():
            yield GaugeMetricFamily(name, words, value=values[name])
        family = CounterMetricFamily(REQUESTS, "Ended arrivals by verdict.", labels=["verdict"])
        for verdict in Verdict:
            family.add_metric([verdict.value], counts.verdicts[verdict.value])
        yield family


class MetricsPage:
    """An HTTP server with one page."""

    def __init__(
        self, runner: web.AppRunner, registry: CollectorRegistry, address: tuple[str, int]
    ) -> None:
        self._runner = runner
        self._registry = registry
        self.address = address

    @classmethod
    async def serve(cls, listen: str) -> MetricsPage:
        """Listen on HOST:PORT; the page is empty until `show`.

        Raises:
            InputError: no HOST:PORT, or the address cannot be used.
        """
        host, port = host_port(listen)
        registry = CollectorRegistry(auto_describe=False)

        async def page(_: web.Request) -> web.Response:
            body = generate_latest(registry)
            return web.Response(
                body=body, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
            )

        app = web.Application()
        app.router.add_get("/metrics", page)
        runner = web.AppRunner(app, access_log=None, handle_signals=False)
        await runner.setup()
        site = web.TCPSite(runner, host, port)
        try:
            await site.start()
        except OSError as error:
            await runner.cleanup()
            raise InputError(
                f"cannot listen: {error.strerror}", key="--metrics-listen", value=listen,
                mend="choose a free port",
            ) from None  # fmt: skip
        address: tuple[str, int] = runner.addresses[0][:2]
        return cls(runner, registry, address)

    def show(self, state: RunState) -> None:
        """The counts of this run."""
        self._registry.register(RunCollector(state))

    async def close(self) -> None:
        """Stop listening."""
        await asyncio.shield(self._runner.cleanup())
