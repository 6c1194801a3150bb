"""CSV of the rows, for spreadsheets: scalar columns only, the lists stay in the Parquet file."""

from __future__ import annotations

import csv
from pathlib import Path

import pyarrow as pa

from ..replay.spool import disk_error


def write_csv(rows: pa.Table, path: Path) -> int:
    """Write one line per offered arrival; unknown cells are empty. Returns the number of lines.

    Raises:
        BreakevenError: the file cannot be written.
    """
    names = [field.name for field in rows.schema if not pa.types.is_list(field.type)]
    columns = [rows[name].to_pylist() for name in names]
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(names)
            writer.writerows(zip(*columns, strict=True))
    except OSError as error:
        raise disk_error(error, path) from None
    return int(rows.num_rows)
