"""What runs beside the traffic: engine readers, the trace recorder, tracing, token counting.

Here: making them from the settings, starting, reloading and ending them. Not here: what they do.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from functools import partial

from prometheus_client import ProcessCollector

from breakeven.certificate import Certificate
from breakeven_proxy.config import ArmSettings, ProxySettings
from breakeven_proxy.control.token_counts import CountingArm, CountingTransform
from breakeven_proxy.observe.certified import engine_contradicts, show_certificate
from breakeven_proxy.observe.engine import EngineReader, engine_families
from breakeven_proxy.observe.log import Log
from breakeven_proxy.observe.meter import Meter
from breakeven_proxy.observe.metrics import Metrics
from breakeven_proxy.observe.recorder import Recorder
from breakeven_proxy.observe.tracing import Tracing
from breakeven_proxy.relay.seams import Arrival, Transform
from breakeven_wire import Headers

COUNTED = (b"/v1/chat/completions", b"/v1/completions")
"""Paths whose streams can be asked for token counts; /v1/responses states its usage anyway."""


class Beside:
    """Built with the proxy; `start` inside the loop, `close` at its end.

    Raises:
        ConfigError: a recorder's salt or a missing library, see `Recorder` and `Tracing`.
    """

    def __init__(
        self,
        settings: ProxySettings,
        certificate: Certificate | None,
        meter: Meter,
        metrics: Metrics,
        log: Log,
    ) -> None:
        self._settings = settings
        self._certificate = certificate
        self._meter = meter
        self._metrics = metrics
        self._log = log
        self._counting: dict[str, CountingArm] = {}
        self.readers: dict[str, EngineReader] = {}
        self._tasks: dict[str, tuple[ArmSettings, asyncio.Task[None]]] = {}
        self._contradiction: str | None = None
        self.recorder: Recorder | None = None
        self.tracing: Tracing | None = None
        self._record()
        self._trace()
        metrics.extra.append(lambda: engine_families(self.readers.values()))
        metrics.extra.append(ProcessCollector(registry=None).collect)  # CPU, memory, descriptors
        metrics.before_page.append(self._show_certificate)

    def _record(self) -> None:
        recording = self._settings.trace_recording
        if recording is None:
            return
        counts = {
            result: self._metrics["recorded_arrivals_total"].cell(result)
            for result in ("written", "dropped", "skipped", "failed")
        }
        self.recorder = Recorder(
            recording, self._settings.cohorts, lambda result: counts[result].inc()
        )
        self._meter.body_reader = self.recorder.reader
        self._meter.listeners.append(self.recorder.record)

    def _trace(self) -> None:
        if self._settings.tracing is None:
            return
        exported = self._metrics["spans_total"].cell("exported")
        self.tracing = Tracing(self._settings.tracing, lambda _: exported.inc())
        self._meter.listeners.append(self.tracing.record)

    def start(self) -> None:
        """Begins to read the engines."""
        self._read_engines()

    def adopt(self, settings: ProxySettings, certificate: Certificate | None) -> None:
        """Goes on under another configuration; recording and tracing stay as they were."""
        self._settings, self._certificate = settings, certificate
        self._read_engines()

    def _read_engines(self) -> None:
        for name, (known, task) in list(self._tasks.items()):
            if self._settings.arms.get(name) != known:
                task.cancel()
                del self._tasks[name], self.readers[name]
        for name, arm in self._settings.arms.items():
            if name not in self._tasks:
                reader = EngineReader(
                    name,
                    arm,
                    self._metrics,
                    self._log,
                    interval_s=self._settings.scrape_interval_s,
                    fingerprint=partial(self._meter.fingerprints.get, name),
                )
                self.readers[name] = reader
                task = asyncio.get_running_loop().create_task(reader.run())
                self._tasks[name] = (arm, task)

    async def close(self) -> None:
        """Ends everything; what waits to be written or sent is written or sent."""
        tasks = [task for _, task in self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self.recorder is not None:
            await asyncio.to_thread(self.recorder.close)
        if self.tracing is not None:
            await asyncio.to_thread(self.tracing.close)

    # -- for the desk
    def headers_for(self, arrival: Arrival) -> Headers:
        """Headers that a metered request carries to the engine beside its own."""
        return () if self.tracing is None else self.tracing.arrive(arrival)

    def transform_for(self, arm: str, arrival: Arrival) -> Transform | None:
        """The change that `token_counts: request` makes to a request."""
        if self._settings.token_counts != "request" or arrival.path not in COUNTED:
            return None
        return CountingTransform(self._counting.setdefault(arm, CountingArm()))

    # -- for the admin port
    async def engine_page(self, arm: str) -> tuple[int, bytes] | None:
        """An arm's own /metrics."""
        reader = self.readers.get(arm)
        return None if reader is None else await reader.page()

    def certificate_problem(self) -> str | None:
        """Why a loaded certificate does not hold now; None when it does, or there is none."""
        certificate = self._certificate
        if certificate is None:
            return None
        if datetime.now(UTC) >= certificate.expires:
            return "expired: run the grid again and decide anew"
        reader = self.readers.get(certificate.arm)
        if reader is None:
            return None
        return engine_contradicts(
            certificate,
            reader,
            system_fingerprint=self._meter.fingerprints.get(certificate.arm),
        )

    def _show_certificate(self) -> None:
        """The frozen baseline is shown only while its certificate holds."""
        problem = self.certificate_problem()
        if problem != self._contradiction:
            self._contradiction = problem
            if problem is not None:
                self._log.warning("certificate refused", because=problem)
        show_certificate(self._metrics, self._certificate, holds=problem is None)
