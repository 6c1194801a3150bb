"""A result folder back into memory, also one that a killed run left.

Here: which files of a folder count. Not here: reading a torn spool (spool), figures (summary).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from . import merge, results
from .results import WORKERS, RunResult
from .spool import SPOOL, read_spool
from .summary import evaluate, exit_code


def load(folder: Path) -> tuple[pa.Table, dict[str, Any], RunResult]:
    """Rows, record and result of a folder; a killed run is recovered first.

    Recovering writes requests.parquet, provenance.json and summary.json, and only then removes
    the spool: it can be repeated.

    Raises:
        InputError: no result folder. BreakevenError: nothing readable in it.
    """
    if (folder / WORKERS).is_dir() and not (folder / results.SUMMARY).exists():
        merge.merge(folder, sorted(path for path in (folder / WORKERS).iterdir() if path.is_dir()))
    record = results.read_record(folder)
    if (folder / SPOOL).exists() and not (folder / results.SUMMARY).exists():
        _recover(folder, record)
        record = results.read_record(folder)
    rows = results.read_rows(folder)
    summary = evaluate(rows, record)
    return rows, record, RunResult(folder, summary, exit_code(summary))


def _recover(folder: Path, record: dict[str, Any]) -> None:
    recovered = read_spool(folder / SPOOL)
    state = "killed" if record["state"] == "running" else record["state"]
    record = record | {"state": state, "recovered": {"torn": recovered.torn}}
    results.write_requests(folder, recovered.rows)
    results.write_record(folder, record)
    results.summarise(folder, recovered.rows, record)
    (folder / SPOOL).unlink(missing_ok=True)
