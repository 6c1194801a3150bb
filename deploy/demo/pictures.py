"""Draws a dashboard from its panels' own queries: a contact sheet, no Grafana.

It shows what the queries return, laid out as the JSON says. It is no picture of Grafana: colours,
fonts and legends are ours.
"""

from __future__ import annotations

import json
import math
import re
import textwrap
from pathlib import Path
from typing import Any

from .prom import Labels, Prometheus, Series

COLUMN_IN, ROW_IN = 0.95, 0.42
VARIABLES = {'"$job"': '".*"', '"$arm"': '".*"', '"$cohort"': '".*"'}


def concrete(expr: str, rate_interval: str) -> str:
    """A panel's query as Grafana would send it with all variables at All."""
    for name, value in VARIABLES.items():
        expr = expr.replace(name, value)
    return expr.replace("$__rate_interval", rate_interval)


def legend(template: str, labels: Labels) -> str:
    """Grafana's legend template filled in."""
    if not template:
        return ", ".join(
            f"{k}={v}" for k, v in sorted(labels.items()) if k not in {"__name__", "job"}
        )
    return re.sub(r"\{\{(\w+)\}\}", lambda match: labels.get(match[1], ""), template)


def shown(value: float, unit: str) -> str:
    """A number with its unit, for people."""
    if not math.isfinite(value):
        return str(value)
    if unit == "percentunit":
        return f"{value * 100:.1f} %"
    if unit == "s":
        return f"{value * 1000:.2f} ms" if abs(value) < 1 else f"{value:.2f} s"
    if unit == "currencyUSD":
        return f"${value:.6f}"
    return f"{value:.3g}"


def panels_of(path: Path) -> list[dict[str, Any]]:
    """All panels with a place, rows included."""
    return list(json.loads(path.read_text("utf-8"))["panels"])


