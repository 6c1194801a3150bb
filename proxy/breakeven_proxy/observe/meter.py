"""From what the relay saw of one request to its verdict and its numbers in `Metrics`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from breakeven.chunks import Body, SpecBlock, Usage, parse_body
from breakeven.load import LoadClass
from breakeven.report import Ending as StreamEnding
from breakeven.report import StreamReport
from breakeven.slo import SLO, Outcome, Verdict, classify
from breakeven.stream import StreamObserver
from breakeven.value import value
from breakeven_proxy.config import OTHER
from breakeven_proxy.observe.bound import MAX_ACCEPTED_LENGTH, ArmMeters, length_class
from breakeven_proxy.observe.metrics import Metrics
from breakeven_proxy.observe.passing import PassingObservation
from breakeven_proxy.relay.heads import is_event_stream
from breakeven_proxy.relay.seams import Arrival, Close, Ending
from breakeven_wire import Failure, ResponseHead, Stamps

MAX_BODY_BYTES = 1 << 20
"""A JSON body above this is not parsed: it would stall every stream."""

STREAM_ENDINGS = {
    Close.COMPLETE: StreamEnding.COMPLETE,
    Close.BROKEN: StreamEnding.BROKEN,
    Close.TIMEOUT: StreamEnding.TIMEOUT,
    Close.CANCELLED: StreamEnding.CANCELLED,
    Close.REFUSED: StreamEnding.COMPLETE,  # the status decides
    Close.BAD_REQUEST: StreamEnding.COMPLETE,
}


@value
class Metered:
    """One finished metered request, for those who record or trace it. Numbers and fixed words."""

    arrival: Arrival
    arm: str
    cohort: str
    load: LoadClass
    verdict: Verdict
    status: int | None
    stream: bool
    ttft_s: float | None
    duration_s: float
    tpot_s: float | None
    prompt_tokens: int | None
    completion_tokens: int | None
    report: StreamReport | None
    request_facts: RequestFacts | None
    close: Close
    failure: Failure | None


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """What a recorder needs of a request: held until its thread has read it, shown nowhere."""

    body: bytes | None = field(repr=False)
    """None: above 1 MiB, or no room to hold it."""
    session: str | None


class Meter:
    """Opens one observation a request.

    Args:
        slo: what a good response keeps.
        epsilon_s: see docs/definitions.md, burst.
        arms, cohorts: label values; every child that can occur is made here.
    """

    def __init__(
        self, metrics: Metrics, slo: SLO, epsilon_s: float, arms: Iterable[str], cohorts: list[str]
    ) -> None:
        self.metrics = metrics
        self.slo = slo
        self.epsilon_s = epsilon_s
        self._cohorts = [*cohorts, OTHER]
        self.arms = {arm: ArmMeters(metrics, arm, self._cohorts) for arm in arms}
        self.listeners: list[Callable[[Metered], None]] = []
        self.open_requests: set[RequestObservation] = set()
        self.body_reader: Callable[[Arrival], RequestReader | None] | None = None
        self.fingerprints: dict[str, str | None] = dict.fromkeys(self.arms)
        """Newest system_fingerprint that an arm's answers carried."""

    def add_arm(self, arm: str) -> None:
        """Another arm, of a reloaded configuration; one that left keeps its counters."""
        if arm not in self.arms:
            self.arms[arm] = ArmMeters(self.metrics, arm, self._cohorts)
            self.fingerprints[arm] = None

    def open(
        self, arrival: Arrival, arm: str, cohort: str, load: LoadClass, stamps: Stamps
    ) -> RequestObservation:
        """The observation of a metered request."""
        seen = RequestObservation(self, arrival, arm, cohort, load, start_of(arrival, stamps))
        self.open_requests.add(seen)
        return seen

    def overdue(self, arm: str, limit_s: float, now: float) -> int:
        """Streams of an arm that wait for their first event longer than `limit_s` at `now`."""
        return sum(1 for seen in self.open_requests if seen.overdue(arm, limit_s, now))

    def note_failure(self, arm: str, failure: Failure | None) -> None:
        """Counts a failed exchange by what happened and how far it had come."""
        if failure is not None:
            kind, phase = failure.kind.value, failure.phase.value
            self.metrics["upstream_failures_total"].cell(arm, kind, phase).inc()

    def passing(self, arm: str) -> PassingObservation:
        """The observation of a request that is not metered."""
        return PassingObservation(self, arm)


def start_of(arrival: Arrival, stamps: Stamps) -> float:
    """The arrival on the clock of the stamps."""
    return arrival.realtime if stamps == "kernel" else arrival.monotonic


class RequestReader:
    """Takes facts from a request's body as it passes; see observe.recorder."""

    def feed(self, data: bytes) -> None:
        """A part of the body."""

    def facts(self) -> RequestFacts | None:
        """What was found when it was whole."""
        return None


