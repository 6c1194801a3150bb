"""`breakeven.stream` against a second, slow reading of its definitions, on any course of a stream.

The model keeps every event in lists and computes each number from its definition; it shares no
code with the observer.
"""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from breakeven.histogram import Buckets
from breakeven.stream import Ending, GapSink, StreamObserver

EPSILON = 0.25
BOUND = 1.0


@dataclass
class Read:
    """One read: what its events carry, the time since the read before, and what came between."""

    events: list[tuple[int, int | None]]  # (choice, new tokens; None: not told)
    wait: float
    paused: bool = False
    step_back: float = 0.0


@dataclass
class Point:
    at: float
    events: int
    tokens: int | None
    observed: bool  # the gap before it


@dataclass
class Model:
    """Numbers by definition."""

    points: dict[int, list[Point]] = field(default_factory=dict)
    tokens: dict[int, list[int | None]] = field(default_factory=dict)

    def run(self, reads: list[Read]) -> None:
        now, broken_for = 0.0, set[int]()
        for read in reads:
            # A step back makes time stand still: the read lies where the one before lay.
            now += 0.0 if read.step_back else read.wait
            if read.paused or read.step_back:
                broken_for |= set(range(3))
            for choice in dict.fromkeys(choice for choice, _ in read.events):
                mine = [tokens for index, tokens in read.events if index == choice]
                self.tokens.setdefault(choice, []).extend(mine)
                total = None if None in mine else sum(n or 0 for n in mine)
                point = Point(now, len(mine), total, choice not in broken_for)
                self.points.setdefault(choice, []).append(point)
                broken_for.discard(choice)

    def gaps(self) -> list[float]:
        return [
            after.at - before.at
            for points in self.points.values()
            for before, after in itertools.pairwise(points)
            if after.observed
        ]

    def burst_gaps(self) -> list[float]:
        return [gap for gap in self.gaps() if gap >= EPSILON]

    def bursts(self) -> list[int | None]:
        """Tokens of each burst; None where they are unknown or were not fully observed."""
        found: list[int | None] = []
        for points in self.points.values():
            groups: list[list[Point]] = []
            for number, point in enumerate(points):
                gap = point.at - points[number - 1].at
                if number and point.observed and gap < EPSILON:
                    groups[-1].append(point)
                else:
                    groups.append([point])
            for number, group in enumerate(groups):
                after = groups[number + 1][0] if number + 1 < len(groups) else None
                edges = (group[0].observed or group[0] is points[0]) and (
                    not after or after.observed
                )
                counts = [point.tokens for point in group]
                whole = edges and all(point.events == 1 for point in group) and None not in counts
                found.append(sum(n or 0 for n in counts) if whole else None)
        return found


def encode(reads: list[Read]) -> list[tuple[bytes, float, bool]]:
    """The reads as an engine would send them: cumulative usage a choice, where it is told."""
    totals: dict[int, int] = {}
    found, now = [], 0.0
    for read in reads:
        now += -read.step_back if read.step_back else read.wait
        data = b""
        for choice, tokens in read.events:
            fields: dict[str, object] = {"choices": [{"index": choice, "text": "x"}]}
            if tokens is not None:
                fields["choices"] = [{"index": choice, "text": "", "token_ids": [7] * tokens}]
                totals[choice] = totals.get(choice, 0) + tokens
            data += b"data: " + json.dumps(fields).encode() + b"\n\n"
        found.append((data or b": ping\n\n", now, read.paused))
    return found


# Exact in binary, so that the two cannot differ by rounding; half of the waits are near ε, and
# most gaps are observed and most counts told, so that all kinds of bursts occur.
WAITS = st.one_of(
    st.sampled_from([0.0, 0.125, 0.25, 0.375]), st.integers(0, 24).map(lambda n: n / 8)
)
COUNTS = st.sampled_from([1, 1, 2, 3, 6, None])
READS = st.builds(
    Read,
    events=st.lists(st.tuples(st.sampled_from([0, 0, 0, 1, 2]), COUNTS), max_size=3),
    wait=WAITS,
    paused=st.sampled_from([False] * 6 + [True]),
    step_back=st.sampled_from([0.0] * 10 + [0.5, 3.0]),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(READS, max_size=25))
