"""Floors of one candidate at one rate: one-sided tests, joined as an intersection-union.

Here: goodput, each SLO bound, errors, cost, quality per cohort. Not here: which pairs (pairs), the
words of the table (core decision). A floor is held only where the data show it; broken only where
they show the contrary; else open. Each at alpha .05 without correction: all must hold.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from breakeven.facts import Floor, Interval
from breakeven.slo import SLO

from .dataset import ContractRecord
from .figures import Figures, summed
from .pairs import Pair
from .statistics import CONFIDENCE, log_ratio, not_above, not_below, share_upper

Floats = NDArray[np.float64]

RELATIVE_TTFT = 0.10
"""Without a TTFT bound in the SLO: the p95 may not be shown to grow by more than this."""
KINDS = {"ttft_s": "ttft", "tpot_s": "tpot", "gap_p99_s": "gap", "e2e_s": "e2e"}


def floors(
    pairs: list[Pair], slo: SLO, contract: ContractRecord, cost: Interval | None
) -> tuple[Floor, ...]:
    """All floors of the whole traffic at one rate."""
    if len(pairs) < 2:
        return (Floor("blocks", None, "there are enough blocks"),)
    budget = contract.error_budget
    out = [goodput_floor(pairs, slo, budget), errors_floor(pairs, budget)]
    out += [bound_floor(pairs, slo, name, budget) for name in slo.bounds()]
    if slo.ttft_s is None:
        out.append(relative_ttft(pairs))
    out.append(cost_floor(cost))
    return tuple(out)


def goodput_floor(pairs: list[Pair], slo: SLO, budget: float) -> Floor:
    """Goodput keeps the objective, and is not worse than the baseline's by the error budget.

    Both as one-sided tests over blocks. Where the baseline itself misses the objective, the
    candidate must still keep it: the floor is the service's promise, not the baseline.
    """
    arm = np.array([pair.arm.goodput for pair in pairs])
    base = np.array([pair.base.goodput for pair in pairs])
    pooled = _pooled(pairs, "arm")
    detail = (
        f"goodput {pooled.goodput:.1%} keeps {slo.objective:.1%} "
        f"(baseline {_pooled(pairs, 'base').goodput:.1%})"
    )
    keeps = _both(_at_least(arm, slo.objective - budget), _at_least(arm - base, -budget))
    return Floor("goodput", keeps, detail)


def errors_floor(pairs: list[Pair], budget: float) -> Floor:
    """Failed, dropped, timed-out and malformed answers do not grow by more than the budget."""
    arm = np.array([pair.arm.share(pair.arm.failed) for pair in pairs])
    base = np.array([pair.base.share(pair.base.failed) for pair in pairs])
    left, right = _pooled(pairs, "arm"), _pooled(pairs, "base")
    detail = (
        f"errors {left.share(left.failed):.2%} stay within {budget:.1%} of the baseline's "
        f"{right.share(right.failed):.2%}"
    )
    return Floor("errors", _at_most(arm - base, budget), detail)


def bound_floor(pairs: list[Pair], slo: SLO, name: str, budget: float) -> Floor:
    """The share of answers over one SLO bound does not grow by more than the error budget."""
    arm = np.array([pair.arm.share(pair.arm.slow.get(name, 0)) for pair in pairs])
    base = np.array([pair.base.share(pair.base.slow.get(name, 0)) for pair in pairs])
    left, right = _pooled(pairs, "arm"), _pooled(pairs, "base")
    bound = slo.bounds()[name]
    detail = (
        f"{KINDS[name]} above {bound * 1e3:g} ms in {left.share(left.slow.get(name, 0)):.2%} of "
        f"answers stays within {budget:.1%} of the baseline's "
        f"{right.share(right.slow.get(name, 0)):.2%}"
    )
    return Floor(KINDS[name], _at_most(arm - base, budget), detail)


def relative_ttft(pairs: list[Pair]) -> Floor:
    """p95 TTFT against the baseline's, where the SLO promises none."""
    known = [(p.arm.ttft_s, p.base.ttft_s) for p in pairs if p.arm.ttft_s and p.base.ttft_s]
    effect = log_ratio([a["p95"] for a, _ in known], [b["p95"] for _, b in known])
    if effect is None:
        return Floor("ttft", None, "TTFT p95 was measured")
    ratio = effect.ratio
    detail = f"TTFT p95 ({ratio[0] - 1:+.0%}) grows by no more than {RELATIVE_TTFT:.0%}"
    limit = np.log1p(RELATIVE_TTFT)
    logs = np.log([a["p95"] / b["p95"] for a, b in known])
    return Floor("ttft", _at_most(logs, float(limit)), detail)


def cost_floor(cost: Interval | None) -> Floor:
    """Dollars per good response are not shown to be worse than the baseline's."""
    if cost is None:
        return Floor("cost", True, "no price was given, so cost is not judged")
    detail = f"cost per good response ({cost.value - 1:+.0%}) does not exceed the baseline's"
    return Floor("cost", not cost.low > 1, detail)


def price_floor(usd_per_good: float | None, contract: ContractRecord) -> Floor | None:
    """The contract's own boundary, where it sets one."""
    limit = contract.max_cost_per_good_usd
    if limit is None:
        return None
    if usd_per_good is None:
        return Floor("cost", False, f"no good response, so none costs at most ${limit:g}")
    detail = f"a good response costs ${usd_per_good:.4g}, at most ${limit:g}"
    return Floor("cost", usd_per_good <= limit, detail)


def quality_floor(cohort: str, found: Figures, share: float) -> Floor:
    """Share of whole, well-formed answers in one cohort (exact one-sided bounds)."""
    broken = found.misformed
    n = found.offered
    detail = (
        f"{cohort}: {1 - broken / n if n else 0:.2%} of answers are whole, at least {share:.1%}"
    )
    upper = share_upper(broken, n)
    if upper is None:
        return Floor("quality", None, detail)
    if upper <= 1 - share:
        return Floor("quality", True, detail)
    low = stats.binomtest(broken, n, alternative="greater").proportion_ci(CONFIDENCE).low
    return Floor("quality", False if low > 1 - share else None, detail)


def _pooled(pairs: list[Pair], side: str) -> Figures:
    return summed([getattr(pair, side) for pair in pairs])


def _at_most(values: Floats, limit: float) -> bool | None:
    shown = not_above(values, limit)
    contrary = not_below(values, limit)
    return True if shown and shown.shown else False if contrary and contrary.shown else None


def _at_least(values: Floats, limit: float) -> bool | None:
    return _at_most(-values, -limit)


def _both(left: bool | None, right: bool | None) -> bool | None:
    if left is False or right is False:
        return False
    return None if left is None or right is None else True
