"""Dashboard "Replay": loadgen's own /metrics while it runs; schedule first, then outcomes."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as dash

from .panels import AMBER, BLUE, GREEN, RED, Query, board, graph, stat

RATE = "[$__rate_interval]"


def progress(made: dash.Dashboard) -> dash.Dashboard:
    """Row 1: where the run stands, and whether its schedule can be trusted."""
    return (
        made.with_row(dash.Row("The schedule"))
        .with_panel(
            stat(
                "Progress",
                "Arrivals that fell due, of the whole plan.",
                [
                    Query(
                        "sum(loadgen_offered_total) / (sum(loadgen_scheduled_arrivals) > 0)", "due"
                    )
                ],
                unit="percentunit",
                decimals=0,
            )
        )
        .with_panel(
            stat(
                "Dropped",
                "Share of the due arrivals dropped at --max-inflight. They count against goodput: "
                "the "
                "generator never delays one silently.",
                [Query("sum(loadgen_dropped_total) / (sum(loadgen_offered_total) > 0)", "dropped")],
                unit="percentunit",
                decimals=2,
                steps=((None, GREEN), (0.001, AMBER), (0.01, RED)),
            )
        )
        .with_panel(
            stat(
                "Worst lag behind the schedule",
                "Send after the intended time, worst arrival so far. The schedule gate allows a "
                "p99 of 5 ms.",
                [Query("max(loadgen_lag_worst_seconds)", "worst")],
                unit="s",
                steps=((None, GREEN), (0.005, AMBER), (0.05, RED)),
            )
        )
        .with_panel(
            stat(
                "Good so far",
                "Good ÷ ended arrivals without cancelled and interrupted: the run's SLO goodput "
                "up to now.",
                [
                    Query(
                        'sum(loadgen_requests_total{verdict="good"}) / '
                        '(sum(loadgen_requests_total{verdict!~"cancelled|interrupted"}) > 0)',
                        "good",
                    )
                ],
                unit="percentunit",
                decimals=2,
                steps=((None, RED), (0.9, AMBER), (0.99, GREEN)),
            )
        )
    )


def flow(made: dash.Dashboard) -> dash.Dashboard:
    """Row 2: arrivals in, answers out."""
    return (
        made.with_row(dash.Row("What became of the arrivals"))
        .with_panel(
            graph(
                "Offered, admitted, dropped, served",
                "Arrivals per second that fell due, were sent, were dropped, and have ended. Open "
                "loop: "
                "offered never bends when the server slows.",
                [
                    Query(f"sum(rate(loadgen_{name}_total{RATE}))", name)
                    for name in ("offered", "admitted", "dropped", "served")
                ],
                unit="reqps",
                dashed="/offered/",
            )
        )
        .with_panel(
            graph(
                "In flight",
                "Requests sent and not ended. A line that only climbs says: above capacity.",
                [Query("sum(loadgen_inflight_requests)", "in flight")],
            )
        )
        .with_panel(
            graph(
                "Verdicts",
                "Ended arrivals per second by verdict.",
                [
                    Query(
                        f"sum by (verdict) (rate(loadgen_requests_total{RATE})) > 0", "{{verdict}}"
                    )
                ],
                unit="reqps",
                stacked=True,
            )
        )
        .with_panel(
            graph(
                "Output tokens per second",
                "Output tokens of ended requests, as the responses state them.",
                [Query(f"sum(rate(loadgen_output_tokens_total{RATE}))", "tokens")],
            )
        )
        .with_panel(
            graph(
                "Lag behind the schedule, and of the event loop",
                "Above a few milliseconds the generator, not the server, shapes the load: the "
                "run's schedule "
                "and client gates will say so.",
                [
                    Query("max(loadgen_lag_seconds)", "send lag, latest"),
                    Query("max(loadgen_lag_worst_seconds)", "send lag, worst"),
                    Query("max(loadgen_event_loop_lag_seconds)", "event loop, worst of 15 s"),
                ],
                unit="s",
                span=24,
                steps=((None, BLUE), (0.005, RED)),
            )
        )
    )


def build() -> dash.Dashboard:
    """The dashboard."""
    return flow(
        progress(
            board(
                "Breakeven: replay",
                "breakeven-replay",
                "loadgen while it runs: offered, sent, dropped, served; lag behind the schedule; "
                "in flight.",
                [],
            )
        )
    )
