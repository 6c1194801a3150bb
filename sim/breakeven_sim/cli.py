"""Command line of `breakeven-sim`. The only place that reads arguments, prints and exits."""

from __future__ import annotations

import sys

import click
import uvloop

from .answers import Options, SpecMetrics
from .config import DEFAULT_MAX_MODEL_LEN, DEFAULT_MODEL, ServeConfig, engine_config
from .drafts import DRAFT_NAMES
from .engine import MAX_NUM_BATCHED_TOKENS, MAX_NUM_SEQS
from .errors import SimError, SimInputError
from .model import ENGINES
from .serve import serve
from .wire import VERSION

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


def _k_rows(value: str | None) -> tuple[tuple[int, int, int], ...]:
    """`1-8:7,9-32:3,33-:0` to (low, high, k) rows."""
    if not value:
        return ()
    rows = []
    for part in value.split(","):
        try:
            span, k = part.split(":")
            low, high = span.split("-")
            rows.append((int(low), int(high) if high else sys.maxsize, int(k)))
        except ValueError:
            raise SimInputError(
                f"--k-by-batch {part!r}: write LOW-HIGH:K rows, e.g. 1-8:7,9-32:3,33-:0"
            ) from None
    return tuple(rows)


@cli.command("serve", epilog="Example: breakeven-sim serve --listen 127.0.0.1:0 --preset 8b-h100 "
             "--draft ngram --k 5")  # fmt: skip
@click.option("--listen", default="127.0.0.1:8000", show_default=True, help="HOST:PORT; 0: any.")
@click.option("--preset", default="8b-h100", show_default=True, help=", ".join(ENGINES))
@click.option("--draft", default="none", show_default=True,
              help=f"{', '.join(DRAFT_NAMES)}, or FILE.json.")  # fmt: skip
@click.option("--k", type=int, default=None, help="Drafted tokens per step.")
@click.option("--k-by-batch", default=None, help="LOW-HIGH:K rows by number of decodes.")
@click.option("--model", default=DEFAULT_MODEL, show_default=True, help="Name it is served under.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--time-scale", type=click.FloatRange(min=0, min_open=True), default=1.0,
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
@click.option("--sse-keep-alive-interval", type=click.FloatRange(min=0, min_open=True),
              default=None, help="Seconds between comments on idle streams.")  # fmt: skip
@click.option("--enable-force-include-usage", is_flag=True, help="As vLLM: usage in every event.")
@click.option("--per-request-spec-decode-metrics", default="none", show_default=True,
              type=click.Choice(["none", "summary", "detailed"]))  # fmt: skip
@click.option("--enable-per-request-metrics", is_flag=True, help="As vLLM: times in the response.")
@click.option("--enable-request-id-headers", is_flag=True, help="As vLLM: x-request-id.")
@click.option("--exit-with-parent", is_flag=True, help="Stop when the parent process is gone.")
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
    exit_with_parent: bool,
) -> None:
    """Serve the simulated engine over HTTP until SIGTERM."""
    host, port = _address(listen)
    engine = engine_config(
        preset,
        draft,
        k,
        seed=seed,
        k_by_batch=_k_rows(k_by_batch),
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
        ),
        max_num_queued_reqs=max_num_queued_reqs,
        max_num_queued_tokens=max_num_queued_tokens,
        sse_keep_alive_interval_s=sse_keep_alive_interval,
    )
    try:
        uvloop.run(serve(config, click.echo, exit_with_parent=exit_with_parent))
    except OSError as error:
        raise SimInputError(f"--listen {listen}: {error.strerror}; choose another port") from None


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
