"""`loadgen replay`: the flags, and what is printed at the end."""

from __future__ import annotations

import sys
from typing import Any

import click
import orjson

from breakeven.exitcodes import ExitCode

from ..config import ReplayConfig
from ..replay.run import replay
from ..report.progress import progress_for
from .options import merged


@click.command(
    "replay",
    epilog="\b\nExample:\n  loadgen replay azure.csv --rate 8 --duration 60s "
    "--url http://127.0.0.1:8000 --out out/run1\n  loadgen replay synthetic:in=512,out=128 "
    "--rate 20 --requests 400 --url … --out …",
)
@click.argument("trace", required=False, default="")
@click.option("--url", help="Target, with or without /v1.")
@click.option("--model", help="Served model; the only one when not given.")
@click.option("--out", help="Result folder; must be empty unless --force.")
@click.option("--config", metavar="FILE", help="YAML whose keys are the long options.")
@click.option("--rate", type=float, help="Mean arrivals per second; a trace keeps its shape.")
@click.option("--arrival", metavar="KIND", help="trace | constant | poisson | gamma:CV.")
@click.option("--duration", metavar="TIME", help="Measured window, e.g. 60s; warm-up comes before.")
@click.option("--requests", type=int, help="Arrivals in all, warm-up included.")
@click.option("--warmup", metavar="TIME", help="Left out of statistics, kept in cost.")
@click.option("--window", metavar="START:END", help="Part of the trace, in its own seconds.")
@click.option("--skip", type=int, help="Arrivals of the trace to pass over.")
@click.option("--gap-cap", metavar="TIME", help="Longest gap kept, before rescaling.")
@click.option("--skip-empty", is_flag=True, help="Leave out rows with 0 output tokens.")
@click.option("--time-unit", type=click.Choice(["s", "ms"]), help="Of JSONL timestamps.")
@click.option("--block-size", type=int, help="Tokens per hash block of the trace (512).")
@click.option("--cancel-share", type=float, help="Share of arrivals that the run cancels.")
@click.option("--seed", type=int, help="Seed of arrivals, prompts and cancellations.")
@click.option("--endpoint", type=click.Choice(["chat", "completions"]))
@click.option("--content", metavar="POOL.jsonl", help="Your prompts; they stay on your disk.")
@click.option("--content-label", type=click.Choice(["real", "public-proxy"]))
@click.option("--reuse-content", is_flag=True, help="Allow a prompt more than once.")
@click.option(
    "--output-length",
    type=click.Choice(["forced", "capped"]),
    help="forced: exactly the trace's tokens (default without --content); capped: at most.",
)
@click.option("--sampling", type=click.Choice(["greedy", "sampled"]), help="For every arrival.")
@click.option("--token-ids", metavar="LOW:HIGH", help="Range of synthetic token ids.")
@click.option("--max-inflight", type=int, help="At this bound an arrival is dropped (1024).")
@click.option("--timeout", metavar="TIME", help="Longest time of one request (600s).")
@click.option("--header", multiple=True, metavar="'NAME: VALUE'", help="Extra request header.")
@click.option("--api-key-env", metavar="NAME", help="Environment variable with the API key.")
@click.option("--stamps", type=click.Choice(["kernel", "loop"]), help="Receive time stamps.")
@click.option("--epsilon", metavar="TIME", help="Gaps below are inside a burst (2ms).")
@click.option("--goodput", metavar="SLO", help="ttft:500ms,gap_p99:100ms,tpot:30ms,e2e:20s.")
@click.option("--min-goodput", type=float, metavar="PCT", help="Exit 5 below this share.")
@click.option(
    "--abort-below",
    type=float,
    metavar="PCT",
    help="Stop (exit 5) when fewer of the due arrivals can be sent.",
)
@click.option("--usd-per-hour", type=float, help="Fleet price, for cost per good response.")
@click.option("--acceptance", type=click.Choice(["measured", "synthetic"]))
@click.option("--metrics-url", multiple=True, metavar="URL", help="Engine /metrics; repeatable.")
@click.option("--proxy-metrics-url", metavar="URL", help="Page of a breakeven-proxy, to compare.")
@click.option("--metrics-listen", metavar="HOST:PORT", help="Own /metrics while running.")
@click.option("--workers", type=int, help="Processes that share the schedule.")
@click.option("--shard", metavar="i/n", help="Offer part i of n, with --start-at.")
@click.option("--start-at", type=float, metavar="EPOCH", help="Unix time of the common start.")
@click.option("--arm", help="Label of the rows.")
@click.option("--block", type=int, help="Label of the rows; also chooses the prompts drawn.")
@click.option("--force", is_flag=True, help="Overwrite the results in --out.")
@click.option("--json", "as_json", is_flag=True, help="Print summary.json instead of tables.")
@click.pass_context
def replay_command(context: click.Context, /, as_json: bool, **values: Any) -> ExitCode:
    """Replay TRACE against a target, open-loop.

    TRACE is a file (Azure, BurstGPT or relative-seconds CSV, Mooncake or timed_trace JSONL, a
    redacted trace), - for stdin, or synthetic:in=N,out=N.
    """
    config = merged(context, values, ReplayConfig)
    with progress_for(sys.stderr) as progress:
        result = replay(config, progress=progress)
    if as_json:
        click.echo(orjson.dumps(result.summary, option=orjson.OPT_INDENT_2))
    else:
        from ..report.tables import print_summary  # here: only a run's end prints tables

        print_summary(result)
    return result.exit_code
