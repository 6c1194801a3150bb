"""Parts of one run -> one result: the same arrivals, intended times and bytes as a single run.

Here: joining records, rows and engine samples of shards or workers. Not here: running them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from breakeven.errors import InputError, shown

from . import results
from .engine import ENGINE_FILE, ENGINE_SCHEMA
from .results import RunResult

_WORST_STATE = ("finished", "incomplete", "interrupted", "killed")


def merge(folder: Path, parts: Sequence[Path]) -> RunResult:
    """Join the result folders of all shards into `folder`.

    Raises:
        InputError: parts of different runs or of differently measured ones, or one shard twice.
    """
    from .recover import load  # here: recovering a killed run with workers merges them

    loaded = [load(part) for part in parts]
    records = [record for _, record, _ in loaded]
    _check(parts, records)
    rows = pa.concat_tables([table for table, _, _ in loaded]).sort_by("index")
    record = joined(records)
    results.write_record(folder, record)
    results.write_requests(folder, rows)
    _join_engine(folder, parts)
    return results.summarise(folder, rows, record)


def _check(parts: Sequence[Path], records: Sequence[dict[str, Any]]) -> None:
    seen: dict[int, Path] = {}
    first = records[0]["schedule"]
    for part, record in zip(parts, records, strict=True):
        schedule = record["schedule"]
        number, of = schedule["shard"]
        same = schedule["whole_digest"] == first["whole_digest"] and of == first["shard"][1]
        if not same:
            raise InputError(
                "is a part of another run than the first folder",
                file=os.fspath(part),
                mend="merge shards of one trace, seed and rate",
            )
        other = _difference(records[0], record)
        if other is not None:
            key, mine, theirs = other
            raise InputError(
                f"was measured otherwise than the first folder, which has {shown(theirs)}",
                file=os.fspath(part), key=key, value=mine,
                mend="merge shards of one run: one target, model, arm, SLO and kind of content",
            )  # fmt: skip
        if number in seen:
            raise InputError(
                f"holds shard {number} of {of}, as {seen[number]} does",
                file=os.fspath(part),
                mend="give each shard once",
            )
        seen[number] = part


OF_ONE_MACHINE = frozenset((
    "trace", "out", "url", "header", "api_key_env", "stamps", "metrics_url", "proxy_metrics_url",
    "metrics_listen", "workers", "shard", "start_at", "force",
))  # fmt: skip
"""Options that may differ between the shards of one run: addresses, paths, credentials."""


def _difference(first: dict[str, Any], record: dict[str, Any]) -> tuple[str, object, object] | None:
    """The first thing in which two parts are no one run: (name, this part's, the first's).

    The plan's digest has times and lengths only. Parts of two arms, or of a real and a simulated
    engine, would merge into one result under the first one's labels.
    """
    for key in ("labels", "slo", "epsilon_s"):
        if record[key] != first[key]:
            return key, record[key], first[key]
    for key in ("model", "version"):
        mine, theirs = record["target"].get(key), first["target"].get(key)
        if mine != theirs:
            return f"target.{key}", mine or "none", theirs or "none"
    mine, theirs = record["options"], first["options"]
    for key in sorted((mine.keys() | theirs.keys()) - OF_ONE_MACHINE):
        if mine.get(key) != theirs.get(key):
            return key, mine.get(key, "the default"), theirs.get(key, "the default")
    return None


def joined(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One record of all parts; what is missing is said."""
    first = min(records, key=lambda record: record["schedule"]["shard"][0])
    schedule = first["schedule"]
    of = schedule["shard"][1]
    missing = sorted(set(range(of)) - {record["schedule"]["shard"][0] for record in records})
    states = [record["state"] for record in records] + (["incomplete"] if missing else [])
    known = [record for record in records if record.get("clients")]
    notes = list(dict.fromkeys(note for record in records for note in record["notes"]))
    if missing:
        notes.append(f"shards {', '.join(map(str, missing))} of {of} are missing")
    record = first | {
        "state": max(states, key=_WORST_STATE.index),
        "schedule": schedule
        | {
            "arrivals": schedule["whole_arrivals"],
            "digest": schedule["whole_digest"],
            "warmup_arrivals": sum(r["schedule"]["warmup_arrivals"] for r in records),
            "last_offset_s": max(r["schedule"]["last_offset_s"] for r in records),
            "shard": [0, 1],
        },
        "parts": of,
        "options": {k: v for k, v in first["options"].items() if k not in ("shard", "start_at")},
        "notes": notes,
        "engine": _pages(records),
        "proxy_tokens": max(
            (r["proxy_tokens"] for r in records if r.get("proxy_tokens") is not None), default=None
        ),
        "aborted": next((r["aborted"] for r in records if r.get("aborted")), None),
    }
    if len(known) == len(records):
        record["clients"] = [client for r in records for client in r["clients"]]
        record["offered"] = sum(r["offered"] for r in records)
        record["drained_s"] = max(r["drained_s"] for r in records)
    else:  # a part was killed: the sums of its counters are lost, and with them the gates on them
        for key in ("clients", "offered", "drained_s"):
            record.pop(key, None)
    return record


def _pages(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One delta per page; where several shards sampled the same page, the one that saw most."""
    pages: dict[str, dict[str, Any]] = {}
    for record in records:
        for page in record.get("engine") or ():
            old = pages.get(page["source"])
            if old is None or (page.get("g") or 0) > (old.get("g") or 0):
                pages[page["source"]] = page
    return list(pages.values())


def _join_engine(folder: Path, parts: Sequence[Path]) -> None:
    tables = [pq.read_table(part / ENGINE_FILE) for part in parts if (part / ENGINE_FILE).exists()]
    joined_table = pa.concat_tables(tables) if tables else ENGINE_SCHEMA.empty_table()
    pq.write_table(joined_table.sort_by("t_s"), folder / ENGINE_FILE)
