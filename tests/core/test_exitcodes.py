"""Exit codes: fixed numbers, one precedence."""

from __future__ import annotations

import pytest

from breakeven.exitcodes import ExitCode, first_of, help_text

E = ExitCode


def test_the_numbers_are_those_of_the_interface() -> None:
    """Scripts rely on them."""
    assert [code.value for code in ExitCode] == [0, 1, 2, 3, 4, 5, 6, 7, 130]


@pytest.mark.parametrize(
    ("codes", "wins"),
    [
        ([], E.OK),
        ([E.OK], E.OK),
        ([E.THRESHOLD_MISSED, E.NOT_EVIDENCE], E.NOT_EVIDENCE),
        ([E.NOT_EVIDENCE, E.ALL_FAILED], E.ALL_FAILED),
        ([E.ALL_FAILED, E.UNREACHABLE], E.UNREACHABLE),
        ([E.UNREACHABLE, E.USAGE, E.ALL_FAILED], E.USAGE),
        ([E.ERROR, E.THRESHOLD_MISSED], E.THRESHOLD_MISSED),
        ([E.ERROR], E.ERROR),
        ([E.DO_NOT_ENABLE], E.DO_NOT_ENABLE),
        ([E.INTERRUPTED, E.ALL_FAILED], E.INTERRUPTED),
    ],
)
def test_the_first_of_2_3_6_4_5_wins(codes: list[ExitCode], wins: ExitCode) -> None:
    """Bad input outranks an unreachable target, that a total failure, and so on."""
    assert first_of(codes) is wins
    assert first_of(reversed(codes)) is wins


def test_help_has_a_sentence_for_each_code() -> None:
    """--help explains every number."""
    lines = help_text().splitlines()
    assert len(lines) == len(ExitCode)
    assert all(len(line.split(maxsplit=1)[1]) > 5 for line in lines)
