"""Columns of a table of rows as numpy arrays: NaN for unknown numbers, False for unknown flags.

Here: reading columns, pooled burst gaps and bursts, in-flight over time. Not here: what is made
of them (summary, report).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from . import arrow

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

INFLIGHT_SAMPLES = 240
"""Points of the in-flight curve over the offered window."""


class Columns:
    """A view of rows. Every array has shape (rows,) unless said otherwise."""

    def __init__(self, table: pa.Table, epsilon_s: float = 0.002) -> None:
        self._table = table
        self._epsilon_s = epsilon_s
        self._numbers: dict[str, Floats] = {}

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def where(self, mask: Mask) -> Columns:
        """The rows for which the mask is true."""
        return Columns(self._table.filter(arrow.mask(mask)), self._epsilon_s)

    def numbers(self, name: str) -> Floats:
        """A numeric column; NaN where unknown."""
        found = self._numbers.get(name)
        if found is None and name not in self._table.schema.names:
            found = self._numbers[name] = np.full(len(self), np.nan)  # an older release's file
        if found is None:
            found = arrow.numbers(arrow.whole(self._table[name]))
            self._numbers[name] = found
        return found

    def known(self, name: str) -> Mask:
        """Where a numeric column has a value."""
        return ~np.isnan(self.numbers(name))

    def flags(self, name: str) -> Mask:
        """A boolean column; unknown is False."""
        return arrow.flags(arrow.whole(self._table[name]))

    def words(self, name: str) -> list[Any]:
        """A text column."""
        words: list[Any] = self._table[name].to_pylist()
        return words

    def total(self, name: str) -> float | None:
        """Sum of the known values; None when none is known."""
        known = self.known(name)
        return float(np.sum(self.numbers(name)[known])) if np.any(known) else None

    def _points(self) -> tuple[Floats, NDArray[np.int64], NDArray[np.int64]]:
        """Events of all rows: (offset, tokens with −1 for unknown, row number), flat."""
        column = arrow.whole(self._table["event_offset_s"])
        lengths = arrow.list_lengths(column)
        rows = np.repeat(np.arange(len(lengths)), lengths)
        offsets = arrow.numbers(column.flatten())
        tokens = arrow.numbers(arrow.whole(self._table["event_tokens"]).flatten())
        counts = np.nan_to_num(tokens, nan=-1.0).astype(np.int64)
        return offsets, counts, rows

    def event_gaps_s(self) -> Floats:
        """Pooled gaps between consecutive events of one answer."""
        offsets, _, rows = self._points()
        apart: Floats = np.diff(offsets)[np.diff(rows) == 0]
        return apart

    def burst_gaps_s(self) -> Floats:
        """Pooled gaps between bursts: consecutive events of one answer at least ε apart."""
        offsets, _, rows = self._points()
        gaps = np.diff(offsets)
        apart: Floats = gaps[(np.diff(rows) == 0) & (gaps >= self._epsilon_s)]
        return apart

    def burst_tokens(self) -> Floats:
        """Tokens of every burst of which all events were counted."""
        offsets, counts, rows = self._points()
        if len(offsets) == 0:
            return np.zeros(0)
        starts = np.concatenate(
            [[True], (np.diff(rows) != 0) | (np.diff(offsets) >= self._epsilon_s)]
        )
        burst = np.cumsum(starts) - 1
        total = np.bincount(burst, weights=counts)
        unknown = np.bincount(burst, weights=counts < 0)
        return np.asarray(total[unknown == 0], np.float64)

    def inflight(self) -> tuple[Floats, Floats]:
        """(times, requests in flight) over the offered window, from sends and ends."""
        sent = self.numbers("sent_s")
        ends = self.numbers("end_s")
        keep = ~np.isnan(sent) & ~np.isnan(ends)
        intended = self.numbers("intended_s")
        if not np.any(keep) or len(intended) == 0:
            return np.zeros(0), np.zeros(0)
        times = np.linspace(float(np.min(intended)), float(np.max(intended)), INFLIGHT_SAMPLES)
        began = np.searchsorted(np.sort(sent[keep]), times, side="right")
        ended = np.searchsorted(np.sort(ends[keep]), times, side="right")
        return times, (began - ended).astype(np.float64)
