"""The SLO, the outcome of a request, and the one verdict that follows from both.

`ROWS` is the table of docs/definitions.md, "Request outcome": the first row that applies wins.
Here: judging one request, and goodput of many. Not here: measuring (`breakeven.stream`), what the
verdicts of an arm mean (`breakeven.decision`).
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from .chunks import Body
from .errors import InputError
from .histogram import p99_rank
from .report import Ending, StreamReport
from .units import parse_duration
from .value import value

DEFAULT_OBJECTIVE = 0.99
"""Share of responses that the SLO promises to be good, where nobody says otherwise."""


class Verdict(StrEnum):
    """What became of one offered request; exactly one each."""

    DROPPED = "dropped"
    REJECTED = "rejected"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    ERROR = "error"
    TRUNCATED = "truncated"
    MALFORMED = "malformed"
    SLOW_TTFT = "slow_ttft"
    SLOW_GAP = "slow_gap"
    SLOW_TPOT = "slow_tpot"
    SLOW_E2E = "slow_e2e"
    UNMEASURED = "unmeasured"
    INTERRUPTED = "interrupted"
    GOOD = "good"


OUTSIDE_GOODPUT: Final = frozenset({Verdict.CANCELLED, Verdict.INTERRUPTED})
"""Not in goodput's denominator: the client or the run ended them, not the service."""
GOODPUT_KINDS: Final = {"ttft": "ttft_s", "gap_p99": "gap_p99_s", "tpot": "tpot_s", "e2e": "e2e_s"}
"""Words of `--goodput` and the bounds they set."""


@dataclass(frozen=True, slots=True)
class SLO:
    """Upper bounds in seconds (None: not promised) and the share of requests that must keep them.

    Raises:
        InputError: a bound is not finite and positive, or the objective not inside (0, 1].
    """

    ttft_s: float | None = None
    tpot_s: float | None = None
    gap_p99_s: float | None = None
    e2e_s: float | None = None
    objective: float = DEFAULT_OBJECTIVE

    def __post_init__(self) -> None:
        for kind, bound in self.bounds().items():
            if not (math.isfinite(bound) and bound > 0):
                raise InputError(
                    "an SLO bound is a positive time", key=kind, value=bound, mend="e.g. 500ms"
                )
        if not 0 < self.objective <= 1:
            raise InputError(
                "an objective is a share above 0 and at most 1",
                key="objective",
                value=self.objective,
                mend="e.g. 0.99",
            )

    def bounds(self) -> dict[str, float]:
        """The bounds that are set, by field name, in seconds."""
        named = {name: getattr(self, name) for name in GOODPUT_KINDS.values()}
        return {name: bound for name, bound in named.items() if bound is not None}


def parse_goodput(text: str, *, objective: float = DEFAULT_OBJECTIVE) -> SLO:
    """The SLO of "ttft:500ms,gap_p99:100ms,tpot:30ms,e2e:20s"; bare numbers are seconds.

    Commas or spaces part the bounds.

    Raises:
        InputError: no bound, an unknown kind (names the nearest), one given twice, or no time.
    """
    bounds: dict[str, float] = {}
    for part in re.split(r"[,\s]+", text.strip()):
        kind, colon, value = part.partition(":")
        if kind not in GOODPUT_KINDS:
            nearest = difflib.get_close_matches(kind, GOODPUT_KINDS, n=1)
            hint = (
                f"did you mean {nearest[0]}?" if nearest else f"one of {', '.join(GOODPUT_KINDS)}"
            )
            raise InputError("unknown SLO kind", key="goodput", value=kind or text, mend=hint)
        if not colon or not value:
            raise InputError(
                "an SLO bound is KIND:TIME", key="goodput", value=part, mend=f"e.g. {kind}:500ms"
            )
        if GOODPUT_KINDS[kind] in bounds:
            raise InputError(
                "an SLO kind is given twice", key="goodput", value=part, mend=f"give {kind} once"
            )
        bounds[GOODPUT_KINDS[kind]] = parse_duration(value)
    return SLO(**bounds, objective=objective)


