"""Writes an offline grid as a grid folder, so that the tool is run on it as a user would."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from click.testing import CliRunner

from breakeven_loadgen.judge.command import decide_command
from breakeven_loadgen.judge.dataset import Grid, RunData, write_extra, write_record
from breakeven_loadgen.replay.rows import SCHEMA

from .offline import Plan, grid


def write_grid(folder: Path, found: Grid) -> Path:
    """The grid's folder: grid.json, one result folder per run, and the extras that are there."""
    write_record(folder, found.record)
    for name in ("identity", "probes", "quality", "restart"):
        extra: Mapping[str, Any] = getattr(found, name)
        if extra:
            write_extra(folder, name, extra)
    for run in found.runs:
        write_run(folder / run.plan.folder, run)
    return folder


def write_run(place: Path, run: RunData) -> None:
    """One result folder, in the columns and files of `loadgen replay`."""
    place.mkdir(parents=True)
    pq.write_table(_table(run), place / "requests.parquet")
    provenance = {
        "breakeven_provenance": 1,
        "state": "finished",
        "labels": run.labels.as_dict(),
        "evidence": "method_check",
        "options": {},
        "slo": None,
        "notes": [],
        "target": {"model": run.facts["model"], "version": run.facts["engine_version"]},
        "schedule": {"whole_digest": run.facts["schedule"]},
        "engine": [dict(page) for page in run.engine],
        "drained_s": run.drained_s,
        "epsilon_s": 0.002,
    }
    (place / "provenance.json").write_bytes(orjson.dumps(provenance))
    gates = [
        {"name": name, "passed": passed, "reason": reason, "figures": {}}
        for name, (passed, reason) in run.gates.items()
    ]
    (place / "summary.json").write_bytes(orjson.dumps({"gates": gates}))


def _table(run: RunData) -> pa.Table:
    rows, n = run.rows, len(run.rows)
    words = {
        "cohort": rows.cohort,
        "verdict": rows.verdict,
        "finish_reason": rows.finish,
        "sampling": rows.sampling,
        "arm": np.array([run.plan.arm] * n),
        "content_hash": np.array([f"{run.facts['content']}-{i}" for i in range(n)]),
        "system_fingerprint": np.array([run.facts["system_fingerprint"]] * n),
    }
    columns = []
    for field in SCHEMA:
        if field.name in rows.numbers:
            values: list[Any] = [None if np.isnan(v) else v for v in rows[field.name]]
            if pa.types.is_integer(field.type):
                values = [None if v is None else int(v) for v in values]
        elif field.name in words:
            values = [str(word) or None for word in words[field.name]]
        elif field.name in ("stream", "warmup"):
            values = [field.name == "stream"] * n
        elif field.name in ("index", "block"):
            values = list(range(n)) if field.name == "index" else [run.plan.block] * n
        else:
            values = [None] * n
        columns.append(pa.array(values, field.type))
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def decide(folder: Path, plan: Plan, **extras: Any) -> dict[str, Any]:
    """`loadgen decide FOLDER --json` on a plan's grid: the content of decision.json."""
    write_grid(folder, grid(plan, **extras))
    return decide_folder(folder)


def decide_folder(folder: Path) -> dict[str, Any]:
    """`loadgen decide FOLDER --json`."""
    result = CliRunner().invoke(decide_command, [str(folder), "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.output)
    assert found == json.loads((folder / "decision.json").read_text())
    return found


def verdict(found: dict[str, Any], cohort: str, rate: float, traffic: str = "main") -> Any:
    """One line of `verdicts`."""
    return next(
        v
        for v in found["verdicts"]
        if (v["cohort"], v["rate_rps"], v["traffic"]) == (cohort, rate, traffic)
    )


def gate(found: dict[str, Any], arm: str, name: str) -> Any:
    """One validity gate of an arm."""
    return next(g for g in found["gates"][arm] if g["name"] == name)
