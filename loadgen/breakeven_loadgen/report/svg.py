"""Small SVG charts: lines over a plane with axes, and bars. Strings in, strings out.

Here: geometry and markup. Not here: which figures are drawn (page). Colours are CSS classes, so
that light and dark follow the reader; every chart has a title for screen readers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 440, 240
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 14, 40
MAX_POINTS = 400
"""Points of a line: more would only make the page heavy."""


@dataclass(frozen=True, slots=True)
class Line:
    """One series: its name and points (x, y); drawn in the order given."""

    name: str
    points: Sequence[tuple[float, float]]
    step: bool = False


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis: its label with unit, whether it is logarithmic, and fixed ends if any."""

    label: str
    log: bool = False
    low: float | None = None
    high: float | None = None


def line_chart(title: str, lines: Sequence[Line], x: Axis, y: Axis) -> str:
    """Lines over one plane, with a legend where there are several."""
    lines = [line for line in lines if line.points]
    if not lines:
        return empty_chart(title)
    xs = [p[0] for line in lines for p in line.points if not (x.log and p[0] <= 0)]
    ys = [p[1] for line in lines for p in line.points]
    if not xs:
        return empty_chart(title)
    across = _Scale(x, xs, LEFT, WIDTH - RIGHT)
    up = _Scale(y, ys, HEIGHT - BOTTOM, TOP)
    parts = [_grid(across, up)]
    for number, line in enumerate(lines):
        path = _path(line, across, up, x.log)
        parts.append(
            f'<path class="s{number}" d="{path}"><title>{escape(line.name)}</title></path>'
        )
    return _figure(title, parts, lines if len(lines) > 1 else ())


def bar_chart(title: str, bars: Sequence[tuple[str, float]], x: str, y: str) -> str:
    """One bar per (label, value)."""
    if not bars:
        return empty_chart(title)
    top = max(value for _, value in bars) or 1.0
    up = _Scale(Axis(y, low=0.0, high=top), [0.0, top], HEIGHT - BOTTOM, TOP)
    room = (WIDTH - LEFT - RIGHT) / len(bars)
    parts = [_ticks_y(up)]
    for i, (label, value) in enumerate(bars):
        left = LEFT + i * room + room * 0.12
        head = up.place(value)
        parts.append(
            f'<rect class="b0" x="{left:.1f}" y="{head:.1f}" width="{room * 0.76:.1f}" '
            f'height="{max(0.0, HEIGHT - BOTTOM - head):.1f}"><title>{escape(label)}: {value:,.4g}'
            "</title></rect>"
        )
        if len(bars) <= 24 or i % (len(bars) // 12) == 0:
            parts.append(_text(left + room * 0.38, HEIGHT - BOTTOM + 14, label, "middle"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, x, "middle", "label"))
    return _figure(title, parts, ())


def empty_chart(title: str) -> str:
    """A chart without data says so."""
    return _figure(title, [_text(WIDTH / 2, HEIGHT / 2, "no data", "middle", "label")], ())


def cdf(values: Sequence[float]) -> list[tuple[float, float]]:
    """(value, share at or below) of sorted values, thinned to MAX_POINTS and always with both
    ends; shape (≤ MAX_POINTS + 1, 2)."""
    ordered = sorted(values)
    n = len(ordered)
    step = max(1, n // MAX_POINTS)
    points = [(ordered[i], (i + 1) / n) for i in range(0, n, step)]
    if n and points[-1][1] < 1.0:
        points.append((ordered[-1], 1.0))
    return points


# --- inside --------------------------------------------------------------------------------------


class _Scale:
    """Maps values of one axis to pixels."""

    def __init__(self, axis: Axis, values: Sequence[float], start: float, end: float) -> None:
        self.axis = axis
        low = min(values) if axis.low is None else axis.low
        high = max(values) if axis.high is None else axis.high
        if axis.log:
            low = max(low, 1e-9)
            high = max(high, low * 1.0001)
        if high <= low:
            high = low + (abs(low) or 1.0) * 0.5
        self.low, self.high, self.start, self.end = low, high, start, end

    def place(self, value: float) -> float:
        low, high = self.low, self.high
        if self.axis.log:
            value, low, high = math.log10(max(value, low)), math.log10(low), math.log10(high)
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        return _log_ticks(self.low, self.high) if self.axis.log else _ticks(self.low, self.high)


def _ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers inside [low, high]: multiples of 1, 2 or 5 times a power of ten."""
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [i * step for i in range(first, last + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    near = [m * 10.0**d for d in decades for m in (1, 2, 5) if low <= m * 10.0**d <= high]
    whole = [10.0**d for d in decades if low <= 10.0**d <= high]
    return near if len(near) <= 7 or len(whole) < 2 else whole


def _path(line: Line, across: _Scale, up: _Scale, log: bool) -> str:
    out: list[str] = []
    before: float | None = None
    for x, y in line.points:
        if log and x <= 0:
            continue
        px, py = across.place(x), up.place(y)
        if before is not None and line.step:
            out.append(f"L{px:.1f} {before:.1f}")
        out.append(f"{'L' if before is not None else 'M'}{px:.1f} {py:.1f}")
        before = py
    return "".join(out)


def _grid(across: _Scale, up: _Scale) -> str:
    parts = [_ticks_y(up)]
    for value in across.ticks():
        x = across.place(value)
        parts.append(f'<path class="grid" d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}"/>')
        parts.append(_text(x, HEIGHT - BOTTOM + 14, short(value), "middle"))
    parts.append(
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, across.axis.label, "middle", "label")
    )
    return "".join(parts)


def _ticks_y(up: _Scale) -> str:
    parts = []
    for value in up.ticks():
        y = up.place(value)
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(_text(LEFT - 6, y + 3.5, short(value), "end"))
    parts.append(
        f'<text class="label" transform="translate(11 {(TOP + HEIGHT - BOTTOM) / 2:.0f}) '
        f'rotate(-90)" text-anchor="middle">{escape(up.axis.label)}</text>'
    )
    return "".join(parts)


def short(value: float) -> str:
    """A tick's number without noise: 12k, 0.05, 3."""
    if value and abs(value) >= 10_000:
        return f"{value / 1000:,.4g}k"
    return f"{value:,.4g}"


def _text(x: float, y: float, text: str, anchor: str, kind: str = "tick") -> str:
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
    )


def _figure(title: str, parts: Sequence[str], legend: Sequence[Line]) -> str:
    names = "".join(
        f'<span class="key"><i class="k{i}"></i>{escape(line.name)}</span>'
        for i, line in enumerate(legend)
    )
    return (
        f"<figure><figcaption>{escape(title)}</figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">'
        f'{"".join(parts)}</svg><p class="legend">{names}</p></figure>'
    )