_ABSENT: Final = {
    (False, False): frozenset[str](),
    (True, False): frozenset({"tpot_s"}),
    (False, True): frozenset({"gap_p99_s"}),
    (True, True): frozenset({"tpot_s", "gap_p99_s"}),
}
"""(no decode, no gaps) -> the quantities that do not exist."""


@value
class Outcome:
    """Everything that a verdict depends on; seconds, None where unknown.

    The defaults are those of a request that was sent, answered 200 and ended well. A quantity
    that does not exist (TPOT of one token, gaps of one burst) is in `absent`: it cannot break a
    bound. None without being there means that it could not be measured.
    """

    stream: bool = True
    dropped: bool = False
    """Never sent: the generator's own bound."""
    status: int | None = 200
    ending: Ending | None = Ending.COMPLETE
    """None: never ended, because the generator stopped or was killed."""
    error: bool = False
    """An SSE error frame after 200, or an error body with 200."""
    finished: bool | None = True
    """Every choice has its finish reason; None when the answer could not be read at all."""
    tokens_missing: bool = False
    malformed: bool = False
    """JSON that does not parse, a contract that was broken."""
    empty: bool = False
    ttft_s: float | None = None
    tpot_s: float | None = None
    gap_p99_s: float | None = None
    gaps_over: tuple[int, int, float] | None = None
    """(burst gaps, those above a bound, that bound): decides exactly where the p99 is unknown."""
    e2e_s: float | None = None
    absent: frozenset[str] = frozenset()

    @classmethod
    def of_stream(
        cls,
        report: StreamReport,
        *,
        status: int | None = 200,
        delay_s: float = 0.0,
        contract_broken: bool = False,
    ) -> Outcome:
        """Of a streamed response.

        Args:
            report: the observer's.
            status: HTTP status; None when no head came.
            delay_s: added to TTFT and e2e: from the intended time to the send (loadgen), or from
                the request's head to the send (proxy).
            contract_broken: a check of the content failed (`breakeven.quality`).
        """
        absent = _ABSENT[
            report.decode_tokens == 0, report.burst_gaps == 0 and report.unobserved_gaps == 0
        ]
        over = report.burst_gaps_over
        gaps_over = None
        if over is not None and report.gap_bound_s is not None and report.burst_gaps:
            gaps_over = (report.burst_gaps, over, report.gap_bound_s)
        answer_s = report.answer_s if report.answer_s is not None else report.end_s
        return cls(
            status=status,
            ending=report.ending,
            error=report.error_frame is not None,
            finished=report.finished,
            tokens_missing=report.tokens_missing,
            malformed=report.malformed > 0 or contract_broken,
            empty=report.empty,
            ttft_s=None if report.ttft_s is None else report.ttft_s + delay_s,
            tpot_s=report.tpot_s,
            gap_p99_s=report.burst_gap_p99_s,
            gaps_over=gaps_over,
            e2e_s=answer_s + delay_s,
            absent=absent,
        )

    @classmethod
    def of_body(
        cls,
        body: Body,
        *,
        e2e_s: float | None,
        status: int | None = 200,
        ending: Ending = Ending.COMPLETE,
        contract_broken: bool = False,
    ) -> Outcome:
        """Of a response that was not streamed; only e2e applies to it."""
        finished = bool(body.finish_reasons) and None not in body.finish_reasons
        return cls(
            stream=False,
            status=status,
            ending=ending,
            error=body.error is not None,
            finished=None if body.malformed and not body.finish_reasons else finished,
            malformed=body.malformed or contract_broken,
            empty=body.empty,
            e2e_s=e2e_s,
        )


def classify(outcome: Outcome, slo: SLO) -> Verdict:
    """The verdict of the first row of `ROWS` that applies."""
    if _plainly_good(outcome, slo):
        return Verdict.GOOD
    for verdict, applies in ROWS:
        if applies(outcome, slo):
            return verdict
    return Verdict.GOOD


