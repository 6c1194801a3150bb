"""Published open-loop shapes (design: engine-model.md), one seed, offline on a virtual clock."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from breakeven_sim.sweep import RateRow, Window, arm_named, play
from breakeven_sim.workload import Lengths, poisson

SEED = 1
NAMES = {
    "baseline": "none",
    "EAGLE k=3": "eagle3:3",
    "EAGLE k=7": "eagle3:7",
    "draft-1b k=5": "draft-1b:5",
    "ngram k=5": "ngram-open:5",
}
# TPOT p50 ms, TTFT p99 ms, good share, $ per 1,000 good.
PUBLISHED: dict[tuple[str, int], tuple[float, float, float, float | None]] = {
    ("baseline", 1): (6.9, 37, 1.0, 0.811),
    ("baseline", 12): (10.7, 69, 1.0, 0.070),
    ("baseline", 16): (15.1, 89, 1.0, 0.052),
    ("baseline", 20): (20.7, 12750, 0.04, 1.11),
    ("EAGLE k=3", 1): (3.6, 40, 1.0, 0.811),
    ("EAGLE k=3", 12): (5.4, 76, 1.0, 0.070),
    ("EAGLE k=3", 16): (7.3, 99, 1.0, 0.052),
    ("EAGLE k=3", 20): (11.9, 129, 1.0, 0.042),
    ("EAGLE k=7", 1): (3.7, 48, 1.0, 0.811),
    ("EAGLE k=7", 12): (7.8, 94, 1.0, 0.070),
    ("EAGLE k=7", 16): (18.6, 415, 0.914, 0.057),
    ("draft-1b k=5", 1): (4.1, 58, 1.0, 0.811),
    ("draft-1b k=5", 12): (7.6, 110, 1.0, 0.070),
    ("draft-1b k=5", 16): (13.5, 172, 0.995, 0.053),
    ("ngram k=5", 1): (3.8, 37, 1.0, 0.811),
    ("ngram k=5", 12): (9.0, 78, 1.0, 0.070),
    ("ngram k=5", 16): (25.3, 15262, 0.20, 0.26),
}


@cache
def row(arm: str, rate: int) -> RateRow:
    """One cell: 240 s of Poisson arrivals, 60 s warm-up, 120 s drain."""
    return play(arm_named(arm, "8b-h100", SEED), poisson(rate, 240, SEED), rate, Window())


@pytest.mark.parametrize(("arm", "rate"), PUBLISHED)
def test_time_per_output_token(arm: str, rate: int) -> None:
    """TPOT p50 of every cell within ±10 %, saturated ones included."""
    tpot = row(NAMES[arm], rate).tpot_p50_s
    assert tpot is not None
    assert tpot * 1e3 == pytest.approx(PUBLISHED[arm, rate][0], rel=0.10)


@pytest.mark.parametrize(
    ("arm", "rate"), [cell for cell, row in PUBLISHED.items() if row[2] >= 0.99]
)
def test_arms_that_hold_their_rate(arm: str, rate: int) -> None:
    """Good share ≥ .98, TTFT p99 far below the SLO, and the bill of a fixed fleet: ±10 %.

    A p99 of 180 to 3,600 waits moves with the seed: within a third of the published one.
    """
    found, (_, ttft, _, usd) = row(NAMES[arm], rate), PUBLISHED[arm, rate]
    assert found.good_share is not None
    assert found.good_share >= 0.98
    assert found.ttft_p99_s is not None
    assert found.ttft_p99_s * 1e3 == pytest.approx(ttft, rel=0.34)
    assert found.usd_per_1000_good == pytest.approx(usd, rel=0.10)


def test_who_fails_where() -> None:
    """At 16/s k=7 slips and n-gram breaks; at 20/s the baseline breaks and EAGLE k=3 holds."""
    seven, ngram = row("eagle3:7", 16), row("ngram-open:5", 16)
    base, three = row("none", 20), row("eagle3:3", 20)
    assert seven.good_share is not None
    assert 0.75 < seven.good_share < 0.95
    assert ngram.good_share is not None
    assert ngram.good_share < 0.3
    assert ngram.ttft_p99_s is not None
    assert ngram.ttft_p99_s > 10
    assert base.good_share is not None
    assert base.good_share < 0.15
    assert base.ttft_p99_s is not None
    assert base.ttft_p99_s > 8
    assert three.good_share == 1.0


def test_equal_load_is_not_equal_batch() -> None:
    """At 12/s the faster arm holds fewer requests: published mean batch 75 against 41, ±15 %."""
    assert row("none", 12).mean_batch == pytest.approx(75, rel=0.15)
    assert row("eagle3:3", 12).mean_batch == pytest.approx(41, rel=0.15)


def test_latency_halves_while_cost_does_not_move() -> None:
    """Below saturation a fixed fleet's cost per good response is the arrivals', not the draft's."""
    base, three = row("none", 12), row("eagle3:3", 12)
    assert base.tpot_p50_s is not None
    assert three.tpot_p50_s is not None
    assert three.tpot_p50_s < 0.55 * base.tpot_p50_s
    assert three.usd_per_1000_good == pytest.approx(base.usd_per_1000_good, rel=0.001)


def test_a_badly_chosen_dynamic_k_throws_the_gain_away() -> None:
    """k = 7/3/1/0 by batch at 16/s: published 15.4 ms where static k=3 has 7.3."""
    dynamic = row("eagle3@1-8:7,9-32:3,33-64:1,65-:0", 16).tpot_p50_s
    static = row("eagle3:3", 16).tpot_p50_s
    assert dynamic is not None
    assert static is not None
    assert dynamic * 1e3 == pytest.approx(15.4, rel=0.10)
    assert dynamic > 1.9 * static


@cache
def pressed(tmp: Path | None) -> RateRow:
    """4/s of prompts of about 6,000 tokens: no draft, or one that takes .78 of the KV cache more.

    The published case names the KV factor and not the draft; this one costs as draft-1b and
    agrees less often, so that its TPOT gain is the published one (29 against 49 ms).
    """
    arm = arm_named("none" if tmp is None else f"{tmp}:5", "8b-h100", SEED)
    lengths = Lengths(6000, 0.2, (1000, 16_000), 230, 0.9, (8, 2048))
    window = Window(slo_ttft_s=1.0, slo_tpot_s=0.06)
    return play(arm, poisson(4, 240, 0, lengths), 4, window)


def test_kv_pressure_tpot_says_win_and_ttft_says_loss(tmp_path: Path) -> None:
    """A draft that shrinks the KV cache makes tokens faster and users wait for the first one."""
    path = tmp_path / "hungry.json"
    path.write_text(
        json.dumps(
            {
                "d_fix_ms": 1.6, "d_tok_ms": 0.003, "d_kv_ms": 9.8e-6, "h_ms": 0.5,
                "conditional": [0.7, 0.6, 0.6, 0.6, 0.6], "kv_factor": 1.78,
                "held_tokens": 19000, "tau": 0.7, "prefill_token_ms": 0.003,
            }
        )
    )  # fmt: skip
    base, draft = pressed(None), pressed(path)
    assert base.tpot_p50_s is not None
    assert draft.tpot_p50_s is not None
    assert draft.tpot_p50_s < 0.75 * base.tpot_p50_s
    assert base.ttft_p50_s is not None
    assert draft.ttft_p50_s is not None
    assert base.ttft_p50_s < 1.0
    assert draft.ttft_p50_s > 8.0
    assert base.good_share is not None
    assert base.good_share > 0.6
    assert draft.good_share is not None
    assert draft.good_share < 0.1
    assert draft.preemptions > base.preemptions
