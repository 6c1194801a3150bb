"""The result folder: provenance.json, requests.parquet, summary.json, and their recovery.

Here: files and their order. Not here: figures (summary), verdicts, pictures (report).
Written in an order that a kill cannot spoil: provenance before the first arrival, the spool while
running, then the Parquet file, the summary, and only then the spool is removed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
from collections.abc import Collection
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa

from breakeven import __version__
from breakeven.errors import InputError
from breakeven.exitcodes import ExitCode
from breakeven.provenance import AcceptanceKind, ContentKind, EngineKind, Labels

from ..config import ReplayConfig
from .spool import SPOOL, disk_error, read_spool

if TYPE_CHECKING:
    from .prepare import Prepared
    from .run import Outcome
    from .target import Target

REQUESTS = "requests.parquet"
SUMMARY = "summary.json"
PROVENANCE = "provenance.json"
OWN_FILES = (REQUESTS, SUMMARY, PROVENANCE, SPOOL, "engine.parquet", "report.html", "requests.csv")
"""Files that a run writes; --force removes those of an earlier run."""
WORKERS = "workers"
"""Folder of the workers' results while they run; joined and removed at the end."""
SECRET_OPTIONS = ("header", "content")
"""Options whose values are not stored: keys of customers, a path that may name one."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a replay leaves.

    Attributes:
        folder: the result folder.
        summary: the content of summary.json.
        exit_code: what the run deserves (0, 4, 5, 6 or 130).
    """

    folder: Path
    summary: dict[str, Any]
    exit_code: ExitCode

    @property
    def failed_gates(self) -> list[str]:
        """Names of the validity gates that failed."""
        return [gate["name"] for gate in self.summary["gates"] if gate["passed"] is False]

    @property
    def requests(self) -> Path:
        """One row per offered arrival."""
        return self.folder / REQUESTS


# --- the record (provenance.json) -----------------------------------------------------------------


def first_record(prepared: Prepared, target: Target, stamps: str) -> dict[str, Any]:
    """What is known before the first arrival."""
    config = prepared.config
    content = config.content_label if config.content else ContentKind.SYNTHETIC.value
    labels = Labels(
        EngineKind.SIMULATED if target.simulated else EngineKind.REAL,
        ContentKind(content),
        AcceptanceKind.SYNTHETIC if target.simulated else AcceptanceKind(config.acceptance),
    )
    plan = prepared.plan
    return {
        "breakeven_provenance": 1,
        "state": "running",
        "tool": f"loadgen {__version__}",
        "python": platform.python_version(),
        "platform": platform.platform(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "labels": labels.as_dict(),
        "evidence": labels.evidence.value,
        "target": {"url": config.url, "model": target.model, "version": target.version},
        "options": _options(config),
        "trace": {
            "name": "stdin" if config.trace == "-" else os.path.basename(config.trace),
            "format": prepared.source.format,
            "arrivals": len(prepared.source.arrivals),
            "skipped_empty": prepared.source.skipped,
        },
        "schedule": {
            "arrivals": len(plan.arrivals),
            "warmup_arrivals": sum(p.warmup for p in plan.arrivals),
            "digest": plan.digest(),
            "last_offset_s": plan.arrivals[-1].offset_s if plan.arrivals else 0.0,
            "whole_arrivals": len(prepared.whole.arrivals),
            "whole_digest": prepared.whole.digest(),
            "shard": [prepared.shard.number, prepared.shard.of],
        },
        "slo": dataclasses.asdict(prepared.slo) if prepared.slo is not None else None,
        "epsilon_s": config.epsilon,
        "stamps": stamps,
        "notes": list(prepared.whole.notes),
    }


def _options(config: ReplayConfig) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for item in fields(config):
        value = getattr(config, item.name)
        if value == item.default:
            continue
        if item.name in SECRET_OPTIONS:
            value = "given"
        found[item.name] = value
    return found


def final_record(record: dict[str, Any], outcome: Outcome) -> dict[str, Any]:
    """The record with what only the end of the run knows."""
    return record | {
        "state": "interrupted" if outcome.interrupted else "finished",
        "ended": datetime.now(UTC).isoformat(timespec="seconds"),
        "drained_s": outcome.drained_s,
        "offered": outcome.offered,
        "start": outcome.start,
        "clients": [dataclasses.asdict(client) for client in outcome.clients],
        "engine": outcome.engine,
        "proxy_tokens": outcome.proxy_tokens,
        "notes": record["notes"] + outcome.notes,
        "aborted": outcome.aborted,
    }


def write_record(folder: Path, record: dict[str, Any]) -> None:
    """provenance.json, replaced as a whole."""
    write_json(folder / PROVENANCE, record)


RECORD_KEYS = frozenset(
    ("state", "labels", "evidence", "target", "options", "schedule", "slo", "epsilon_s", "notes")
)
"""What first_record always writes and the figures need."""
_ASK = "give the --out folder of a loadgen replay"


def read_record(folder: Path) -> dict[str, Any]:
    """provenance.json of a folder.

    Raises:
        InputError: no result folder.
    """
    try:
        record = orjson.loads((folder / PROVENANCE).read_bytes())
    except (OSError, orjson.JSONDecodeError):
        runs = sorted(path.parent.name for path in folder.glob(f"*/{PROVENANCE}"))
        mend = f"give one of the runs in it: {', '.join(runs[:8])}" if runs else _ASK
        raise InputError(f"no readable {PROVENANCE}", file=os.fspath(folder), mend=mend) from None
    if not isinstance(record, dict) or record.get("breakeven_provenance") != 1:
        raise InputError(
            "unknown version of a result folder", file=os.fspath(folder / PROVENANCE),
            value=record.get("breakeven_provenance") if isinstance(record, dict) else None,
            mend="this release reads version 1",
        )  # fmt: skip
    absent = sorted(RECORD_KEYS - record.keys())
    if absent:
        raise InputError(
            f"no record of a run: {absent[0]} is missing", file=os.fspath(folder / PROVENANCE),
            mend=_ASK,
        )  # fmt: skip
    return record


def write_json(path: Path, value: Any) -> None:
    """Write JSON beside the file, then put it in its place."""
    new = path.with_name(f".{path.name}.new")
    try:
        new.write_bytes(
            orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY)
        )
        new.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            new.unlink()
        raise disk_error(error, path) from None


