"""report.html of one run: a self-contained page, light and dark, no outside addresses.

Here: which figures are drawn and in which words. Not here: figures (replay.summary), geometry
(svg). Everything is escaped; the page holds no script.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..replay import arrow
from ..replay.columns import Columns
from ..replay.engine import ENGINE_FILE
from . import words
from .style import CSS
from .svg import Axis, Line, bar_chart, cdf, line_chart
from .tables import LATENCIES, QUANTILES, slo_words

BINS = 60
"""Parts of the window in the pictures over time."""
SHARE = Axis("share of requests", low=0.0, high=1.0)


def html_page(rows: pa.Table, summary: dict[str, Any], record: dict[str, Any], folder: Path) -> str:
    """The whole page."""
    columns = Columns(rows, record.get("epsilon_s", 0.002))
    measured = columns.where(~columns.flags("warmup"))
    body = [
        _head(summary, record),
        _cards(summary),
        _partial(summary),
        _section("Latency", _latency_table(summary["latency"]), _latency_charts(measured)),
        _section("Load", "", _load_charts(columns, measured)),
        _section("Verdicts and validity", _verdicts(summary) + _gates(summary), ""),
        _section("Streams", "", _stream_charts(measured)),
        _section("Engine", _speculation(summary), _engine_charts(folder)),
        _section("Provenance", _provenance(record), ""),
    ]
    title = escape(f"loadgen: {record['target']['model']}")
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><style>{CSS}</style></head><body><main>'
        f"{''.join(body)}</main></body></html>\n"
    )


def _section(title: str, text: str, figures: str) -> str:
    grid = f'<div class="figures">{figures}</div>' if figures else ""
    return f"<section><h2>{escape(title)}</h2>{text}{grid}</section>"


def _head(summary: dict[str, Any], record: dict[str, Any]) -> str:
    labels = summary["labels"]
    chips = "".join(
        f'<span class="chip {"warn" if value in ("simulated", "synthetic") else ""}">'
        f"{escape(name)} {escape(value)}</span>"
        for name, value in labels.items()
    )
    what = "evidence" if summary["evidence"] == "evidence" else "a check of the method, no evidence"
    return (
        f"<header><h1>{escape(record['target']['model'])}</h1>"
        f"<p>{escape(record['trace']['name'])} at {words.number(summary['rate']['offered'])}/s "
        f"for {summary['window_s']:.1f} s · {escape(record['created'])} · {escape(record['tool'])}"
        f'</p><p>{chips}<span class="chip">{what}</span></p></header>'
    )


def _cards(summary: dict[str, Any]) -> str:
    good, latency, cost = summary["goodput"], summary["latency"], summary["cost"]
    cards = [
        ("goodput", words.share(good["share"], 2), f"{words.number(good['per_s'])}/s good"),
        ("TTFT p95", f"{words.quantile(latency['ttft_s'], 'p95')} ms", "from the intended time"),
        ("TPOT p50", f"{words.quantile(latency['tpot_s'], 'p50')} ms", "per output token"),
        ("gap p99", f"{words.quantile(latency['gap_s'], 'p99')} ms", "between bursts"),
        (
            "decode",
            f"{words.ms(summary['decode']['s_per_token'], 2)} ms",
            f"per token, {summary['decode']['tokens']:,} tokens",
        ),
    ]
    if cost is not None:
        cards.append(("cost", words.usd(cost["usd_per_good"]), "per good response"))
    cells = "".join(
        f"<div><b>{escape(name)}</b><strong>{escape(value)}</strong><span>{escape(note)}</span></div>"
        for name, value, note in cards
    )
    return (
        f'<div class="cards">{cells}</div><p class="dim">SLO: {escape(slo_words(good["slo"]))}</p>'
    )


def _partial(summary: dict[str, Any]) -> str:
    lines = []
    partial = words.PARTIAL.get(summary["state"])
    if partial is not None:
        n = summary["arrivals"]["never_started"]
        lines.append(f"Partial: {partial}; {n:,} scheduled arrivals were never started.")
    lines += [f"Missed: {text}." for text in summary["thresholds"]]
    failed = [gate["name"] for gate in summary["gates"] if gate["passed"] is False]
    if failed:
        lines.append(f"Not evidence: gate {', '.join(failed)} failed.")
    return "".join(f'<p class="alarm">{escape(line)}</p>' for line in lines)


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    lines = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in line) + "</tr>" for line in body
    )
    return _framed(f"<thead><tr>{top}</tr></thead><tbody>{lines}</tbody>")


def _framed(inside: str) -> str:
    """A table that scrolls by itself where the screen is narrow."""
    return f'<div class="scroll"><table>{inside}</table></div>'


def _latency_table(latency: dict[str, Any]) -> str:
    body = []
    for title, key in LATENCIES:
        found = latency[key]
        if found is None:
            continue
        cells = [words.quantile(found, name) for name in QUANTILES]
        body.append([title, *cells, f"{found['n']:,}", f"{found.get('unanswered') or 0:,}"])
    note = (
        '<p class="dim">Milliseconds. Arrivals that were never answered rank behind all others; ≥ '
        "marks a quantile that falls on one: it waited at least that long.</p>"
    )
    return _table(["ms", *QUANTILES, "n", "unanswered"], body) + note


def _known(values: Any) -> list[float]:
    found: list[float] = values[~np.isnan(values)].tolist()
    return found


def _ms(values: Any) -> list[tuple[float, float]]:
    return cdf([value * 1e3 for value in _known(values)])


def _latency_charts(measured: Columns) -> str:
    ttft = [
        Line("from intended time", _ms(measured.numbers("ttft_s")), step=True),
        Line("from send", _ms(measured.numbers("ttft_sent_s")), step=True),
    ]
    tpot = [Line("TPOT", _ms(measured.numbers("tpot_s")), step=True)]
    gaps = [
        Line("all gaps", _ms(measured.burst_gaps_s()), step=True),
        Line("worst gap of each request", _ms(measured.numbers("gap_max_s")), step=True),
    ]
    return (
        line_chart("Time to first token", ttft, Axis("ms", log=True), SHARE)
        + line_chart("Time per output token", tpot, Axis("ms"), SHARE)
        + line_chart("Gaps between bursts", gaps, Axis("ms", log=True), SHARE)
        + line_chart(
            "Whole answer",
            [Line("e2e", _ms(measured.numbers("e2e_s")), step=True)],
            Axis("ms", log=True),
            SHARE,
        )
    )


def _load_charts(columns: Columns, measured: Columns) -> str:
    if not len(columns):
        return ""
    intended = columns.numbers("intended_s")
    answered = [v == "good" or str(v).startswith("slow") for v in columns.words("verdict")]
    ends = columns.numbers("end_s")[np.array(answered, bool)]
    last = float(np.nanmax(np.r_[intended, ends, 1e-3]))
    edges = np.linspace(0.0, last, BINS + 1)
    width = last / BINS

    def per_s(times: Any) -> list[tuple[float, float]]:
        counts, _ = np.histogram(times[~np.isnan(times)], edges)
        return [(float(edges[i]), float(n / width)) for i, n in enumerate(counts)]

    lag = columns.numbers("lag_s")
    worst = [(float(t), float(v) * 1e3) for t, v in zip(intended, lag, strict=True) if v == v]
    times, inflight = measured.inflight()
    return (
        line_chart(
            "Arrivals offered and answered",
            [Line("offered", per_s(intended), step=True), Line("answered", per_s(ends), step=True)],
            Axis("seconds"),
            Axis("per second", low=0.0),
        )
        + line_chart(
            "Requests in flight",
            [Line("in flight", list(zip(times.tolist(), inflight.tolist(), strict=True)))],
            Axis("seconds"),
            Axis("requests", low=0.0),
        )
        + line_chart(
            "Schedule lag",
            [Line("send after intended time", _thin(worst))],
            Axis("seconds"),
            Axis("ms", low=0.0),
        )
    )


def _thin(points: list[tuple[float, float]], most: int = 400) -> list[tuple[float, float]]:
    """The worst of each group, so that no spike is lost."""
    size = max(1, len(points) // most)
    groups = [points[i : i + size] for i in range(0, len(points), size)]
    return [max(group, key=lambda point: point[1]) for group in groups]


def _stream_charts(measured: Columns) -> str:
    bursts = measured.burst_tokens().astype(int)
    counts = np.bincount(bursts) if len(bursts) else np.zeros(0, int)
    shown = [(str(i), float(n)) for i, n in enumerate(counts[:17]) if i]
    if len(counts) > 17:
        shown.append(("17+", float(np.sum(counts[17:]))))
    lengths = measured.numbers("output_tokens")
    prompts = measured.numbers("prompt_tokens")
    return bar_chart("Tokens per burst", shown, "tokens", "bursts") + line_chart(
        "Lengths",
        [Line("prompt", cdf(_known(prompts)), step=True),
         Line("output", cdf(_known(lengths)), step=True)],
        Axis("tokens", log=True),
        SHARE,
    )  # fmt: skip


def _verdicts(summary: dict[str, Any]) -> str:
    total = sum(summary["verdicts"].values()) or 1
    lines = []
    for name, n in sorted(summary["verdicts"].items(), key=lambda item: -item[1]):
        if not n:
            continue
        kind = name if name in ("good", "cancelled", "interrupted") else "bad"
        lines.append(
            f"<tr><td>{escape(name)}</td><td>{n:,}</td><td>{n / total:.1%}</td>"
            f'<td class="wide"><i class="bar {kind}" style="width:{n / total * 100:.1f}%"></i></td>'
            f'<td class="dim">{escape(words.VERDICT_WORDS[name])}</td></tr>'
        )
    head = "<th>verdict</th><th>n</th><th>share</th><th></th><th></th>"
    return _framed(f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody>")


def _gates(summary: dict[str, Any]) -> str:
    marks = {True: ("passed", "good"), False: ("failed", "bad"), None: ("not evaluated", "")}
    lines = "".join(
        f'<tr><td>{escape(gate["name"])}</td><td class="{marks[gate["passed"]][1]}">'
        f'{marks[gate["passed"]][0]}</td><td class="dim">{escape(gate["reason"])}</td></tr>'
        for gate in summary["gates"]
    )
    head = "<thead><tr><th>validity gate</th><th></th><th></th></tr></thead>"
    return _framed(f"{head}<tbody>{lines}</tbody>")


def _speculation(summary: dict[str, Any]) -> str:
    spec = summary["speculation"]
    if spec["m_counters"] is None and spec["m_block"] is None:
        return '<p class="dim">No --metrics-url was given: the engine was not sampled.</p>'
    body = [
        ["M, committed tokens per cycle (counters)", words.number(spec["m_counters"], 3)],
        ["cycle D+V+H", f"{words.ms(spec['cycle_s'], 2)} ms"],
        ["depth k", str(spec["k"] or words.UNKNOWN)],
        ["M from the responses' own block", words.number(spec["m_block"], 3)],
        ["M from the stream (an estimate)", words.number(spec["m_stream_estimate"], 3)],
        ["1 + accepted per drafted step", words.number(spec["per_drafted_step"], 3)],
        ["acceptance, never alone", words.share(spec["acceptance"])],
    ]
    known = [line for line in body if not line[1].startswith(words.UNKNOWN)]
    return _table(["speculation", ""], known)


def _engine_charts(folder: Path) -> str:
    path = folder / ENGINE_FILE
    if not path.exists():
        return ""
    table = pq.read_table(path)
    names, sources = table["name"].to_pylist(), table["source"].to_pylist()
    times = arrow.numbers(arrow.whole(table["t_s"])).tolist()
    values = arrow.numbers(arrow.whole(table["value"])).tolist()
    series: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for name, source, t, value in zip(names, sources, times, values, strict=True):
        series.setdefault(name, {}).setdefault(source, []).append((t, value))

    def lines(name: str, title: str) -> list[Line]:
        found = series.get(name, {})
        many = len(found) > 1
        return [Line(f"{title} {i}" if many else title, points)
                for i, points in enumerate(found.values())]  # fmt: skip

    def rates(name: str, title: str) -> list[Line]:
        return [Line(line.name, _slopes(line.points), step=True) for line in lines(name, title)]

    charts = [
        ("Requests in the engine", lines("requests_running", "running")
         + lines("requests_waiting", "waiting"), "requests"),
        ("KV cache", lines("kv_cache_usage", "share used"), "share"),
        ("Output tokens of the engine", rates("generation_tokens", "tokens"), "tokens per second"),
        ("Preemptions", lines("preemptions", "preemptions"), "count"),
        ("Device memory", lines("device_memory_used_bytes", "bytes"), "bytes"),
    ]  # fmt: skip
    return "".join(
        line_chart(title, found, Axis("seconds"), Axis(unit, low=0.0))
        for title, found, unit in charts
        if found
    )


def _slopes(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    return [(t0, (v1 - v0) / (t1 - t0)) for (t0, v0), (t1, v1) in pairwise(points) if t1 > t0]


def _provenance(record: dict[str, Any]) -> str:
    body = [
        ["target", record["target"]["url"]],
        ["version", record["target"]["version"] or "not told"],
        ["trace", f"{record['trace']['name']} ({record['trace']['format']}), "
         f"{record['trace']['arrivals']:,} arrivals"],
        ["schedule", f"{record['schedule']['arrivals']:,} arrivals, digest "
         f"{record['schedule']['digest']}"],
        ["stamps, ε", f"{record['stamps']}, {words.seconds(record['epsilon_s'])}"],
        ["machine", f"{record['platform']}, Python {record['python']}"],
        ["state", record["state"]],
        *([f"--{name.replace('_', '-')}", str(value)] for name, value in record["options"].items()
          if name not in ("out", "url", "trace")),
        *(["note", note] for note in record["notes"]),
    ]  # fmt: skip
    return _table(["", ""], body)
