"""Dashboard "Does the draft pay?": the answer first, then why, then what it costs elsewhere."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as dash

from .panels import AMBER, BLUE, GREEN, RED, Query, board, graph, stat, table, words_panel

ARM = '{job=~"$job", arm=~"$arm"}'
CELL = '{job=~"$job", arm=~"$arm", cohort=~"$cohort"}'
# Not the arm: T belongs to the cohort and load, whichever arm is looked at.
COHORT = '{job=~"$job", cohort=~"$cohort"}'
MARGIN_STEPS = ((None, RED), (0.0, AMBER), (0.05, GREEN))

# Codes of arm:breakeven_decision_row:live, as the recording rule writes them.
DECISIONS = (
    ("1", "canary the measured configuration", GREEN),
    ("2", "cheaper draft or baseline: decode improves, cost per response worsens", AMBER),
    ("3", "limit rollout to the proven load range: pays at low load, loses at peak", AMBER),
    ("4", "keep baseline for the rejecting cohort", AMBER),
    ("5", "fix prefill or queue first: TTFT dominates the misses", AMBER),
    ("6", "keep speculation off: this arm loses", RED),
    ("0", "inconclusive live: ask a loadgen experiment", BLUE),
)
DECISION_TABLE = """\
| observed | decision |
|---|---|
| decode improves, goodput meets the objective | canary the measured configuration |
| acceptance rises, cost per response worsens | cheaper draft, or baseline |
| gain at low load, regression at peak | limit rollout to the proven load range |
| high rejection in one language or task | keep the baseline for that cohort |
| TTFT dominates the misses | fix prefill or queue first |
| unsupported feature, unverified sampler | do not enable (never seen from here: `loadgen decide`) |
| margin below zero | keep speculation off |