# --- the end of a run -----------------------------------------------------------------------------


def clean(folder: Path, keep: Collection[Path] = ()) -> None:
    """Remove the files of an earlier run (only those that a run writes), its workers' parts too.

    Args:
        keep: parts that belong to the run that begins.
    """
    for name in OWN_FILES:
        with contextlib.suppress(FileNotFoundError):
            (folder / name).unlink()
    workers = folder / WORKERS
    for part in sorted(path for path in workers.glob("*") if path not in keep):
        if part.is_dir():  # left by a killed run: `report` would take its rows for this one's
            clean(part)
            with contextlib.suppress(OSError):
                part.rmdir()
    with contextlib.suppress(OSError):
        workers.rmdir()


def finish(folder: Path, record: dict[str, Any]) -> RunResult:
    """Spool -> requests.parquet, figures and gates -> summary.json, and the spool goes."""
    recovered = read_spool(folder / SPOOL)
    write_requests(folder, recovered.rows)
    write_record(folder, record)
    result = summarise(folder, recovered.rows, record)
    (folder / SPOOL).unlink()
    return result


def summarise(folder: Path, rows: pa.Table, record: dict[str, Any]) -> RunResult:
    """Evaluate rows and record, write summary.json."""
    from .summary import evaluate, exit_code  # here: only the end of a run needs it

    summary = evaluate(rows, record)
    write_json(folder / SUMMARY, summary)
    return RunResult(folder, summary, exit_code(summary))


def write_requests(folder: Path, rows: pa.Table) -> None:
    """requests.parquet, put in place as a whole."""
    import pyarrow.parquet as pq  # here: only the end of a run needs it

    path = folder / REQUESTS
    new = folder / f".{REQUESTS}.new"
    try:
        pq.write_table(rows, new, compression="zstd")
        new.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            new.unlink()
        raise disk_error(error, path) from None


def read_rows(folder: Path) -> pa.Table:
    """requests.parquet.

    Raises:
        InputError: missing or damaged.
    """
    import pyarrow.parquet as pq  # here: only the end of a run needs it

    try:
        return pq.read_table(folder / REQUESTS)
    except (OSError, pa.ArrowInvalid):
        raise InputError(
            f"no readable {REQUESTS}", file=os.fspath(folder), mend="run the replay again"
        ) from None
