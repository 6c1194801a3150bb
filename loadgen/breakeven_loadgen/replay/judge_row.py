"""The verdict and error class of one row: core's table applied to what the attempt saw.

Here: what of an attempt the verdict depends on, and the word that says which case of a verdict
it was. Not here: the table (core slo). Error classes are words of ours, never of the engine's
error body.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from breakeven.chunks import Body, ErrorInfo
from breakeven.slo import SLO, Outcome, Verdict, classify
from breakeven.stream import Ending, StreamReport

from .rows import Row


@dataclass(frozen=True, slots=True)
class Seen:
    """What an attempt saw of its response: a stream's report, or a body, or nothing.

    `not_a_stream`: a stream was asked for and a JSON body came.
    `interrupted`: the run was stopped before the response ended.
    """

    ending: Ending
    report: StreamReport | None = None
    body: Body | None = None
    not_a_stream: bool = False
    interrupted: bool = False


def judge(row: Row, seen: Seen, slo: SLO | None, *, forced_length: bool) -> None:
    """Set the row's verdict, and its error class where it has none yet."""
    outcome = _outcome(row, seen)
    wrong = _wrong_length(row, seen, forced_length)
    if wrong == "short_output":
        outcome = replace(outcome, tokens_missing=True)
    elif wrong == "long_output":
        outcome = replace(outcome, malformed=True)
    if seen.interrupted:
        outcome = replace(outcome, ending=None)
    verdict = classify(outcome, slo or SLO())
    row.verdict = verdict.value
    if row.error_class is None:
        row.error_class = _error_class(verdict, row, seen, wrong)


def _outcome(row: Row, seen: Seen) -> Outcome:
    delay_s = row.lag_s or 0.0
    if seen.report is not None:
        return Outcome.of_stream(seen.report, status=row.status, delay_s=delay_s)
    return Outcome.of_body(
        seen.body or Body(malformed=True),
        e2e_s=row.e2e_s,
        status=row.status,
        ending=seen.ending,
        contract_broken=seen.not_a_stream,
    )


def _wrong_length(row: Row, seen: Seen, forced_length: bool) -> str | None:
    """Whether a whole answer has another number of tokens than was ordered, where that is known.

    `max_tokens` is always an upper bound; the number itself is ordered only with forced lengths.
    """
    if seen.ending is not Ending.COMPLETE or row.output_tokens is None or row.status != 200:
        return None
    if row.output_tokens > row.asked_output_tokens:
        return "long_output"
    if forced_length and row.output_tokens < row.asked_output_tokens:
        return "short_output"
    return None


def _error_class(verdict: Verdict, row: Row, seen: Seen, wrong: str | None) -> str | None:
    if verdict in (Verdict.ERROR, Verdict.REJECTED):
        if row.status is not None and row.status >= 400:
            return f"http_{row.status}"
        return _frame(seen) or "no_answer"
    if verdict is Verdict.TRUNCATED:
        if seen.report is not None and not seen.report.finished:
            return "no_finish_reason"
        return wrong or "tokens_missing"
    if verdict is Verdict.MALFORMED:
        if seen.not_a_stream:
            return "not_a_stream"
        malformed = bool(seen.report.malformed) if seen.report else bool(seen.body is None)
        return wrong or ("malformed" if malformed else "empty_answer")
    return None


def _frame(seen: Seen) -> str | None:
    """The error told in the body of a 200: its type is a word of the protocol, or its code."""
    error: ErrorInfo | None = None
    if seen.report is not None:
        error = seen.report.error_frame
    elif seen.body is not None:
        error = seen.body.error
    if error is None:
        return None
    return f"error_frame_{error.type or error.code or 'other'}".replace(" ", "_")
