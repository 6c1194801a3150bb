"""The policy cell in a decision: what it found, and what has to be true before a promotion.

Here: the words and rows for decision.json, terminal and page. Not here: the cell (grid). Whether a
gateway switches as it should says nothing of what a draft is worth: it never changes the decision,
and never goes unsaid.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from breakeven.errors import InputError

from .dataset import POLICY, POLICY_REPORT, Grid

SHOWN = (
    "switches", "expected_switches", "by_reason", "late_s", "wrong_mode_s", "wrong_mode_share",
    "duration_s", "offered", "failed", "during", "otherwise", "low_rps", "high_rps",
    "enter_below_rps", "leave_above_rps", "evidence",
)  # fmt: skip
"""Of the cell's own report."""


def policy_cell(grid: Grid) -> dict[str, Any]:
    """The cell for decision.json: `state` is not_configured, not_run, failed or passed.

    Raises:
        InputError: its report was written by another release, or is damaged.
    """
    if grid.record.gateway is None:
        return {"state": "not_configured", "why_not": []}
    found = grid.policy
    if not found:
        return {"state": "not_run", "why_not": ["it has not finished"]}
    lacks = [name for name in ("passed", "why_not", *SHOWN) if name not in found]
    if lacks:
        raise InputError(
            f"lacks {lacks[0]}", file=f"{POLICY}/{POLICY_REPORT}",
            mend=f"remove {POLICY}/ and resume the grid",
        )  # fmt: skip
    state = "passed" if found.get("passed") is True else "failed"
    why_not = [str(why) for why in found.get("why_not") or ()]
    return {"state": state, "why_not": why_not} | {name: found.get(name) for name in SHOWN}


def before_promotion(found: Mapping[str, Any]) -> list[str]:
    """What the policy cell leaves to be done before traffic is given to the gateway's policy."""
    if found["state"] == "not_run":
        return ["the policy cell has not finished: loadgen grid resume"]
    if found["state"] == "failed":
        why = "; ".join(found["why_not"]) or "no reason given"
        return [f"the policy cell failed: {why} (mend the gateway, remove {POLICY}/, resume)"]
    return []


HEADINGS = (
    "policy cell", "", "switches", "expected", "late by (s)", "wrong mode", "requests failed",
    "gaps at a switch", "gaps otherwise", "evidence",
)  # fmt: skip


def cells(found: Mapping[str, Any]) -> list[str]:
    """One row under HEADINGS, as plain text; gaps in ms: p99 / longest (requests)."""
    if found["state"] in ("not_configured", "not_run"):
        word = "not configured" if found["state"] == "not_configured" else "(not run)"
        return ["policy", word, *[""] * (len(HEADINGS) - 2)]
    failed = ", ".join(f"{count} {verdict}" for verdict, count in found["failed"].items())
    late = ", ".join(f"{seconds:.1f}" for seconds in found["late_s"])
    rates = f"{found['low_rps']:g} and {found['high_rps']:g}/s"
    limits = f"{found['enter_below_rps']:g} and {found['leave_above_rps']:g}/s"
    return [
        f"{rates} across {limits}",
        found["state"],
        str(found["switches"]),
        str(found["expected_switches"]),
        late or "none",
        f"{found['wrong_mode_s']:.1f} s ({found['wrong_mode_share']:.1%})",
        f"{failed or 0} of {found['offered']}",
        _gaps(found["during"]),
        _gaps(found["otherwise"]),
        str(found["evidence"]).replace("_", " "),
    ]


def _gaps(waits: Mapping[str, Any]) -> str:
    return f"{_ms(waits['gap_p99_s'])} / {_ms(waits['gap_max_s'])} ({waits['requests']})"


def _ms(seconds: float | None) -> str:
    return "not exposed" if seconds is None else f"{seconds * 1e3:.1f}"
