"""Rows and spool: Arrow round trips, torn files, kill -9, a full disk."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from tests.support.target import Call, Target, good, scripted

from breakeven.errors import BreakevenError
from breakeven.exitcodes import ExitCode
from breakeven_loadgen.config import ReplayConfig
from breakeven_loadgen.replay import arrow
from breakeven_loadgen.replay.recover import load
from breakeven_loadgen.replay.results import REQUESTS, SUMMARY, read_record, write_record
from breakeven_loadgen.replay.rows import SCHEMA, Row, table
from breakeven_loadgen.replay.run import replay
from breakeven_loadgen.replay.spool import SPOOL, DiskFullError, Spool, read_spool

KINDS = {
    pa.int64(): st.integers(-(2**62), 2**62),
    pa.float64(): st.floats(allow_nan=False),
    pa.string(): st.text(max_size=8),
    pa.bool_(): st.booleans(),
    pa.list_(pa.float64()): st.lists(st.floats(allow_nan=False), max_size=4),
    pa.list_(pa.int32()): st.lists(st.none() | st.integers(-(2**31), 2**31 - 1), max_size=4),
}


@hypothesis.given(st.data())
def test_arrays_round_trip(data: st.DataObject) -> None:
    """Whatever rows hold, Arrow gives back; None stays null in columns and in lists."""
    kind = data.draw(st.sampled_from(list(KINDS)))
    values = data.draw(st.lists(st.none() | KINDS[kind], max_size=20))
    made = arrow.array(values, kind)
    made.validate(full=True)
    assert made.to_pylist() == values
    cut = made.slice(1) if len(values) else made
    if kind in (pa.int64(), pa.float64()):
        want = [np.nan if v is None else float(v) for v in values[1:]]
        assert np.array_equal(arrow.numbers(cut), np.array(want, float), equal_nan=True)
    if kind == pa.bool_():
        assert arrow.flags(cut).tolist() == [bool(v) for v in values[1:]]
    if pa.types.is_list(kind):
        assert arrow.list_lengths(cut).tolist() == [len(v or ()) for v in values[1:]]


@pytest.mark.parametrize("length", [0, 1, 8, 9, 300])
@pytest.mark.parametrize("kind", list(KINDS), ids=str)
def test_a_column_of_nothing_is_nulls(kind: pa.DataType, length: int) -> None:
    """Most columns of arrivals that only began: valid for Arrow, also sliced and written."""
    made = arrow.array([None] * length, kind)
    made.validate(full=True)
    assert made.to_pylist() == [None] * length
    assert made.slice(length // 2).null_count == length - length // 2
    batch = pa.RecordBatch.from_arrays([made], ["column"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    with pa.ipc.open_stream(sink.getvalue()) as reader:
        assert reader.read_all()["column"].to_pylist() == [None] * length


def ended(index: int) -> Row:
    return Row(index=index, intended_s=index / 10, verdict="good", event_offset_s=(0.1, 0.2),
               event_tokens=(1, None), output_tokens=2)  # fmt: skip


def test_starts_without_an_end_are_interrupted(tmp_path: Path) -> None:
    """Three started, one ended: three rows, two of them interrupted."""
    rows = [Row(index=i, intended_s=i / 10) for i in range(3)]
    with Spool(tmp_path) as spool:
        for row in rows:
            spool.start(row)
        spool.flush()
        rows[1].verdict = "good"
        spool.end(rows[1])
    found = read_spool(tmp_path / SPOOL)
    assert found.rows.schema == SCHEMA
    assert found.rows["verdict"].to_pylist() == ["interrupted", "good", "interrupted"]
    assert found.rows["error_class"].to_pylist() == ["killed", None, "killed"]
    assert (found.interrupted, found.torn) == (2, False)


def test_a_torn_spool_keeps_its_whole_batches(tmp_path: Path) -> None:
    """Cut at any byte after the first batch: what was whole is read, the rest is told as torn."""
    with Spool(tmp_path) as spool:
        for i in range(4):
            spool.end(ended(i))
            spool.flush()
    data = (tmp_path / SPOOL).read_bytes()
    counts = set()
    for cut in range(len(data) // 3, len(data), 97):
        (tmp_path / "cut.arrows").write_bytes(data[:cut])
        try:
            counts.add(read_spool(tmp_path / "cut.arrows").rows.num_rows)
        except BreakevenError:
            counts.add(-1)
    assert {1, 2, 3} <= counts
    assert counts <= {-1, 0, 1, 2, 3, 4}


def test_a_run_killed_before_its_first_flush_has_a_report(tmp_path: Path) -> None:
    """Nothing written yet: no rows, every arrival counted from the schedule, said as partial."""
    with scripted() as target:
        replay(
            ReplayConfig(
                trace="synthetic:in=1,out=1", rate=50, requests=3, url=target.url, out=str(tmp_path)
            )
        )
    for name in (REQUESTS, SUMMARY):
        (tmp_path / name).unlink()
    write_record(tmp_path, read_record(tmp_path) | {"state": "running"})
    (tmp_path / SPOOL).write_bytes(b"")
    rows, record, result = load(tmp_path)
    assert rows.num_rows == 0
    assert record["state"] == "killed"
    assert result.summary["arrivals"]["never_started"] == 3
    assert result.exit_code is ExitCode.INTERRUPTED


def test_a_kill_between_two_parts_of_a_flush_leaves_every_row(tmp_path: Path) -> None:
    """A row that started in this part and whose end record is of the next one is there, ended."""
    spool = Spool(tmp_path)
    rows = [
        Row(index=0, intended_s=0.0),
        Row(index=1, intended_s=0.1),
        Row(index=2, intended_s=0.2),
    ]
    for row in rows:
        spool.start(row)
    for row in (rows[0], rows[2]):
        row.verdict = "good"
        spool.end(row)
    for limit in (3, 1, 1):
        spool.flush(limit=limit)
        found = read_spool(tmp_path / SPOOL)  # what a kill here would leave
        assert found.rows["index"].to_pylist() == [0, 1, 2]
        assert found.rows["verdict"].to_pylist() == ["good", "interrupted", "good"]
    spool.close()


def test_a_file_of_something_else_is_no_spool(tmp_path: Path) -> None:
    """An error that says so, no traceback."""
    (tmp_path / SPOOL).write_bytes(b"something else")
    with pytest.raises(BreakevenError, match="no whole record"):
        read_spool(tmp_path / SPOOL)


def test_rows_are_sorted_by_index() -> None:
    """requests.parquet is in the order of the schedule, whatever ended first."""
    assert table([ended(2), ended(0), ended(1)])["index"].to_pylist() == [0, 1, 2]


def test_a_full_disk_is_a_clear_error(tmp_path: Path) -> None:
    """ENOSPC names the folder and the mend (the kernel's own full device)."""
    os.symlink("/dev/full", tmp_path / SPOOL)
    spool = Spool(tmp_path)
    spool.end(ended(0))
    with pytest.raises(DiskFullError, match="no space left; free some or choose another --out"):
        spool.flush()
    with pytest.raises(DiskFullError):
        spool.close()


async def slow(call: Call, target: Target) -> None:
    await good(call, target, gap_s=0.02)


def test_kill_9_loses_at_most_the_last_second(tmp_path: Path) -> None:
    """A killed run is recovered: rows for what was offered, partial said, figures reproducible."""
    out = tmp_path / "out"
    with scripted(slow) as target:
        process = subprocess.Popen(
            [sys.executable, "-c", "from breakeven_loadgen.cli import main; main()", "replay",
             "synthetic:in=4,out=8", "--arrival", "constant", "--rate", "40", "--duration", "600s",
             "--url", target.url, "--out", str(out)],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
        end_s = time.monotonic() + 60
        while len(target.calls) < 120:  # three seconds of arrivals: two flushes at least
            assert process.poll() is None, process.stderr
            assert time.monotonic() < end_s
            time.sleep(0.01)
        offered = len(target.calls)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    rows, record, result = load(out)
    assert record["state"] == "killed"
    assert rows.num_rows >= offered - 4 * 40, "the last second, and what a busy machine delays"
    assert rows["index"].to_pylist() == list(range(rows.num_rows))
    assert set(rows["verdict"].to_pylist()) <= {"good", "interrupted", "truncated"}
    summary = result.summary
    assert summary["arrivals"]["scheduled"] == 24_000
    assert summary["arrivals"]["never_started"] == 24_000 - rows.num_rows
    assert result.exit_code is ExitCode.INTERRUPTED
    assert not (out / SPOOL).exists()
    again = load(out)[2].summary
    assert again == summary


def test_a_disk_that_fills_up_keeps_what_was_written(tmp_path: Path) -> None:
    """Every later flush fails as clearly, and the rows before it are readable."""
    spool = Spool(tmp_path)
    spool.end(ended(0))
    spool.flush()
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, spool._file.fileno())
    os.close(full)
    spool.end(ended(1))
    with pytest.raises(DiskFullError):
        spool.flush()
    with pytest.raises(DiskFullError):
        spool.close()
    assert read_spool(tmp_path / SPOOL).rows["index"].to_pylist() == [0]
