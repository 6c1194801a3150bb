"""Dashboard "Replay": loadgen's own /metrics while it runs; offered load first, then what became of it."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as dash

from .panels import AMBER, GREEN, RED, Query, board, graph, stat

RATE = "[$__rate_interval]"


def build() -> dash.Dashboard:
    """The dashboard."""
    made = board(
        "Breakeven: replay",
        "breakeven-replay",
        "loadgen while it runs: offered, sent, dropped, served; lag behind the schedule; in flight.",
        [],
    )
    return made