Live traffic only *points*: the decision is `loadgen decide` over blocks, with its confidence \
interval and its quality contract."""


def answer(made: dash.Dashboard) -> dash.Dashboard:
    """Row 1: the four numbers of the answer, and the row of the decision table they point at."""
    return (
        made.with_row(dash.Row("The answer"))
        .with_panel(
            stat(
                "Margin per arm",
                "1 − decode seconds per token ÷ the baseline's, at the same cohort and load, "
                "weighted "
                "by tokens. Above 0 the draft pays.",
                [Query(f"arm:breakeven_margin:ratio_rate5m{ARM}", "{{arm}}")],
                unit="percentunit",
                decimals=1,
                steps=MARGIN_STEPS,
            )
        )
        .with_panel(
            stat(
                "Cost per good response",
                "Fleet cost ÷ responses within the SLO; failures are in the numerator. Below "
                "saturation a "
                "fixed fleet's cost does not move even when latency halves.",
                [Query(f"arm:breakeven_cost_usd_per_good_response:ratio_rate5m{ARM}", "{{arm}}")],
                unit="currencyUSD",
                decimals=6,
            )
        )
        .with_panel(
            stat(
                "Goodput",
                "Share of offered requests within the SLO; cancelled and interrupted ones are in "
                "neither "
                "part, everything that failed is in the denominator.",
                [Query(f"arm:breakeven_goodput:ratio_rate5m{ARM}", "{{arm}}")],
                unit="percentunit",
                decimals=2,
                steps=((None, RED), (0.9, AMBER), (0.99, GREEN)),
            )
        )
        .with_panel(
            stat(
                "Saving against the baseline",
                "1 − cost per good response ÷ the live baseline's. Real money only where replicas "
                "are "
                "removed or avoided.",
                [Query(f"arm:breakeven_saving:ratio_rate5m{ARM}", "{{arm}}")],
                unit="percentunit",
                decimals=1,
                steps=MARGIN_STEPS,
            )
        )
        .with_panel(
            table(
                "Decision table: the live row",
                "The first row of the decision table that live traffic fits, per candidate, with "
                "the "
                "numbers that chose it.",
                [
                    ("Points at", Query(f"arm:breakeven_decision_row:live{ARM}"), "none"),
                    ("Margin", Query(f"arm:breakeven_margin:ratio_rate5m{ARM}"), "percentunit"),
                    ("Goodput", Query(f"arm:breakeven_goodput:ratio_rate5m{ARM}"), "percentunit"),
                    ("Saving", Query(f"arm:breakeven_saving:ratio_rate5m{ARM}"), "percentunit"),
                    (
                        "M",
                        Query(f"arm:breakeven_committed_tokens_per_cycle:ratio_rate5m{ARM}"),
                        "short",
                    ),
                    ("C/T", Query(f"arm:breakeven_cycle_inflation:ratio_rate5m{ARM}"), "short"),
                ],
                span=14,
                height=9,
                mappings={"Points at": DECISIONS},
            )
        )
        .with_panel(words_panel("Decision table", DECISION_TABLE, span=10, height=9))
    )


def why(made: dash.Dashboard) -> dash.Dashboard:
    """Row 2: the break-even taken apart."""
    return (
        made.with_row(dash.Row("Why: margin, M and the cycle"))
        .with_panel(
            graph(
                "Margin by load class",
                "The same margin within one load class: a draft often pays at low load and loses "
                "at peak, "
                "where the batch has no spare compute for verification.",
                [Query(f"arm_load:breakeven_margin:ratio_rate5m{ARM}", "{{arm}} at {{load}}")],
                unit="percentunit",
                steps=((None, RED), (0.0, GREEN)),
                soft=(-0.2, 0.6),
            )
        )
        .with_panel(
            graph(
                "Decode seconds per token and T",
                "Solid: the arm's decode seconds per token. Dashed: T, the live baseline's at the "
                "same "
                "cohort and load, or else the certificate's.",
                [
                    Query(
                        f"arm_cohort_load:breakeven_decode_seconds_per_token:ratio_rate5m{CELL}",
                        "{{arm}} {{cohort}} {{load}}",
                    ),
                    Query(
                        f"cohort_load:breakeven_baseline_seconds_per_token:ratio_rate5m{COHORT}",
                        "T {{cohort}} {{load}}",
                    ),
                ],
                unit="s",
                dashed="/^T /",
            )
        )
        .with_panel(
            graph(
                "M, committed tokens per cycle: proxy and engine",
                "block: the response's own speculation block. stream: tokens per event, an "
                "estimate that "
                "merged events push upwards. engine (dashed): (ΔG − ΔF)/ΔS of the engine's "
                "counters. They "
                "must agree; where they do not, trust block, then engine.",
                [
                    Query(
                        f"arm_source:breakeven_committed_tokens_per_cycle:ratio_rate5m{ARM}",
                        "{{arm}} {{source}}",
                    ),
                    Query(
                        f"arm:breakeven_engine_committed_tokens_per_cycle:ratio_rate5m{ARM}",
                        "{{arm}} engine",
                    ),
                ],
                dashed="/engine$/",
                soft=(1.0, 3.0),
            )
        )
        .with_panel(
            graph(
                "C/T beside M: the draft pays where M is above C/T",
                "C = D+V+H, the elapsed critical path of one draft-and-verify cycle, over the "
                "baseline's "
                "step T. Solid: M. Dashed: C/T.",
                [
                    Query(
                        f"arm:breakeven_committed_tokens_per_cycle:ratio_rate5m{ARM}", "M {{arm}}"
                    ),
                    Query(f"arm:breakeven_cycle_inflation:ratio_rate5m{ARM}", "C/T {{arm}}"),
                ],
                dashed="/^C/",
                soft=(0.0, 3.0),
            )
        )
        .with_panel(
            graph(
                "Acceptance (never alone)",
                "Accepted ÷ proposed draft tokens. It can rise while the draft loses: read it "
                "beside M and "
                "C/T, never alone.",
                [
                    Query(
                        f"arm_cohort:breakeven_acceptance:ratio_rate5m{CELL}", "{{arm}} {{cohort}}"
                    )
                ],
                unit="percentunit",
                span=8,
                soft=(0.0, 1.0),
            )
        )
        .with_panel(
            graph(
                "Accepted-prefix distribution",
                "Cycles by how many draft tokens were accepted: share of each length. Much mass "
                "at 0 says "
                "that drafts rarely start; mass at k says that k could be longer.",
                [
                    Query(
                        "(sum by (arm, accepted_length) (rate("
                        f"breakeven_spec_cycles_by_accepted_length_total{CELL}"
                        "[$__rate_interval])) > 0)"
                        " / on (arm) group_left () (sum by (arm) (rate("
                        f"breakeven_spec_cycles_by_accepted_length_total{CELL}"
                        "[$__rate_interval])) > 0)",
                        "{{arm}} {{accepted_length}}",
                    )
                ],
                unit="percentunit",
                span=8,
                stacked=True,
            )
        )
        .with_panel(
            graph(
                "Discarded draft tokens",
                "Draft tokens proposed, verified and thrown away, per second: work that the arm "
                "pays for.",
                [
                    Query(
                        f"arm_cohort:breakeven_discarded_draft_tokens:rate5m{CELL}",
                        "{{arm}} {{cohort}}",
                    )
                ],
                span=8,
            )
        )
    )


def cohorts(made: dash.Dashboard) -> dash.Dashboard:
    """Row 3: one line per cohort and load."""
    cell = [
        ("Margin", f"arm_cohort_load:breakeven_margin:ratio_rate5m{CELL}", "percentunit"),
        ("Goodput", f"arm_cohort_load:breakeven_goodput:ratio_rate5m{CELL}", "percentunit"),
        ("M", f"arm_cohort_load:breakeven_committed_tokens_per_cycle:ratio_rate5m{CELL}", "short"),
        ("C/T", f"arm_cohort_load:breakeven_cycle_inflation:ratio_rate5m{CELL}", "short"),
        ("Cycle", f"arm_cohort_load:breakeven_cycle_seconds:ratio_rate5m{CELL}", "s"),
        (
            "s/token",
            f"arm_cohort_load:breakeven_decode_seconds_per_token:ratio_rate5m{CELL}",
            "s",
        ),
        ("Offered/s", f"arm_cohort_load:breakeven_offered_requests:rate5m{CELL} > 0", "reqps"),
    ]
    return made.with_row(dash.Row("Cohorts")).with_panel(
        table(
            "Cohorts: margin, goodput, M, cycle",
            "One line per arm, cohort and load: a margin below zero in one line is the cohort, or "
            "the load, "
            "to keep on the baseline.",
            [(heading, Query(expr), unit) for heading, expr, unit in cell],
            height=9,
        )
    )


def engine(made: dash.Dashboard) -> dash.Dashboard:
    """Row 4: what the draft takes from the engine."""
    return (
        made.with_row(dash.Row("What it takes from the engine"))
        .with_panel(
            graph(
                "KV cache usage",
                "Share of the engine's KV cache in use. A draft holds KV of its own and lookahead "
                "slots: "
                "the same load fills it earlier.",
                [Query(f"breakeven_engine_kv_cache_usage{ARM}", "{{arm}}")],
                unit="percentunit",
                span=8,
                soft=(0.0, 1.0),
            )
        )
        .with_panel(
            graph(
                "Preemptions",
                "Requests per second that the engine threw out and will compute again.",
                [
                    Query(
                        f"sum by (arm) "
                        f"(rate(breakeven_engine_preemptions_total{ARM}[$__rate_interval]))",
                        "{{arm}}",
                    )
                ],
                span=8,
            )
        )
        .with_panel(
            graph(
                "Memory: KV capacity",
                "Tokens of KV cache that fit beside target and draft: what is left of the device "
                "memory. "
                "The engine's own statement; device memory itself is shown by a device exporter.",
                [Query(f"breakeven_engine_kv_capacity_tokens{ARM}", "{{arm}}")],
                span=8,
            )
        )
    )


def build() -> dash.Dashboard:
    """The dashboard."""
    made = board(
        "Breakeven: does the draft pay?",
        "breakeven-pays",
        "Does speculative decoding pay for itself, at the load the service really gets?",
        ["job", "arm", "cohort"],
    )
    return engine(cohorts(why(answer(made))))
