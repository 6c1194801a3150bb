"""Numbers as people read them; one place, so that terminal and page agree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

UNKNOWN = "–"
"""Printed where a figure is not known: never a made-up 0."""


def ms(value: float | None, digits: int = 1) -> str:
    """Seconds as milliseconds."""
    return UNKNOWN if value is None else f"{value * 1e3:,.{digits}f}"


def seconds(value: float | None) -> str:
    """Seconds with a unit that reads well."""
    if value is None:
        return UNKNOWN
    if value < 1e-3:
        return f"{value * 1e6:.0f} µs"
    return f"{value * 1e3:.1f} ms" if value < 1 else f"{value:.2f} s"


def share(value: float | None, digits: int = 1) -> str:
    """A share as per cent."""
    return UNKNOWN if value is None else f"{value * 100:.{digits}f} %"


def number(value: float | None, digits: int = 2) -> str:
    """A plain number with thousands separated."""
    return UNKNOWN if value is None else f"{value:,.{digits}f}"


def usd(value: float | None) -> str:
    """Dollars with enough digits for a single response."""
    if value is None:
        return "undefined"
    return f"${value:,.2f}" if value >= 1 else f"${value:.5f}"


def quantile(found: Mapping[str, Any] | None, name: str) -> str:
    """One quantile in ms; ≥ where it rests on arrivals that were never answered."""
    if found is None:
        return UNKNOWN
    mark = "≥ " if name in found.get("lower_bound", ()) else ""
    return mark + ms(found[name])


VERDICT_WORDS = {
    "good": "within the SLO",
    "dropped": "not sent: --max-inflight reached",
    "rejected": "status 429 or 503",
    "cancelled": "cancelled by the run",
    "timeout": "no whole answer in time",
    "error": "error status, frame or broken connection",
    "truncated": "ended without finish reason or tokens",
    "malformed": "empty, or not what the API has",
    "slow_ttft": "first token later than the SLO",
    "slow_gap": "burst gap p99 above the SLO",
    "slow_tpot": "time per output token above the SLO",
    "slow_e2e": "whole answer later than the SLO",
    "unmeasured": "an SLO quantity is unknown",
    "interrupted": "the run was stopped first",
}
PARTIAL = {
    "incomplete": "shards are missing",
    "interrupted": "the run was stopped",
    "killed": "the run was killed",
}
"""States of a record that is not whole, in words."""