def test_the_observer_is_the_definition(reads: list[Read]) -> None:
    """Events, gaps, bursts, their tokens and the decode time equal those of the model."""
    model = Model()
    model.run(reads)
    fine = [n / 8 for n in range(1, 60)]
    sink = GapSink(Buckets(fine), Buckets(fine), Buckets(range(1, 40)))
    observer = StreamObserver(
        0.0, epsilon_s=EPSILON, gap_bound_s=BOUND, keep_events=True, sink=sink
    )
    for data, now, paused in encode(reads):
        observer.receive_data(data, now, paused=paused)
    report = observer.finish(1e9, Ending.COMPLETE)

    points = [point for own in model.points.values() for point in own]
    told = [n for own in model.tokens.values() for n in own]
    assert report.events == len(told) == sum(point.events for point in points)
    assert report.events_counted == sum(n is not None for n in told)
    assert report.counted_tokens == sum(n or 0 for n in told)
    assert report.clock_steps == sum(
        read.step_back > 0 for read in reads
    )  # each lies before the read before
    assert report.ttft_s == min((point.at for point in points), default=None)
    assert report.last_event_s == max((point.at for point in points), default=None)

    gaps, burst_gaps = model.gaps(), model.burst_gaps()
    assert report.burst_gaps == len(burst_gaps)
    assert report.burst_gaps_over == sum(gap > BOUND for gap in burst_gaps)
    assert report.burst_gap_max_s == max(burst_gaps, default=None)
    rank = math.ceil(round(0.99 * len(burst_gaps), 9))
    assert report.burst_gap_p99_s == (sorted(burst_gaps)[rank - 1] if burst_gaps else None)
    assert report.p99_over_bound == ((report.burst_gap_p99_s or 0) > BOUND)
    assert (sink.event_gaps.count, sink.event_gaps.sum) == (len(gaps), sum(gaps))
    assert (sink.burst_gaps.count, sink.burst_gaps.sum) == (len(burst_gaps), sum(burst_gaps))
    assert report.unobserved_gaps == report.events - len(model.points) - len(gaps)

    bursts = model.bursts()
    whole = [tokens for tokens in bursts if tokens is not None]
    assert report.bursts == len(bursts)
    assert report.max_burst_tokens == max(whole, default=None)
    assert (sink.burst_tokens.count, sink.burst_tokens.sum) == (len(whole), sum(whole))

    if not points:
        assert report.decode_s is None
        return
    spans = [own[-1].at - own[0].at for own in model.points.values()]
    assert report.decode_s == sum(spans)
    firsts = [own[0].tokens for own in model.points.values()]
    after = sum(len(own) - 1 for own in model.points.values())
    if after == 0:
        assert report.decode_tokens == 0
    elif None in told:
        assert report.decode_tokens is None
    else:
        assert report.decode_tokens == sum(n or 0 for n in told) - sum(n or 0 for n in firsts)
    assert report.stream_cycles == report.events - sum(
        own[0].events for own in model.points.values()
    )


@settings(max_examples=100, deadline=None)
@given(st.lists(READS, max_size=12), st.integers(1, 9))
def test_bytes_in_pieces_at_one_time(reads: list[Read], size: int) -> None:
    """Cutting each read in pieces of the same stamp changes no count and no offset."""
    observer = StreamObserver(0.0, keep_events=True)
    pieces = StreamObserver(0.0, keep_events=True)
    for data, now, _ in encode(reads):
        observer.receive_data(data, now)
        for start in range(0, len(data), size):
            pieces.receive_data(data[start : start + size], now)
    one = observer.finish(1e9, Ending.COMPLETE)
    two = pieces.finish(1e9, Ending.COMPLETE)
    assert one.event_offsets_s == two.event_offsets_s
    assert one.event_tokens == two.event_tokens
    assert (one.tokens, one.decode_s, one.clock_steps) == (
        two.tokens,
        two.decode_s,
        two.clock_steps,
    )
