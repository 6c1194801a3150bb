"""Exit codes of every command: one IntEnum, printed by --help.

`sys.exit` is called only in each room's `cli.main`.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum


class ExitCode(IntEnum):
    """What a command's exit status means; `meaning` is the sentence that --help prints."""

    meaning: str

    def __new__(cls, value: int, meaning: str) -> ExitCode:
        member = int.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member

    OK = 0, "finished"
    ERROR = 1, "an error that none of the following names"
    USAGE = 2, "usage, configuration or bad input; nothing was sent"
    UNREACHABLE = 3, "a target is unreachable or not ready"
    NOT_EVIDENCE = 4, "finished, but a validity gate failed: not evidence"
    THRESHOLD_MISSED = 5, "finished, but a threshold that was asked for was missed"
    ALL_FAILED = 6, "every request failed"
    DO_NOT_ENABLE = 7, "the decision is do_not_enable (only with decide --exit-code)"
    INTERRUPTED = 130, "interrupted; partial results are kept"


PRECEDENCE = (
    ExitCode.USAGE,
    ExitCode.UNREACHABLE,
    ExitCode.ALL_FAILED,
    ExitCode.NOT_EVIDENCE,
    ExitCode.THRESHOLD_MISSED,
)
"""If several apply, the first of these wins; whatever is not listed comes after them."""


def first_of(codes: Iterable[ExitCode]) -> ExitCode:
    """The one code to exit with when several apply; OK when none does.

    An interruption wins over all: the run is partial, so its other verdicts are provisional.
    """
    found = set(codes)
    if ExitCode.INTERRUPTED in found:
        return ExitCode.INTERRUPTED
    for code in PRECEDENCE:
        if code in found:
            return code
    return max(found, default=ExitCode.OK)


def help_text() -> str:
    """The table of exit codes for --help, one per line."""
    return "\n".join(f"{code.value:>4}  {code.meaning}" for code in ExitCode)
