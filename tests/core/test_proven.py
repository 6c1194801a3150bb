"""The proven range: broken at once, kept again only well inside and after a hold."""

from __future__ import annotations

import pytest

from breakeven.proven import LimitState, Load, ProvenRange, check, headroom_shortfall
from breakeven.routing import Reason

RANGE = ProvenRange(min_rps=2, max_rps=10, headroom_rps=30, expires_s=1e9)
ABOVE, HEADROOM, BELOW = Reason.ABOVE_RANGE, Reason.ABOVE_HEADROOM, Reason.BELOW_RANGE


@pytest.mark.parametrize(
    ("offered", "arm", "broken"),
    [
        (20, 10, None),  # the bound itself is proven
        (20, 10.01, ABOVE),
        (30, 10, None),
        (30.01, 5, HEADROOM),
        (40, 20, ABOVE),
        (1, 0.5, None),  # below the range: allowed unless asked for
        (0, 0, None),
    ],
)
def test_limits(offered: float, arm: float, broken: Reason | None) -> None:
    """Rate of the candidate per replica against the range, offered rate against the headroom."""
    assert check(LimitState(), RANGE, Load(offered, arm), 0.0).broken is broken


def test_lower_end_counts_only_when_enforced() -> None:
    """With enforce_min a rate below the range is out of it, too."""
    strict = ProvenRange(min_rps=2, max_rps=10, headroom_rps=None, expires_s=1e9, enforce_min=True)
    assert check(LimitState(), strict, Load(1, 1.99), 0.0).broken is BELOW
    assert check(LimitState(), strict, Load(1, 2.0), 0.0).broken is None


def test_hysteresis_at_the_edge() -> None:
    """10.1 breaks; 9.5 is inside but not well; 9.0 for 60 s lifts it; a relapse starts again."""
    script = [
        (0, 10.1, ABOVE), (1, 9.5, ABOVE), (100, 9.5, ABOVE),
        (101, 9.0, ABOVE), (160, 9.0, ABOVE), (160.5, 9.2, ABOVE),
        (161, 9.0, ABOVE), (220, 9.0, ABOVE), (221, 9.0, None), (222, 9.9, None),
    ]  # fmt: skip
    state = LimitState()
    for now, rate, broken in script:
        state = check(state, RANGE, Load(rate, rate), now)
        assert state.broken is broken, now


@pytest.mark.parametrize(
    ("replicas", "allowed", "headroom", "short"),
    [
        (3, None, 30, None),  # 10 × 3 = 30 fits
        (4, None, 30, 10.0),
        (4, 25.0, 30, None),  # a policy that lets 25/s through
        (9, None, None, None),  # nothing certified, nothing to compare with
    ],
)
def test_headroom(
    replicas: int, allowed: float | None, headroom: float | None, short: float | None
) -> None:
    """Allowed load above what the baseline is certified to take over is short by the rest."""
    proven = ProvenRange(min_rps=2, max_rps=10, headroom_rps=headroom, expires_s=1e9)
    assert headroom_shortfall(proven, replicas=replicas, allowed_rps=allowed) == short
