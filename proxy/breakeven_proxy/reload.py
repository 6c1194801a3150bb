"""SIGHUP: another configuration for the running proxy, whole or not at all.

Everything that can fail is done before anything is changed. Arms that leave, or get another URL,
finish what they have; arms that stay keep their connections, counters, health and trips.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from breakeven.errors import ConfigError, InputError
from breakeven_proxy.config import ArmSettings, ProxySettings
from breakeven_proxy.control.arms import Arm
from breakeven_proxy.control.gateway import steering_plan
from breakeven_proxy.control.proof import load_certificate
from breakeven_proxy.observe.bound import settings_bounds

if TYPE_CHECKING:
    from breakeven_proxy.server import Proxy

CHANGEABLE = frozenset({"arms", "routing", "certificate", "allow_simulated", "allow_arm_header"})
"""What a reload may change; the rest is built into sockets, buckets and series."""

GUARD_BUCKETS = {"ttft_p95_s": "ttft_seconds", "gap_p99_s": "burst_gap_seconds"}
"""The guard's latency limits, and the histogram that each is read from."""

RETIRED_LOOK_S = 0.2
"""How often an arm that left is asked whether its last stream has ended."""


class Reloader:
    """Takes in another configuration.

    Args:
        reread: reads and checks the configuration anew; called off the loop.
    """

    def __init__(self, proxy: Proxy, reread: Callable[[], ProxySettings]) -> None:
        self._proxy = proxy
        self._reread = reread
        self._bounds = settings_bounds(proxy.settings)  # of the start: buckets stay as they are
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self.last: dict[str, Any] | None = None
        """For /status: when, whether it was taken, and why not."""

    def show(self) -> None:
        """The series stand from the start: what was read at start is in force."""
        metrics = self._proxy.metrics
        metrics["config_last_reload_successful"].set(1)
        for result in ("ok", "refused"):
            metrics["config_reloads_total"].cell(result)

    def ask(self) -> None:
        """Called by the signal."""
        self._spawn(self.reload())

    async def reload(self) -> None:
        """Reads and applies; a configuration that cannot be is logged, and the old one goes on."""
        async with self._lock:
            metrics, log = self._proxy.metrics, self._proxy.log
            why: str | None = None
            try:
                settings = await asyncio.to_thread(self._reread)
                self.apply(settings)
            except (InputError, OSError) as error:
                why = str(error)
                log.warning("configuration refused: the old one goes on", why=why)
            except Exception as error:  # noqa: BLE001 - whatever it is, the traffic goes on
                why = type(error).__name__
                log.error("configuration refused: the old one goes on", error)
            else:
                log.info("configuration reloaded", arms=sorted(self._proxy.arms))
            result = "ok" if why is None else "refused"
            metrics["config_reloads_total"].cell(result).inc()
            metrics["config_last_reload_successful"].set(1 if why is None else 0)
            self.last = {"timestamp_s": time.time(), "ok": why is None, "error": why}

    def apply(self, settings: ProxySettings) -> None:
        """Goes on under `settings`.

        Raises:
            InputError: something that cannot change while running did, or see `steering_plan`.
        """
        proxy = self._proxy
        old = proxy.settings
        _check_changes(old, settings)
        check_guard_limits(settings, self._bounds)
        certificate = load_certificate(settings)
        plan = steering_plan(settings, certificate, proxy.log)
        fresh = {
            name: Arm(name, arm, settings)
            for name, arm in settings.arms.items()
            if name not in proxy.arms or _elsewhere(arm, proxy.arms[name].settings)
        }
        # From here on nothing can fail.
        left = [
            arm for name, arm in proxy.arms.items() if name in fresh or name not in settings.arms
        ]
        for name in list(proxy.arms):
            if name not in settings.arms:
                del proxy.arms[name]
        for name, arm_settings in settings.arms.items():
            proxy.meter.add_arm(name)
            if name in fresh:
                proxy.arms[name] = fresh[name]
            else:
                proxy.arms[name].settings = arm_settings
        proxy.adopt(settings, certificate, plan, frozenset(fresh))
        for arm in left:
            proxy.log.info("arm retires", arm=arm.name, inflight=arm.inflight)
            self._spawn(_retire(arm))

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Ends what still waits."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _retire(arm: Arm) -> None:
    """Closes the arm's connections when its last request has ended."""
    pool = arm.pool
    try:
        # No event says that the last exchange is over, and nobody waits for this.
        while arm.inflight or arm.queued or pool.open_connections > pool.idle_connections:  # noqa: ASYNC110
            await asyncio.sleep(RETIRED_LOOK_S)
    finally:
        await pool.close()


def _elsewhere(new: ArmSettings, old: ArmSettings) -> bool:
    """Whether the arm's connections would be others."""
    return (new.url, new.ca_file, new.tls_verify) != (old.url, old.ca_file, old.tls_verify)


def _check_changes(old: ProxySettings, new: ProxySettings) -> None:
    for field in fields(ProxySettings):
        if field.name not in CHANGEABLE and getattr(old, field.name) != getattr(new, field.name):
            raise ConfigError(
                "cannot change while running",
                key=field.name,
                mend="restart the proxy (SIGTERM drains), or take the change back",
            )
    if old.routing.state_file != new.routing.state_file:
        raise ConfigError(
            "cannot change while running", key="routing.state_file", mend="restart the proxy"
        )


def check_guard_limits(new: ProxySettings, bounds: Mapping[str, Sequence[float]]) -> None:
    """Whether the guard can hold the candidate to its latency limits with these buckets.

    It reads "p95 <= limit" as the share above the limit, which a histogram knows exactly at a
    bucket bound only. Anywhere else the bucket that holds the limit counts as kept: the guard would
    see a breach late or, in a wide bucket, never.

    Args:
        bounds: of the histograms, seconds, as they were made at the start.

    Raises:
        ConfigError: a limit lies between two bounds; with both.
    """
    guard = new.routing.guard
    if not guard.enabled:
        return
    for key, histogram in GUARD_BUCKETS.items():
        limit, known = getattr(guard, key), bounds[histogram]
        if limit is None or limit in known:
            continue
        place = bisect_left(known, limit)
        near = " or ".join(f"{bound:g}" for bound in known[max(0, place - 1) : place + 1])
        raise ConfigError(
            "no bucket bound of the running histograms, so the guard could not see it broken",
            key=f"routing.guard.{key}", value=limit,
            mend=f"restart the proxy (SIGTERM drains) to take it in, or use {near}",
        )  # fmt: skip
