"""The load-aware policy over a simulated week, against simpler ones; and what a choice costs.

No engine: the week is a wave of 10-110 concurrent requests with noise of sd 12 that is correlated
over two minutes, break-even at 64 (tests/core/test_policy.py has the same). It prints switches and
hours in the wrong mode (the candidate above break-even, or the baseline below it), and the cost of
one routing decision beside a bare dict lookup of the same run.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator

import numpy as np

from breakeven.health import Signal
from breakeven.policy import LoadAwareRules, LoadPreference, LoadWindow, prefer
from breakeven.steering import Candidate, Plan, Steering

BREAK_EVEN = 64.0
STEP_S = 5.0
WEEK_S = 7 * 86_400
SEEDS = range(1, 7)
CALLS = 100_000

RULES = {
    "one threshold, raw samples": LoadAwareRules(BREAK_EVEN, BREAK_EVEN, window_s=0, dwell_s=0),
    "one threshold, 300 s window": LoadAwareRules(BREAK_EVEN, BREAK_EVEN, window_s=300, dwell_s=0),
    "±10 %, 300 s, dwell 600 s": LoadAwareRules(57.6, 70.4, window_s=300, dwell_s=600),
    "±15 %, 300 s, dwell 600 s": LoadAwareRules(54.4, 73.6, window_s=300, dwell_s=600),
    "±15 %, 600 s, dwell 600 s (default)": LoadAwareRules.around(BREAK_EVEN),
}


def week(seed: int) -> Iterator[tuple[float, float, float]]:
    """(time, noisy load, true load), seen every 5 s."""
    rng = np.random.default_rng(seed)
    keep = math.exp(-STEP_S / 120)
    shocks = rng.normal(0.0, 12 * math.sqrt(1 - keep * keep), int(WEEK_S / STEP_S))
    noise = 0.0
    for i, shock in enumerate(shocks):
        noise = keep * noise + shock
        true = 60 - 50 * math.cos(2 * math.pi * i * STEP_S / 86_400)
        yield i * STEP_S, max(0.0, true + noise), true


def ride(rules: LoadAwareRules, seed: int) -> tuple[int, float]:
    """Switches, and hours in the wrong mode."""
    window, state, switches, wrong = LoadWindow(rules.window_s), LoadPreference(), 0, 0
    for now, load, true in week(seed):
        window.record(now, load)
        before, state = state, prefer(state, window.mean(now), now, rules)
        switches += state.candidate is not before.candidate
        wrong += state.candidate is not (true < BREAK_EVEN)
    return switches, wrong * STEP_S / 3600


def microseconds(call: Callable[[int], object]) -> float:
    """Median of five rounds, µs a call."""
    rounds = []
    for _ in range(5):
        begun = time.perf_counter()
        for i in range(CALLS):
            call(i)
        rounds.append((time.perf_counter() - begun) / CALLS * 1e6)
    return statistics.median(rounds)


def costs() -> dict[str, float]:
    """µs a request of the choice of an arm, by policy."""
    found: dict[str, float] = {}
    bare = {"base": 1}
    found["a dict lookup"] = microseconds(lambda _: bare["base"])
    plans = {
        "single": Plan(baseline="base", arm="draft", candidates={"draft": Candidate()}),
        "split, sticky": Plan(
            baseline="base", policy="split", weights={"base": 9, "draft": 1},
            candidates={"draft": Candidate()},
        ),
    }  # fmt: skip
    keys = [b"user-%d" % i for i in range(1000)]
    for name, plan in plans.items():
        steering = Steering(plan, 0.0)
        for arm in ("base", "draft"):
            steering.saw(arm, Signal.READY, 0.0)
        found[name] = microseconds(lambda i, s=steering: s.arm_for("other", keys[i % 1000]))  # type: ignore[misc]
    return found


def main() -> int:
    """Prints both tables; 1 if the default switches more than 30 times in any of the weeks."""
    print(f"{'policy':<38}{'switches a week':>17}{'wrong mode, h':>15}   ({len(SEEDS)} seeds)")
    worst = 0
    for name, rules in RULES.items():
        rows = [ride(rules, seed) for seed in SEEDS]
        switches = [row[0] for row in rows]
        wrong = statistics.mean(row[1] for row in rows)
        print(f"{name:<38}{f'{min(switches)}-{max(switches)}':>17}{wrong:>15.1f}")
        worst = max(switches)
    print()
    for name, cost in costs().items():
        print(f"{name:<38}{cost:>14.2f} µs")
    return int(worst > 30)


if __name__ == "__main__":
    raise SystemExit(main())
