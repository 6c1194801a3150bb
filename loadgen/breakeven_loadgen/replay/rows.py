"""The row of one offered arrival: its columns, and tables of them.

Here: the schema of requests.parquet and rows.arrows, and the way from rows to Arrow. Not here:
files (spool, results), verdicts (core slo). No column can hold text of a request or an answer.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import pyarrow as pa

from . import arrow

START, END = "start", "end"
"""Kinds of record in the spool."""


@dataclass(slots=True, kw_only=True)
class Row:
    """One offered arrival. Times are seconds after the run's start, on the monotonic clock;
    durations are differences on the clock of the stamps. None is "unknown", never 0.

    `intended_s` is the schedule's time; `ready_s` the same for a session's follow-up turn whose
    predecessor ended later (else equal): what latencies count from, since nobody can ask a
    follow-up before reading the answer. `ttft_s`, `e2e_s` count from it, `*_sent_s` from the send.
    """

    index: int
    block: int = 0
    arm: str = ""
    cohort: str = "other"
    task: str = "unknown"
    lang: str = "unknown"
    sampling: str = "greedy"
    stream: bool = True
    warmup: bool = False
    turn_of: int | None = None
    asked_prompt_tokens: int = 0
    asked_output_tokens: int = 0
    cancel_after: int | None = None
    intended_s: float = 0.0
    ready_s: float | None = None
    sent_s: float | None = None
    lag_s: float | None = None
    connect_s: float | None = None
    first_s: float | None = None
    last_s: float | None = None
    end_s: float | None = None
    status: int | None = None
    verdict: str | None = None
    error_class: str | None = None
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    ttft_s: float | None = None
    ttft_sent_s: float | None = None
    ttfo_s: float | None = None
    e2e_s: float | None = None
    e2e_sent_s: float | None = None
    tpot_s: float | None = None
    decode_s: float | None = None
    decode_tokens: int | None = None
    events: int | None = None
    bursts: int | None = None
    gap_p99_s: float | None = None
    gap_max_s: float | None = None
    gaps_over: int | None = None
    max_burst_tokens: int | None = None
    merged_reads: int | None = None
    ttft_merged: bool | None = None
    backpressured: bool | None = None
    retried: bool | None = None
    spec_cycles: int | None = None
    spec_drafted: int | None = None
    spec_accepted: int | None = None
    stream_cycles: int | None = None
    block_cycles: int | None = None
    content_hash: str | None = None
    system_fingerprint: str | None = None
    event_offset_s: Sequence[float] | None = field(default=None, repr=False)
    event_tokens: Sequence[int | None] | None = field(default=None, repr=False)


_TYPES: dict[str, pa.DataType] = {
    "int": pa.int64(),
    "float": pa.float64(),
    "str": pa.string(),
    "bool": pa.bool_(),
    "Sequence[float]": pa.list_(pa.float64()),
    "Sequence[int | None]": pa.list_(pa.int32()),
}
_NAMES = tuple(f.name for f in fields(Row))
SCHEMA = pa.schema([(f.name, _TYPES[str(f.type).removesuffix(" | None")]) for f in fields(Row)])
"""Columns of requests.parquet."""
SPOOL_SCHEMA = SCHEMA.insert(0, pa.field("record", pa.string()))
"""Columns of rows.arrows: the same, and the kind of record."""

_values = operator.attrgetter(*_NAMES)


def batch(rows: Sequence[Row], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    """Rows as one Arrow batch of `SCHEMA` (without the record column)."""
    columns = zip(*map(_values, rows), strict=True) if rows else [()] * len(SCHEMA)
    arrays = [arrow.array(column, kind.type) for column, kind in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def spool_batch(records: Sequence[tuple[str, Row]]) -> pa.RecordBatch:
    """(kind, row) records as one Arrow batch of `SPOOL_SCHEMA`."""
    rows = batch([row for _, row in records])
    kinds = arrow.array([kind for kind, _ in records], pa.string())
    return pa.RecordBatch.from_arrays([kinds, *rows.columns], schema=SPOOL_SCHEMA)


def table(rows: Sequence[Row]) -> pa.Table:
    """Rows as a table of `SCHEMA`, in the order of their indexes."""
    return pa.Table.from_batches([batch(sorted(rows, key=operator.attrgetter("index")))], SCHEMA)
