"""OpenTelemetry spans: one a metered request, sampled, over OTLP/HTTP, without any content.

Off unless configured; needs the extra `otel`. A span carries numbers and words of fixed sets only:
there is no code path from a body, a header value or a query string to an attribute. Names are
those of the GenAI semantic conventions where there is one. The incoming `traceparent` is the
span's parent, and the engine gets one that names the span.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from breakeven.errors import ConfigError
from breakeven_proxy.config import TracingSettings
from breakeven_proxy.observe.meter import Metered
from breakeven_proxy.relay.seams import Arrival
from breakeven_wire import Headers

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

TRACEPARENT = re.compile(rb"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})\Z")

OPERATIONS = {
    b"/v1/chat/completions": "chat",
    b"/v1/completions": "text_completion",
    b"/v1/responses": "generate_content",
}
"""gen_ai.operation.name of each metered path."""


class Context:
    """The trace context of one request: what came, and what goes on to the engine."""

    __slots__ = ("parent_span", "sampled", "span_id", "trace_id")

    def __init__(self, trace_id: int, parent_span: int | None, span_id: int, sampled: bool) -> None:
        self.trace_id = trace_id
        self.parent_span = parent_span
        self.span_id = span_id
        self.sampled = sampled

    def header(self) -> bytes:
        """The traceparent for the engine."""
        flags = 1 if self.sampled else 0
        return b"00-%032x-%016x-%02x" % (self.trace_id, self.span_id, flags)


class Tracing:
    """Makes the context at arrival and the span at the end.

    Args:
        exporter: where spans go; by default OTLP over HTTP to the configured endpoint.
        count: told "exported" for each span handed to the exporter.

    Raises:
        ConfigError: the extra `otel` is not installed.
    """

    def __init__(
        self,
        settings: TracingSettings,
        count: Callable[[str], None],
        exporter: SpanExporter | None = None,
    ) -> None:
        self._ratio = settings.sample_ratio
        self._count = count
        self._open: dict[int, Context] = {}
        try:
            self._provider, self._next_ids = _provider(settings, exporter)
        except ImportError:
            raise ConfigError(
                "needs the OpenTelemetry libraries",
                key="tracing",
                mend="install breakeven[otel], or leave tracing out",
            ) from None
        self._tracer = self._provider.get_tracer("breakeven_proxy")

    def arrive(self, arrival: Arrival) -> Headers:
        """The headers that carry the context to the engine, in place of the client's."""
        context = self._context(arrival.get(b"traceparent"))
        self._open[id(arrival)] = context
        return ((b"traceparent", context.header()),)

    def _context(self, header: bytes | None) -> Context:
        match = TRACEPARENT.match(header.strip().lower()) if header is not None else None
        span_id = secrets.randbits(64) or 1
        if match is not None and int(match[1], 16) and int(match[2], 16):
            sampled = bool(int(match[3], 16) & 1)
            return Context(int(match[1], 16), int(match[2], 16), span_id, sampled)
        trace_id = secrets.randbits(128) or 1
        # W3C: the rightmost bits are random; the share below the ratio is sampled.
        sampled = (trace_id & (2**64 - 1)) < self._ratio * 2**64
        return Context(trace_id, None, span_id, sampled)

    def record(self, metered: Metered) -> None:
        """The span of a finished request, if it is sampled."""
        context = self._open.pop(id(metered.arrival), None)
        if context is None or not context.sampled:
            return
        from opentelemetry import trace as api

        parent = api.set_span_in_context(api.NonRecordingSpan(_span_context(context, api)))
        self._next_ids(context)
        start = int(metered.arrival.realtime * 1e9)
        span = self._tracer.start_span(
            OPERATIONS.get(metered.arrival.path, "request"),
            context=parent if context.parent_span is not None else None,
            kind=api.SpanKind.SERVER,
            start_time=start,
            attributes=_attributes(metered),
        )
        span.end(end_time=start + int(metered.duration_s * 1e9))
        self._count("exported")

    def close(self) -> None:
        """Sends what waits; bounded by the exporter's own timeout."""
        self._provider.shutdown()


def _attributes(metered: Metered) -> dict[str, Any]:
    """Numbers and fixed words only."""
    found: dict[str, Any] = {
        "gen_ai.operation.name": OPERATIONS.get(metered.arrival.path, "request"),
        "gen_ai.usage.input_tokens": metered.prompt_tokens,
        "gen_ai.usage.output_tokens": metered.completion_tokens,
        "gen_ai.server.time_to_first_token": metered.ttft_s,
        "gen_ai.server.time_per_output_token": metered.tpot_s,
        "http.response.status_code": metered.status,
        "breakeven.arm": metered.arm,
        "breakeven.cohort": metered.cohort,
        "breakeven.load": metered.load,
        "breakeven.verdict": metered.verdict.value,
        "breakeven.stream": metered.stream,
    }
    report = metered.report
    if report is not None:
        found["breakeven.events"] = report.events
        found["breakeven.bursts"] = report.bursts
        found["breakeven.burst_gap_max_s"] = report.burst_gap_max_s
    return {key: value for key, value in found.items() if value is not None}


def _span_context(context: Context, api: Any) -> Any:
    return api.SpanContext(
        trace_id=context.trace_id,
        span_id=context.parent_span or context.span_id,
        is_remote=True,
        trace_flags=api.TraceFlags(api.TraceFlags.SAMPLED),
    )


def _provider(
    settings: TracingSettings, exporter: SpanExporter | None
) -> tuple[TracerProvider, Callable[[Context], None]]:
    """A provider whose spans carry the ids that the engine was told."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.id_generator import IdGenerator
    from opentelemetry.sdk.trace.sampling import ALWAYS_ON

    class GivenIds(IdGenerator):
        """Hands out the ids of the context at hand: spans are made when requests end."""

        context: Context

        def generate_span_id(self) -> int:
            return self.context.span_id

        def generate_trace_id(self) -> int:
            return self.context.trace_id

    ids = GivenIds()
    if exporter is None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        exporter = OTLPSpanExporter(endpoint=settings.endpoint, timeout=5)
    # Only our own words: no host name, no process command line, nothing of the environment.
    resource = Resource({"service.name": settings.service_name})
    provider = TracerProvider(
        resource=resource, id_generator=ids, sampler=ALWAYS_ON, shutdown_on_exit=False
    )
    provider.add_span_processor(BatchSpanProcessor(exporter))

    def use(context: Context) -> None:
        ids.context = context

    return provider, use
