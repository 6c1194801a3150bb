"""One request in flight: wire callbacks in, a completed row out.

Here: what of a response is measured and how its end is named. Not here: when it is sent (run),
the verdict's rules (core slo). No byte of a request or response outlives the attempt.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from breakeven.chunks import Body, SpecBlock, Usage, parse_body
from breakeven.slo import SLO
from breakeven.stream import Ending, StreamObserver, StreamReport
from breakeven_wire import (
    Deadlines,
    EnginePool,
    Exchange,
    ExchangeHandler,
    Failure,
    FailureKind,
    Headers,
    Request,
    ResponseHead,
)

from .judge_row import Seen, judge
from .rows import Row

MAX_BODY_BYTES = 64 * 1024 * 1024
"""Longest JSON body of a non-stream that is read; a longer one is an error."""


@dataclass(frozen=True, slots=True)
class Sending:
    """What every request of a run has in common.

    `forced_length`: exactly the asked number of output tokens was ordered, so another is a fault.
    """

    pool: EnginePool
    target: bytes
    headers: Headers
    deadlines: Deadlines
    slo: SLO | None
    epsilon_s: float
    forced_length: bool


class Attempt(ExchangeHandler):
    """Sends one request and fills its row; `on_done(row)` is called exactly once.

    `after_read` is called after each read of a stream.
    """

    __slots__ = (
        "_after_read", "_body", "_cancel_after", "_done", "_exchange", "_not_a_stream",
        "_observer", "_on_done", "_sending", "_start_s", "_status", "row",
    )  # fmt: skip

    def __init__(
        self,
        sending: Sending,
        row: Row,
        start_s: float,
        on_done: Callable[[Attempt], None],
        after_read: Callable[[], None],
    ) -> None:
        """`start_s`: the run's start on the monotonic clock; the row's times are relative to it."""
        self.row = row
        self._sending = sending
        self._start_s = start_s
        self._on_done = on_done
        self._after_read = after_read
        self._done = False
        self._status: int | None = None
        self._body = bytearray()
        self._observer: StreamObserver | None = None
        self._cancel_after = math.inf if row.cancel_after is None else row.cancel_after
        self._exchange: Exchange | None = None
        self._not_a_stream = False

    def send(self, body: bytes, cohort: str, sent_mono: float) -> None:
        """Hand the request to the connection pool; it is written in this turn of the loop when a
        connection is idle, else as soon as a new one stands. `sent_mono`: now, monotonic."""
        s = self._sending
        headers = (*s.headers, (b"x-breakeven-cohort", cohort.encode()))
        request = Request(b"POST", s.target, headers, body)
        self._exchange = s.pool.start(request, self, deadlines=s.deadlines)
        row = self.row
        row.sent_s = sent_mono - self._start_s
        assert row.ready_s is not None
        row.lag_s = row.sent_s - row.ready_s
        if row.stream:
            self._observer = StreamObserver(
                self._exchange.started,
                epsilon_s=s.epsilon_s,
                gap_bound_s=s.slo.gap_p99_s if s.slo is not None else None,
                keep_events=True,
            )

    def interrupt(self) -> None:
        """The run is being stopped: close the connection, the row becomes `interrupted`."""
        self._end(Ending.CANCELLED, "interrupted", interrupted=True)

    # --- wire callbacks

    def on_head(self, head: ResponseHead, stamp: float) -> None:  # noqa: ARG002 - the protocol's
        self._status = head.status
        kind = head.get(b"content-type") or b""
        if self._observer is not None and kind.lower().startswith(b"application/json"):
            self._observer = None  # no event stream, whatever was asked for: an error, perhaps
            self._not_a_stream = True

    def on_body(self, data: bytes, stamp: float) -> None:
        if self._status is not None and self._status >= 400:
            return  # an error body can echo the request: not even looked at
        if self._observer is None:
            self._body += data
            if len(self._body) > MAX_BODY_BYTES:
                self._end(Ending.BROKEN, "body_too_long")
            return
        self._observer.receive_data(data, stamp)
        if self._observer.least_tokens >= self._cancel_after:
            self._end(Ending.CANCELLED, "cancelled_by_run")
        self._after_read()

    def on_end(self, trailers: Headers, stamp: float) -> None:  # noqa: ARG002 - the protocol's
        self._end(Ending.COMPLETE, None)

    def on_failure(self, failure: Failure) -> None:
        if failure.kind is FailureKind.TIMEOUT:
            self._end(Ending.TIMEOUT, f"timeout_{failure.phase.value}")
        else:
            self._end(Ending.BROKEN, failure.kind.value)

    # --- the end

    def _end(self, ending: Ending, error_class: str | None, *, interrupted: bool = False) -> None:
        if self._done:
            return
        self._done = True
        assert self._exchange is not None
        exchange = self._exchange
        end_stamp = self._sending.pool.now()
        if not exchange.done:
            exchange.abort()
        row = self.row
        row.end_s = time.monotonic() - self._start_s
        row.status = self._status
        row.error_class = error_class
        row.retried = exchange.retried
        if exchange.connected is not None and not exchange.reused:
            row.connect_s = max(0.0, exchange.connected - exchange.started)
        seen = self._seen(end_stamp, ending, interrupted)
        judge(row, seen, self._sending.slo, forced_length=self._sending.forced_length)
        self._on_done(self)

    def _seen(self, end_stamp: float, ending: Ending, interrupted: bool) -> Seen:
        if self._observer is not None:
            report = self._observer.finish(end_stamp, ending)
            self._fill_stream(report)
            return Seen(ending, report=report, interrupted=interrupted)
        body = parse_body(bytes(self._body)) if self._body else None
        self._body = bytearray()
        self._fill_body(body)
        return Seen(ending, None, body, self._not_a_stream, interrupted)

    def _fill_stream(self, report: StreamReport) -> None:
        row = self.row
        assert row.sent_s is not None
        assert row.lag_s is not None
        row.ttft_sent_s = report.ttft_s
        row.ttfo_s = report.ttfo_s
        if report.ttft_s is not None:
            row.ttft_s = report.ttft_s + row.lag_s
            row.first_s = row.sent_s + report.ttft_s
        if report.last_event_s is not None:
            row.last_s = row.sent_s + report.last_event_s
        if report.answer_s is not None:
            # Not the end of the transfer: a late usage chunk is no latency of the answer.
            row.e2e_sent_s = report.answer_s
            row.e2e_s = report.answer_s + row.lag_s
        row.prompt_tokens = report.prompt_tokens
        row.output_tokens = report.tokens
        row.tpot_s = report.tpot_s
        row.decode_s = report.decode_s
        row.decode_tokens = report.decode_tokens
        row.events = report.events
        row.bursts = report.bursts
        row.gap_max_s = report.burst_gap_max_s
        row.gaps_over = report.burst_gaps_over
        row.max_burst_tokens = report.max_burst_tokens
        row.merged_reads = report.merged_reads
        row.ttft_merged = report.ttft_merged
        row.backpressured = report.backpressured > 0
        row.finish_reason = _joined(report.finish_reasons)
        row.system_fingerprint = report.system_fingerprint
        row.event_offset_s = report.event_offsets_s
        row.event_tokens = report.event_tokens
        row.gap_p99_s = report.burst_gap_p99_s
        row.stream_cycles = report.stream_cycles
        row.block_cycles = report.block_cycles
        self._fill_spec(report.spec)

    def _fill_body(self, body: Body | None) -> None:
        row = self.row
        assert row.sent_s is not None
        assert row.end_s is not None
        assert row.lag_s is not None
        if body is None:
            return
        row.e2e_sent_s = row.end_s - row.sent_s
        row.e2e_s = row.e2e_sent_s + row.lag_s
        usage: Usage | None = body.usage
        if usage is not None:
            row.prompt_tokens = usage.prompt_tokens
            row.output_tokens = usage.completion_tokens
        row.finish_reason = _joined(body.finish_reasons)
        row.system_fingerprint = body.system_fingerprint
        self._fill_spec(body.spec)

    def _fill_spec(self, spec: SpecBlock | None) -> None:
        if spec is not None:
            self.row.spec_cycles = spec.cycles
            self.row.spec_drafted = spec.drafted
            self.row.spec_accepted = spec.accepted


def _joined(reasons: tuple[str | None, ...]) -> str | None:
    """One word for all choices of a response."""
    if not reasons or None in reasons:
        return None
    distinct = sorted({reason for reason in reasons if reason is not None})
    return distinct[0] if len(distinct) == 1 else "mixed"