def _plainly_good(o: Outcome, slo: SLO) -> bool:
    """Whether no row can apply, in one look: what nearly every response is. False decides nothing.

    A test holds it against the table.
    """
    if o.ending is not Ending.COMPLETE or o.status is None or not 200 <= o.status < 300:
        return False
    if o.dropped or o.error or o.tokens_missing or o.malformed or o.empty or o.finished is False:
        return False
    if slo.e2e_s is not None and (o.e2e_s is None or o.e2e_s > slo.e2e_s):
        return False
    if not o.stream:
        return True
    for value_s, bound in (
        (o.ttft_s, slo.ttft_s), (o.tpot_s, slo.tpot_s), (o.gap_p99_s, slo.gap_p99_s),
    ):  # fmt: skip
        if bound is not None and (value_s is None or value_s > bound):
            return False
    return True


def goodput(counts: Mapping[Verdict, int]) -> float | None:
    """good / (offered − cancelled − interrupted); None when nothing is left to judge."""
    judged = sum(count for verdict, count in counts.items() if verdict not in OUTSIDE_GOODPUT)
    return counts.get(Verdict.GOOD, 0) / judged if judged else None


def goodput_rate(counts: Mapping[Verdict, int], seconds: float) -> float | None:
    """Good responses per second over an interval; None for an interval of no length."""
    return counts.get(Verdict.GOOD, 0) / seconds if seconds > 0 else None


def _over(value: float | None, bound: float | None) -> bool:
    return value is not None and bound is not None and value > bound


def _gap_over(outcome: Outcome, bound: float | None) -> bool | None:
    """Whether the p99 of the gaps is above the bound; None: unknown. Exact either way."""
    if bound is None or "gap_p99_s" in outcome.absent:
        return False
    if outcome.gap_p99_s is not None:
        return outcome.gap_p99_s > bound
    if outcome.gaps_over is not None and outcome.gaps_over[2] == bound:
        gaps, over, _ = outcome.gaps_over
        return gaps - over < p99_rank(gaps)
    return None


def _unmeasured(outcome: Outcome, slo: SLO) -> bool:
    """A bound whose quantity is unknown. What never ended is interrupted, not unmeasured."""
    if outcome.ending is None:
        return False
    if not outcome.stream:
        return slo.e2e_s is not None and outcome.e2e_s is None
    if _gap_over(outcome, slo.gap_p99_s) is None:
        return True
    return any(
        getattr(outcome, name) is None and name not in outcome.absent
        for name in slo.bounds()
        if name != "gap_p99_s"
    )


Row = tuple[Verdict, Callable[[Outcome, SLO], bool]]
ROWS: Final[tuple[Row, ...]] = (
    (Verdict.DROPPED, lambda o, _: o.dropped),
    (Verdict.REJECTED, lambda o, _: o.status in (429, 503)),
    (Verdict.CANCELLED, lambda o, _: o.ending is Ending.CANCELLED),
    (Verdict.TIMEOUT, lambda o, _: o.ending is Ending.TIMEOUT),
    (Verdict.ERROR, lambda o, _: _failed(o)),
    (Verdict.TRUNCATED, lambda o, _: o.ending is not None and _cut_short(o)),
    (Verdict.MALFORMED, lambda o, _: o.malformed or (o.ending is not None and o.empty)),
    (Verdict.SLOW_TTFT, lambda o, slo: o.stream and _over(o.ttft_s, slo.ttft_s)),
    (Verdict.SLOW_GAP, lambda o, slo: o.stream and _gap_over(o, slo.gap_p99_s) is True),
    (Verdict.SLOW_TPOT, lambda o, slo: o.stream and _over(o.tpot_s, slo.tpot_s)),
    (Verdict.SLOW_E2E, lambda o, slo: _over(o.e2e_s, slo.e2e_s)),
    (Verdict.UNMEASURED, _unmeasured),
    (Verdict.INTERRUPTED, lambda o, _: o.ending is None),
)
"""Verdict and when it applies, in the order of docs/definitions.md; none of them: good."""


def _failed(outcome: Outcome) -> bool:
    """Another status than success, a connection that broke, an error told in the body."""
    refused = outcome.status is not None and not 200 <= outcome.status < 300
    silent = outcome.status is None and outcome.ending is Ending.COMPLETE
    return refused or silent or outcome.ending is Ending.BROKEN or outcome.error


def _cut_short(outcome: Outcome) -> bool:
    return outcome.finished is False or outcome.tokens_missing
