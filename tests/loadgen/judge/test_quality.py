"""What of the quality contract is a fault: beside A/A, and never by one accident."""

from __future__ import annotations

from typing import Any

import pytest

from breakeven_loadgen.judge.quality import faults, unproven

CONTROL: dict[str, Any] = {
    "l0": {"tools": {"asked": 30, "broken": 0}},
    "l1": {"pairs": 200, "hard": 1},
    "guards": {"answers": 200, "loops": 1, "truncated": 0, "tokens": 12800},
}


@pytest.mark.parametrize(
    ("arm", "what"),
    [
        (CONTROL, None),
        ({"l0": {"tools": {"asked": 30, "broken": 9}}}, "L0 tools: 9 of 30"),
        ({"l0": {"tools": {"asked": 30, "broken": 1}}}, None),
        ({"l1": {"pairs": 200, "hard": 14}}, "L1: 14 of 200"),
        ({"l1": {"pairs": 200, "hard": 2}}, None),
        ({"guards": {**CONTROL["guards"], "loops": 20}}, "repeat themselves"),
        ({"guards": {**CONTROL["guards"], "truncated": 12}}, "cut off"),
        ({"guards": {**CONTROL["guards"], "tokens": 6000}}, "0.47 times as long"),
        ({}, None),
    ],
)
def test_faults_against_the_control(arm: dict[str, Any], what: str | None) -> None:
    """A/A says what is usual."""
    found = faults(arm, CONTROL)
    assert bool(found) == (what is not None), found
    if what is not None:
        assert what in found[0]


def test_what_was_not_run_is_listed() -> None:
    """L2 and L3 are never claimed; few pairs bound little."""
    assert any("L2" in one for one in unproven(CONTROL))
    assert unproven({})[0] == "L0 shapes: not run"
    assert any("16 pairs" in one for one in unproven({"l1": {"pairs": 16, "hard": 0}}))
    many = unproven({"l0": {"tools": {}}, "l1": {"pairs": 700, "hard": 0}})
    assert not any("L1" in one for one in many)
