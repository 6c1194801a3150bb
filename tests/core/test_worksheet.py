"""The break-even sum, with the arithmetic beside each row."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.errors import InputError
from breakeven.worksheet import (
    Band,
    break_even,
    break_even_alpha,
    committed_from_survival,
    committed_per_cycle,
    margin,
    pays_bands,
    survival_from_conditional,
    worksheet,
)


@pytest.mark.parametrize(
    ("k", "alpha", "m"),
    [
        (4, 0.7, 2.7731),  # 1 + .7 + .49 + .343 + .2401
        (0, 0.7, 1.0),
        (5, 1.0, 6.0),
        (5, 0.0, 1.0),
        (1, 0.5, 1.5),
    ],
)
def test_committed_per_cycle_is_the_geometric_sum(k: int, alpha: float, m: float) -> None:
    """M(k) = 1 + alpha + … + alpha^k."""
    assert committed_per_cycle(k, alpha) == pytest.approx(m)


def test_survival_sums_to_m() -> None:
    """1 + .7 + .5 + .3 = 2.5."""
    assert committed_from_survival([0.7, 0.5, 0.3]) == pytest.approx(2.5)
    assert committed_from_survival([]) == 1.0


def test_conditional_shares_multiply_to_survival() -> None:
    """.13, .13*.76, .13*.76*.82."""
    assert survival_from_conditional([0.13, 0.76, 0.82]) == pytest.approx([0.13, 0.0988, 0.081016])


@pytest.mark.parametrize(
    ("draft_ms", "s_per_token", "margin_", "word"),
    [
        (4, 0.00649, 0.3509, "pays"),  # 18 / 2.7731 = 6.49 ms against 10
        (16, 0.01082, -0.0818, "loses"),  # 30 / 2.7731 = 10.82 ms
    ],
)
def test_the_check_values(draft_ms: float, s_per_token: float, margin_: float, word: str) -> None:
    """T 10 ms, k 4, alpha .7, V 12, H 2."""
    sheet = worksheet(0.010, draft_ms / 1e3, 0.012, 0.002, committed_per_cycle(4, 0.7), 4)
    assert sheet.s_per_token == pytest.approx(s_per_token, abs=5e-6)
    assert sheet.margin == pytest.approx(margin_, abs=5e-5)
    assert sheet.word == word
    assert sheet.break_even_draft_s == pytest.approx(0.013731)  # 27.731 - 12 - 2


def test_a_tie_does_not_pay() -> None:
    """Equal cost is no reason to run a second model."""
    assert worksheet(0.010, 0.0, 0.010, 0.0, 1.0, 1).word == "loses"


@pytest.mark.parametrize(
    ("k", "inflation", "alpha"),
    [
        (4, 1.0, 0.0),
        (4, 0.8, 0.0),
        (1, 1.5, 0.5),
        (4, 5.0, 1.0),
        (4, 5.01, None),  # M cannot exceed k + 1
    ],
)
def test_break_even_alpha(k: int, inflation: float, alpha: float | None) -> None:
    """Where M(k, alpha) = C/T."""
    assert break_even_alpha(k, inflation) == (None if alpha is None else pytest.approx(alpha))


@given(st.integers(1, 16), st.floats(0.01, 0.99))
def test_break_even_alpha_inverts_m(k: int, alpha: float) -> None:
    """M rises with alpha, so the inverse is exact."""
    found = break_even_alpha(k, committed_per_cycle(k, alpha))
    assert found is not None
    assert found == pytest.approx(alpha, abs=1e-6)


@pytest.mark.parametrize(
    "call",
    [
        lambda: committed_per_cycle(-1, 0.5),
        lambda: committed_per_cycle(4, 1.1),
        lambda: committed_per_cycle(4, math.nan),
        lambda: committed_per_cycle(1000, 0.5),
        lambda: committed_from_survival([0.5, 0.6]),
        lambda: committed_from_survival([1.2]),
        lambda: survival_from_conditional([0.5, -0.1]),
        lambda: worksheet(0.0, 0.1, 0.1, 0.1, 2.0, 4),
        lambda: worksheet(math.nan, 0.1, 0.1, 0.1, 2.0, 4),
        lambda: worksheet(0.01, -0.1, 0.1, 0.1, 2.0, 4),
        lambda: worksheet(0.01, math.inf, 0.1, 0.1, 2.0, 4),
        lambda: worksheet(0.01, 0.1, 0.1, 0.1, 6.0, 4),
        lambda: worksheet(0.01, 0.1, 0.1, 0.1, 0.5, 4),
        lambda: worksheet(0.01, 0.0, 0.0, 0.0, 2.0, 4),
    ],
)
def test_impossible_figures_are_refused(call: object) -> None:
    """NaN, shares outside 0..1, M outside 1..k+1, a cycle of no time."""
    assert callable(call)
    with pytest.raises(InputError) as caught:
        call()
    assert caught.value.mend


def test_measured_margin_is_a_ratio_of_sums() -> None:
    """Baseline 10 ms; the arm decoded 1000 tokens in 7.3 s: 1 - 7.3/10 = .27."""
    assert margin(0.010, 7.3, 1000) == pytest.approx(0.27)
    assert margin(0.010, 0.0, 0) is None
    assert margin(0.0, 1.0, 10) is None
    assert margin(math.nan, 1.0, 10) is None


def test_the_diagnosis_pair() -> None:
    """C 20 ms, T 10 ms, M 2.5: C/T 2 stands beside M, margin 1 - 2/2.5 = .2."""
    pair = break_even(0.010, 0.020, 2.5)
    assert pair is not None
    assert pair.inflation == pytest.approx(2.0)
    assert pair.margin == pytest.approx(0.2)
    assert break_even(0.010, 0.0, 2.5) is None


@pytest.mark.parametrize(
    ("points", "bands"),
    [
        ([(2, 0.2), (12, 0.1), (20, -0.3)], [Band(2, 14, True, False)]),
        ([(2, -0.1), (6, 0.1), (8, 0.2)], [Band(4, 8, False, True)]),
        ([(2, -0.1), (8, -0.1)], []),
        ([(2, 0.1), (8, 0.1)], [Band(2, 8, True, True)]),
        ([(1, 0.1), (2, -0.1), (3, 0.1)], [Band(1, 1.5, True, False), Band(2.5, 3, False, True)]),
        ([(5, 0.1)], [Band(5, 5, True, True)]),
        ([], []),
        ([(1, 0.1), (2, 0.0)], [Band(1, 2, True, False)]),
        ([(20, -0.3), (2, 0.2), (12, 0.1)], [Band(2, 14, True, False)]),
    ],
)
def test_break_even_bands_interpolate_and_never_extrapolate(
    points: list[tuple[float, float]], bands: list[Band]
) -> None:
    """Between 12 (+.1) and 20 (-.3) the line meets 0 at 12 + 8 * .1/.4 = 14."""
    found = pays_bands(points)
    assert len(found) == len(bands)
    for ours, want in zip(found, bands, strict=True):
        assert (ours.low, ours.high) == pytest.approx((want.low, want.high))
        assert (ours.low_open, ours.high_open) == (want.low_open, want.high_open)
