"""Arrival traces of the field -> core `Trace`; every format is recognised by its column names.

Here: Azure CSV, relative-seconds CSV, BurstGPT CSV (both schemas), Mooncake and vLLM timed_trace
JSONL, our redacted JSONL, and `synthetic:in=N,out=N`. Not here: rescaling (plan), redaction
(freeze). Public formats hold no text; unknown columns are never read into anything.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from breakeven.errors import InputError, TraceError
from breakeven.trace import Arrival, Block, Header, Trace, read_trace

SYNTHETIC = "synthetic:"
MOONCAKE_BLOCK = 512
"""Tokens per hash block of the Mooncake release (and of vLLM's timed_trace by default)."""

_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(?:Z|\+00:00)?\Z")


_NAME = re.compile(r"[A-Za-z0-9_.-]{1,24}\Z")
"""A column's name as a message may show it: one word, never a clause of a sentence."""


@dataclass(frozen=True, slots=True)
class TraceSource:
    """A trace and how it was read.

    Attributes:
        format: name of the recognised format.
        skipped: rows left out on request (zero output tokens).
    """

    trace: Trace
    format: str
    skipped: int = 0

    @property
    def arrivals(self) -> tuple[Arrival, ...]:
        return self.trace.arrivals


@dataclass(frozen=True, slots=True)
class _Columns:
    """One public format: which columns hold what. `time` turns a cell into nanoseconds."""

    name: str
    time_key: str
    in_key: str
    out_key: str
    time: Callable[[Any], int]
    session_key: str | None = None
    task_key: str | None = None
    prefix_key: str | None = None


def _datetime_ns(cell: Any) -> int:
    """Nanoseconds since 1970; the fraction is kept digit by digit (Azure writes seven)."""
    match = _TIMESTAMP.match(str(cell).strip())
    if match is None:
        raise ValueError("no timestamp such as 2023-11-16 18:15:46.6805900")
    day, clock, fraction = match.groups()
    whole = datetime.fromisoformat(f"{day}T{clock}").replace(tzinfo=UTC)
    return int(whole.timestamp()) * 1_000_000_000 + int((fraction or "0").ljust(9, "0"))


def _scaled_ns(scale: float) -> Callable[[Any], int]:
    def convert(cell: Any) -> int:
        value = float(cell)
        if not abs(value) < 1e15:  # also false for NaN
            raise ValueError("not a finite time")
        return round(value * scale)

    return convert


_SECONDS = _scaled_ns(1e9)
_MILLISECONDS = _scaled_ns(1e6)

CSV_FORMATS = (
    _Columns("azure", "TIMESTAMP", "ContextTokens", "GeneratedTokens", _datetime_ns),
    _Columns("relative-seconds", "arrived_at", "num_prefill_tokens", "num_decode_tokens", _SECONDS),
    _Columns(
        "burstgpt",
        "Timestamp",
        "Request tokens",
        "Response tokens",
        _SECONDS,
        session_key="Session ID",
        task_key="Log Type",
    ),
)
JSONL_FORMATS = (
    _Columns(
        "mooncake",
        "timestamp",
        "input_length",
        "output_length",
        _MILLISECONDS,
        session_key="session_id",
        prefix_key="hash_ids",
    ),
)
TASKS = {"conversation log": "chat", "api log": "api"}
"""BurstGPT's log types as our tasks; any other value becomes `other`."""


def load_trace(
    source: str,
    *,
    skip_empty: bool = False,
    time_unit: str | None = None,
    block_size: int | None = None,
) -> TraceSource:
    """Read a trace from a file, `-` (stdin) or `synthetic:in=N,out=N`.

    Args:
        skip_empty: leave out rows with zero output tokens (failed requests in BurstGPT).
        time_unit: `s` or `ms`, for JSONL whose timestamps are not milliseconds.
        block_size: tokens per hash block, when it is not 512.

    Raises:
        TraceError: the place and the mend are named.
        InputError: the file cannot be read.
    """
    if block_size is not None and block_size < 1:
        raise InputError(
            "must be at least 1", key="--block-size", value=block_size, mend="e.g. 512"
        )
    if source.startswith(SYNTHETIC):
        return _synthetic(source)
    name, text = _text(source)
    lines = text.splitlines()
    first = next((line for line in lines if line.strip()), None)
    if first is None:
        raise TraceError("the trace is empty", file=name, mend="give a file with arrivals")
    if not first.lstrip("\ufeff").startswith("{"):
        return _rows_to_trace(name, *_csv_rows(name, lines), skip_empty, block_size)
    if '"breakeven_trace"' in first:
        return TraceSource(read_trace(lines, file=name), "breakeven")
    columns, rows = _jsonl_rows(name, lines)
    if time_unit == "s":
        columns = replace(columns, time=_SECONDS)
    return _rows_to_trace(name, columns, rows, skip_empty, block_size)


def _text(source: str) -> tuple[str, str]:
    name = "stdin" if source == "-" else source
    try:
        data = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
    except OSError as error:
        raise InputError(
            f"the trace cannot be read: {error.strerror}", file=name, mend="check the path"
        ) from None
    try:
        return name, data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise TraceError(
            "invalid UTF-8", file=name, line=line, value=data[error.start : error.start + 1],
            mend="save the file as UTF-8",
        ) from None  # fmt: skip


def _synthetic(source: str) -> TraceSource:
    mend = "write e.g. synthetic:in=512,out=128"
    fields: dict[str, int] = {}
    for part in source.removeprefix(SYNTHETIC).split(","):
        key, _, value = part.partition("=")
        if key not in ("in", "out") or key in fields or not value.isascii() or not value.isdigit():
            raise TraceError("no synthetic trace", file="TRACE", value=source, mend=mend)
        fields[key] = int(value)
    if set(fields) != {"in", "out"} or min(fields.values()) < 1:
        raise TraceError("in and out must be at least 1", file="TRACE", value=source, mend=mend)
    arrival = Arrival(0.0, fields["in"], fields["out"], sampling="greedy")
    return TraceSource(Trace(_header("synthetic", MOONCAKE_BLOCK), (arrival,)), "synthetic")


def _header(source: str, block_size: int) -> Header:
    return Header(Block("tokens", block_size), {"source": source})


# --- rows -----------------------------------------------------------------------------------------

_Row = tuple[int, Mapping[str, Any]]


def _csv_rows(name: str, lines: Sequence[str]) -> tuple[_Columns, Iterable[_Row]]:
    reader = csv.DictReader(lines, strict=True)
    header = [h.strip() for h in (reader.fieldnames or [])]
    for column in header:
        if header.count(column) > 1 and any(column in _keys(c) for c in CSV_FORMATS):
            raise TraceError(
                "a column is given twice", file=name, line=1, key=column, mend="keep one of them"
            )
    reader.fieldnames = header
    columns = _recognise(CSV_FORMATS, set(header))
    if columns is None:
        known = "; ".join(f"{c.time_key}, {c.in_key}, {c.out_key}" for c in CSV_FORMATS)
        raise TraceError(
            "unknown columns", file=name, line=1, value=_named(header), mend=f"known: {known}"
        )
    return columns, ((reader.line_num, row) for row in _safe(reader, name))


def _safe(reader: csv.DictReader[str], name: str) -> Iterable[Mapping[str, Any]]:
    try:
        for row in reader:
            if None in row:  # where DictReader puts cells beyond the header: 1,234 unquoted, say
                raise TraceError(
                    "more cells than columns", file=name, line=reader.line_num,
                    mend="quote cells that hold a comma",
                )  # fmt: skip
            yield row
    except csv.Error as error:
        raise TraceError(
            f"no CSV: {error}", file=name, line=reader.line_num, mend="mend the line"
        ) from None


def _jsonl_rows(name: str, lines: Sequence[str]) -> tuple[_Columns, Iterable[_Row]]:
    def rows() -> Iterable[_Row]:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = orjson.loads(line)
            except orjson.JSONDecodeError:
                raise TraceError("no JSON", file=name, line=number, mend="mend the line") from None
            if not isinstance(row, dict):
                raise TraceError("no JSON object", file=name, line=number, mend="mend the line")
            yield number, row

    first = next(iter(rows()))[1]
    columns = _recognise(JSONL_FORMATS, set(first))
    if columns is None:
        known = "; ".join(f"{c.time_key}, {c.in_key}, {c.out_key}" for c in JSONL_FORMATS)
        raise TraceError(
            "unknown keys", file=name, line=1, value=_named(sorted(first)), mend=f"known: {known}"
        )
    return columns, rows()


def _keys(columns: _Columns) -> tuple[str | None, ...]:
    return (
        columns.time_key, columns.in_key, columns.out_key, columns.session_key, columns.task_key
    )  # fmt: skip


def _named(names: Sequence[str]) -> str | None:
    """The names as a message may show them. None when one is no single word: then this may be no
    header but somebody's text, a file of prompts say, and text is never printed."""
    plain = len(names) > 1 and all(_NAME.match(name) for name in names)
    return ",".join(names) if plain else None


def _recognise(formats: Sequence[_Columns], present: set[str]) -> _Columns | None:
    for columns in formats:
        if {columns.time_key, columns.in_key, columns.out_key} <= present:
            return columns
    return None


def _rows_to_trace(
    name: str, columns: _Columns, rows: Iterable[_Row], skip_empty: bool, block_size: int | None
) -> TraceSource:
    arrivals: list[Arrival] = []
    skipped = 0
    first_ns: int | None = None
    last_ns = 0
    for line, row in rows:
        at_ns = _cell(row, columns.time_key, columns.time, name, line)
        if first_ns is not None and at_ns < last_ns:
            raise TraceError(
                "times decrease", file=name, line=line, key=columns.time_key,
                value=row[columns.time_key], mend="sort the trace by time",
            )  # fmt: skip
        first_ns = at_ns if first_ns is None else first_ns
        last_ns = at_ns
        out_tokens = _cell(row, columns.out_key, _count, name, line)
        if out_tokens == 0 and skip_empty:
            skipped += 1
            continue
        arrivals.append(_arrival(columns, row, (at_ns - first_ns) / 1e9, out_tokens, name, line))
    if not arrivals:
        raise TraceError("the trace holds no arrival", file=name, mend="give a file with arrivals")
    header = _header(columns.name, block_size or MOONCAKE_BLOCK)
    return TraceSource(Trace(header, tuple(arrivals)), columns.name, skipped)


def _arrival(
    columns: _Columns, row: Mapping[str, Any], t: float, out_tokens: int, name: str, line: int
) -> Arrival:
    in_tokens = _cell(row, columns.in_key, _count, name, line)
    if out_tokens < 1 or in_tokens < 1:
        key = columns.out_key if out_tokens < 1 else columns.in_key
        raise TraceError(
            "a request has at least one token", file=name, line=line, key=key, value=row[key],
            mend="leave such rows out (--skip-empty leaves out rows with 0 output tokens)",
        )  # fmt: skip
    session = str(row.get(columns.session_key) or "") if columns.session_key else ""
    task = str(row.get(columns.task_key) or "") if columns.task_key else ""
    prefix = row.get(columns.prefix_key) if columns.prefix_key else None
    return Arrival(
        t=t,
        in_tokens=in_tokens,
        out_tokens=out_tokens,
        task=TASKS.get(task.strip().lower(), "other") if task else "unknown",
        sampling="greedy",  # the public formats do not say; greedy needs no seeds to be repeated
        session=session or None,
        prefix=tuple(str(item) for item in prefix) if isinstance(prefix, list) else None,
    )


def _count(cell: Any) -> int:
    """A whole number of tokens; `12.0` is one, `12.5` is not."""
    value = float(cell)
    if value != int(value) or not 0 <= value <= 1e9:
        raise ValueError("not a whole number of tokens")
    return int(value)


def _cell(
    row: Mapping[str, Any], key: str, convert: Callable[[Any], int], name: str, line: int
) -> int:
    value = row.get(key)
    try:
        if value is None or isinstance(value, bool):
            raise ValueError("the cell is missing")
        return convert(value)
    except (ValueError, TypeError, OverflowError):
        raise TraceError(
            "unusable value", file=name, line=line, key=key, value=value, mend="mend the cell"
        ) from None
