"""Dashboard "On call": what fires, what burns, where users wait, which arm serves."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as dash

from .panels import AMBER, BLUE, GREEN, RED, Query, board, graph, heat, table, timeline

ARM = '{job=~"$job", arm=~"$arm"}'
CELL = '{job=~"$job", arm=~"$arm", cohort=~"$cohort"}'
JOB = '{job=~"$job"}'
RATE = "[$__rate_interval]"

# Codes of arm:breakeven_route_state:code, as the recording rule writes them.
ROUTE_STATES = (
    ("0", "serving", GREEN),
    ("1", "standby", BLUE),
    ("2", "out of range", AMBER),
    ("3", "unhealthy", RED),
    ("4", "refused", AMBER),
    ("5", "tripped", RED),
)


def firing(made: dash.Dashboard) -> dash.Dashboard:
    """Row 1: alerts and burn."""
    alerts = (
        "max by (alertname, severity, job, arm, cohort, load, reason, instance) "
        '(ALERTS{alertstate="firing", severity=~"page|ticket"})'
    )
    burn = (
        "arm:breakeven_slo_errors:ratio_rate{w}{arm} / on (job) group_left () "
        "(1 - max by (job) (breakeven_slo_objective{job}))"
    )
    return (
        made.with_row(dash.Row("Firing"))
        .with_panel(
            table(
                "Firing alerts",
                "From ALERTS. The runbook of NAME is deploy/runbooks/NAME.md. Empty: nothing "
                "fires.",
                [("Firing", Query(alerts), "none")],
                span=10,
                hide=("Time",),
            )
        )
        .with_panel(
            graph(
                "Burn rate",
                "SLO error ratio ÷ error budget. 1 spends the budget exactly; 14.4 over 5m and 1h "
                "pages, 6 "
                "over 30m and 6h is a ticket.",
                [
                    Query(burn.format(w=w, arm=ARM, job=JOB), "{{arm}} " + w)
                    for w in ("5m", "1h", "6h")
                ],
                span=14,
                steps=((None, GREEN), (6.0, AMBER), (14.4, RED)),
            )
        )
    )


def users(made: dash.Dashboard) -> dash.Dashboard:
    """Row 2: what users got and how long they waited."""
    ttft_slo = 'max by (kind) (breakeven_slo_threshold_seconds{job=~"$job", kind="ttft"})'
    gap_slo = 'max by (kind) (breakeven_slo_threshold_seconds{job=~"$job", kind="gap_p99"})'
    return (
        made.with_row(dash.Row("What users get"))
        .with_panel(
            graph(
                "Verdicts",
                "Requests per second by verdict; each ends in exactly one. cancelled and "
                "interrupted are "
                "shown and do not count against the SLO.",
                [
                    Query(
                        f"sum by (verdict) (arm_verdict:breakeven_requests:rate5m{ARM}) > 0",
                        "{{verdict}}",
                    )
                ],
                unit="reqps",
                span=24,
                stacked=True,
            )
        )
        .with_panel(
            graph(
                "TTFT p95",
                "Complete request head to first token. Dashed: the SLO.",
                [
                    Query(
                        f"arm_cohort:breakeven_ttft_seconds:p95_rate5m{CELL}", "{{arm}} {{cohort}}"
                    ),
                    Query(ttft_slo, "SLO {{kind}}"),
                ],
                unit="s",
                dashed="/^SLO/",
            )
        )
        .with_panel(
            graph(
                "Burst gap p99, with tokens per burst",
                "What a user waits between bursts; gaps inside a burst never enter. Dashed: the "
                "SLO's bound, "
                "and the cohort's gap on the baseline.",
                [
                    Query(
                        f"arm_cohort:breakeven_burst_gap_seconds:p99_rate5m{CELL}",
                        "{{arm}} {{cohort}}",
                    ),
                    Query(
                        "cohort:breakeven_baseline_burst_gap_seconds:p99_rate5m"
                        '{job=~"$job", cohort=~"$cohort"}',
                        "baseline {{cohort}}",
                    ),
                    Query(gap_slo, "SLO {{kind}}"),
                ],
                unit="s",
                dashed="/^(SLO|baseline )/",
            )
        )
        .with_panel(
            heat(
                "Burst gaps",
                "How many gaps of which length. Two bands are two speeds: a queue, a preemption, "
                "another arm.",
                Query(
                    f"sum by (le) (increase(breakeven_burst_gap_seconds_bucket{CELL}{RATE}))",
                    "{{le}}",
                ),
            )
        )
        .with_panel(
            graph(
                "Tokens per burst",
                "Mean tokens per burst. A gap grows with the tokens it brings: read it beside the "
                "gaps. "
                "Above k+1 it is coalescing, never acceptance.",
                [Query(f"arm:breakeven_burst_tokens:mean_rate5m{ARM}", "{{arm}}")],
                height=9,
                soft=(1.0, 3.0),
            )
        )
    )


def arms(made: dash.Dashboard) -> dash.Dashboard:
    """Row 3: arms, routing and load."""
    return (
        made.with_row(dash.Row("Arms and routing"))
        .with_panel(
            graph(
                "In flight and queued",
                "Requests at each arm now, and those that wait in the sidecar for admission.",
                [
                    Query(f"sum by (arm) (breakeven_inflight_requests{ARM})", "{{arm}} in flight"),
                    Query(f"sum by (arm) (breakeven_queued_requests{ARM})", "{{arm}} queued"),
                ],
                span=8,
                dashed="/queued$/",
            )
        )
        .with_panel(
            graph(
                "Queue time in the engine p95",
                "The engine's own histogram. vLLM's first bound is 0.3 s: values below it are "
                "interpolation.",
                [Query(f"arm:breakeven_engine_queue_time_seconds:p95_rate5m{ARM}", "{{arm}}")],
                unit="s",
                span=8,
            )
        )
        .with_panel(
            graph(
                "Offered requests by load class",
                "Arrivals by the class of the arm's load at arrival (per replica, last 30 s).",
                [Query(f"arm_load:breakeven_requests:rate5m{ARM}", "{{arm}} {{load}}")],
                unit="reqps",
                span=8,
            )
        )
        .with_panel(
            timeline(
                "Upstream of each arm",
                "1: the sidecar's health check of the arm succeeds.",
                [Query(f"min by (arm) (breakeven_upstream_up{ARM})", "{{arm}}")],
                mappings=(("0", "down", RED), ("1", "up", GREEN)),
                span=8,
            )
        )
        .with_panel(
            timeline(
                "Routing state of each candidate",
                "serving: gets new requests. standby: the policy prefers the baseline. out of "
                "range, "
                "unhealthy, refused, tripped: kept out, see the runbooks.",
                [Query(f"arm:breakeven_route_state:code{ARM}", "{{arm}}")],
                mappings=ROUTE_STATES,
                span=8,
            )
        )
        .with_panel(
            graph(
                "Traffic share",
                "Share of requests that each arm gets.",
                [
                    Query(
                        f"sum by (arm) (arm_verdict:breakeven_requests:rate5m{ARM}) / ignoring "
                        f"(arm) "
                        f"group_left () (sum (arm_verdict:breakeven_requests:rate5m{JOB}) > 0)",
                        "{{arm}}",
                    )
                ],
                unit="percentunit",
                span=8,
                stacked=True,
            )
        )
        .with_panel(
            graph(
                "Routing transitions in the last hour, by reason",
                "Each change of a candidate's state, with its reason. A healthy day has a few.",
                [
                    Query(
                        f"sum by (arm, reason) "
                        f"(increase(breakeven_route_transitions_total{ARM}[1h])) > 0",
                        "{{arm}} {{reason}}",
                    )
                ],
                span=24,
                height=7,
            )
        )
    )


def instrument(made: dash.Dashboard) -> dash.Dashboard:
    """Row 4: can the numbers above be trusted, and does the sidecar stand in the way?"""
    return (
        made.with_row(dash.Row("The instrument itself"))
        .with_panel(
            graph(
                "Token coverage",
                "Share of events whose token count is known. Below 1, margin and M speak for the "
                "rest only; "
                "set --enable-force-include-usage on the engine.",
                [
                    Query(
                        f'sum by (arm) (rate(breakeven_token_coverage_total{{job=~"$job", '
                        f'arm=~"$arm", '
                        f'known="yes"}}{RATE})) / (sum by (arm) '
                        f"(rate(breakeven_token_coverage_total{ARM}{RATE})) > 0)",
                        "{{arm}}",
                    )
                ],
                unit="percentunit",
                span=6,
                soft=(0.0, 1.0),
            )
        )
        .with_panel(
            graph(
                "Merged reads",
                "Reads with more than one event, per second: their inner gaps are unobserved. "
                "Many of them "
                "say that the sidecar or the machine lags.",
                [Query(f"sum by (arm) (rate(breakeven_merged_reads_total{ARM}{RATE}))", "{{arm}}")],
                span=6,
            )
        )
        .with_panel(
            graph(
                "Proxy overhead",
                "Time that the sidecar adds to a request, p50 and p99, and its event loop's lag.",
                [
                    Query(
                        f"histogram_quantile(0.{q}, sum by (le) "
                        f"(rate(breakeven_overhead_seconds_bucket{JOB}{RATE}))) >= 0",
                        f"overhead p{q}",
                    )
                    for q in ("50", "99")
                ],
                unit="s",
                span=6,
            )
        )
        .with_panel(
            graph(
                "Telemetry errors",
                "Things the sidecar could not measure, and label values it folded into `other`. "
                "Streams go "
                "on; the numbers have a hole.",
                [
                    Query(
                        f"sum (rate(breakeven_telemetry_errors_total{JOB}{RATE}))",
                        "telemetry errors",
                    ),
                    Query(
                        f"sum (rate(breakeven_label_overflow_total{JOB}{RATE}))", "label overflow"
                    ),
                ],
                span=6,
            )
        )
    )


def build() -> dash.Dashboard:
    """The dashboard."""
    made = board(
        "Breakeven: on call",
        "breakeven-on-call",
        "What fires, how fast the budget burns, where users wait, which arm serves.",
        ["job", "arm", "cohort"],
    )
    return instrument(arms(users(firing(made))))
