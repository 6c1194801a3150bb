"""rows.arrows: what a run has written so far, readable even after kill -9.

An Arrow IPC stream. An arrival that falls due leaves a *start* record, its end an *end* record;
batches reach the kernel at least once a second, so a killed process loses at most that much.
(A Parquet file without its footer cannot be read: it is written only at the end.)
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
import pyarrow as pa

from breakeven.errors import BreakevenError
from breakeven.slo import Verdict

from . import arrow
from .rows import END, SCHEMA, SPOOL_SCHEMA, START, Row, spool_batch

SPOOL = "rows.arrows"
FLUSH_ROWS = 256
"""Records per batch at most: building one takes about a millisecond of the event loop."""


class DiskFullError(BreakevenError):
    """The result folder's file system is full; what was written before is kept."""


def disk_error(error: OSError, path: Path) -> BreakevenError:
    """An OSError of a write, in words that say the mend."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFullError(
            f"{path}: no space left; free some or choose another --out. Rows written before are "
            f"kept: loadgen report {path.parent}"
        )
    why = error.strerror or error
    return BreakevenError(f"{path}: cannot be written: {why}; check the folder and its permissions")


class Spool:
    """Appends start and end records; `flush` hands them to the kernel."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / SPOOL
        self._waiting: list[tuple[str, Row]] = []
        try:
            self._file = open(self.path, "wb", buffering=0)  # noqa: SIM115 - lives as long as we
        except OSError as error:
            raise disk_error(error, self.path) from None
        try:
            self._writer = pa.ipc.new_stream(self._file, SPOOL_SCHEMA)
        except OSError as error:
            self._file.close()
            raise disk_error(error, self.path) from None

    def start(self, row: Row) -> None:
        """An arrival fell due."""
        self._waiting.append((START, row))

    def end(self, row: Row) -> None:
        """It ended; the row is complete and changes no more."""
        self._waiting.append((END, row))

    @property
    def waiting(self) -> int:
        """Records not yet handed to the kernel."""
        return len(self._waiting)

    def flush(self, limit: int | None = None) -> None:
        """Write at most `limit` waiting records.

        Raises:
            DiskFullError: the file system is full.
            BreakevenError: any other failure to write.
        """
        while self._waiting:
            part = self._waiting[: min(FLUSH_ROWS, limit or FLUSH_ROWS)]
            # A row that has ended meanwhile needs no start record. Where its end record is not of
            # this part it is written here: a kill between two parts would leave no trace of it.
            ended = {id(row) for kind, row in part if kind == END}
            records = [
                (kind if row.verdict is None else END, row)
                for kind, row in part
                if kind == END or id(row) not in ended
            ]
            try:
                self._writer.write_batch(spool_batch(records))
            except OSError as error:
                raise disk_error(error, self.path) from None
            del self._waiting[: len(part)]
            if limit is not None:
                return

    def close(self) -> None:
        """Write what waits and end the stream."""
        try:
            self.flush()
            self._writer.close()
        except OSError as error:
            raise disk_error(error, self.path) from None
        finally:
            self._file.close()

    def __enter__(self) -> Spool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a spool holds: one row per started arrival.

    Attributes:
        rows: ended arrivals as they were, the others with the verdict `interrupted`.
        interrupted: how many had no end record.
        torn: the stream stops in the middle of a batch.
    """

    rows: pa.Table
    interrupted: int
    torn: bool


def read_spool(path: Path) -> Recovered:
    """Read as much of a spool as is whole.

    Raises:
        BreakevenError: something else is there than records.
    """
    batches: list[pa.RecordBatch] = []
    torn = False
    try:
        if path.stat().st_size == 0:  # killed before the first flush: Arrow writes its schema then
            return _joined(pa.Table.from_batches([], SPOOL_SCHEMA), torn=True)
        with pa.OSFile(os.fspath(path)) as file, pa.ipc.open_stream(file) as reader:
            while True:
                try:
                    batches.append(reader.read_next_batch())
                except StopIteration:
                    break
                except (pa.ArrowInvalid, OSError):
                    torn = True
                    break
    except (pa.ArrowInvalid, OSError):
        raise BreakevenError(f"{path}: no whole record was written to it") from None
    return _joined(pa.Table.from_batches(batches, SPOOL_SCHEMA), torn)


def _joined(records: pa.Table, torn: bool) -> Recovered:
    """One row per started arrival: its end record, else its start record as `interrupted`."""
    index = arrow.numbers(arrow.whole(records["index"])).astype(np.int64)
    ended = np.array([kind == END for kind in records["record"].to_pylist()], bool)
    best: dict[int, int] = {}
    for place, (number, end) in enumerate(zip(index.tolist(), ended.tolist(), strict=True)):
        if end or number not in best:
            best[number] = place
    places = [best[number] for number in sorted(best)]
    is_open = ~ended[places] if places else np.zeros(0, bool)
    rows = records.drop_columns(["record"]).take(arrow.array(places, pa.int64()))
    for name, word in (("verdict", Verdict.INTERRUPTED.value), ("error_class", "killed")):
        values = rows[name].to_pylist()
        values = [word if o else v for o, v in zip(is_open.tolist(), values, strict=True)]
        at = rows.schema.get_field_index(name)
        rows = rows.set_column(at, SCHEMA.field(name), arrow.array(values, pa.string()))
    return Recovered(rows, int(np.sum(is_open)), torn)
