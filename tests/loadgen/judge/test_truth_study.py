"""Twelve grids of the truth study: what is known to be true is what is decided.

The whole study of 200 grids is `make bench-decision`, recorded in benchmarks/RESULTS.md.
"""

from __future__ import annotations

import pytest
from benchmarks.decision import Case, score, study


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return list(study(12, truth_s=30.0))


def test_clear_cases_are_decided_rightly(cases: list[Case]) -> None:
    """Margins of .10 and more: at most one grid in twelve wrong, few left open."""
    found = score(cases)
    assert found.clear >= 6
    assert found.wrong <= 0.05 * found.clear
    assert found.inconclusive <= 0.20 * found.clear


def test_a_losing_or_broken_arm_is_never_kept(cases: list[Case]) -> None:
    """Not one."""
    assert score(cases).kept_bad == 0


def test_words_per_rate_are_right(cases: list[Case]) -> None:
    """pays and loses at each rate with a true margin of .10 and more."""
    found = score(cases)
    assert found.words >= 15
    assert found.words_right >= 0.95 * (found.words - found.words_open)
