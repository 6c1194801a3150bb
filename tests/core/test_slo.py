"""`breakeven.slo`: the verdict table row by row, the order of its rows, and goodput."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.chunks import Body, ErrorInfo, Usage
from breakeven.errors import InputError
from breakeven.slo import (
    ROWS,
    SLO,
    Outcome,
    Verdict,
    classify,
    goodput,
    goodput_rate,
    parse_goodput,
)
from breakeven.stream import Ending, StreamObserver

BOUNDS = SLO(ttft_s=0.5, tpot_s=0.03, gap_p99_s=0.1, e2e_s=20)
GOOD = Outcome(ttft_s=0.5, tpot_s=0.03, gap_p99_s=0.1, e2e_s=20)  # each exactly at its bound

# What makes one row, and only that row, apply.
CAUSES: dict[Verdict, dict[str, Any]] = {
    Verdict.DROPPED: {"dropped": True},
    Verdict.REJECTED: {"status": 503},
    Verdict.CANCELLED: {"ending": Ending.CANCELLED},
    Verdict.TIMEOUT: {"ending": Ending.TIMEOUT},
    Verdict.ERROR: {"error": True},
    Verdict.TRUNCATED: {"finished": False},
    Verdict.MALFORMED: {"malformed": True},
    Verdict.SLOW_TTFT: {"ttft_s": 0.501},
    Verdict.SLOW_GAP: {"gap_p99_s": 0.101},
    Verdict.SLOW_TPOT: {"tpot_s": 0.031},
    Verdict.SLOW_E2E: {"e2e_s": 20.1},
    Verdict.UNMEASURED: {"tpot_s": None},
    Verdict.INTERRUPTED: {"ending": None},
    Verdict.GOOD: {},
}


def test_the_table_has_the_order_of_the_definition() -> None:
    """The rows are those of docs/definitions.md in its order; good is what is left."""
    order = ["dropped", "rejected", "cancelled", "timeout", "error", "truncated", "malformed"]
    order += ["slow_ttft", "slow_gap", "slow_tpot", "slow_e2e"]
    order += ["unmeasured", "interrupted", "good"]
    assert [verdict.value for verdict in Verdict] == order
    assert [verdict.value for verdict, _ in ROWS] == order[:-1]


TIMES = st.sampled_from([None, 0.01, 0.1, 1.0, 30.0])
BOOLS = st.booleans()


@given(
    outcome=st.builds(
        Outcome, stream=BOOLS, dropped=BOOLS, error=BOOLS, tokens_missing=BOOLS, malformed=BOOLS,
        empty=BOOLS, status=st.sampled_from([None, 199, 200, 204, 299, 300, 429, 500, 503]),
        ending=st.sampled_from([None, *Ending]), finished=st.sampled_from([None, True, False]),
        ttft_s=TIMES, tpot_s=TIMES, gap_p99_s=TIMES, e2e_s=TIMES,
        gaps_over=st.sampled_from([None, (10, 0, 0.1), (10, 5, 0.1)]),
        absent=st.sets(st.sampled_from(["tpot_s", "gap_p99_s"])).map(frozenset),
    ) | st.builds(
        Outcome, stream=BOOLS, ttft_s=TIMES, tpot_s=TIMES, gap_p99_s=TIMES, e2e_s=TIMES,
        absent=st.sets(st.sampled_from(["tpot_s", "gap_p99_s"])).map(frozenset),
    ),
    slo=st.sampled_from([SLO(), BOUNDS, SLO(ttft_s=0.5), SLO(gap_p99_s=0.1), SLO(e2e_s=1)]),
)  # fmt: skip
def test_the_quick_look_agrees_with_the_table(outcome: Outcome, slo: SLO) -> None:
    """classify gives the first row that applies, good if none does, whatever way it takes."""
    rows = [verdict for verdict, applies in ROWS if applies(outcome, slo)]
    assert classify(outcome, slo) is (rows[0] if rows else Verdict.GOOD)


@pytest.mark.parametrize("verdict", list(Verdict))
def test_each_row(verdict: Verdict) -> None:
    """One cause alone gives its verdict."""
    assert classify(replace(GOOD, **CAUSES[verdict]), BOUNDS) is verdict


# What needs an end: a request that never ended is not cut short, and not unmeasured.
NEEDS_AN_END = {Verdict.TRUNCATED, Verdict.UNMEASURED}
PAIRS = [
    (first, second)
    for first, second in itertools.combinations(list(Verdict)[:-1], 2)
    if not set(CAUSES[first]) & set(CAUSES[second])  # one field cannot hold both causes
]


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_the_first_row_wins(first: Verdict, second: Verdict) -> None:
    """With two causes, the row that comes first in the table decides."""
    found = classify(replace(GOOD, **CAUSES[first], **CAUSES[second]), BOUNDS)
    ended = second is not Verdict.INTERRUPTED or first not in NEEDS_AN_END
    assert found is (first if ended else Verdict.INTERRUPTED)


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({"status": 429}, "rejected"),
        ({"status": 400}, "error"),
        ({"status": 404}, "error"),
        ({"status": 500}, "error"),
        ({"status": 502}, "error"),
        ({"status": 302}, "error"),  # an engine does not redirect a completion
        ({"status": 206}, "good"),
        ({"status": None, "ending": Ending.BROKEN}, "error"),  # no connection
        ({"status": None, "finished": False}, "error"),  # closed without an answer
        ({"ending": Ending.BROKEN}, "error"),
        ({"ending": Ending.BROKEN, "finished": False}, "error"),
        ({"ending": Ending.CANCELLED, "finished": False, "tpot_s": None}, "cancelled"),
        ({"tokens_missing": True}, "truncated"),
        ({"finished": None, "malformed": True}, "malformed"),  # could not be read at all
        ({"empty": True}, "malformed"),
        ({"status": 429, "ending": Ending.CANCELLED}, "rejected"),
        # interrupted: what is known may be slow, what is unknown is not unmeasured
        ({"ending": None, "ttft_s": None, "finished": False, "empty": True}, "interrupted"),
        ({"ending": None, "ttft_s": 0.7, "finished": False}, "slow_ttft"),
        ({"ending": None, "status": None}, "interrupted"),
        # quantities that do not exist cannot break a bound; unknown ones are never good
        ({"tpot_s": None, "absent": frozenset({"tpot_s"})}, "good"),
        ({"gap_p99_s": None, "absent": frozenset({"gap_p99_s"})}, "good"),
        ({"gap_p99_s": None}, "unmeasured"),
        ({"ttft_s": None}, "unmeasured"),
        ({"e2e_s": None}, "unmeasured"),
        # counters decide where the p99 is unknown, if they counted against this bound
        ({"gap_p99_s": None, "gaps_over": (30000, 300, 0.1)}, "good"),
        ({"gap_p99_s": None, "gaps_over": (30000, 301, 0.1)}, "slow_gap"),
        ({"gap_p99_s": None, "gaps_over": (30000, 301, 0.2)}, "unmeasured"),
    ],
)
def test_rows_in_detail(change: dict[str, Any], verdict: str) -> None:
    """The clauses of each row."""
    assert classify(replace(GOOD, **change), BOUNDS) == verdict


def test_only_set_bounds_are_judged() -> None:
    """Without a bound its quantity may be unknown or anything."""
    unknown = Outcome(ttft_s=None, tpot_s=None, gap_p99_s=None, e2e_s=None)
    assert classify(unknown, SLO()) is Verdict.GOOD
    slow = Outcome(ttft_s=99, tpot_s=9, gap_p99_s=9, e2e_s=99)
    assert classify(slow, SLO()) is Verdict.GOOD
    assert classify(slow, SLO(e2e_s=10)) is Verdict.SLOW_E2E


def test_only_e2e_applies_without_a_stream() -> None:
    """A body has no tokens' times: TTFT, TPOT and gaps are neither judged nor missed."""
    body = Body(finish_reasons=("stop",), empty=False)
    assert classify(Outcome.of_body(body, e2e_s=19.0), BOUNDS) is Verdict.GOOD
    assert classify(Outcome.of_body(body, e2e_s=21.0), BOUNDS) is Verdict.SLOW_E2E
    assert classify(Outcome.of_body(body, e2e_s=None), BOUNDS) is Verdict.UNMEASURED


