"""Gauges that are read when a page is built, and the JSON of /status."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from breakeven import __version__
from breakeven_proxy.observe.meter import Meter
from breakeven_proxy.observe.metrics import Metrics
from breakeven_wire import EnginePool

if TYPE_CHECKING:
    from typing import Protocol

    from breakeven_proxy.config import ArmSettings, ProxySettings
    from breakeven_proxy.relay.client import RelayServer

    class ArmLike(Protocol):
        """What is read of an arm."""

        name: str
        up: bool | None
        pool: EnginePool
        settings: ArmSettings

        @property
        def inflight(self) -> int: ...
        @property
        def queued(self) -> int: ...
        def rate(self, now: float) -> float: ...


SECONDS_PER_HOUR = 3600.0


class StateGauges:
    """Reads the rooms below when somebody looks."""

    def __init__(
        self,
        settings: ProxySettings,
        metrics: Metrics,
        arms: Mapping[str, ArmLike],
        relay: RelayServer,
        meter: Meter,
    ) -> None:
        self._settings = settings
        self._metrics = metrics
        self._arms = arms
        self._relay = relay
        self._meter = meter
        self._fixed()
        metrics.before_page.append(self.read)

    def adopt(self, settings: ProxySettings) -> None:
        """Another configuration; gauges of what it no longer names leave the page."""
        for name, family in self._metrics.families.items():
            labels = family.spec.labels
            if family.spec.kind != "gauge" or name == "route_state":
                continue
            if name == "config_info":
                family.cells.clear()
            elif "arm" in labels:
                at = labels.index("arm")
                for key in [key for key in family.cells if key[at] not in settings.arms]:
                    family.remove(*key)
        self._settings = settings
        self._fixed()

    def _fixed(self) -> None:
        m, settings = self._metrics, self._settings
        m["build_info"].set(1, __version__)
        m["config_info"].set(1, settings.stamps, settings.token_counts, settings.routing.policy)
        m["slo_objective"].set(settings.slo.objective)
        for kind, bound in settings.slo.slo().bounds().items():
            m["slo_threshold_seconds"].set(bound, kind.removesuffix("_s"))
        m["epsilon_seconds"].set(settings.epsilon_s)
        m["load_class_max_requests_per_second"].set(settings.load_classes.low_max, "low")
        m["load_class_max_requests_per_second"].set(settings.load_classes.normal_max, "normal")
        for name, arm in settings.arms.items():
            m["arm_info"].set(1, name, arm.role)
            m["arm_exclusive"].set(float(arm.exclusive), name)
            m["replicas"].set(arm.replicas, name)
            if arm.fleet_cost_usd_per_hour is not None:
                per_second = arm.fleet_cost_usd_per_hour / SECONDS_PER_HOUR
                m["fleet_cost_usd_per_second"].set(per_second, name)

    def read(self) -> None:
        """Fills the gauges; called before a page."""
        m = self._metrics
        now = time.monotonic()
        for name, arm in self._arms.items():
            pool = arm.pool
            pool.check_clock()
            m["inflight_requests"].set(arm.inflight, name)
            m["queued_requests"].set(arm.queued, name)
            m["arrival_rate"].set(arm.rate(now), name)
            m["upstream_up"].set(1 if arm.up else 0, name)
            m["upstream_connections"].set(pool.open_connections, name)
            m["upstream_retries_total"].set(pool.retries, name)
            m["unstamped_reads_total"].set(pool.unstamped_reads, name)
            m["clock_steps_total"].set(pool.clock_steps, name)
            m["stamps_info"].set(1, name, pool.stamps)
        m["client_connections"].set(len(self._relay.connections))
        m["draining"].set(1 if self._relay.draining else 0)
        m["telemetry_errors_total"].set(self._relay.telemetry_errors)
        for status, count in self._relay.bad_requests.items():
            m["bad_requests_total"].set(count, str(status))

    def status(self, why_not_ready: str | None) -> dict[str, Any]:
        """The JSON of /status."""
        now = time.monotonic()
        return {
            "version": __version__,
            "ready": why_not_ready is None,
            "not_ready_because": why_not_ready,
            "draining": self._relay.draining,
            "client_connections": len(self._relay.connections),
            "token_counts": self._settings.token_counts,
            "arms": {name: self._arm_status(arm, now) for name, arm in self._arms.items()},
        }

    def _arm_status(self, arm: ArmLike, now: float) -> dict[str, Any]:
        known = self._meter.arms[arm.name].token_known
        counted, uncounted = known[True].value, known[False].value
        events = counted + uncounted
        coverage = counted / events if events else None
        status: dict[str, Any] = {
            "url": str(arm.pool.origin),
            "role": arm.settings.role,
            "up": arm.up,
            "inflight": arm.inflight,
            "queued": arm.queued,
            "arrivals_per_s_per_replica": arm.rate(now),
            "stamps": arm.pool.stamps,
            "stamps_because": arm.pool.stamps_reason,
            "clock_steps": arm.pool.clock_steps,
            "system_fingerprint": self._meter.fingerprints[arm.name],
            "events": int(events),
            "token_coverage": coverage,
        }
        if events and not counted:
            status["margin"] = (
                "margin unavailable: no token counts; start vLLM with "
                "--enable-force-include-usage, or set token_counts: request"
            )
        return status