class RequestObservation:
    """Measures one metered request; `end` gives it its verdict."""

    __slots__ = (
        "_arm", "_arrival", "_cohort", "_json", "_load", "_meter", "_reader", "_start", "_stream",
        "_unread",
    )  # fmt: skip

    def __init__(
        self, meter: Meter, arrival: Arrival, arm: str, cohort: str, load: LoadClass, start: float
    ) -> None:
        self._meter = meter
        self._arrival = arrival
        self._arm = meter.arms[arm]
        self._cohort = self._arm.cohorts[cohort]
        self._load: LoadClass = load
        self._start = start
        self._reader = None if meter.body_reader is None else meter.body_reader(arrival)
        self._stream: StreamObserver | None = None
        self._json: bytearray | None = None
        self._unread: str | None = None

    def request_body(self, data: bytes) -> None:
        """Only a recorder's reader looks at it."""
        if self._reader is not None:
            self._reader.feed(data)

    def request_sent(self, complete: float, sent: float) -> None:
        """What the proxy added on the way in."""
        self._arm.overhead.observe(max(sent - complete, 0.0))

    def moved(self, arm: str, load: LoadClass, stamps: Stamps) -> None:
        """The request goes to another arm: no connection could be made to the first."""
        self._arm = self._meter.arms[arm]
        self._cohort = self._arm.cohorts[self._cohort.cohort]
        self._load = load
        self._start = start_of(self._arrival, stamps)

    def overdue(self, arm: str, limit_s: float, now: float) -> bool:
        """Whether the arm is late with a stream's first event (`now`: monotonic), or, before the
        head that says whether it is one, with any answer: past the SLO's e2e bound."""
        late, e2e_s = self._stream is not None and not self._stream.started, self._meter.slo.e2e_s
        if self._stream is None and self._json is None and self._unread is None:
            late, limit_s = e2e_s is not None, max(limit_s, e2e_s or 0.0)
        return late and self._arm.arm == arm and now - self._arrival.monotonic > limit_s

    def head(self, head: ResponseHead, stamp: float) -> None:  # noqa: ARG002 - the seam's
        """Decides how the body is read."""
        encoding = head.first.get(b"content-encoding")
        kind = head.first.get(b"content-type") or b""
        if encoding is not None and encoding.strip().lower() != b"identity":
            self._unread = "encoding"
        elif is_event_stream(head):
            self._stream = StreamObserver(
                self._start,
                epsilon_s=self._meter.epsilon_s,
                gap_bound_s=self._meter.slo.gap_p99_s,
                sink=self._cohort.sink,
            )
        elif b"json" in kind.lower():
            self._json = bytearray()
        else:
            self._unread = "content_type"

    def body(self, data: bytes, stamp: float, paused: bool) -> None:
        """One read."""
        if self._stream is not None:
            self._stream.receive_data(data, stamp, paused)
        elif self._json is not None:
            if len(self._json) + len(data) > MAX_BODY_BYTES:
                self._json, self._unread = None, "too_large"
            else:
                self._json += data

    def bodies(self, reads: list[tuple[bytes, float]]) -> bool:
        """Several reads. A stream's first token is waited for: see `overdue`."""
        if self._stream is not None:
            self._stream.receive_reads(reads)
            return self._stream.started
        for data, stamp in reads:
            self.body(data, stamp, False)
        return True

    def end(self, ending: Ending) -> None:
        """The verdict and all numbers."""
        self._meter.open_requests.discard(self)
        report, body = None, None
        if self._stream is not None:
            report = self._stream.finish(ending.stamp, _stream_ending(ending.close))
        elif self._json is not None and ending.close is Close.COMPLETE:
            body = parse_body(bytes(self._json))
            self._json = None
        duration = max(ending.stamp - self._start, 0.0)
        outcome = self._outcome(ending, report, body, duration)
        verdict = classify(outcome, self._meter.slo)
        if self._unread is not None and verdict is Verdict.GOOD:
            verdict = Verdict.UNMEASURED  # nobody saw whether it was whole
        usage = _usage(report, body)
        if ending.failure is not None:
            self._meter.note_failure(self._arm.arm, ending.failure)
        self._count(ending, verdict, usage, duration)
        if report is not None:
            self._count_stream(report)
        spec = report.spec if report is not None else body.spec if body is not None else None
        if report is not None or body is not None:
            self._count_spec(spec, report)
        fingerprint = (report or body) and (report or body).system_fingerprint  # type: ignore[union-attr]
        if fingerprint:
            self._meter.fingerprints[self._arm.arm] = fingerprint
        self._tell(ending, verdict, report, usage, duration)

    def _outcome(
        self, ending: Ending, report: StreamReport | None, body: Body | None, duration: float
    ) -> Outcome:
        if report is not None and ending.status is not None and ending.status < 400:
            outcome = Outcome.of_stream(report, status=ending.status)
            stepped = ending.exchange is not None and ending.exchange.clock_stepped
            return _without_times(outcome) if stepped else outcome
        close = _stream_ending(ending.close)
        if body is not None and (ending.status or 500) < 400:
            return Outcome.of_body(body, e2e_s=duration, status=ending.status, ending=close)
        return Outcome(
            stream=False,
            status=ending.status,
            ending=close,
            finished=None,
            e2e_s=duration,
        )

    def _count(
        self, ending: Ending, verdict: Verdict, usage: Usage | None, duration: float
    ) -> None:
        cohort = self._cohort
        cohort.loads[self._load].verdicts[verdict].value += 1
        prompt = usage.prompt_tokens if usage is not None else None
        output = usage.completion_tokens if usage is not None else None
        self._arm.by_length[length_class(prompt), length_class(output), verdict].value += 1
        if ending.close is Close.COMPLETE and (ending.status or 500) < 400:
            cohort.duration.observe(duration)
            if self._unread is not None:
                self._arm.unread[self._unread].inc()
            self._arm.usage_known[output is not None].value += 1
        if output is not None:
            cohort.completion_tokens.value += output
        if prompt is not None:
            cohort.prompt_tokens.value += prompt
        if ending.backpressured:
            self._arm.backpressured.inc()

    def _count_stream(self, report: StreamReport) -> None:
        arm, cohort = self._arm, self._cohort
        load = cohort.loads[self._load]
        if report.ttft_s is not None and not report.clock_steps:
            cohort.ttft.observe(report.ttft_s)
        if report.burst_gap_max_s is not None:
            cohort.max_gap.observe(report.burst_gap_max_s)
        if report.decode_tokens and report.decode_s is not None:
            cohort.tpot.observe(report.decode_s / report.decode_tokens)
            load.decode_seconds.value += report.decode_s
            load.decode_tokens.value += report.decode_tokens
        arm.merged_reads.value += report.merged_reads
        arm.unobserved_gaps.value += report.unobserved_gaps
        arm.token_known[True].value += report.events_counted
        arm.token_known[False].value += report.events - report.events_counted

    def _count_spec(self, spec: SpecBlock | None, report: StreamReport | None) -> None:
        arm, cohort = self._arm, self._cohort
        load = cohort.loads[self._load]
        arm.spec_reports[spec is not None].value += 1
        if report is not None and report.decode_tokens and report.stream_cycles:
            # One event a step, so tokens after the first event / events after it estimates M.
            cycles, _, _, committed = load.spec["stream"]
            cycles.inc(report.stream_cycles)
            committed.inc(report.decode_tokens)
        if spec is not None:
            cycles, drafted, accepted, committed = load.spec["block"]
            whole = report.block_cycles if report is not None else None
            cycles.inc(whole if whole is not None else spec.cycles)
            drafted.inc(spec.drafted)
            accepted.inc(spec.accepted)
            tokens = report.decode_tokens if report is not None else None
            committed.inc(tokens if whole is not None and tokens is not None else spec.committed)
            for length, count in enumerate(spec.by_accepted_length):
                cohort.by_accepted[min(length, MAX_ACCEPTED_LENGTH)].inc(count)

    def _tell(
        self,
        ending: Ending,
        verdict: Verdict,
        report: StreamReport | None,
        usage: Usage | None,
        duration: float,
    ) -> None:
        if not self._meter.listeners:
            return
        metered = Metered(
            self._arrival,
            self._arm.arm,
            self._cohort.cohort,
            self._load,
            verdict,
            ending.status,
            report is not None,
            None if report is None else report.ttft_s,
            duration,
            None if report is None else report.tpot_s,
            None if usage is None else usage.prompt_tokens,
            None if usage is None else usage.completion_tokens,
            report,
            None if self._reader is None else self._reader.facts(),
            ending.close,
            ending.failure,
        )
        failed: Exception | None = None
        for listener in self._meter.listeners:
            try:
                listener(metered)
            except Exception as error:  # noqa: BLE001 - the others hear of it all the same
                failed = error
        if failed is not None:
            raise failed


def _stream_ending(close: Close) -> StreamEnding:
    """An Enum's hash is a Python function, so the usual one is not looked up in the table."""
    return StreamEnding.COMPLETE if close is Close.COMPLETE else STREAM_ENDINGS[close]


def _usage(report: StreamReport | None, body: Body | None) -> Usage | None:
    if report is not None:
        return Usage(report.prompt_tokens, report.tokens)
    return body.usage if body is not None else None


def _without_times(outcome: Outcome) -> Outcome:
    """After a step of the clock no time of the stream is known."""
    return replace(
        outcome, ttft_s=None, tpot_s=None, gap_p99_s=None, gaps_over=None, e2e_s=None,
        absent=frozenset(),
    )  # fmt: skip
