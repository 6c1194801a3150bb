"""The quality contract asked of every arm: identity, support matrix, L0 shapes, L1 with A/A.

Here: which questions go to which arm, and the counts for judge/quality.py. Not here: the questions
(asking), the shapes (core quality), what follows (judge).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from breakeven import quality
from breakeven_wire import EnginePool, Headers, Origin

from .asking import GREEDY_TOKENS, Asker, Greedy, greedy, identity, probes

SHAPES = ("structured_output", "tools", "n_choices", "logprobs", "stop_strings", "max_tokens")
L0_ROUNDS = 3
"""Times that each shape is asked for: one broken answer could be chance."""
TAU_QUANTILE = 0.99
"""Near-tie tolerance: this quantile of the gaps at which the baseline parts from itself."""
TAU_DEFAULT = 0.1
"""Nats; where the baseline never parts from itself."""

Messages = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Shown:
    """What one arm showed: identity, probes, L0 counts, greedy answers in order of prompts."""

    identity: dict[str, Any]
    probes: dict[str, dict[str, str]]
    l0: dict[str, dict[str, int]]
    answers: tuple[Greedy | None, ...]
    again: tuple[Greedy | None, ...] = ()


async def ask_arm(
    url: str, headers: Headers, model: str, prompts: Sequence[Messages], *, twice: bool
) -> Shown:
    """Put all questions to one arm; `twice` asks for the greedy answers again (A/A)."""
    pool = EnginePool(Origin.parse(url), stamps="loop")
    ask = Asker(pool, headers, model)
    try:
        shown = await identity(ask)
        rows = await probes(ask)
        l0 = await _shapes(ask, rows)
        answers = [await greedy(ask, one, GREEDY_TOKENS) for one in prompts]
        again = [await greedy(ask, one, GREEDY_TOKENS) for one in prompts] if twice else []
    finally:
        await pool.close()
    return Shown(shown, rows, l0, tuple(answers), tuple(again))


async def _shapes(ask: Asker, first: dict[str, dict[str, str]]) -> dict[str, dict[str, int]]:
    """Broken answers per shape; a feature that is refused outright is no broken answer."""
    counts = {name: {"asked": 0, "broken": 0} for name in SHAPES}
    rounds = [first] + [await probes(ask) for _ in range(L0_ROUNDS - 1)]
    for found in rounds:
        for name in SHAPES:
            row = found[name]
            if row["detail"].startswith(("refused", "no answer")):
                continue
            counts[name]["asked"] += 1
            counts[name]["broken"] += row["support"] == quality.Support.FAILED.value
    return {name: count for name, count in counts.items() if count["asked"]}


def quality_counts(baseline: Shown, arm: Shown | None) -> dict[str, Any]:
    """Counts of one arm for quality.json; `arm` None gives the baseline's own A/A control."""
    other = baseline.again if arm is None else arm.answers
    pairs = [(a, b) for a, b in zip(baseline.answers, other, strict=False) if a and b]
    control = [(a, b) for a, b in zip(baseline.answers, baseline.again, strict=False) if a and b]
    tau = tolerance(control)
    found = [quality.first_divergence(a.tokens, b.tokens, a.gaps) for a, b in pairs]
    hard = [one.hard(tau) for one in found]
    answers = [b for _, b in pairs]
    return {
        "l0": (arm or baseline).l0,
        "l1": {
            "pairs": len(pairs),
            "hard": sum(h is True for h in hard),
            "soft": sum(o.position is not None and h is False
                        for o, h in zip(found, hard, strict=True)),
            "unknown": sum(h is None for h in hard),
            "tau": tau,
        },
        "guards": {
            "answers": len(answers),
            "loops": sum(quality.loops(b.tokens) for b in answers),
            "truncated": sum(b.finish is None for b in answers),
            "tokens": sum(len(b.tokens) for b in answers),
        },
    }  # fmt: skip


def tolerance(control: Sequence[tuple[Greedy, Greedy]]) -> float:
    """Near-tie tolerance tau in nats, from where the baseline parts from itself."""
    gaps = sorted(
        one.gap
        for a, b in control
        if (one := quality.first_divergence(a.tokens, b.tokens, a.gaps)).gap is not None
    )
    if not gaps:
        return TAU_DEFAULT
    return max(TAU_DEFAULT, gaps[min(len(gaps) - 1, int(TAU_QUANTILE * len(gaps)))])
