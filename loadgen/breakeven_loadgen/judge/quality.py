"""The quality contract on counts: L0 and L1 with their A/A control, and the guards.

Here: which counts make a fault. Not here: asking engines (grid contract), the shapes (core
quality). quality.json holds counts and positions only, never a text:
    {ARM: {"l0": {FEATURE: {"asked": n, "broken": n}},
           "l1": {"pairs": n, "hard": n, "soft": n, "unknown": n, "tau": nats},
           "guards": {"answers": n, "loops": n, "truncated": n, "tokens": n}}}
The baseline's entry is its A/A control: the baseline asked twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .statistics import share_difference, share_upper

HARD_DIVERGENCE_MAX = 0.005
"""Upper 95 % bound that hard divergences must stay below."""
LENGTH_RATIO = (0.9, 1.1)
"""Mean length of greedy answers, candidate over baseline."""


def faults(arm: Mapping[str, Any], control: Mapping[str, Any]) -> tuple[str, ...]:
    """What of the contract an arm breaks, in words; empty where nothing is shown."""
    out = [*_shapes(arm.get("l0", {}), control.get("l0", {}))]
    out += _divergences(arm.get("l1", {}), control.get("l1", {}))
    out += _guards(arm.get("guards", {}), control.get("guards", {}))
    return tuple(out)


def _shapes(l0: Mapping[str, Any], control: Mapping[str, Any]) -> list[str]:
    """L0 is a hard gate: a shape that the baseline keeps and the candidate breaks more often."""
    out = []
    for feature, found in sorted(l0.items()):
        asked, broken = int(found.get("asked", 0)), int(found.get("broken", 0))
        base = control.get(feature, {})
        usual = int(base.get("broken", 0))
        if not broken or not asked:
            continue
        apart = share_difference(broken, asked, usual, int(base.get("asked", 0)))
        if apart is None or apart[1] > 0 or (usual == 0 and broken > 1):
            out.append(f"L0 {feature}: {broken} of {asked} answers are broken (baseline {usual})")
    return out


def _divergences(l1: Mapping[str, Any], control: Mapping[str, Any]) -> list[str]:
    """L1: hard divergences above what A/A shows, and not bounded below .5 %.

    Too few pairs to bound them is no fault but is told: `unproven`.
    """
    pairs, hard = int(l1.get("pairs", 0)), int(l1.get("hard", 0))
    if not pairs or not hard:
        return []
    base_pairs, base_hard = int(control.get("pairs", 0)), int(control.get("hard", 0))
    apart = share_difference(hard, pairs, base_hard, base_pairs)
    upper = share_upper(hard, pairs)
    worse = apart is None or apart[1] > 0
    if worse and upper is not None and upper > HARD_DIVERGENCE_MAX:
        return [
            f"L1: {hard} of {pairs} greedy answers part from the baseline where it was sure "
            f"(A/A {base_hard} of {base_pairs})"
        ]
    return []


def _guards(found: Mapping[str, Any], control: Mapping[str, Any]) -> list[str]:
    """Loops, truncation and length: a looping output was once the fastest arm."""
    out = []
    answers, base_answers = int(found.get("answers", 0)), int(control.get("answers", 0))
    for name, word in (("loops", "repeat themselves"), ("truncated", "are cut off")):
        hits, usual = int(found.get(name, 0)), int(control.get(name, 0))
        apart = share_difference(hits, answers, usual, base_answers)
        if hits and apart is not None and apart[1] > 0:
            out.append(f"guard: {hits} of {answers} answers {word} (A/A {usual})")
    if answers and base_answers and control.get("tokens"):
        ratio = (found.get("tokens", 0) / answers) / (control["tokens"] / base_answers)
        if not LENGTH_RATIO[0] <= ratio <= LENGTH_RATIO[1]:
            out.append(f"guard: greedy answers are {ratio:.2f} times as long as the baseline's")
    return out


def unproven(arm: Mapping[str, Any]) -> tuple[str, ...]:
    """What was not shown: for the checklist, not for the table."""
    l1 = arm.get("l1", {})
    pairs, hard = int(l1.get("pairs", 0)), int(l1.get("hard", 0))
    out = ["L2 teacher-forced calibration: not run", "L3 two-sample test: not run"]
    upper = share_upper(hard, pairs)
    if upper is None:
        out.insert(0, "L1 greedy divergence: not run")
    elif upper > HARD_DIVERGENCE_MAX:
        out.insert(0, f"L1 hard divergences: bounded below {upper:.2%} only, by {pairs} pairs")
    if not arm.get("l0"):
        out.insert(0, "L0 shapes: not run")
    return tuple(out)
