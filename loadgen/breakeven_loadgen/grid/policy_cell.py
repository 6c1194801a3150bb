"""The policy cell: does the gateway switch once per crossing, late by how much, and lose nothing?

Drives the offered rate up and down across the thresholds of a running gateway (policy
`load_aware`) and compares what it did, read from its /status, with what the rate asked for. Here:
the run and its report. Not here: the profile of rates (policy_profile), the gateway
(policy_gateway), sending (replay), the policy itself (the proxy). The result says nothing of
break-even: whether the thresholds are right is the grid's business.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pyarrow.parquet as pq

from breakeven.exitcodes import ExitCode

from ..config import ReplayConfig
from ..judge.dataset import POLICY_REPORT
from ..replay.columns import Columns
from ..replay.results import RunResult, write_json
from ..replay.run import replay
from .policy_figures import Switch, Waits, crossings, lateness, running_at, waits, wrong_mode_s
from .policy_gateway import Watcher, look, quiet, settle
from .policy_profile import PolicyCell, Rules, check_profile, levels_of, write_profile

TRACE = "profile.jsonl"
START_AFTER_S = 0.5
HELD = frozenset({"good", "slow_ttft", "slow_gap", "slow_tpot", "slow_e2e", "unmeasured"})
"""Verdicts of requests that were answered; every other one failed, dropped and rejected as well."""
LOAD_REASONS = frozenset({"load_below", "load_above"})


@dataclass(frozen=True, slots=True)
class PolicyReport:
    """What the cell found.

    Attributes:
        expected_switches: crossings of the profile, the first included if it began wrong.
        wrong_mode_s: time on the arm that the offered rate did not ask for.
        late_s: per switch for load, seconds after the crossing that called for it.
        failed: requests by the verdict that says why.
        during: requests that were running at a switch; otherwise: all others.
        low_rps, high_rps: what was offered; enter_below_rps, leave_above_rps: the gateway's
            thresholds; all in req/s in total.
    """

    passed: bool
    why_not: tuple[str, ...]
    switches: int
    expected_switches: int
    by_reason: Mapping[str, int]
    wrong_mode_s: float
    wrong_mode_share: float
    late_s: tuple[float, ...]
    offered: int
    failed: Mapping[str, int]
    during: Waits
    otherwise: Waits
    duration_s: float
    low_rps: float
    high_rps: float
    enter_below_rps: float
    leave_above_rps: float
    evidence: str
    labels: Mapping[str, str] = field(default_factory=dict)


# --- the run ----------------------------------------------------------------------------------


def check(admin: str, cell: PolicyCell) -> Rules:
    """The gateway's rules, if the profile can judge a gateway that goes by them.

    Raises:
        InputError: the gateway has another policy, or the profile cannot tell (`check_profile`).
        NotReadyError: no gateway answers.
    """
    rules = Rules.of(look(admin))
    check_profile(cell, rules)
    return rules


def run_policy_cell(cell: PolicyCell, *, say: Callable[[str], None] = quiet) -> PolicyReport | None:
    """Run the cell and write its report into `out` beside the replay's own files.

    Returns:
        What it found; None if somebody interrupted it: then nothing is reported.

    Raises:
        InputError: the gateway has another policy, or the profile cannot judge this one.
        NotReadyError: gateway or engines are not ready, or the gateway does not settle.
    """
    rules = check(cell.admin, cell)
    out = Path(cell.out)
    profile = out.with_name(out.name + "-" + TRACE)
    profile.parent.mkdir(parents=True, exist_ok=True)
    write_profile(cell, profile)
    watcher = Watcher(cell.admin, rules.arm)
    began = {"unix": 0.0, "serving": 0.0}

    async def start() -> float:
        row = look(cell.admin)["candidates"][rules.arm]
        began["serving"] = float(row["state"] == "serving")
        began["unix"] = time.time() + START_AFTER_S
        return time.monotonic() + START_AFTER_S

    config = ReplayConfig(
        trace=str(profile),
        url=cell.url,
        model=cell.model,
        out=cell.out,
        seed=cell.seed,
        timeout=cell.timeout_s,
        force=cell.force,
        api_key_env=cell.api_key_env,
        arm="gateway",
    )
    settle(cell.admin, rules, say=say)
    with watcher.watching():
        result = replay(config, start=start)
    if result.exit_code is ExitCode.INTERRUPTED:
        return None
    # What the gateway says of the moment itself, not of the look before it.
    serving = watcher.serving_at(began["unix"])
    report = _report(
        cell, rules, result, watcher.switches(began["unix"]),
        bool(began["serving"]) if serving is None else serving,
    )  # fmt: skip
    write_json(out / POLICY_REPORT, asdict(report))
    return report


def _report(
    cell: PolicyCell, rules: Rules, result: RunResult, switches: list[Switch], serving: bool
) -> PolicyReport:  # fmt: skip
    levels, break_even_rps = levels_of(cell), rules.break_even_rps
    end_s = levels[-1].end_s
    crossed = crossings(levels, break_even_rps, serving)
    table = pq.read_table(result.requests)
    columns = Columns(table)
    verdicts = columns.words("verdict")
    failed = {v: verdicts.count(v) for v in sorted({str(v) for v in verdicts} - HELD)}
    within = [s for s in switches if s.at_s <= end_s]
    reasons = [s.reason for s in within]
    wrong = wrong_mode_s(levels, end_s, break_even_rps, serving, within)
    busy = running_at(columns, [s.at_s for s in within])
    why_not = []
    if failed:
        why_not.append(f"{sum(failed.values())} requests failed")
    if len(within) != len(crossed):
        why_not.append(f"{len(within)} switches where the profile crosses {len(crossed)} times")
    if set(reasons) - LOAD_REASONS:
        why_not.append(f"other reasons than load: {sorted(set(reasons) - LOAD_REASONS)}")
    return PolicyReport(
        passed=not why_not,
        why_not=tuple(why_not),
        switches=len(within),
        expected_switches=len(crossed),
        by_reason={reason: reasons.count(reason) for reason in sorted(set(reasons))},
        wrong_mode_s=wrong,
        wrong_mode_share=wrong / end_s,
        late_s=tuple(lateness(crossed, within, break_even_rps)),
        offered=len(columns),
        failed=failed,
        during=waits(columns.where(busy)),
        otherwise=waits(columns.where(~busy)),
        duration_s=end_s,
        low_rps=cell.low_rps,
        high_rps=cell.high_rps,
        enter_below_rps=rules.enter_rps,
        leave_above_rps=rules.leave_rps,
        evidence=str(result.summary["evidence"]),
        labels=dict(result.summary["labels"]),
    )
