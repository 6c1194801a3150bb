"""A grid's folder on disk, and the same in memory: what the judge reads and the grid writes.

    GRID/
      grid.json        the plan: effective settings and every run in order (`GridRecord`)
      runs/NNN-LOAD-bB-ARM[-aa]/   one replay result folder per run: requests.parquet,
                       engine.parquet, summary.json, provenance.json
      identity.json    {arm: {"model": …, "version": …, "max_model_len": …, "tokenize": digest,
                       "sampling": …}}, null where the engine did not show it
      probes.json      {arm: {feature: {"support": "supported|failed|untested", "detail": …}}}
      quality.json     {arm: {"l0": {…}, "l1": {…}, "guards": {…}}} (judge/quality.py)
      policy/          where a gateway is given: the policy cell's replay, and policy_cell.json,
                       what it found (grid/policy_cell.py)
      restart.json     {arm: {"ready_s": …, "memory_peak_bytes": …, "lost": …, "back_s": …}}
      decision.json, certificate.json, policy.json, report.html   written by decide and report

A run without summary.json has not finished (`grid resume` runs it again). Files other than
grid.json and the runs may be missing: then nothing was shown, and the decision says so.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import orjson
import pyarrow.parquet as pq

from breakeven.costs import Fleet
from breakeven.errors import InputError
from breakeven.load import LoadClasses
from breakeven.provenance import Labels, read_labels
from breakeven.slo import SLO

from ..replay import results
from ..replay.columns import Columns
from ..replay.engine import ENGINE_FILE
from .figures import COLUMNS, Rows

GRID = "grid.json"
VERSION = 1
EXTRAS = ("identity", "probes", "quality", "restart")
POLICY = "policy"
POLICY_REPORT = "policy_cell.json"

Traffic = Literal["main", "warm_cache", "long_context", "cancellation", "restart", "policy"]
"""What a run replays: the trace itself, or one of the cells before promotion."""


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One run of the plan.

    Attributes:
        index: place in the order of execution, from 0.
        cell: name of the run cell (baseline, short_draft, …).
        arm: the arm's name; `repeat` tells the second baseline run of a block (A/A).
        load: low, normal or peak (a name of `rates`); rate: offered req/s in total.
        block: from 0; all arms of a block replay the same trace window.
        position: place inside the block.
        traffic: what is replayed.
        folder: result folder, relative to the grid's.
    """

    index: int
    cell: str
    arm: str
    load: str
    rate: float
    block: int
    position: int
    folder: str
    repeat: bool = False
    traffic: Traffic = "main"


@dataclass(frozen=True, slots=True)
class ArmRecord:
    """One arm: role, how it is reached, what stands there.

    `k` is the depth the user states (the engine's own count wins); `family` names the draft, so
    that depths of one draft form a k-sweep; `separate` marks an arm with other hardware.
    """

    name: str
    role: Literal["baseline", "candidate"]
    fleet: Fleet = field(default_factory=Fleet)
    k: int | None = None
    family: str | None = None
    rejection_sample_method: str | None = None
    separate: bool = False
    how: str = "url"


@dataclass(frozen=True, slots=True)
class ContractRecord:
    """What the user demands. `floors`: cohort or task/lang -> {quality: share of whole answers}.

    `features` names what the service uses (structured_output, tools, …): an unsupported or
    untested one forbids a candidate.
    """

    error_budget: float = 0.01
    max_cost_per_good_usd: float | None = None
    floors: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    features: tuple[str, ...] = ()
    headroom: float = 1.2


@dataclass(frozen=True, slots=True)
class GatewayRecord:
    """Profile of the policy cell: high, low, high, …, high; total req/s, seconds at each level."""

    low_rps: float
    high_rps: float
    hold_s: float
    high_hold_s: float
    cycles: int
    in_tokens: int
    out_tokens: int

    @property
    def seconds(self) -> float:
        """The whole profile."""
        return self.cycles * self.hold_s + (self.cycles + 1) * self.high_hold_s


