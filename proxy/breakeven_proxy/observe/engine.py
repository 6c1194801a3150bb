"""Reads an arm's own /metrics: schema first, then counters, summed over replicas.

Exported under our names as `breakeven_engine_*` {arm}; what the engine does not show stays
absent. Counter resets (a restarted engine) are carried over, so that the sums never fall. Checks
that the arm is what the configuration claims: speculation, its depth, its fingerprint.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import isinf

import aiohttp
import orjson
from prometheus_client.metrics_core import Metric

from breakeven import __version__
from breakeven.engine_metrics import EngineCounters, read_counters
from breakeven.errors import ProtocolError, SchemaError
from breakeven_proxy.config import ArmSettings
from breakeven_proxy.observe.log import Log
from breakeven_proxy.observe.metrics import PREFIX, Metrics

TIMEOUT_S = 4.0
MAX_PAGE_BYTES = 16 * 1024 * 1024
USER_AGENT = f"breakeven-probe/{__version__}"
MAX_VERSION = 64


@dataclass(slots=True)
class Carried:
    """A counter that survives restarts of its engine: `total` never falls."""

    last: float = 0.0
    total: float = 0.0
    resets: int = 0

    def read(self, value: float) -> None:
        """A new reading; one below the last means that the engine began again at 0."""
        if value < self.last:
            self.resets += 1
            self.total += value
        else:
            self.total += value - self.last
        self.last = value


@dataclass(slots=True)
class ReplicaState:
    """What the pages of one replica said so far, by our names."""

    counters: dict[str, Carried] = field(default_factory=dict)
    gauges: dict[str, float] = field(default_factory=dict)
    resets: int = 0

    def read(self, page: EngineCounters) -> None:
        """Takes a page in. A name that is gone from the page keeps its last sum."""
        before = sum(carried.resets for carried in self.counters.values())
        for name, value in _flat(page).items():
            self.counters.setdefault(name, Carried()).read(value)
        self.gauges = dict(page.gauges)
        if page.kv_capacity_tokens is not None:
            self.gauges["kv_capacity_tokens"] = float(page.kv_capacity_tokens)
        after = sum(carried.resets for carried in self.counters.values())
        self.resets += after > before


BUCKETED = "queue_time"
"""The one histogram of the engine that is shown with its buckets: its p95 has an alert."""


def _flat(page: EngineCounters) -> dict[str, float]:
    """Counters, histogram counts and sums, and accepted tokens by position, by our names.

    A label stands behind a bar: NAME|LABEL=VALUE.
    """
    values = {f"{name}_total": value for name, value in page.counters.items()}
    for name, histogram in page.histograms.items():
        unit = "" if name == "iteration_tokens" else "_seconds"
        values[f"{name}{unit}_count"] = histogram.count
        values[f"{name}{unit}_sum"] = histogram.total
        if name == BUCKETED:
            for bound, below in zip(histogram.bounds, histogram.cumulative, strict=True):
                values[f"{name}{unit}_bucket|le={'+Inf' if isinf(bound) else bound}"] = below
    for position, value in enumerate(page.accepted_per_position):
        values[f"spec_accepted_tokens_per_pos_total|position={position}"] = value
    return values


class EngineReader:
    """Scrapes one arm's metrics URLs, one per replica.

    Args:
        fingerprint: the newest system_fingerprint that the arm's answers carried.
    """

    def __init__(
        self,
        arm: str,
        settings: ArmSettings,
        metrics: Metrics,
        log: Log,
        *,
        interval_s: float,
        fingerprint: Callable[[], str | None],
    ) -> None:
        self.arm = arm
        self._settings = settings
        self._metrics = metrics
        self._log = log
        self._interval_s = interval_s
        self._fingerprint = fingerprint
        self._base = settings.url.rstrip("/").removesuffix("/v1")
        self._urls = settings.metrics_urls or (f"{self._base}/metrics",)
        self._replicas = {url: ReplicaState() for url in self._urls}
        self._schema: tuple[str, str, str] | None = None
        self._said: dict[str, object] = {}
        self.latest: EngineCounters | None = None
        """The newest page of the first replica."""
        self.version: str | None = None
        self._session: aiohttp.ClientSession | None = None
        for result in ("ok", "unreachable", "no_schema", "bad_page"):
            metrics["engine_scrapes_total"].cell(arm, result)
        metrics["engine_resets_total"].cell(arm)

    async def run(self) -> None:
        """Until cancelled."""
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        headers = {"User-Agent": USER_AGENT}
        async with aiohttp.ClientSession(timeout=timeout, headers=headers) as session:
            self._session = session
            while True:
                try:
                    await self.read_once(session)
                except Exception as error:  # noqa: BLE001 - one odd page must not end the reading
                    self._metrics["engine_scrapes_total"].cell(self.arm, "bad_page").inc()
                    self._log.error("engine metrics", error, arm=self.arm)
                await asyncio.sleep(self._interval_s)

    async def read_once(self, session: aiohttp.ClientSession) -> None:
        """One reading of every replica."""
        if self.version is None:
            self.version = await self._read_version(session)
        for url in self._urls:
            result = await self._read_replica(session, url)
            self._metrics["engine_scrapes_total"].cell(self.arm, result).inc()
            self._say("engine metrics", url, result)
        self._metrics["engine_resets_total"].set(
            sum(replica.resets for replica in self._replicas.values()), self.arm
        )
        self.check_identity()

    async def page(self) -> tuple[int, bytes]:
        """The first replica's page as it is, for /engine/metrics."""
        if self._session is None:
            return 503, b"not started\n"
        try:
            return 200, await _fetch(self._session, self._urls[0])
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
            return 502, b"the engine did not answer\n"

    async def _read_replica(self, session: aiohttp.ClientSession, url: str) -> str:
        try:
            text = await _fetch(session, url)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
            return "unreachable"
        try:
            page = await asyncio.to_thread(read_counters, text)  # milliseconds: not on the loop
        except SchemaError:
            return "no_schema"
        except ProtocolError:
            return "bad_page"
        self._replicas[url].read(page)
        if url == self._urls[0]:
            self.latest = page
        self._note_schema(page)
        return "ok"

    def _note_schema(self, page: EngineCounters) -> None:
        schema = (page.engine, self.version or "unknown", page.schema)
        if schema != self._schema:
            if self._schema is not None:
                self._metrics["engine_schema_info"].remove(self.arm, *self._schema)
            self._schema = schema
            self._metrics["engine_schema_info"].set(1, self.arm, *schema)
            self._log.info("engine schema", arm=self.arm, schema=page.schema, engine=page.engine)

    async def _read_version(self, session: aiohttp.ClientSession) -> str | None:
        try:
            found = orjson.loads(await _fetch(session, f"{self._base}/version")).get("version")
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError, AttributeError):
            return None
        return found[:MAX_VERSION] if isinstance(found, str) and found.isprintable() else None

    # -- is the arm what it claims to be
    def check_identity(self) -> None:
        """1 where a claim holds, 0 where it does not; no series where nothing is claimed."""
        for check, ok in self.identity().items():
            self._metrics["upstream_identity_ok"].set(1 if ok else 0, self.arm, check)
            self._say("arm identity", check, ok)

    def identity(self) -> dict[str, bool]:
        """The claims that can be checked now."""
        found: dict[str, bool] = {}
        page, claimed = self.latest, self._settings
        if page is not None and page.engine == "vllm":
            speculates = "spec_drafts" in page.counters
            if claimed.k is not None:
                found["speculation"] = speculates == (claimed.k > 0)
            if claimed.k and page.k is not None:
                found["k"] = page.k == claimed.k
        fingerprint = self._fingerprint()
        if claimed.system_fingerprint is not None and fingerprint is not None:
            found["system_fingerprint"] = fingerprint == claimed.system_fingerprint
        return found

    def _say(self, event: str, what: str, outcome: object) -> None:
        """Logs a result when it changes."""
        key = f"{event} {what}"
        if self._said.get(key) != outcome:
            self._said[key] = outcome
            good = outcome in ("ok", True)
            say = self._log.info if good else self._log.warning
            say(event, arm=self.arm, what=what, outcome=outcome)

    # -- what a page of ours shows
    def values(self) -> Iterable[tuple[str, str, dict[str, str], float]]:
        """Name, kind, labels and value of what was found, summed over replicas."""
        sums: dict[str, float] = {}
        for replica in self._replicas.values():
            for name, carried in replica.counters.items():
                sums[name] = sums.get(name, 0.0) + carried.total
        for name, value in sums.items():
            plain, _, labelled = name.partition("|")
            label, _, text = labelled.partition("=")
            yield plain, "counter", {label: text} if label else {}, value
        gauges: dict[str, list[float]] = {}
        for replica in self._replicas.values():
            for name, value in replica.gauges.items():
                gauges.setdefault(name, []).append(value)
        for name, values in gauges.items():
            yield name, "gauge", {}, _together(name, values)


def engine_families(readers: Iterable[EngineReader]) -> list[Metric]:
    """`breakeven_engine_*` of all arms, a family once."""
    families: dict[str, Metric] = {}
    for reader in readers:
        for name, kind, labels, value in reader.values():
            full = f"{PREFIX}engine_{name}"
            if full not in families:
                words = "From the engine's own /metrics, by our name."
                families[full] = Metric(full.removesuffix("_total"), words, kind)
            families[full].add_sample(full, {"arm": reader.arm, **labels}, value)
    return list(families.values())


def _together(name: str, values: list[float]) -> float:
    """Requests of replicas add up; shares do not, their highest stands."""
    return sum(values) if name.startswith("requests_") else max(values)


async def _fetch(session: aiohttp.ClientSession, url: str) -> bytes:
    """A page's text.

    Raises:
        ValueError: not status 200, or too large.
    """
    async with session.get(url) as response:
        if response.status != 200:
            raise ValueError(f"status {response.status}")
        body = await response.content.read(MAX_PAGE_BYTES)
        while more := await response.content.read(MAX_PAGE_BYTES):
            body += more
            if len(body) > MAX_PAGE_BYTES:
                raise ValueError("page too large")
        return body