@pytest.mark.parametrize(
    ("body", "verdict"),
    [
        (Body(malformed=True), "malformed"),  # a 200 with an empty body, or a gateway's page
        (Body(error=ErrorInfo(500, None)), "error"),  # an error body with 200
        (Body(finish_reasons=(None,), empty=False), "truncated"),
        (Body(finish_reasons=("stop", None), empty=False), "truncated"),
        (Body(finish_reasons=("stop",), empty=True), "malformed"),
        (Body(finish_reasons=("stop",), empty=False, malformed=True), "malformed"),  # tool call
        (Body(finish_reasons=("stop",), empty=False, usage=Usage(1, 2)), "good"),
    ],
)
def test_bodies(body: Body, verdict: str) -> None:
    """What a body that was not streamed can be."""
    assert classify(Outcome.of_body(body, e2e_s=1.0), BOUNDS) == verdict
    broken = Outcome.of_body(Body(malformed=True), e2e_s=1.0, ending=Ending.BROKEN)
    assert classify(broken, BOUNDS) is Verdict.ERROR


def chunk(total: int, finish: str | None = None) -> bytes:
    choice = {"index": 0, "text": "x", "finish_reason": finish}
    fields = {"choices": [choice], "usage": {"completion_tokens": total}}
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def stream(*reads: tuple[float, bytes], **options: Any) -> Outcome:
    observer = StreamObserver(0.0, **options)
    for now, data in reads:
        observer.receive_data(data, now)
    return Outcome.of_stream(observer.finish(reads[-1][0], Ending.COMPLETE))


