"""Watches one arm from outside its traffic: the engine's /metrics, its identity.

Not here: health (`control.probe`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import aiohttp

from breakeven_proxy.observe.log import Log
from breakeven_proxy.observe.metrics import Metrics

if TYPE_CHECKING:
    from breakeven_proxy.config import ProxySettings
    from breakeven_proxy.control.arms import Arm

HEALTH_TIMEOUT_S = 2.0
MAX_PAGE_BYTES = 16 * 1024 * 1024


class ArmWatch:
    """Asks an arm for its /metrics; aiohttp, apart from the relay's connections."""

    def __init__(self, arm: Arm, settings: ProxySettings, metrics: Metrics, log: Log) -> None:
        self.arm = arm
        self._settings = settings
        self._metrics = metrics
        self._log = log
        self._session: aiohttp.ClientSession | None = None

    async def run(self) -> None:
        """Until cancelled."""
        timeout = aiohttp.ClientTimeout(total=HEALTH_TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout, auto_decompress=True) as session:
            self._session = session
            await asyncio.Event().wait()

    async def page(self) -> tuple[int, bytes]:
        """The arm's own /metrics, as /engine/metrics hands it on."""
        session = self._session
        if session is None:
            return 503, b"not started\n"
        try:
            async with session.get(f"{self.arm.pool.origin}/metrics") as response:
                return response.status, await response.content.read(MAX_PAGE_BYTES)
        except (aiohttp.ClientError, OSError, TimeoutError):
            return 502, b"the engine did not answer\n"
