"""The demo: its sentence follows the figures, its failures are failures, its children end."""

from __future__ import annotations

import io
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from breakeven.exitcodes import ExitCode
from breakeven_loadgen.demo.cells import ARMS, LOADS, TRACE, Load
from breakeven_loadgen.demo.figures import Cell, Tokens, problems, verdict
from breakeven_loadgen.demo.loop import demo
from breakeven_loadgen.demo.processes import Children
from breakeven_loadgen.demo.show import Screen, table

AGREE = Tokens(100, 100, 100)


def cell(rate: float, margin: float | None, arm: str = "ngram-k5", **fields: object) -> Cell:
    made = Cell(
        arm=arm, rate=rate, goodput=1.0, ttft_p50_s=0.02, ttft_p95_s=0.04, tpot_p50_s=0.007,
        gap_p99_s=0.02, m=1.44, cycle_s=0.007, s_per_token=0.006, decode_s=1.0, decode_tokens=160,
        usd_per_good=None, inflation=1.2, margin=margin, client_margin=margin, failed_gates=(),
        answered=10, offered=10, tokens=AGREE,
    )  # fmt: skip
    return replace(made, **fields)  # type: ignore[arg-type]  # fields of a Cell


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (0.27, -0.2, "pays at 2/s (margin +27 %: a cycle costs 1.20× and commits 1.44 tokens) but "
         "loses at 28/s (margin −20 %"),
        (0.27, 0.1, "pays at 2/s (margin +27 %: a cycle costs 1.20× and commits 1.44 tokens) and "
         "pays at 28/s"),
        (-0.3, -0.2, "loses at 2/s (margin −30 %"),
        (0.01, -0.2, "breaks even at 2/s (margin +1 %"),
    ],
)  # fmt: skip
def test_the_sentence_follows_the_figures(low: float, high: float, words: str) -> None:
    """Whatever was measured is what is said, and that it rests on a simulated engine."""
    cells = [cell(2.0, None, arm="baseline"), cell(2.0, low), cell(28.0, high)]
    sentence = verdict(cells)
    assert words in sentence
    assert "simulated engine" in sentence
    assert "no evidence" in sentence
    assert sentence.count(".") - sentence.count("1.") <= 1, "one sentence"


def test_without_margins_nothing_is_claimed() -> None:
    """No token counts: no verdict."""
    assert verdict([cell(2.0, None)]).startswith("No margin could be measured")


def test_what_makes_the_demo_fail() -> None:
    """A dead arm, an arm without answers, unequal token sums; failed gates do not."""
    fine = cell(2.0, 0.1, failed_gates=("schedule", "client"))
    assert problems([fine], []) == []
    assert problems([fine], ["proxy-baseline"]) == ["proxy-baseline ended by itself"]
    assert problems([replace(fine, answered=0)], []) == ["ngram-k5 at 2/s answered nothing"]
    for tokens in (Tokens(100, 99, 100), Tokens(100, 100, 101), Tokens(100, None, 100)):
        assert "tokens differ" in problems([replace(fine, tokens=tokens)], [])[0]


def test_the_plan_is_the_issues() -> None:
    """Baseline and n-gram k = 5 at 2/s and 28/s, windows of at most 10 s, the shipped trace."""
    assert [arm.flags for arm in ARMS] == [(), ("--draft", "ngram", "--k", "5")]
    assert [load.rate for load in LOADS] == [2.0, 28.0]
    assert all(load.window_s <= 10 for load in LOADS)
    shipped = Path(__file__).resolve().parents[1] / "data/traces" / TRACE.name
    assert TRACE.read_bytes() == shipped.read_bytes()
    assert (TRACE.parent / "LICENSE.Azure-CC-BY-4.0.txt").exists()


def test_the_table_shows_every_cell() -> None:
    """One row per arm and rate, unknown figures as –."""
    console = Console(file=io.StringIO(), width=120)
    console.print(table([cell(2.0, None, arm="baseline", inflation=None), cell(2.0, 0.25)]))
    text = console.file.getvalue()  # type: ignore[attr-defined]  # a StringIO
    assert "+25.0 %" in text
    assert "–" in text
    assert text.count("2/s") == 1


def test_children_end_with_the_context(tmp_path: Path) -> None:
    """Leaving the context on an error ends what was started."""
    pid = 0

    def fail() -> None:
        nonlocal pid
        with Children(tmp_path) as children:
            child = children.start("engine", "breakeven_sim", ["serve", "--listen", "127.0.0.1:0"])
            pid = child.process.pid
            child.wait_ready()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_small_demo_end_to_end(tmp_path: Path) -> None:
    """Engines, proxies, generator: token sums agree, results and labels are written, exit 0."""
    out = io.StringIO()
    screen = Screen(Console(file=out, width=120), Console(file=io.StringIO()))
    code = demo(tmp_path, screen, (Load(20.0, 0.4),))
    assert code is ExitCode.OK, out.getvalue()
    found = json.loads((tmp_path / "demo.json").read_text())
    assert found["evidence"] == "method_check"
    assert [c["arm"] for c in found["cells"]] == ["baseline", "ngram-k5"]
    for c in found["cells"]:
        tokens = c["tokens"]
        assert tokens["generator"] == tokens["proxy"] == tokens["engine"] > 0
    assert found["cells"][0]["m"] == pytest.approx(1.0)
    assert "simulated" in out.getvalue()
    assert (tmp_path / "ngram-k5-20" / "requests.parquet").exists()
