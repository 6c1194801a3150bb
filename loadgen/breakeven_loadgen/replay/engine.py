"""The engine seen from its own /metrics while the run lasts, and device memory where NVML is.

Here: sampling, the before and after pages, engine.parquet. Not here: names (core engine_schemas),
arithmetic (core engine_metrics).
"""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from breakeven.errors import EngineError, NotReadyError, SchemaError
from breakeven_wire import Deadlines, EnginePool, Origin

from . import arrow
from .spool import disk_error

if TYPE_CHECKING:
    from breakeven.engine_metrics import EngineCounters

SAMPLE_DEADLINES = Deadlines(connect_s=2.0, first_byte_s=5.0, idle_s=5.0, total_s=8.0)
ENGINE_FILE = "engine.parquet"
ENGINE_SCHEMA = pa.schema(
    [("t_s", pa.float64()), ("source", pa.string()), ("name", pa.string()), ("value", pa.float64())]
)
"""Long form: seconds after the run's start, source (metrics URL or nvml:0), our name, value."""


@dataclass(slots=True)
class _Page:
    """One metrics page and where it comes from."""

    origin: Origin
    path: str
    pool: EnginePool
    before: EngineCounters | None = None
    after: EngineCounters | None = None
    failures: int = 0
    raw: list[tuple[float, bytes]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.origin}{self.path}"


PROXY_TOKENS = "breakeven_completion_tokens_total"
"""The proxy's counter of completion tokens, as responses' usage states them."""
SETTLE_TRIES = 20
SETTLE_S = 0.1
"""The proxy books a response after its last byte has left: read until two pages agree."""


@dataclass(slots=True)
class ProxyPage:
    """The admin page of a breakeven-proxy in front of the target, before and after the run."""

    page: _Page
    before: float | None = None
    after: float | None = None

    async def read(self) -> float:
        """Sum of the token counter over its labels.

        Raises:
            EngineError: unreachable, or a page without that counter.
        """
        from breakeven.exposition import parse_page  # here: a run without pages starts sooner

        page = parse_page(await _fetch(self.page))
        if "breakeven_build_info" not in page.names:
            raise SchemaError(f"{self.page.name} is no page of a breakeven-proxy")
        # No response so far: the counter has no series yet, which is 0 here.
        samples = page.named(PROXY_TOKENS)
        return sum(sample.value for sample in samples)

    async def settle(self) -> None:
        """Read until the counter stands still."""
        with contextlib.suppress(EngineError):
            self.after = await self.read()
            for _ in range(SETTLE_TRIES):
                await asyncio.sleep(SETTLE_S)
                again = await self.read()
                if again == self.after:
                    return
                self.after = again


