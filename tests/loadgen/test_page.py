"""report.html: self-contained, whole, escaped (tests/ops opens it in a real browser)."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tests.loadgen.conftest import Run
from tests.support.target import Call, Target, good, scripted

from breakeven_loadgen.replay.recover import load
from breakeven_loadgen.report.page import html_page
from breakeven_loadgen.report.svg import Axis, Line, bar_chart, cdf, line_chart

VOID = {"meta", "link", "br"}


class Balance(HTMLParser):
    """Checks that elements close in order; collects every address."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.scripts = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [v for k, v in attrs if k in ("href", "src", "xlink:href") and v]
        self.scripts += tag == "script"
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        return

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> without a start"
        assert self.open.pop() == tag


async def mixed(call: Call, target: Target) -> None:
    if call.number % 7 == 3:
        await call.answer(500, b"{}")
    else:
        await good(call, target, per_event=1 + call.number % 3, gap_s=0.002)


def page_of(run: Run, **options: Any) -> tuple[Path, str]:
    with scripted(mixed) as target:
        result, _ = run(target.url, trace="synthetic:in=4,out=12", rate=60.0, requests=60,
                        metrics_url=(target.url,), **options)  # fmt: skip
    rows, record, result = load(result.folder)
    return result.folder, html_page(rows, result.summary, record, result.folder)


def test_page_is_self_contained_and_whole(run: Run) -> None:
    """Elements close in order, no script, no address outside the file, every section is there."""
    _, page = page_of(run)
    balance = Balance()
    balance.feed(page)
    assert balance.open == []
    assert balance.scripts == 0
    assert balance.addresses == ["data:,"]
    assert "@import" not in page
    assert "url(" not in page
    for title in ("Time to first token", "Gaps between bursts", "Arrivals offered and answered",
                  "Tokens per burst", "Schedule lag", "validity gate", "Provenance"):  # fmt: skip
        assert title in page
    assert "prefers-color-scheme:dark" in page
    assert not re.search(r"\bnan\b|\binf\b", re.sub(r"<[^>]*>", " ", page), re.IGNORECASE)
    assert "NaN" not in page


def test_names_are_escaped(run: Run) -> None:
    """A hostile label stays text."""
    _, page = page_of(run, arm="<script>alert(1)</script>")
    assert "<script>" not in page


@pytest.mark.parametrize("points", [[], [(0.0, 0.0)], [(1.0, 5.0), (1.0, 5.0)], [(-1.0, 2.0)]])
@pytest.mark.parametrize("log", [True, False])
def test_charts_survive_thin_data(points: list[tuple[float, float]], log: bool) -> None:
    """No data, one point, equal points, values that a log axis cannot show."""
    drawn = line_chart("t", [Line("a", points)], Axis("x", log=log), Axis("y"))
    assert drawn.startswith("<figure>")
    assert "nan" not in drawn
    assert bar_chart("t", [("1", 0.0)], "x", "y").startswith("<figure>")
    assert "no data" in bar_chart("t", [], "x", "y")


def test_cdf_is_thinned_and_ends_at_one() -> None:
    """Few points, both ends kept, shares ascending."""
    points = cdf([float(i) for i in range(10_000)])
    assert len(points) <= 402
    assert points[-1] == (9999.0, 1.0)
    assert [y for _, y in points] == sorted(y for _, y in points)
