"""`loadgen grid policy`: the policy cell from the command line."""

from __future__ import annotations

import sys
from dataclasses import asdict

import click
import orjson

from breakeven.exitcodes import ExitCode
from breakeven.units import parse_duration


@click.command("policy")
@click.option("--url", required=True, help="Traffic port of the gateway.")
@click.option("--admin", required=True, help="Its admin port, e.g. http://127.0.0.1:8101.")
@click.option("--low", type=float, required=True, help="req/s in total, below both thresholds.")
@click.option("--high", type=float, required=True, help="req/s in total, above both.")
@click.option("--hold", required=True, help="Time at the low rate: above window + dwell + 30 s.")
@click.option("--high-hold", help="Time at the high rate, if not --hold.")
@click.option("--cycles", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--out", required=True, help="Result folder.")
@click.option("--in-tokens", type=click.IntRange(min=1), default=64, show_default=True)
@click.option("--out-tokens", type=click.IntRange(min=1), default=32, show_default=True)
@click.option("--model", help="Default: the first that the gateway names.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--force", is_flag=True, help="Overwrite the results in --out.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def policy_command(
    url: str, admin: str, low: float, high: float, hold: str, high_hold: str | None,
    cycles: int, out: str, in_tokens: int, out_tokens: int, model: str | None, seed: int,
    force: bool, as_json: bool,
) -> ExitCode:  # fmt: skip
    """Drive the offered rate across a gateway's thresholds and check what it did.

    Exit 5 unless it switched once per crossing, for load, and no request failed. Waits first until
    the gateway is idle and has seen so. A profile that cannot tell is refused with what would do:
    rates whose noise over 30 s reaches a threshold, or levels too short for the gateway to follow.

    \b
    Example:
      loadgen grid policy --url http://127.0.0.1:8100 --admin http://127.0.0.1:8101 \\
        --low 2 --high 30 --hold 22m --out out/policy
    """
    from .policy_cell import run_policy_cell
    from .policy_profile import PolicyCell

    cell = PolicyCell(
        url=url, admin=admin, out=out, low_rps=low, high_rps=high, hold_s=parse_duration(hold),
        high_hold_s=None if high_hold is None else parse_duration(high_hold),
        cycles=cycles, in_tokens=in_tokens, out_tokens=out_tokens, model=model, seed=seed,
        force=force,
    )  # fmt: skip
    report = run_policy_cell(cell, say=_progress)
    if report is None:
        return ExitCode.INTERRUPTED
    if as_json:
        click.echo(orjson.dumps(asdict(report), option=orjson.OPT_INDENT_2))
    else:
        late = ", ".join(f"{s:.1f}" for s in report.late_s) or "none"
        word = "passed" if report.passed else "NOT passed"
        click.echo(f"policy cell: {word} ({report.evidence})")
        for why in report.why_not:
            click.echo(f"  {why}")
        click.echo(f"switches       {report.switches} of {report.expected_switches} expected")
        click.echo(f"late by        {late} s after each crossing")
        click.echo(
            f"wrong mode     {report.wrong_mode_s:.1f} s of {report.duration_s:.0f} s "
            f"({report.wrong_mode_share:.1%})"
        )
        failed = ", ".join(f"{count} {verdict}" for verdict, count in report.failed.items())
        click.echo(f"failed         {failed or 0} of {report.offered}")
        for name, found in (("at a switch", report.during), ("otherwise", report.otherwise)):
            gap, p99 = _ms(found.gap_max_s), _ms(found.gap_p99_s)
            click.echo(f"gaps {name:<12} n={found.requests}: p99 {p99}, longest {gap}")
    return ExitCode.OK if report.passed else ExitCode.THRESHOLD_MISSED


def _progress(line: str) -> None:
    """Progress is for somebody who watches: only on a terminal."""
    if sys.stderr.isatty():
        click.echo(line, err=True)


def _ms(seconds: float | None) -> str:
    return "unknown" if seconds is None else f"{seconds * 1000:.1f} ms"