@dataclass(slots=True)
class EngineSampler:
    """Samples every metrics URL of a run."""

    pages: list[_Page] = field(default_factory=list)
    samples: list[tuple[float, str, str, float]] = field(default_factory=list)
    proxy: ProxyPage | None = None
    _nvml: Any = None

    @classmethod
    def of(cls, urls: tuple[str, ...], proxy_url: str | None = None) -> EngineSampler:
        """One sampler for the given URLs; a URL without a path means its /metrics.

        Raises:
            InputError: no http(s) URL.
        """
        sampler = cls(_nvml=_open_nvml())
        for url in urls:
            base, path = split_metrics_url(url)
            origin = Origin.parse(base)
            sampler.pages.append(_Page(origin, path, EnginePool(origin)))
        if proxy_url is not None:
            base, path = split_metrics_url(proxy_url)
            origin = Origin.parse(base)
            sampler.proxy = ProxyPage(_Page(origin, path, EnginePool(origin)))
        return sampler

    async def before(self) -> None:
        """The page before the first arrival.

        Raises:
            NotReadyError: unreachable, or no engine's page; the URL is named.
        """
        for page in self.pages:
            try:
                page.before = await _read(page)
            except EngineError as error:
                raise NotReadyError(f"--metrics-url {page.name}: {error}") from None
            self._note(0.0, page, page.before)
        if self.proxy is not None:
            try:
                self.proxy.before = await self.proxy.read()
            except EngineError as error:
                raise NotReadyError(f"--proxy-metrics-url: {error}") from None

    async def sample(self, t_s: float) -> None:
        """Fetch every page once; a page that cannot be had is counted, not fatal.

        It is only kept, compressed: reading it takes ten milliseconds of the event loop, and an
        arrival may fall due meanwhile. `after` reads them all.
        """
        for page in self.pages:
            try:
                page.raw.append((t_s, zlib.compress(await _fetch(page), 1)))
            except EngineError:
                page.failures += 1
        self._note_devices(t_s)

    async def after(self, t_s: float) -> None:
        """The page after the last response; then all samples are read."""
        for page in self.pages:
            self._note_raw(page)
            try:
                page.after = await _read(page)
            except EngineError:
                page.failures += 1
            else:
                self._note(t_s, page, page.after)
        if self.proxy is not None:
            await self.proxy.settle()

    async def close(self) -> None:
        """End the connections and NVML."""
        for page in [*self.pages, *([self.proxy.page] if self.proxy is not None else [])]:
            await page.pool.close()
        if self._nvml is not None:
            with contextlib.suppress(Exception):
                self._nvml.nvmlShutdown()

    def write(self, folder: Path) -> None:
        """engine.parquet: also without a single sample, so that readers find the columns."""
        import pyarrow.parquet as pq  # here: only the end of a run needs it

        columns: list[tuple[Any, ...]] = list(zip(*self.samples, strict=True)) or [(), (), (), ()]
        arrays = [
            arrow.array(column, f.type) for column, f in zip(columns, ENGINE_SCHEMA, strict=True)
        ]
        path = folder / ENGINE_FILE
        try:
            pq.write_table(pa.Table.from_arrays(arrays, schema=ENGINE_SCHEMA), path)
        except OSError as error:
            raise disk_error(error, path) from None

    def proxy_tokens(self) -> int | None:
        """Completion tokens that the proxy counted during the run; None without its page."""
        proxy = self.proxy
        if proxy is None or proxy.before is None or proxy.after is None:
            return None
        return round(proxy.after - proxy.before)

    def deltas(self) -> list[dict[str, Any]]:
        """What each page says happened between before and after, as JSON."""
        return [_delta(page) for page in self.pages]

    def _note_raw(self, page: _Page) -> None:
        for t_s, data in page.raw:
            try:
                self._note(t_s, page, _counters(zlib.decompress(data)))
            except EngineError:
                page.failures += 1
        page.raw.clear()

    def _note(self, t_s: float, page: _Page, counters: EngineCounters) -> None:
        values = {**counters.counters, **counters.gauges}
        for name, histogram in counters.histograms.items():
            values[f"{name}_count"] = histogram.count
            values[f"{name}_sum"] = histogram.total
        self.samples += [(t_s, page.name, name, value) for name, value in values.items()]

    def _note_devices(self, t_s: float) -> None:
        nvml = self._nvml
        if nvml is None:
            return
        try:
            for i in range(nvml.nvmlDeviceGetCount()):
                memory = nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByIndex(i))
                self.samples.append((t_s, f"nvml:{i}", "device_memory_used_bytes", memory.used))
        except nvml.NVMLError:
            self._nvml = None

    @property
    def has_devices(self) -> bool:
        """Whether device memory can be read here."""
        return self._nvml is not None


def split_metrics_url(url: str) -> tuple[str, str]:
    """(origin URL, path) of a metrics URL; without a path it is /metrics."""
    scheme, sep, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{sep}{host}", f"/{path}" if slash and path else "/metrics"


async def _fetch(page: _Page) -> bytes:
    response = await page.pool.fetch("GET", page.path, deadlines=SAMPLE_DEADLINES)
    if response.status != 200:
        raise EngineError(f"status {response.status}")
    return response.body


async def _read(page: _Page) -> EngineCounters:
    return _counters(await _fetch(page))


def _counters(page: bytes) -> EngineCounters:
    # Here: a run without --metrics-url starts sooner; one with it reads a page before its start.
    from breakeven.engine_metrics import read_counters

    return read_counters(page)


def _delta(page: _Page) -> dict[str, Any]:
    record: dict[str, Any] = {"source": page.name, "failed_samples": page.failures}
    if page.before is None or page.after is None:
        return record | {"missing": "a page before or after the run could not be read"}
    from breakeven.engine_metrics import delta  # here: as in _counters

    try:
        found = delta(page.before, page.after)
    except SchemaError as error:
        return record | {"missing": str(error)}
    names = ("schema", "m", "cycle_s", "g", "f", "s", "drafts", "draft_tokens", "accepted",
             "accepted_per_position", "k", "step_s", "s_per_token", "acceptance",
             "per_drafted_step", "cut_tokens", "survival", "conditional", "prefix_hit_rate",
             "counters", "gauges", "resets", "reasons")  # fmt: skip
    record |= {name: getattr(found, name) for name in names}
    record["kv_capacity_tokens"] = page.after.kv_capacity_tokens
    record["model_names"] = page.after.models
    return record


def _open_nvml() -> Any:
    """nvidia-ml-py where it is installed and finds a driver, else None: not an error."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml
