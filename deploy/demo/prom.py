"""Asks a Prometheus over its HTTP API."""

from __future__ import annotations

import json
import math
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import Any

Labels = dict[str, str]


@dataclass(frozen=True, slots=True)
class Series:
    """One series of a range query: labels, times (Unix seconds) and values."""

    labels: Labels
    times: tuple[float, ...]
    values: tuple[float, ...]

    @property
    def finite(self) -> list[float]:
        return [value for value in self.values if math.isfinite(value)]


class Prometheus:
    """A client of the HTTP API at `url`."""

    def __init__(self, url: str) -> None:
        self.url = url

    def _get(self, path: str, **params: str | float) -> Any:
        query = urllib.parse.urlencode(params)
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=30) as answer:
            return json.load(answer)["data"]

    def ready(self) -> bool:
        """Whether it answers queries."""
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def now(self, expr: str, at: float | None = None) -> list[tuple[Labels, float]]:
        """Instant query."""
        params: dict[str, str | float] = {"query": expr}
        if at is not None:
            params["time"] = at
        result = self._get("query", **params)["result"]
        return [(row["metric"], float(row["value"][1])) for row in result]

    def raw(self, selector: str, at: float) -> list[Series]:
        """The samples themselves of a range selector such as `up[60s]`."""
        return [_series(row) for row in self._get("query", query=selector, time=at)["result"]]

    def value(self, expr: str, at: float | None = None) -> float | None:
        """The value of a query with one result; None without any."""
        found = self.now(expr, at)
        if len(found) > 1:
            raise ValueError(f"{expr} gives {len(found)} series")
        return found[0][1] if found else None

    def range(self, expr: str, start: float, end: float, step_s: float = 1.0) -> list[Series]:
        """Range query."""
        result = self._get("query_range", query=expr, start=start, end=end, step=step_s)["result"]
        return [_series(row) for row in result]


def _series(row: dict[str, Any]) -> Series:
    values = row["values"]
    return Series(
        row["metric"], tuple(float(t) for t, _ in values), tuple(float(v) for _, v in values)
    )