def test_streams() -> None:
    """From reads to verdicts: what the observer saw is what is judged."""
    good = stream((0.1, chunk(1)), (0.13, chunk(2)), (0.16, chunk(3, "stop")))
    assert classify(good, BOUNDS) is Verdict.GOOD
    stalled = stream((0.1, chunk(1)), (0.3, chunk(90)), (0.31, chunk(99, "stop")))
    assert classify(stalled, BOUNDS) is Verdict.SLOW_GAP
    slow = stream((0.1, chunk(1)), (0.15, chunk(2)), (0.2, chunk(3, "stop")))
    assert classify(slow, BOUNDS) is Verdict.SLOW_TPOT
    late = stream((0.6, chunk(1)), (0.61, chunk(2, "stop")))
    assert classify(late, BOUNDS) is Verdict.SLOW_TTFT
    for nothing in (b"", b": ping\n\n", b"data: [DONE]\n\n"):  # a 200 without an answer
        assert classify(stream((0.1, nothing)), BOUNDS) is Verdict.TRUNCATED
    half = stream((0.1, chunk(1)), (0.12, chunk(2)))
    assert classify(half, BOUNDS) is Verdict.TRUNCATED


def test_what_does_not_exist_is_not_missed() -> None:
    """One token, and one burst: no TPOT, no gaps, and yet good."""
    assert classify(stream((0.1, chunk(1, "length"))), BOUNDS) is Verdict.GOOD
    burst = stream((0.1, chunk(1)), (0.101, chunk(2, "stop")))
    assert burst.absent == {"gap_p99_s"}
    assert classify(burst, BOUNDS) is Verdict.GOOD
    merged = stream((0.1, chunk(1) + chunk(2, "stop")))  # its gap was there, but not observed
    assert merged.absent == {"tpot_s"}
    assert classify(merged, BOUNDS) is Verdict.UNMEASURED
    assert classify(merged, replace(BOUNDS, gap_p99_s=None)) is Verdict.GOOD


def test_the_delay_before_the_send_counts() -> None:
    """loadgen judges from the intended time: nothing hides behind a late client."""
    observer = StreamObserver(0.0)
    observer.receive_data(chunk(1), 0.3)
    observer.receive_data(chunk(2, "stop"), 0.32)
    report = observer.finish(9.0, Ending.COMPLETE)
    outcome = Outcome.of_stream(report, delay_s=0.25)
    assert outcome.ttft_s == pytest.approx(0.55)
    assert outcome.e2e_s == pytest.approx(0.57)  # and no late end of the transfer
    assert classify(outcome, BOUNDS) is Verdict.SLOW_TTFT
    assert classify(Outcome.of_stream(report), BOUNDS) is Verdict.GOOD
    assert classify(Outcome.of_stream(report, contract_broken=True), BOUNDS) is Verdict.MALFORMED


