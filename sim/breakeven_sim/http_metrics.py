"""The http_* families of the page, as prometheus-fastapi-instrumentator adds them to vLLM's."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram, Summary

# Paths the real server does not count.
UNCOUNTED = frozenset({"/metrics", "/health", "/load", "/ping", "/version", "/server_info"})
_HIGHR = (0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5,
          5.0, 7.5, 10.0, 30.0, 60.0)  # fmt: skip
_SIZE = "Only value of header is respected. Otherwise ignored. No percentile calculated. "


class HttpMetrics:
    """Requests by handler, method and status class; sizes; durations in real seconds."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "http_requests",
            "Total number of requests by method, status and handler.",
            ["method", "status", "handler"],
            registry=registry,
        )
        self._request_size = Summary(
            "http_request_size_bytes",
            f"Content length of incoming requests by handler. {_SIZE}",
            ["handler"],
            registry=registry,
        )
        self._response_size = Summary(
            "http_response_size_bytes",
            f"Content length of outgoing responses by handler. {_SIZE}",
            ["handler"],
            registry=registry,
        )
        self._duration_highr = Histogram(
            "http_request_duration_highr_seconds",
            "Latency with many buckets but no API specific labels. Made for more accurate "
            "percentile calculations. ",
            buckets=_HIGHR,
            registry=registry,
        )
        self._duration = Histogram(
            "http_request_duration_seconds",
            "Latency with only few buckets by handler. Made to be only used if aggregation by "
            "handler is important. ",
            ["method", "handler"],
            buckets=(0.1, 0.5, 1.0),
            registry=registry,
        )

    def record(
        self, handler: str, method: str, status: int, sizes: tuple[int, int], seconds: float
    ) -> None:
        """Count one request; `sizes` are the content lengths in and out (0 when not given)."""
        self._requests.labels(method, f"{status // 100}xx", handler).inc()
        self._request_size.labels(handler).observe(sizes[0])
        self._response_size.labels(handler).observe(sizes[1])
        self._duration_highr.observe(seconds)
        self._duration.labels(method, handler).observe(seconds)
