"""Small charts as inline SVG: lines with intervals, dots, a forest. Drawing only, no figures made.

Colours are CSS variables of the page, so that light and dark need one drawing. Every mark carries
a <title> with its figures, and every series its name beside a mark: nothing rests on colour alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH, HEIGHT = 460, 260
LEFT, RIGHT, TOP, BOTTOM = 58, 96, 14, 40


@dataclass(frozen=True, slots=True)
class Point:
    """One mark: position, optional interval in y, text for its title."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class Series:
    """Marks of one arm; `color` is a CSS variable's name; `line` joins them."""

    name: str
    points: Sequence[Point]
    color: str
    line: bool = True


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart. `bands` shade intervals of x; `zero` draws a reference at y = 0; `diagonal` y = x.

    `log_y` needs y above 0. `percent_y` prints y as a percentage.
    """

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    bands: Sequence[tuple[float, float]] = ()
    zero: bool = False
    diagonal: bool = False
    log_y: bool = False
    percent_y: bool = False
    y_range: tuple[float, float] | None = None
    note: str = ""
    x_names: Sequence[str] = field(default_factory=tuple)


@dataclass(frozen=True, slots=True)
class _Scale:
    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, v = self.low, self.high, value
        if self.log:
            low, high, v = math.log10(low), math.log10(high), math.log10(max(value, 1e-9))
        part = (v - low) / (high - low) if high > low else 0.5
        return self.start + (self.end - self.start) * part


def chart(c: Chart) -> str:
    """The chart as one <figure>; an empty one says that nothing was measured."""
    points = [p for s in c.series for p in s.points]
    if not points:
        return _figure(c, f'<p class="empty">{escape(c.title)}: nothing was measured</p>')
    x = _scale([p.x for p in points], LEFT, WIDTH - RIGHT, pad=0.06)
    y = _y_scale(c, points)
    parts = [_bands(c, x), _axes(c, x, y), _reference(c, x, y)]
    parts += [_series(s, x, y) for s in c.series]
    parts.append(_labels(c.series, y))
    body = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(c.title)}">'
    return _figure(c, body + "".join(parts) + "</svg>")


def _figure(c: Chart, body: str) -> str:
    note = f"<p>{escape(c.note)}</p>" if c.note else ""
    return f"<figure><figcaption>{escape(c.title)}</figcaption>{body}{note}</figure>"


def _scale(values: Sequence[float], start: float, end: float, pad: float) -> _Scale:
    low, high = min(values), max(values)
    room = (high - low) * pad or abs(high) * 0.1 or 1.0
    return _Scale(low - room, high + room, start, end)


def _y_scale(c: Chart, points: Sequence[Point]) -> _Scale:
    bottom, top = HEIGHT - BOTTOM, TOP
    values = [v for p in points for v in (p.y, p.low, p.high) if v is not None]
    if c.zero:
        values.append(0.0)
    if c.diagonal:
        values += [p.x for p in points]
    if c.y_range is not None:
        return _Scale(*c.y_range, bottom, top)
    if c.log_y:
        return _Scale(min(values) / 1.3, max(values) * 1.3, bottom, top, log=True)
    return _scale(values, bottom, top, pad=0.10)


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers between low and high."""
    if high <= low:
        return [low]
    raw = (high - low) / count
    size = 10 ** math.floor(math.log10(raw))
    step = next(size * m for m in (1, 2, 5, 10) if size * m >= raw)
    first = math.ceil(low / step) * step
    return [first + i * step for i in range(int((high - first) / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    return [m * 10**e for e in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
            for m in (1, 2, 5) if low <= m * 10**e <= high]  # fmt: skip


def _axes(c: Chart, x: _Scale, y: _Scale) -> str:
    marks = _log_ticks(y.low, y.high) if c.log_y else ticks(y.low, y.high)
    out = []
    for value in marks:
        at = y(value)
        label = f"{value:.0%}" if c.percent_y else f"{value:.4g}"
        out.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
            f'<text class="tick" x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{label}</text>'
        )
    xs = sorted({p.x for s in c.series for p in s.points})
    for i, value in enumerate(xs if len(xs) <= 8 else ticks(x.low, x.high)):
        name = c.x_names[i] if i < len(c.x_names) else f"{value:.4g}"
        out.append(f'<text class="tick" x="{x(value):.1f}" y="{HEIGHT - BOTTOM + 16}" '
                   f'text-anchor="middle">{escape(name)}</text>')  # fmt: skip
    middle = (LEFT + WIDTH - RIGHT) / 2
    out.append(f'<text class="axis" x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">'
               f"{escape(c.x_label)}</text>")  # fmt: skip
    out.append(f'<text class="axis" transform="translate(12 {(HEIGHT - BOTTOM + TOP) / 2}) '
               f'rotate(-90)" text-anchor="middle">{escape(c.y_label)}</text>')  # fmt: skip
    return "".join(out)


def _bands(c: Chart, x: _Scale) -> str:
    height = HEIGHT - BOTTOM - TOP
    return "".join(
        f'<rect class="band" x="{x(low):.1f}" y="{TOP}" width="{max(2.0, x(high) - x(low)):.1f}" '
        f'height="{height}"><title>pays from {low:.4g}/s to {high:.4g}/s</title></rect>'
        for low, high in c.bands
    )


def _reference(c: Chart, x: _Scale, y: _Scale) -> str:
    if c.zero:
        return (f'<line class="ref" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(0):.1f}" '
                f'y2="{y(0):.1f}"/>')  # fmt: skip
    if c.diagonal:
        low, high = max(x.low, y.low), min(x.high, y.high)
        return (f'<line class="ref" x1="{x(low):.1f}" y1="{y(low):.1f}" x2="{x(high):.1f}" '
                f'y2="{y(high):.1f}"><title>C/T = M: break-even</title></line>')  # fmt: skip
    return ""


def _series(s: Series, x: _Scale, y: _Scale) -> str:
    out = []
    if s.line and len(s.points) > 1:
        path = " ".join(f"{x(p.x):.1f},{y(p.y):.1f}" for p in s.points)
        out.append(f'<polyline class="line" style="stroke:var({s.color})" points="{path}"/>')
    for p in s.points:
        if p.low is not None and p.high is not None:
            out.append(f'<line class="bar" style="stroke:var({s.color})" x1="{x(p.x):.1f}" '
                       f'x2="{x(p.x):.1f}" y1="{y(p.low):.1f}" y2="{y(p.high):.1f}"/>')  # fmt: skip
        out.append(f'<circle style="fill:var({s.color})" cx="{x(p.x):.1f}" cy="{y(p.y):.1f}" '
                   f'r="4"><title>{escape(p.text or s.name)}</title></circle>')  # fmt: skip
    return "".join(out)


def _labels(series: Sequence[Series], y: _Scale) -> str:
    """Series names at their last marks, moved apart where they would overlap."""
    ends = [(y(s.points[-1].y), s) for s in series if s.points]
    out, last = [], -math.inf
    for at, s in sorted(ends, key=lambda pair: pair[0]):
        place = max(at, last + 13)
        last = place
        out.append(f'<text class="name" style="fill:var({s.color})" x="{WIDTH - RIGHT + 8}" '
                   f'y="{place + 4:.1f}">{escape(s.name)}</text>')  # fmt: skip
    return "".join(out)


@dataclass(frozen=True, slots=True)
class ForestRow:
    """One line of a forest plot."""

    name: str
    value: float
    low: float
    high: float
    color: str


def forest(title: str, rows: Sequence[ForestRow]) -> str:
    """Margins with intervals, one line per cohort and rate; the vertical line is break-even."""
    if not rows:
        return f'<figure><figcaption>{escape(title)}</figcaption><p class="empty">' \
               "no cohort large enough</p></figure>"  # fmt: skip
    height = 34 + 22 * len(rows)
    left = 190
    x = _scale([v for r in rows for v in (r.low, r.high)] + [0.0], left, WIDTH - 20, 0.05)
    parts = [f'<line class="ref" x1="{x(0):.1f}" x2="{x(0):.1f}" y1="6" y2="{height - 26}"/>']
    for i, row in enumerate(rows):
        at = 18 + 22 * i
        text = f"{row.name}: {row.value:+.3f} [{row.low:+.3f}, {row.high:+.3f}]"
        parts.append(
            f'<text class="tick" x="{left - 8}" y="{at + 4}" text-anchor="end">{escape(row.name)}'
            f'</text><line class="bar" style="stroke:var({row.color})" x1="{x(row.low):.1f}" '
            f'x2="{x(row.high):.1f}" y1="{at}" y2="{at}"/><circle style="fill:var({row.color})" '
            f'cx="{x(row.value):.1f}" cy="{at}" r="4"><title>{escape(text)}</title></circle>'
        )
    parts += [
        f'<text class="tick" x="{x(value):.1f}" y="{height - 10}" text-anchor="middle">'
        f"{value:+.0%}</text>"
        for value in ticks(x.low, x.high)
    ]
    return (f"<figure><figcaption>{escape(title)}</figcaption>"
            f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">'
            + "".join(parts) + "</svg></figure>")  # fmt: skip