@dataclass(frozen=True, slots=True)
class GridRecord:
    """The plan as stored in grid.json. Times in seconds, rates in req/s.

    Attributes:
        target: {"model", "note", and what is pinned}.
        blocks: blocks per rate; window_s, warmup_s: of each run.
        contract: None where the user gave none: then nothing can be decided.
        seed: chose windows, prompts and orders.
        gateway: None where no policy cell was asked for.
    """

    target: Mapping[str, str | None]
    arms: tuple[ArmRecord, ...]
    rates: Mapping[str, float]
    blocks: int
    window_s: float
    warmup_s: float
    slo: SLO
    contract: ContractRecord | None
    runs: tuple[PlannedRun, ...]
    epsilon_s: float = 0.002
    seed: int = 0
    cells: tuple[str, ...] = ()
    previous_deployable: bool | None = None
    gateway: GatewayRecord | None = None

    @property
    def baseline(self) -> ArmRecord:
        """The arm that all are compared with."""
        return next(arm for arm in self.arms if arm.role == "baseline")

    @property
    def candidates(self) -> tuple[ArmRecord, ...]:
        """The others."""
        return tuple(arm for arm in self.arms if arm.role == "candidate")

    @property
    def load_classes(self) -> LoadClasses:
        """Classes for proxy and certificate: bounds half-way between the swept rates, per replica.

        With fewer than three rates the missing bounds lie at the highest rate and its half.
        """
        replicas = self.baseline.fleet.replicas
        rates = sorted({rate / replicas for rate in self.rates.values()})
        if len(rates) >= 3:
            return LoadClasses((rates[0] + rates[1]) / 2, (rates[-2] + rates[-1]) / 2)
        if len(rates) == 2:
            return LoadClasses((rates[0] + rates[1]) / 2, rates[1])
        return LoadClasses(rates[0] / 2, rates[0])


@dataclass(frozen=True, slots=True)
class RunData:
    """One finished run.

    Attributes:
        rows: measured rows. labels: engine, content, acceptance.
        gates: the run's own gates as summary.json has them: name -> (passed, reason).
        engine: accounting of each metrics page, as provenance.json has it.
        facts: schedule digest, content digest, engine version, fingerprint, model.
        drained_s: from the run's start to its last response.
        gauges: of engine.parquet, what was sampled: requests_waiting (mean), kv_cache_usage and
            device_memory_used_bytes (highest), each only where it was exposed.
        near_epsilon: share of event gaps within a factor of two of ε.
    """

    plan: PlannedRun
    rows: Rows
    labels: Labels
    gates: Mapping[str, tuple[bool | None, str]]
    engine: tuple[Mapping[str, Any], ...]
    facts: Mapping[str, str | None]
    drained_s: float
    gauges: Mapping[str, float] = field(default_factory=dict)
    near_epsilon: float | None = None


@dataclass(frozen=True, slots=True)
class Grid:
    """Everything that a decision is made from; `policy` is empty until that cell has run."""

    record: GridRecord
    runs: tuple[RunData, ...]
    identity: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    probes: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    quality: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    restart: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    policy: Mapping[str, Any] = field(default_factory=dict)

    def of(
        self, arm: str, load: str, *, repeat: bool = False, traffic: Traffic = "main"
    ) -> dict[int, RunData]:
        """Block -> run of one arm at one load."""
        return {
            run.plan.block: run
            for run in self.runs
            if (run.plan.arm, run.plan.load, run.plan.repeat, run.plan.traffic)
            == (arm, load, repeat, traffic)
        }


# --- writing ----------------------------------------------------------------------------------


def write_record(folder: Path, record: GridRecord) -> None:
    """grid.json."""
    results.write_json(folder / GRID, {"breakeven_grid": VERSION, **asdict(record)})


def write_extra(folder: Path, name: str, value: Mapping[str, Any]) -> None:
    """One of EXTRAS."""
    results.write_json(folder / f"{name}.json", dict(value))


# --- reading ----------------------------------------------------------------------------------


def read_record(folder: Path) -> GridRecord:
    """grid.json of a grid folder.

    Raises:
        InputError: no grid folder, or another version.
    """
    path = folder / GRID
    found = _json(path, "give the --out folder of a loadgen grid run")
    if found.pop("breakeven_grid", None) != VERSION:
        raise InputError(
            "unknown version of a grid folder", file=os.fspath(path),
            mend=f"this release reads version {VERSION}",
        )  # fmt: skip
    try:
        contract, gateway = found.pop("contract"), found.pop("gateway", None)
        return GridRecord(
            slo=SLO(**found.pop("slo")),
            arms=tuple(_arm(arm) for arm in found.pop("arms")),
            runs=tuple(PlannedRun(**run) for run in found.pop("runs")),
            contract=None if contract is None else _contract(contract),
            cells=tuple(found.pop("cells")),
            gateway=None if gateway is None else GatewayRecord(**gateway),
            **found,
        )
    except (TypeError, KeyError, AttributeError) as error:
        raise InputError(
            f"damaged: {error}", file=os.fspath(path), mend="plan the grid again"
        ) from None


