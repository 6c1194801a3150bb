"""Finds a canary string in anything that a run leaves behind, however it was encoded.

Decodes what a plain grep misses: gzip, Parquet and Arrow columns (nested and dictionary-encoded
ones too), JSON escapes, percent, HTML and base64 encodings, hex, UTF-16.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import html
import io
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq


def spellings(canary: str) -> dict[str, bytes]:
    """Every spelling of `canary` that is looked for, by name."""
    raw = canary.encode()
    found = {
        "utf-8": raw,
        "utf-16": canary.encode("utf-16-le"),
        "json": json.dumps(canary)[1:-1].encode(),
        "percent": quote(canary).encode(),
        "html": html.escape(canary).encode(),
        "hex": raw.hex().encode(),
        "reversed": raw[::-1],
    }
    for shift in range(3):  # base64 depends on where in its triple the text starts
        body = base64.b64encode(b"\0" * shift + raw)
        found[f"base64+{shift}"] = body[4 if shift else 0 : -4]
    return found


def unescaped(text: str) -> str:
    """`text` with JSON escapes undone (\\u0041 and the like), whatever stands around them."""
    out, at = [], 0
    while (cut := text.find("\\u", at)) >= 0 and cut + 6 <= len(text):
        out.append(text[at:cut])
        try:
            out.append(chr(int(text[cut + 2 : cut + 6], 16)))
        except ValueError:
            out.append(text[cut : cut + 6])
        at = cut + 6
    out.append(text[at:])
    return "".join(out)


def column_text(table: pa.Table) -> Iterator[tuple[str, str]]:
    """(where, text) of schema, metadata and all columns of an Arrow table."""
    yield "schema", table.schema.to_string(show_schema_metadata=True)
    for meta in [table.schema.metadata, *(field.metadata for field in table.schema)]:
        for key, value in (meta or {}).items():
            yield "metadata", f"{key.decode('utf-8', 'replace')}={value.decode('utf-8', 'replace')}"
    for name in table.column_names:
        for value in table.column(name).to_pylist():
            if value is not None and not isinstance(value, int | float | bool):
                text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
                yield f"column {name}", text


def arrow_batches(data: bytes) -> pa.Table:
    """All whole batches of an Arrow stream, also of one that was cut off by a kill."""
    batches: list[pa.RecordBatch] = []
    reader = pa.ipc.open_stream(io.BytesIO(data))
    while True:
        try:
            batches.append(reader.read_next_batch())
        except (StopIteration, pa.ArrowInvalid, OSError):
            return pa.Table.from_batches(batches, schema=reader.schema)


def texts(name: str, data: bytes, depth: int = 0) -> Iterator[tuple[str, bytes]]:
    """(where, bytes) of everything that can be read out of one file's bytes."""
    yield name, data
    if depth > 3:
        return
    if data[:2] == b"\x1f\x8b":
        yield from texts(f"{name}|gunzip", gzip.decompress(data), depth + 1)
    elif data[:1] == b"\x78":
        with contextlib.suppress(zlib.error):  # not every file that starts with an x is deflated
            yield from texts(f"{name}|inflate", zlib.decompress(data), depth + 1)
    elif data[:4] == b"PAR1":
        for where, text in column_text(pq.read_table(io.BytesIO(data))):
            yield f"{name}|{where}", text.encode("utf-8", "replace")
    elif name.endswith((".arrows", ".arrow")) and data:
        for where, text in column_text(arrow_batches(data)):
            yield f"{name}|{where}", text.encode("utf-8", "replace")
    else:
        plain = data.decode("utf-8", "replace")
        if "\\u" in plain:
            yield f"{name}|unescaped", unescaped(plain).encode()
        if "&" in plain:
            yield f"{name}|html", html.unescape(plain).encode()


def leaks_in_bytes(name: str, data: bytes, canary: str) -> list[str]:
    """Where `canary` stands in `data`, in whichever spelling; empty when it is clean."""
    wanted = spellings(canary)
    return [
        f"{where} ({how})"
        for where, text in texts(name, data)
        for how, needle in wanted.items()
        if needle in text
    ]


def leaks_in_folder(folder: Path, canary: str) -> list[str]:
    """The same over every file below `folder`, and over the file names themselves."""
    found: list[str] = []
    for path in sorted(folder.rglob("*")):
        found += leaks_in_bytes("a file's name", path.name.encode(), canary)
        if path.is_file():
            found += leaks_in_bytes(path.name, path.read_bytes(), canary)
    return found