# Goodput ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counts", "share"),
    [
        ({}, None),
        ({Verdict.CANCELLED: 3, Verdict.INTERRUPTED: 2}, None),
        ({Verdict.GOOD: 5}, 1.0),
        ({Verdict.ERROR: 5}, 0.0),
        ({Verdict.GOOD: 6, Verdict.CANCELLED: 90, Verdict.SLOW_GAP: 2}, 0.75),
        ({Verdict.GOOD: 6, Verdict.INTERRUPTED: 7, Verdict.SLOW_GAP: 2}, 0.75),
        ({Verdict.GOOD: 1, Verdict.DROPPED: 1, Verdict.REJECTED: 1, Verdict.TIMEOUT: 1}, 0.25),
        ({Verdict.GOOD: 1, Verdict.UNMEASURED: 1}, 0.5),
    ],
)  # fmt: skip
def test_goodput(counts: dict[Verdict, int], share: float | None) -> None:
    """good / (offered − cancelled − interrupted); failures stay in the denominator."""
    assert goodput(counts) == share


def test_goodput_rate() -> None:
    """Good responses per second; an interval of no length has no rate."""
    assert goodput_rate({Verdict.GOOD: 30, Verdict.ERROR: 9}, 10.0) == 3.0
    assert goodput_rate({}, 10.0) == 0.0
    assert goodput_rate({Verdict.GOOD: 1}, 0.0) is None


@given(
    st.builds(
        Outcome,
        stream=st.booleans(), dropped=st.booleans(),
        status=st.sampled_from([None, 200, 429, 503, 500]),
        ending=st.sampled_from([None, *Ending]), error=st.booleans(),
        finished=st.sampled_from([None, True, False]), malformed=st.booleans(),
        empty=st.booleans(), ttft_s=st.sampled_from([None, 0.1, 1.0]),
        tpot_s=st.sampled_from([None, 0.01, 1.0]), gap_p99_s=st.sampled_from([None, 0.01, 1.0]),
        e2e_s=st.sampled_from([None, 1.0, 100.0]),
    )
)  # fmt: skip
def test_every_outcome_has_one_verdict(outcome: Outcome) -> None:
    """Any combination ends in a verdict, and good needs every bound known and kept."""
    verdict = classify(outcome, BOUNDS)
    assert isinstance(verdict, Verdict)
    if verdict is Verdict.GOOD:
        assert outcome.status == 200
        assert outcome.ending is Ending.COMPLETE
        assert outcome.e2e_s is not None
        assert outcome.e2e_s <= 20
        assert not outcome.stream or (outcome.ttft_s, outcome.tpot_s) == (0.1, 0.01)


# --goodput ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "slo"),
    [
        ("ttft:500ms,gap_p99:100ms,tpot:30ms,e2e:20s", BOUNDS),
        ("ttft:0.5 tpot:0.03", SLO(ttft_s=0.5, tpot_s=0.03)),  # bare numbers are seconds
        (" e2e:1m ", SLO(e2e_s=60)),
    ],
)
def test_parse_goodput(text: str, slo: SLO) -> None:
    """Bounds with units, parted by commas or spaces."""
    parsed = parse_goodput(text)
    assert parsed.bounds() == pytest.approx(slo.bounds())
    assert parsed.objective == 0.99


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "unknown SLO kind"),
        ("tfft:500ms", "did you mean ttft"),
        ("latency:1s", "one of ttft, gap_p99, tpot, e2e"),
        ("ttft", "KIND:TIME"),
        ("ttft:", "KIND:TIME"),
        ("ttft:1s,ttft:2s", "twice"),
        ("ttft:0", "positive"),
        ("ttft:-1s", "got"),
        ("ttft:nan", "got"),
        ("ttft:5parsecs", "5parsecs"),
        ("ttft:1s;tpot:1s", "1s;tpot:1s"),
    ],
)
def test_bad_goodput(text: str, says: str) -> None:
    """Each fault names the value and the mend."""
    with pytest.raises(InputError, match=says):
        parse_goodput(text)


@pytest.mark.parametrize(
    ("fields", "key"),
    [({"ttft_s": 0}, "ttft_s"), ({"e2e_s": math.inf}, "e2e_s"), ({"tpot_s": math.nan}, "tpot_s"),
     ({"gap_p99_s": -1}, "gap_p99_s"), ({"objective": 0}, "objective"),
     ({"objective": 1.01}, "objective"), ({"objective": math.nan}, "objective")],
)  # fmt: skip
def test_bounds_that_cannot_be(fields: dict[str, float], key: str) -> None:
    """Zero, negative, infinite and NaN bounds are refused by name."""
    with pytest.raises(InputError, match=key):
        SLO(**fields)