def _arm(found: dict[str, Any]) -> ArmRecord:
    return ArmRecord(fleet=Fleet(**found.pop("fleet")), **found)


def _contract(found: dict[str, Any]) -> ContractRecord:
    return ContractRecord(features=tuple(found.pop("features", ())), **found)


def read_grid(folder: Path) -> Grid:
    """A whole grid: its plan and every run that has finished.

    Raises:
        InputError: no grid folder, nothing finished in it, or a damaged file.
    """
    record = read_record(folder)
    runs = [run for plan in record.runs if (run := read_run(folder, plan)) is not None]
    if not runs:
        raise InputError(
            "no run of this grid has finished", file=os.fspath(folder), mend="loadgen grid run"
        )
    extras = {name: _extra(folder / f"{name}.json") for name in EXTRAS}
    return Grid(record, tuple(runs), **extras, policy=read_policy(folder))


def read_policy(folder: Path) -> dict[str, Any]:
    """What the policy cell found; empty where it has not finished."""
    return _extra(folder / POLICY / POLICY_REPORT)


def read_run(folder: Path, plan: PlannedRun) -> RunData | None:
    """One run, or None where it has not finished."""
    place = folder / plan.folder
    if not (place / results.SUMMARY).exists():
        return None
    provenance = results.read_record(place)
    if provenance.get("state") != "finished":
        return None
    summary = _json(place / results.SUMMARY, "run the grid again")
    table = results.read_rows(place)
    missing = sorted(set(COLUMNS) - set(table.column_names))
    if missing:
        raise InputError(
            f"{results.REQUESTS} lacks the column {missing[0]}", file=os.fspath(place),
            mend="it was written by another release: run the grid again with this one",
        )  # fmt: skip
    target = provenance.get("target", {})
    gates = {g["name"]: (g["passed"], g["reason"]) for g in summary["gates"]}
    rows = Rows.of(Columns(table, float(provenance.get("epsilon_s", 0.002))))
    prints = {word for word in table["system_fingerprint"].to_pylist() if word}
    return RunData(
        plan=plan,
        rows=rows,
        labels=read_labels(provenance.get("labels", {}), file=os.fspath(place)),
        gates=gates,
        engine=tuple(provenance.get("engine") or ()),
        facts={
            "schedule": provenance.get("schedule", {}).get("whole_digest"),
            "content": _content_digest(table["content_hash"].to_pylist()),
            "engine_version": target.get("version"),
            "model": target.get("model"),
            "system_fingerprint": prints.pop() if len(prints) == 1 else None,
        },
        drained_s=float(provenance.get("drained_s") or 0.0),
        gauges=_gauges(place / ENGINE_FILE),
        near_epsilon=summary.get("epsilon", {}).get("near_share"),
    )


def _gauges(path: Path) -> dict[str, float]:
    """Means and peaks of the sampled gauges; sources (several pages, several devices) add up."""
    if not path.exists():
        return {}
    samples = pq.read_table(path).to_pydict()
    seen: dict[tuple[str, str], list[float]] = {}
    for source, name, value in zip(
        samples["source"], samples["name"], samples["value"], strict=True
    ):
        if name in _GAUGES:
            seen.setdefault((name, source), []).append(value)
    out: dict[str, float] = {}
    for (name, _), values in seen.items():
        part = sum(values) / len(values) if _GAUGES[name] == "mean" else max(values)
        joined = max if name == "kv_cache_usage" else float.__add__
        out[name] = joined(out[name], float(part)) if name in out else float(part)
    return out


_GAUGES = {
    "requests_waiting": "mean",
    "requests_running": "mean",
    "kv_cache_usage": "max",
    "device_memory_used_bytes": "max",
}


def _content_digest(hashes: list[str | None]) -> str | None:
    """One digest of all prompts in order; None where a row has none (never sent)."""
    if not hashes or any(one is None for one in hashes):
        return None
    from hashlib import blake2b

    return blake2b("".join(h or "" for h in hashes).encode(), digest_size=16).hexdigest()


def _extra(path: Path) -> dict[str, Any]:
    return _json(path, "remove it, or run the grid again") if path.exists() else {}


def _json(path: Path, mend: str) -> dict[str, Any]:
    try:
        found = orjson.loads(path.read_bytes())
    except OSError as error:
        raise InputError(
            f"cannot be read: {error.strerror}", file=os.fspath(path), mend=mend
        ) from None
    except json.JSONDecodeError:
        raise InputError("no JSON", file=os.fspath(path), mend=mend) from None
    if not isinstance(found, dict):
        raise InputError("no JSON object", file=os.fspath(path), mend=mend)
    return found
