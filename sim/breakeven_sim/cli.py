"""Command line of `breakeven-sim`. The only place that reads arguments, prints and exits."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import click

from .defaults import (
    BATCHES,
    CONTEXT_TOKENS,
    DEFAULT_MAX_MODEL_LEN,
    DEFAULT_MODEL,
    MAX_NUM_BATCHED_TOKENS,
    MAX_NUM_SEQS,
    OUTPUT_MEDIAN,
    PROMPT_CLIP,
    PROMPT_MEDIAN,
    PROMPT_SIGMA,
    USD_PER_HOUR,
)
from .drafts import DRAFT_NAMES, k_rows
from .errors import SimError, SimInputError
from .faults import KINDS, parse_fault
from .flags import FiniteRange, config_option, longer, seed_type
from .flags import duration as duration_flag
from .model import ENGINES
from .options import Options, SpecMetrics
from .wire import VERSION

# The commands import what they run (aiohttp, numpy, rich) when they run.
EXIT_ERROR, EXIT_USAGE = 1, 2


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="breakeven-sim (simulated vLLM)")
def cli() -> None:
    """A simulated vLLM engine. Everything it prints and exports is simulated, never evidence.

    Exit codes: 0 ok, 1 error, 2 bad flag or input.
    """


def _address(value: str) -> tuple[str, int]:
    host, _, port = value.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise SimInputError(f"--listen {value!r}: write HOST:PORT, e.g. 127.0.0.1:0")
    return host.strip("[]"), int(port)


@cli.command("serve", epilog="Example: breakeven-sim serve --listen 127.0.0.1:0 --preset 8b-h100 "
             "--draft ngram --k 5")  # fmt: skip
@config_option
@click.option("--listen", default="127.0.0.1:8000", show_default=True, help="HOST:PORT; 0: any.")
@click.option("--preset", default="8b-h100", show_default=True, help=", ".join(ENGINES))
@click.option("--draft", default="none", show_default=True,
              help=f"{', '.join(DRAFT_NAMES)}, or FILE.json.")  # fmt: skip
@click.option("--k", type=int, default=None, help="Drafted tokens per step.")
@click.option("--k-by-batch", default=None, help="LOW-HIGH:K rows by number of decodes.")
@click.option("--model", default=DEFAULT_MODEL, show_default=True, help="Name it is served under.")
@click.option("--seed", type=seed_type, default=0, show_default=True)
@click.option("--time-scale", type=FiniteRange(min=0, min_open=True), default=1.0,
              show_default=True, help="Model seconds per real second.")  # fmt: skip
@click.option("--max-model-len", type=click.IntRange(min=16), default=DEFAULT_MAX_MODEL_LEN,
              show_default=True)  # fmt: skip
@click.option("--max-num-seqs", type=click.IntRange(min=1), default=MAX_NUM_SEQS, show_default=True)
@click.option("--max-num-batched-tokens", type=click.IntRange(min=1),
              default=MAX_NUM_BATCHED_TOKENS, show_default=True)  # fmt: skip
@click.option("--kv-tokens", type=click.IntRange(min=64), default=None,
              help="KV cache size in tokens instead of the preset's.")  # fmt: skip
@click.option("--enable-prefix-caching/--no-enable-prefix-caching", default=True, show_default=True)
@click.option("--max-num-queued-reqs", type=click.IntRange(min=1), default=None,
              help="Requests in flight; more are answered 503.")  # fmt: skip
@click.option("--max-num-queued-tokens", type=click.IntRange(min=1), default=None,
              help="Prompt tokens in prefill; 503 above.")  # fmt: skip
@click.option("--sse-keep-alive-interval", type=longer, metavar="DURATION",
              default=None, help="Seconds between comments on idle streams.")  # fmt: skip
@click.option("--enable-force-include-usage", is_flag=True, help="As vLLM: usage in every event.")
@click.option("--per-request-spec-decode-metrics", default="none", show_default=True,
              type=click.Choice(["none", "summary", "detailed"]))  # fmt: skip
@click.option("--enable-per-request-metrics", is_flag=True, help="As vLLM: times in the response.")
@click.option("--enable-request-id-headers", is_flag=True, help="As vLLM: x-request-id.")
@click.option("--enable-auto-tool-choice", is_flag=True,
              help="As vLLM with a --tool-call-parser: answer tools with a call.")  # fmt: skip
@click.option("--exit-with-parent", is_flag=True, help="Stop when the parent process is gone.")
@click.option("--fault", "faults", multiple=True, metavar="KIND[:KEY=VALUE,…]",
              help=f"Repeatable. Kinds: {', '.join(KINDS)}.")  # fmt: skip
def serve_command(
    listen: str,
    preset: str,
    draft: str,
    k: int | None,
    k_by_batch: str | None,
    model: str,
    seed: int,
    time_scale: float,
    max_model_len: int,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    kv_tokens: int | None,
    enable_prefix_caching: bool,
    max_num_queued_reqs: int | None,
    max_num_queued_tokens: int | None,
    sse_keep_alive_interval: float | None,
    enable_force_include_usage: bool,
    per_request_spec_decode_metrics: SpecMetrics,
    enable_per_request_metrics: bool,
    enable_request_id_headers: bool,
    enable_auto_tool_choice: bool,
    exit_with_parent: bool,
    faults: tuple[str, ...],
) -> None:
    """Serve the simulated engine over HTTP until SIGTERM."""
    import uvloop

    from .config import ServeConfig, engine_config
    from .serve import serve

    host, port = _address(listen)
    engine = engine_config(
        preset,
        draft,
        k,
        seed=seed,
        k_by_batch=k_rows(k_by_batch) if k_by_batch else (),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        prefix_caching=enable_prefix_caching,
        kv_tokens=kv_tokens,
    )
    config = ServeConfig(
        engine=engine,
        host=host,
        port=port,
        draft=draft,
        model=model,
        max_model_len=max_model_len,
        time_scale=time_scale,
        options=Options(
            enable_force_include_usage,
            per_request_spec_decode_metrics,
            enable_per_request_metrics,
            enable_request_id_headers,
            enable_auto_tool_choice,
        ),
        max_num_queued_reqs=max_num_queued_reqs,
        max_num_queued_tokens=max_num_queued_tokens,
        sse_keep_alive_interval_s=sse_keep_alive_interval,
        faults=tuple(parse_fault(fault) for fault in faults),
    )
    try:
        uvloop.run(serve(config, click.echo, _complain, exit_with_parent=exit_with_parent))
    except OSError as error:
        raise SimInputError(f"--listen {listen}: {error.strerror}; choose another port") from None


def _complain(line: str) -> None:
    click.echo(f"breakeven-sim: {line}", err=True)


def _numbers(option: str, value: str) -> list[float]:
    numbers = []
    for part in value.split(","):
        try:
            number = float(part)
        except ValueError:
            number = math.nan
        if not 0 < number < math.inf:
            raise SimInputError(f"{option} {part!r}: give positive numbers, e.g. {option} 2,28")
        numbers.append(number)
    return numbers


def _whole(option: str, number: float) -> int:
    if number != int(number):
        raise SimInputError(f"{option} {number:g}: give whole numbers, e.g. {option} 1,8")
    return int(number)


STATIC_ARMS = {
    "8B": ("eagle3:3", "eagle3:7", "draft-1b:5", "ngram:5", "ngram-code:5"),
    "70B": ("eagle3:3", "draft-1b:5", "ngram:5"),
}
OPEN_ARMS = ("none", "eagle3:3", "eagle3:7", "draft-1b:5", "ngram-open:5")
TRACE_ARMS = ("none", "ngram:5")


@cli.command("sweep", epilog="Example: breakeven-sim sweep --trace FILE.csv --rates 2,28")
@config_option
@click.option("--preset", default="8b-h100", show_default=True, help=", ".join(ENGINES))
@click.option("--arm", "arms", multiple=True,
              help="DRAFT:K or DRAFT@LOW-HIGH:K,…; repeatable; none is the baseline.")  # fmt: skip
@click.option("--batches", default=",".join(map(str, BATCHES)), show_default=True)
@click.option("--context", type=click.IntRange(min=1), default=CONTEXT_TOKENS, show_default=True,
              help="Cached tokens per sequence of the static table.")  # fmt: skip
@click.option("--rates", default=None, help="Requests per second, comma separated: open loop.")
@click.option("--trace", type=click.Path(path_type=Path), default=None,
              help="CSV or JSONL trace instead of Poisson arrivals.")  # fmt: skip
@click.option("--requests", type=click.IntRange(min=2), default=None,
              help="The first N arrivals of the trace only, before it is scaled.")  # fmt: skip
@click.option("--duration", type=longer, metavar="DURATION", default=None,
              help="Seconds of arrivals (default 240; a trace: its whole length).")  # fmt: skip
@click.option("--warmup", type=duration_flag, default=None,
              help="Seconds not counted (default 60; a trace: 0).")  # fmt: skip
@click.option("--prompt-median", type=FiniteRange(min=1), default=PROMPT_MEDIAN,
              show_default=True, help="Tokens, log-normal (no trace).")  # fmt: skip
@click.option("--prompt-sigma", type=FiniteRange(min=0), default=PROMPT_SIGMA,
              show_default=True)  # fmt: skip
@click.option("--prompt-max", type=click.IntRange(min=8), default=PROMPT_CLIP[1], show_default=True)
@click.option("--output-median", type=FiniteRange(min=1), default=OUTPUT_MEDIAN,
              show_default=True, help="Tokens, log-normal (no trace).")  # fmt: skip
@click.option("--drain", type=duration_flag, default=120.0, show_default=True)
@click.option("--slo-ttft", type=duration_flag, default=0.5, show_default=True, help="Seconds.")
@click.option("--slo-tpot", type=duration_flag, default=0.03, show_default=True, help="Seconds.")
@click.option("--usd-per-hour", type=FiniteRange(min=0), default=USD_PER_HOUR, show_default=True)
@click.option("--seed", type=seed_type, default=0, show_default=True)
@click.option("--json", "json_out", is_flag=True, help="One JSON object instead of tables.")
def sweep_command(
    preset: str,
    arms: tuple[str, ...],
    batches: str,
    context: int,
    rates: str | None,
    trace: Path | None,
    requests: int | None,
    duration: float | None,
    warmup: float | None,
    prompt_median: float,
    prompt_sigma: float,
    prompt_max: int,
    output_median: float,
    drain: float,
    slo_ttft: float,
    slo_tpot: float,
    usd_per_hour: float,
    seed: int,
    json_out: bool,
) -> None:
    """Print the model's tables, offline: static batches, and open-loop rates."""
    from .config import engine_config
    from .sweep import Window, arm_named, linear_fit, play, static_row, with_margins
    from .tables import as_json, as_text
    from .workload import Lengths, at_rate, poisson, read_trace

    engine = engine_config(preset).engine
    sizes = [_whole("--batches", b) for b in _numbers("--batches", batches)]
    static = [arm_named(a, preset, seed) for a in arms or STATIC_ARMS[engine.size]]
    fixed = [static_row(arm, sizes, context) for arm in static if "@" not in arm.name]
    rows = []
    played = arms or (TRACE_ARMS if trace else OPEN_ARMS)
    recorded = read_trace(trace)[:requests] if trace else None
    for rate in _numbers("--rates", rates) if rates else []:
        length = duration or 240.0
        if recorded is None:
            clip = (PROMPT_CLIP[0], prompt_max)
            lengths = Lengths(prompt_median, prompt_sigma, clip, output_median)
            arrivals = poisson(rate, length, seed, lengths)
        else:
            arrivals = at_rate(recorded, rate)
            length = min(duration or math.inf, arrivals[-1].t_s + 1 / rate)
            arrivals = [a for a in arrivals if a.t_s < length]
        skipped = (0.0 if trace else min(60.0, length / 4)) if warmup is None else warmup
        window = Window(skipped, length, drain, slo_ttft, slo_tpot, usd_per_hour)
        rows += [play(arm_named(a, preset, seed), arrivals, rate, window) for a in played]
    print_as = as_json if json_out else as_text
    click.echo(print_as(preset, linear_fit(engine), sizes, fixed, with_margins(rows)))


def main() -> None:
    """Entry point."""
    try:
        cli.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(EXIT_USAGE)
    except click.Abort:
        sys.exit(130)
    except SimInputError as error:
        click.echo(f"breakeven-sim: {error}", err=True)
        sys.exit(EXIT_USAGE)
    except SimError as error:
        click.echo(f"breakeven-sim: {error}", err=True)
        sys.exit(EXIT_ERROR)