def draw(
    path: Path, prometheus: Prometheus, start: float, end: float, out: Path, *, rate_interval: str
) -> None:
    """Draw the dashboard at `path` over [start, end] (Unix seconds) into the PNG `out`."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    made = json.loads(path.read_text("utf-8"))
    panels = panels_of(path)
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    figure = pyplot.figure(figsize=(24 * COLUMN_IN, rows * ROW_IN + 0.8), facecolor="#f7f7f7")
    figure.suptitle(
        f"{made['title']}: drawn from the panels' queries; engines simulated", fontsize=15, y=0.997
    )
    for panel in panels:
        grid = panel["gridPos"]
        top = 1 - 0.6 / (rows * ROW_IN + 0.8)
        height = top / rows
        left, bottom = grid["x"] / 24, top - (grid["y"] + grid["h"]) * height
        if panel["type"] == "row":
            figure.text(0.005, bottom + height * 0.3, panel["title"], fontsize=12, weight="bold")
            continue
        axes = figure.add_axes(
            (
                left + 0.028,
                bottom + height * 1.3,
                grid["w"] / 24 - 0.036,
                height * (grid["h"] - 2.4),
            )
        )
        axes.set_title(panel["title"], fontsize=9, loc="left")
        axes.tick_params(labelsize=7)
        _Panel(panel, prometheus, start, end, rate_interval).draw(axes)
    figure.savefig(out, dpi=72)
    pyplot.close(figure)


class _Panel:
    """One panel on one pair of axes."""

    def __init__(
        self, panel: dict[str, Any], prometheus: Prometheus, start: float, end: float, rate: str
    ) -> None:
        self.panel, self.prometheus, self.start, self.end, self.rate = (
            panel,
            prometheus,
            start,
            end,
            rate,
        )
        self.unit = panel.get("fieldConfig", {}).get("defaults", {}).get("unit", "short")

    def draw(self, axes: Any) -> None:
        kind = self.panel["type"]
        {
            "timeseries": self._lines,
            "stat": self._stat,
            "table": self._table,
            "heatmap": self._heat,
            "state-timeline": self._states,
            "text": self._text,
        }[kind](axes)

    def _series(self) -> list[tuple[str, Series]]:
        found = []
        for target in self.panel["targets"]:
            expr = concrete(target["expr"], self.rate)
            template = target.get("legendFormat", "")
            found += [
                (legend(template, series.labels), series)
                for series in self.prometheus.range(expr, self.start, self.end)
            ]
        return found

    def _lines(self, axes: Any) -> None:
        custom = self.panel["fieldConfig"]["defaults"].get("custom", {})
        stacked = custom.get("stacking", {}).get("mode") == "normal"
        found = self._series()
        if not found:
            return self._nothing(axes)
        if stacked:
            self._stack(axes, found)
        else:
            for name, series in found:
                axes.plot([t - self.start for t in series.times], series.values, label=name, lw=1.3)
        axes.legend(fontsize=6, loc="upper left", ncol=2, framealpha=0.6)
        axes.grid(alpha=0.3)
        axes.set_xlim(0, self.end - self.start)
        axes.yaxis.set_major_formatter(lambda value, _: shown(value, self.unit))
        return None

    def _stack(self, axes: Any, found: list[tuple[str, Series]]) -> None:
        times = sorted({t for _, series in found for t in series.times})
        columns = []
        for _, series in found:
            at = dict(zip(series.times, series.values, strict=True))
            columns.append(
                [at.get(t, 0.0) if math.isfinite(at.get(t, 0.0)) else 0.0 for t in times]
            )
        axes.stackplot(
            [t - self.start for t in times], columns, labels=[name for name, _ in found], alpha=0.75
        )

    def _stat(self, axes: Any) -> None:
        found = [(name, s.finite[-1]) for name, s in self._series() if s.finite]
        axes.axis("off")
        if not found:
            return self._nothing(axes)
        for i, (name, value) in enumerate(found):
            y = 1 - (i + 0.5) / len(found)
            axes.text(0.02, y, name, fontsize=9, va="center")
            axes.text(
                0.98,
                y,
                shown(value, self.unit),
                fontsize=17,
                va="center",
                ha="right",
                weight="bold",
            )
        return None

    def _table(self, axes: Any) -> None:
        axes.axis("off")
        headings, rows = self._cells()
        if not rows:
            return self._nothing(axes)
        keys = sorted({k for labels in rows for k, _ in labels})
        body = [
            [dict(labels).get(k, "") for k in keys]
            + [values.get(i, "") for i in range(len(headings))]
            for labels, values in sorted(rows.items())
        ]
        table = axes.table(
            cellText=body, colLabels=keys + headings, loc="upper left", cellLoc="left"
        )
        table.auto_set_font_size(False)
        table.set_fontsize(9)
        table.scale(1, 1.5)
        table.auto_set_column_width(list(range(len(keys) + len(headings))))
        return None

    def _cells(self) -> tuple[list[str], dict[tuple[tuple[str, str], ...], dict[int, str]]]:
        names = self._renamed()
        units, words = self._overrides()
        headings = [
            names.get(f"Value #{target['refId']}", names.get("Value", "Value"))
            for target in self.panel["targets"]
        ]
        rows: dict[tuple[tuple[str, str], ...], dict[int, str]] = {}
        for i, target in enumerate(self.panel["targets"]):
            for labels, value in self.prometheus.now(concrete(target["expr"], self.rate), self.end):
                key = tuple(
                    sorted((k, v) for k, v in labels.items() if k not in {"__name__", "job"})
                )
                heading = headings[i]
                mapped = words.get(heading, {}).get(f"{value:g}")
                rows.setdefault(key, {})[i] = mapped or shown(value, units.get(heading, "short"))
        return headings, rows

    def _renamed(self) -> dict[str, str]:
        for step in self.panel.get("transformations", []):
            if step["id"] == "organize":
                return dict(step["options"]["renameByName"])
        return {}

    def _overrides(self) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
        units: dict[str, str] = {}
        words: dict[str, dict[str, str]] = {}
        for override in self.panel["fieldConfig"].get("overrides", []):
            heading = override["matcher"]["options"]
            for item in override["properties"]:
                if item["id"] == "unit":
                    units[heading] = item["value"]
                if item["id"] == "mappings":
                    options = item["value"][0]["options"]
                    words[heading] = {
                        code: textwrap.shorten(option["text"], 60)
                        for code, option in options.items()
                    }
        return units, words

    def _heat(self, axes: Any) -> None:
        found = sorted(self._series(), key=lambda item: float(item[0]))
        if not found:
            return self._nothing(axes)
        bounds = [float(name) for name, _ in found]
        times = sorted({t for _, series in found for t in series.times})
        below = [0.0] * len(times)
        grid = []
        for _, series in found:
            at = dict(zip(series.times, series.values, strict=True))
            upto = [at.get(t, 0.0) for t in times]
            grid.append([max(0.0, a - b) for a, b in zip(upto, below, strict=True)])
            below = upto
        axes.imshow(
            grid, aspect="auto", origin="lower", cmap="viridis",
            extent=(0, self.end - self.start, 0, len(bounds)),
        )  # fmt: skip
        ticks = range(0, len(bounds), 3)
        axes.set_yticks(list(ticks), [shown(bounds[i], self.unit) for i in ticks])
        return None

    def _states(self, axes: Any) -> None:
        found = self._series()
        if not found:
            return self._nothing(axes)
        options = self.panel["fieldConfig"]["defaults"]["mappings"][0]["options"]
        for lane, (name, series) in enumerate(found):
            for t, value in zip(series.times, series.values, strict=True):
                color = options.get(f"{value:g}", {}).get("color", "gray")
                axes.barh(lane, 1.0, left=t - self.start, color=color, height=0.7)
            text = options.get(f"{series.values[-1]:g}", {}).get("text", "?")
            axes.text(2, lane, f"{name}: now {text}", va="center", fontsize=8, color="white")
        axes.set_yticks([])
        axes.set_xlim(0, self.end - self.start)
        return None

    def _text(self, axes: Any) -> None:
        axes.axis("off")
        lines = [
            textwrap.shorten(line, 110)
            for line in self.panel["options"]["content"].splitlines()
            if line and not line.startswith("|---")
        ]
        axes.text(0, 1, "\n".join(lines), fontsize=9, va="top")

    def _nothing(self, axes: Any) -> None:
        axes.text(0.5, 0.5, "no series", ha="center", va="center", color="gray")
