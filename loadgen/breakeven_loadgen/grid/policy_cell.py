"""The policy cell: does the gateway switch once per crossing, late by how much, and lose nothing?

Drives the offered rate up and down across the thresholds of a running gateway (policy
`load_aware`) and compares what it did, read from its /status, with what the rate asked for. Here:
the profile of rates, the watcher and the report. Not here: sending (replay), the policy itself
(the proxy). The result says nothing of break-even: whether the thresholds are right is the grid's
business.
"""

from __future__ import annotations

import contextlib
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow.parquet as pq

from breakeven.errors import InputError, NotReadyError
from breakeven.trace import Arrival, Header, arrival_line, header_line

from ..config import ReplayConfig
from ..replay.columns import Columns
from ..replay.results import RunResult, write_json
from ..replay.run import replay
from .policy_figures import (
    Level,
    Switch,
    Waits,
    crossings,
    lateness,
    running_at,
    waits,
    wrong_mode_s,
)

TRACE = "profile.jsonl"
REPORT = "policy_cell.json"
LOOK_EVERY_S = 0.5
"""Between two looks at /status; a transition's own time is exact, it stands in the row."""
START_AFTER_S = 0.5
HELD = frozenset({"good", "slow_ttft", "slow_gap", "slow_tpot", "slow_e2e", "unmeasured"})
"""Verdicts of requests that were answered; every other one failed, dropped and rejected as well."""
LOAD_REASONS = frozenset({"load_below", "load_above"})


@dataclass(frozen=True, slots=True)
class PolicyCell:
    """One run of the cell.

    Attributes:
        url, admin: the gateway's traffic and admin port.
        low_rps, high_rps: offered rates in total, on either side of both thresholds.
        hold_s: seconds at each low level: longer than window + dwell of the policy plus the 30 s
            over which a load is defined, or the gateway cannot follow.
        high_hold_s: the same at each high level; None: as long. A rate far above the thresholds
            shows in fewer than the 30 s.
        cycles: times high → low; the run begins and ends high, as a gateway begins on the
            baseline.
        in_tokens, out_tokens: lengths of every request.
    """

    url: str
    admin: str
    out: str
    low_rps: float
    high_rps: float
    hold_s: float
    high_hold_s: float | None = None
    cycles: int = 2
    in_tokens: int = 64
    out_tokens: int = 32
    model: str | None = None
    seed: int = 0
    timeout_s: float = 120.0
    force: bool = False


