"""Python lists -> Arrow arrays -> numpy, by their buffers.

pyarrow's own converters (`pa.array`, `to_numpy`) import pandas when it is installed, which takes
a second in the middle of a run; and they convert lists element by element, in the event loop.
Layout: Arrow columnar format, "Physical memory layout".
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, repeat
from operator import is_not
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_DTYPES: dict[Any, Any] = {pa.int64(): np.int64, pa.int32(): np.int32, pa.float64(): np.float64}


def array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """A list, None for null, as an array of one of the types that rows have."""
    # In the event loop, between two arrivals: columns that are empty or full cost next to nothing.
    known = np.fromiter(map(is_not, values, repeat(None)), bool, len(values))
    validity = None if known.all() else _bits(known)
    if validity is not None and not known.any():
        return _nulls(len(values), kind, validity)
    if pa.types.is_list(kind):
        return _lists(values, kind, validity)
    if pa.types.is_string(kind):
        encoded = [b"" if v is None else v.encode() for v in values]
        buffers = [validity, _offsets([len(e) for e in encoded]), pa.py_buffer(b"".join(encoded))]
    elif pa.types.is_boolean(kind):
        buffers = [validity, _bits(np.fromiter((bool(v) for v in values), bool, len(values)))]
    else:
        filled = values if validity is None else [0 if v is None else v for v in values]
        buffers = [validity, pa.py_buffer(np.array(filled, _DTYPES[kind]))]
    return pa.Array.from_buffers(kind, len(values), buffers)


def _nulls(length: int, kind: pa.DataType, validity: Any) -> pa.Array:
    """An array of nothing but nulls: zeros below the mask, for every layout."""
    zeros = pa.py_buffer(bytes(8 * (length + 1)))
    if pa.types.is_list(kind):
        empty = array([], kind.value_type)
        return pa.Array.from_buffers(kind, length, [validity, zeros], children=[empty])
    data = [pa.py_buffer(b"")] if pa.types.is_string(kind) else []
    return pa.Array.from_buffers(kind, length, [validity, zeros, *data])


def mask(values: NDArray[np.bool_]) -> pa.Array:
    """A numpy mask as a boolean array."""
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, _bits(values)])


def _lists(values: Sequence[Any], kind: pa.DataType, validity: Any) -> pa.Array:
    lengths = [0 if v is None else len(v) for v in values]
    flat = array(list(chain.from_iterable(v for v in values if v)), kind.value_type)
    return pa.Array.from_buffers(kind, len(values), [validity, _offsets(lengths)], children=[flat])


def _bits(values: NDArray[np.bool_]) -> Any:
    return pa.py_buffer(np.packbits(values, bitorder="little"))


def _offsets(lengths: Sequence[int]) -> Any:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.py_buffer(offsets)


# --- back ------------------------------------------------------------------------------------


def whole(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """One array of a column, whatever its chunks; empty columns too."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if isinstance(column, pa.ChunkedArray):  # no chunk at all
        return array([], column.type)
    return column


def valid(column: pa.Array) -> NDArray[np.bool_]:
    """True where a value is known; shape (n,)."""
    buffer = column.buffers()[0]
    if buffer is None:
        return np.ones(len(column), bool)
    return _unpacked(buffer, column.offset, len(column))


def numbers(column: pa.Array) -> NDArray[np.float64]:
    """Integers or floats as floats, NaN for null; shape (n,)."""
    dtype = _DTYPES[column.type]
    buffer = column.buffers()[1]
    if len(column) == 0 or buffer is None:
        return np.full(len(column), np.nan)
    raw = np.frombuffer(buffer, dtype)[column.offset : column.offset + len(column)]
    known = valid(column)
    return np.where(known, raw.astype(np.float64), np.nan)


def flags(column: pa.Array) -> NDArray[np.bool_]:
    """Booleans, null as False; shape (n,)."""
    if len(column) == 0:
        return np.zeros(0, bool)
    return _unpacked(column.buffers()[1], column.offset, len(column)) & valid(column)


def list_lengths(column: pa.Array) -> NDArray[np.int64]:
    """Length of each list, 0 for null; shape (n,)."""
    if len(column) == 0:
        return np.zeros(0, np.int64)
    offsets = np.frombuffer(column.buffers()[1], np.int32)
    offsets = offsets[column.offset : column.offset + len(column) + 1].astype(np.int64)
    return np.where(valid(column), np.diff(offsets), 0)


def _unpacked(buffer: Any, offset: int, length: int) -> NDArray[np.bool_]:
    bits = np.unpackbits(np.frombuffer(buffer, np.uint8), bitorder="little")
    return bits[offset : offset + length].astype(bool)
