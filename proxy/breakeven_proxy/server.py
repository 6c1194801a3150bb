"""Builds the proxy from its settings, runs it, drains it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from breakeven.certificate import Certificate
from breakeven.steering import Plan
from breakeven_proxy.admin.orders import Orders
from breakeven_proxy.admin.pages import Pages
from breakeven_proxy.beside import Beside
from breakeven_proxy.config import ProxySettings, parse_address
from breakeven_proxy.control.arms import Arm, FrontDesk
from breakeven_proxy.control.gateway import Gateway, read_token
from breakeven_proxy.control.proof import load_certificate
from breakeven_proxy.observe.bound import settings_bounds
from breakeven_proxy.observe.log import Log
from breakeven_proxy.observe.meter import Meter
from breakeven_proxy.observe.metrics import Metrics
from breakeven_proxy.observe.state import StateGauges
from breakeven_proxy.relay.client import RelayLimits, RelayServer
from breakeven_proxy.relay.listener import Listener
from breakeven_proxy.reload import Reloader

LAG_EVERY_S = 0.1
"""How often the loop's lateness is measured."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The addresses a running proxy listens on."""

    listen: str
    admin: str


class Proxy:
    """A running proxy: `start`, then `wait` until `stop` is asked for, or `close` at once."""

    def __init__(
        self,
        settings: ProxySettings,
        log: Log,
        *,
        reread: Callable[[], ProxySettings] | None = None,
    ) -> None:
        self.settings = settings
        self.reloader = Reloader(self, reread or (lambda: self.settings))
        self.log = log
        self.metrics = Metrics(settings_bounds(settings))
        self.meter = Meter(
            self.metrics,
            settings.slo.slo(),
            settings.epsilon_s,
            settings.arms,
            list(settings.cohorts),
        )
        self.arms = {name: Arm(name, arm, settings) for name, arm in settings.arms.items()}
        certificate = load_certificate(settings)
        self.beside = Beside(settings, certificate, self.meter, self.metrics, log)
        self.gateway = Gateway(
            settings, certificate, self.arms, self.meter, self.metrics, log,
            contradiction=self.beside.certificate_problem,
        )  # fmt: skip
        self.control = self.gateway.control
        self._orders = Orders(self.control, read_token(settings.admin_token_file))
        self.desk = FrontDesk(
            settings, self.arms, self.meter, self.metrics, self.control, self.beside
        )
        timeouts, limits = settings.timeouts, settings.limits
        self.relay = RelayServer(
            self.desk,
            RelayLimits(
                head_bytes=limits.head_bytes,
                body_bytes=limits.body_bytes,
                head_s=timeouts.head_s,
                body_s=timeouts.body_s,
                idle_s=timeouts.idle_s,
                keepalive_s=timeouts.keepalive_s,
                connections=limits.connections,
            ),
        )
        self.gauges = StateGauges(settings, self.metrics, self.arms, self.relay, self.meter)
        self._listener: Listener | None = None
        self._runner: web.AppRunner | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Event()
        self._killed = asyncio.Event()

    async def start(self) -> Bound:
        """Listens; the addresses that were taken (port 0 lets the system choose)."""
        loop = asyncio.get_running_loop()
        host, port = parse_address(self.settings.listen, key="listen", file=None)
        self._listener = Listener(self.relay.accept)
        listening = await self._listener.listen(host, port)
        try:
            pages = Pages(self.metrics, self.status, self.ready, self.engine_page)
            application = pages.application()
            application.add_routes(self._orders.routes())
            self._runner = web.AppRunner(application, access_log=None)
            await self._runner.setup()
            admin_host, admin_port = parse_address(self.settings.admin, key="admin", file=None)
            site = web.TCPSite(self._runner, admin_host, admin_port, reuse_address=True)
            await site.start()
        except BaseException:
            self._listener.close()
            raise
        self.reloader.show()
        self.gateway.start()
        self.beside.start()
        self._tasks.append(loop.create_task(self._measure_lag()))
        bound = Bound(
            _address(listening),
            _address(self._runner.addresses[0]),
        )
        gc.collect()
        gc.freeze()  # a full collection of what start-up made would stall every stream
        self.log.info(
            "listening",
            listen=bound.listen,
            admin=bound.admin,
            arms={name: str(arm.pool.origin) for name, arm in self.arms.items()},
            stamps={name: arm.pool.stamps for name, arm in self.arms.items()},
        )
        return bound

    def adopt(
        self,
        settings: ProxySettings,
        certificate: Certificate | None,
        plan: Plan,
        renewed: frozenset[str],
    ) -> None:
        """Another configuration, checked by the reloader, which has changed `arms` in place."""
        self.settings = settings
        self.desk.adopt(settings)
        self.gateway.adopt(settings, plan, certificate, renewed)
        self.beside.adopt(settings, certificate)
        self.gauges.adopt(settings)

    def stop(self) -> None:
        """Begins to drain; a second call ends at once."""
        if self._stopping.is_set():
            self._killed.set()
        self._stopping.set()

    async def wait(self) -> None:
        """Runs until `stop`, then drains and closes."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        loop.add_signal_handler(signal.SIGHUP, self.reloader.ask)
        await self._stopping.wait()
        await self.drain()
        await self.close()

    async def drain(self) -> None:
        """Not ready any more; new requests get 503; streams may finish within the drain time."""
        self.desk.draining = True
        self.relay.drain()
        self.log.info("draining", inflight=self.relay.active)
        end = time.monotonic() + self.settings.timeouts.drain_s
        while self.relay.unfinished and time.monotonic() < end and not self._killed.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._killed.wait(), 0.05)
        if self.relay.unfinished:
            self.log.warning("drain time is over", broken=self.relay.unfinished)

    async def close(self) -> None:
        """Ends everything."""
        if self._listener is not None:
            self._listener.close()
        self.relay.abort()
        await self.reloader.close()
        await self.gateway.close()
        await self.beside.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for arm in self.arms.values():
            await arm.pool.close()
        if self._runner is not None:
            await self._runner.cleanup()
        await asyncio.sleep(0)
        self.relay.close()
        self.log.info("stopped")

    # -- what the admin port shows
    def ready(self) -> str | None:
        """Why traffic should not come, or None."""
        if self.desk.draining:
            return "draining"
        if not any(arm.up for arm in self.arms.values()):
            return "no arm is ready"
        return None

    def status(self) -> dict[str, Any]:
        """For a person who asks what this process is doing."""
        return self.gauges.status(self.ready()) | {
            "certificate_refused": self.beside.certificate_problem(),
            "simulated_evidence_allowed": self.settings.allow_simulated,
            "last_reload": self.reloader.last,
            "routing": self.control.status(),
        }

    async def engine_page(self, name: str) -> tuple[int, bytes] | None:
        """An arm's own /metrics."""
        return await self.beside.engine_page(name)

    async def _measure_lag(self) -> None:
        lag = self.metrics["event_loop_lag_seconds"].buckets()
        while True:
            due = time.monotonic() + LAG_EVERY_S
            await asyncio.sleep(LAG_EVERY_S)
            lag.observe(max(time.monotonic() - due, 0.0))


def _address(name: Any) -> str:
    host, port = name[0], name[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