@dataclass(frozen=True, slots=True)
class PolicyReport:
    """What the cell found.

    Attributes:
        expected_switches: crossings of the profile, the first included if it began wrong.
        wrong_mode_s: time on the arm that the offered rate did not ask for.
        late_s: per switch for load, seconds after the crossing that called for it.
        failed: requests by the verdict that says why.
        during: requests that were running at a switch; otherwise: all others.
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
    evidence: str
    labels: Mapping[str, str] = field(default_factory=dict)


# --- the profile ------------------------------------------------------------------------------


def levels_of(cell: PolicyCell) -> tuple[Level, ...]:
    """high, low, high, …, low, high."""
    high_s = cell.high_hold_s if cell.high_hold_s is not None else cell.hold_s
    found, start_s = [], 0.0
    for i in range(2 * cell.cycles + 1):
        rps, hold_s = (cell.low_rps, cell.hold_s) if i % 2 else (cell.high_rps, high_s)
        found.append(Level(start_s, rps, hold_s))
        start_s += hold_s
    return tuple(found)


def arrivals_of(cell: PolicyCell) -> list[Arrival]:
    """Poisson arrivals at each level's rate, from one seeded generator.

    One more arrives at 0: a replay counts its times from the first arrival.
    """
    rng = np.random.default_rng(cell.seed)
    found = [Arrival(0.0, cell.in_tokens, cell.out_tokens)]
    for level in levels_of(cell):
        count = int(rng.poisson(level.rps * level.hold_s))
        times = np.sort(rng.uniform(level.start_s, level.end_s, count))
        found += [Arrival(float(t), cell.in_tokens, cell.out_tokens) for t in times]
    return found


def _write_profile(cell: PolicyCell, path: Path) -> None:
    with path.open("wb") as file:
        file.write(header_line(Header()))
        file.writelines(arrival_line(arrival) for arrival in arrivals_of(cell))


# --- the gateway ------------------------------------------------------------------------------


def look(admin: str) -> dict[str, Any]:
    """`routing` of the gateway's /status.

    Raises:
        NotReadyError: it cannot be reached, or is no gateway.
    """
    try:
        with urllib.request.urlopen(f"{admin.rstrip('/')}/status", timeout=5) as response:
            status = orjson.loads(response.read())
        routing: dict[str, Any] = status["routing"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NotReadyError(f"no gateway answers at {admin}/status: {error}") from None
    return routing


class Watcher:
    """Collects the candidate's transitions while the run goes on."""

    def __init__(self, admin: str, arm: str) -> None:
        self._admin = admin
        self._arm = arm
        self._rows: dict[tuple[str, ...], dict[str, str]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.missed = 0

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """From before the first arrival until after the last answer."""
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join()
            self._look()

    def _run(self) -> None:
        while not self._stop.wait(LOOK_EVERY_S):
            self._look()

    def _look(self) -> None:
        try:
            rows = look(self._admin)["transitions"]
        except NotReadyError:
            self.missed += 1
            return
        self._take(rows)

    def _take(self, rows: Sequence[dict[str, str]]) -> None:
        for row in rows:
            if row["arm"] == self._arm:
                self._rows[row["at"], row["from"], row["to"], row["reason"]] = row

    def switches(self, start: float) -> list[Switch]:
        """Changes to or from serving after `start` (Unix seconds), in order."""
        found = []
        for row in sorted(self._rows.values(), key=lambda row: row["at"]):
            was, now = row["from"] == "serving", row["to"] == "serving"
            at_s = datetime.fromisoformat(row["at"]).timestamp() - start
            if was is not now and at_s >= 0:
                found.append(Switch(at_s, now, row["reason"]))
        return found


# --- the run ----------------------------------------------------------------------------------


def run_policy_cell(cell: PolicyCell) -> PolicyReport:
    """Run the cell and write its report into `out` beside the replay's own files.

    Raises:
        InputError: the gateway has another policy, or the rates do not lie around its thresholds.
        NotReadyError: gateway or engines are not ready.
    """
    routing = look(cell.admin)
    arm, break_even_rps = _check(cell, routing)
    out = Path(cell.out)
    profile = out.with_name(out.name + "-" + TRACE)
    profile.parent.mkdir(parents=True, exist_ok=True)
    _write_profile(cell, profile)
    watcher = Watcher(cell.admin, arm)
    began = {"unix": 0.0, "serving": 0.0}

    async def start() -> float:
        began["serving"] = float(look(cell.admin)["candidates"][arm]["state"] == "serving")
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
        arm="gateway",
    )
    with watcher.watching():
        result = replay(config, start=start)
    report = _report(
        cell, result, watcher.switches(began["unix"]), break_even_rps, bool(began["serving"])
    )
    write_json(out / REPORT, asdict(report))
    return report


def _check(cell: PolicyCell, routing: Mapping[str, Any]) -> tuple[str, float]:
    """The candidate, and break-even in total req/s: half-way between the thresholds."""
    if routing.get("policy") != "load_aware" or not routing.get("load_aware"):
        raise InputError(
            "the gateway's policy is not load_aware", key="--admin", value=routing.get("policy"),
            mend="set routing.policy: load_aware",
        )  # fmt: skip
    arm, rules = str(routing["load_aware_arm"]), routing["load_aware"]
    replicas = int(routing["candidates"][arm]["replicas"])
    enter, leave = rules["enter_below"] * replicas, rules["leave_above"] * replicas
    if not cell.low_rps < enter <= leave < cell.high_rps:
        raise InputError(
            f"the rates must lie on either side of the thresholds ({enter:g} and {leave:g} req/s)",
            key="--low/--high", value=f"{cell.low_rps:g}, {cell.high_rps:g}",
            mend="choose low below the first and high above the second",
        )  # fmt: skip
    return arm, (enter + leave) / 2


def _report(
    cell: PolicyCell, result: RunResult, switches: list[Switch], break_even_rps: float,
    serving: bool,
) -> PolicyReport:  # fmt: skip
    levels = levels_of(cell)
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
        evidence=str(result.summary["evidence"]),
        labels=dict(result.summary["labels"]),
    )
