"""The leak finder itself: a planted canary is found in every kind of output that we write."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest
from tests.support.leaks import leaks_in_bytes, leaks_in_folder

CANARY = "Kanarienvögel-7f3a"


def parquet_bytes(tmp_path: Path, table: pa.Table) -> bytes:
    pq.write_table(table, tmp_path / "t.parquet", compression="zstd")
    return (tmp_path / "t.parquet").read_bytes()


def arrow_bytes(table: pa.Table, cut: int = 0) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data[: len(data) - cut]


@pytest.mark.parametrize(
    ("name", "plant"),
    [
        ("log.jsonl", lambda c: json.dumps({"msg": f"x {c} y"}).encode()),
        ("log.jsonl", lambda c: json.dumps({"msg": f"x {c} y"}, ensure_ascii=False).encode()),
        ("metrics.txt", lambda c: f'requests_total{{cohort="{c}"}} 1\n'.encode()),
        ("trace.jsonl.gz", lambda c: gzip.compress(c.encode())),
        ("span.pb", lambda c: b"\x0a\x12" + c.encode()),
        ("report.html", lambda c: f"<p>{c}</p>".encode("ascii", "xmlcharrefreplace")),
        ("core.txt", lambda c: base64.b64encode(b"ab" + c.encode() + b"cdef")),
        ("url.log", lambda c: b"/v1?q=Kanarienv%C3%B6gel-7f3a"),
        ("dump.bin", lambda c: c.encode("utf-16-le")),
    ],
)
def test_a_planted_leak_is_found_in_every_text_output(name: str, plant) -> None:  # type: ignore[no-untyped-def]
    """Logs, metrics, gzip traces, spans, pages: whatever the spelling, the canary is found."""
    assert leaks_in_bytes(name, plant(CANARY), CANARY)


@pytest.mark.parametrize(
    "table",
    [
        pa.table({"a": ["x", CANARY]}),
        pa.table({"a": pa.array(["x", CANARY]).dictionary_encode()}),
        pa.table({"a": [["x"], [CANARY]]}),
        pa.table({"a": [{"b": "x"}, {"b": CANARY}]}),
        pa.table({"a": [b"x", CANARY.encode()]}),
        pa.table({"a": [1]}).replace_schema_metadata({"note": CANARY}),
        pa.table({CANARY: [1]}),
    ],
)
def test_a_planted_leak_is_found_in_every_column(tmp_path: Path, table: pa.Table) -> None:
    """Parquet and Arrow: plain, dictionary, nested and binary columns, names and metadata."""
    assert leaks_in_bytes("requests.parquet", parquet_bytes(tmp_path, table), CANARY)
    assert leaks_in_bytes("rows.arrows", arrow_bytes(table), CANARY)
    assert leaks_in_bytes("rows.arrows", arrow_bytes(table, cut=4), CANARY)


def test_clean_outputs_are_clean(tmp_path: Path) -> None:
    """The finder does not cry wolf."""
    (tmp_path / "requests.parquet").write_bytes(parquet_bytes(tmp_path, pa.table({"a": ["x"]})))
    (tmp_path / "rows.arrows").write_bytes(arrow_bytes(pa.table({"a": ["x"]})))
    (tmp_path / "log.jsonl").write_text('{"msg": "nothing here"}')
    assert leaks_in_folder(tmp_path, CANARY) == []


def test_a_leak_in_a_file_name_is_found(tmp_path: Path) -> None:
    """File names are an output too."""
    (tmp_path / f"{CANARY}.log").touch()
    assert leaks_in_folder(tmp_path, CANARY)
