"""Load-aware preference over a simulated week, and the sticky split."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.policy import LoadAwareRules, LoadPreference, LoadWindow, prefer, split_arm

BREAK_EVEN = 64.0
STEP_S = 10.0
WEEK_S = 7 * 86_400


def week(seed: int) -> Iterator[tuple[float, float, float]]:
    """(time, noisy load, true load): a day's wave 10-110, noise sd 12, correlated over 2 min."""
    rng = np.random.default_rng(seed)
    steps = int(WEEK_S / STEP_S)
    keep = math.exp(-STEP_S / 120)  # AR(1): an Ornstein-Uhlenbeck process seen every STEP_S
    shocks = rng.normal(0.0, 12 * math.sqrt(1 - keep * keep), steps)
    noise = 0.0
    for i in range(steps):
        noise = keep * noise + shocks[i]
        now = i * STEP_S
        true = 60 - 50 * math.cos(2 * math.pi * now / 86_400)
        yield now, max(0.0, true + noise), true


def ride(rules: LoadAwareRules, seed: int) -> tuple[int, float]:
    """Switches in the week, and the share of time on the wrong side of break-even."""
    window, state, switches, wrong = LoadWindow(rules.window_s), LoadPreference(), 0, 0
    for now, load, true in week(seed):
        window.record(now, load)
        before, state = state, prefer(state, window.mean(now), now, rules)
        switches += state.candidate is not before.candidate
        wrong += state.candidate is not (true < BREAK_EVEN)
    return switches, wrong * STEP_S / WEEK_S


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_default_band_window_and_dwell_switch_rarely(seed: int) -> None:
    """At most 30 switches a week (14 are the days' own), and under 6 % of the time misplaced."""
    switches, wrong = ride(LoadAwareRules.around(BREAK_EVEN), seed)
    assert 14 <= switches <= 30
    assert wrong < 0.06


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_single_threshold_on_raw_samples_flaps(seed: int) -> None:
    """The same week without band, window and dwell: more than 500, so the test above can fail."""
    raw = LoadAwareRules(BREAK_EVEN, BREAK_EVEN, window_s=0, dwell_s=0)
    assert ride(raw, seed)[0] > 500


RULES = LoadAwareRules(enter_below=8, leave_above=10, window_s=60, dwell_s=100)
ON, OFF = LoadPreference(True, 0.0), LoadPreference(False, 0.0)


@pytest.mark.parametrize(
    ("state", "load", "now", "candidate"),
    [
        (OFF, 7.9, 100, True),
        (OFF, 8.0, 100, False),
        (OFF, 9.0, 100, False),
        (OFF, 7.9, 99, False),  # dwell
        (OFF, None, 100, False),  # not yet observed
        (ON, 10.1, 100, False),
        (ON, 10.0, 100, True),
        (ON, 9.0, 100, True),
        (ON, 10.1, 99, True),  # dwell
        (ON, None, 100, True),
        (LoadPreference(), 7.9, 0, True),  # the first decision waits for the window only
    ],
)
def test_load_table(state: LoadPreference, load: float | None, now: float, candidate: bool) -> None:
    """Between the thresholds, within the dwell or unobserved, nothing changes."""
    after = prefer(state, load, now, RULES)
    assert after.candidate is candidate
    assert after.since_s == (now if candidate is not state.candidate else state.since_s)


def test_window_is_silent_until_it_was_observed_whole() -> None:
    """Mean of what the last 60 s held, None before, and None again after a silence."""
    window = LoadWindow(60)
    assert window.mean(0) is None
    for now in range(60):
        window.record(now, 6.0)
        assert window.mean(now) is None
    window.record(60, 6.0)
    assert window.mean(60) == 6.0
    for now in range(61, 121):
        window.record(now, 12.0)
    assert window.mean(120) == 12.0
    window.record(400, 1.0)
    assert window.mean(400) is None


def test_a_late_look_is_no_silence() -> None:
    """A window of 1 s, looked at once a second and a bit: its mean is the sample of that second.

    A look that comes later than the window, as every one does here, must not start the observation
    again, or such a gateway never decides.
    """
    window = LoadWindow(1)
    window.record(0.0, 4.0)
    assert window.mean(0.0) is None
    for i in range(1, 20):
        window.record(i * 1.004, 7.0)
        assert window.mean(i * 1.004) == 7.0
    window.record(19 * 1.004 + 4.9, 9.0)  # a machine that stood still for five seconds
    assert window.mean(19 * 1.004 + 4.9) == 9.0
    window.record(200.0, 1.0)
    assert window.mean(200.0) is None


def test_window_memory_does_not_grow_with_samples() -> None:
    """A hundred thousand samples stay in 61 slots."""
    window = LoadWindow(10)
    for i in range(100_000):
        window.record(i / 1000, 1.0)
    assert len(window._slots) <= 61


@given(
    st.binary(max_size=40),
    st.dictionaries(st.text(max_size=8), st.floats(0, 10, allow_subnormal=False), max_size=5),
)
def test_split_is_deterministic_and_respects_zero(key: bytes, weights: dict[str, float]) -> None:
    """The same key has the same arm whatever the order of arms; weight 0 gets nothing."""
    if not any(weights.values()):
        with pytest.raises(ValueError, match="no arm"):
            split_arm(key, weights, b"s")
        return
    arm = split_arm(key, weights, b"s")
    assert weights[arm] > 0
    assert split_arm(key, dict(reversed(weights.items())), b"s") == arm


def test_split_shares_and_stickiness() -> None:
    """20,000 keys: 10 % ± 1 % on the canary; raising it to 30 % moves keys towards it only."""
    keys = [b"user-%d" % i for i in range(20_000)]
    small = {k for k in keys if split_arm(k, {"base": 90, "canary": 10}, b"s") == "canary"}
    large = {k for k in keys if split_arm(k, {"base": 70, "canary": 30}, b"s") == "canary"}
    assert 0.09 < len(small) / len(keys) < 0.11  # sd of a share of 0.1 is 0.0021
    assert 0.285 < len(large) / len(keys) < 0.315
    assert small < large


def test_split_pins_its_hash() -> None:
    """Witness: a new release must not move every user. Values computed once by this code."""
    weights = {"base": 1.0, "canary": 1.0}
    got = "".join(split_arm(b"user-%d" % i, weights, b"breakeven")[0] for i in range(24))
    assert got == PINNED


PINNED = "ccccbcccbcbcbcbccbbcbbbc"
