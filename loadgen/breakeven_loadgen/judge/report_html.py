"""report.html of a grid: self-contained, light and dark, readable without this repository.

Here: the page. Not here: figures (decide, capture), charts (report_charts). Nothing of a prompt or
an answer exists in what it draws from.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from breakeven import __version__
from breakeven.units import format_duration

from .capture import Captured, capture
from .decide import Decided
from .money import BELOW_SATURATION
from .policy_cell import HEADINGS
from .policy_cell import cells as policy_row
from .report_charts import (
    cohort_forest,
    map_chart,
    margin_chart,
    position_chart,
    rate_chart,
    tail_chart,
)
from .tables import interval

REPORT = "report.html"

STYLE = """
:root{--bg:#fff;--fg:#1c1e21;--soft:#5f6670;--line:#d9dde3;--card:#f6f7f9;--band:#2f7d4f22;
--arm0:#6b7280;--arm1:#1f6fd6;--arm2:#c2570c;--arm3:#7c3aed;--arm4:#0f8a8a;--arm5:#b0206a;
--good:#1f7a44;--bad:#c02626;--open:#a16207}
@media(prefers-color-scheme:dark){:root{--bg:#14161a;--fg:#e6e8ec;--soft:#9aa2ad;--line:#2e333b;
--card:#1c1f25;--band:#4fb87a22;--arm0:#9aa2ad;--arm1:#6aa8f5;--arm2:#f0924a;--arm3:#b392f5;
--arm4:#4cc3c3;--arm5:#ee7ab5;--good:#57c785;--bad:#f07070;--open:#e0b04a}}
*{box-sizing:border-box}body{margin:0 auto;max-width:1080px;padding:24px;background:var(--bg);
color:var(--fg);font:15px/1.5 system-ui,sans-serif}h1{font-size:22px;margin:0 0 4px}
h2{font-size:17px;margin:32px 0 8px}.soft,figure p,.empty{color:var(--soft);font-size:13px}
.verdict{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:16px;
margin:16px 0}.verdict b{font-size:18px}.mark{border:1px solid var(--open);color:var(--open);
border-radius:4px;padding:1px 6px;font-size:13px}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(420px,1fr));gap:16px}
figure{margin:0;background:var(--card);border:1px solid var(--line);border-radius:8px;padding:12px}
figcaption{font-weight:600;margin-bottom:4px}figure p{margin:4px 0 0}svg{width:100%;height:auto}
.grid{stroke:var(--line)}.ref{stroke:var(--soft);stroke-dasharray:4 3}.band{fill:var(--band)}
.line{fill:none;stroke-width:2}.bar{stroke-width:2}.tick,.axis{fill:var(--soft);font-size:11px}
.name{font-size:12px;font-weight:600}.scroll{overflow-x:auto}
table{border-collapse:collapse;font-size:13px;width:100%}th,td{padding:4px 8px;text-align:right;
border-bottom:1px solid var(--line);white-space:nowrap}th:first-child,td:first-child,.left
{text-align:left}td.left{white-space:normal}.good{color:var(--good)}.bad{color:var(--bad)}
.open{color:var(--open)}
"""


def write_report(folder: Path, decided: Decided) -> Path:
    """Write report.html into a grid's folder."""
    path = folder / REPORT
    new = path.with_name(f".{REPORT}.new")
    new.write_text(page(decided), "utf-8")
    new.replace(path)
    return path


def page(decided: Decided) -> str:
    """The whole page."""
    cells = capture(decided.assessment)
    parts = [
        _head(decided),
        "<h2>Does it pay</h2>", _verdicts(decided),
        '<div class="charts">', margin_chart(decided), map_chart(decided), "</div>",
        "<h2>What users get, and what it costs</h2>", '<div class="charts">',
        rate_chart(decided, cells, "Goodput against offered rate", "share of good responses",
                   lambda c: c.goodput, percent=True),
        rate_chart(decided, cells, "Cost per 1,000 good responses", "US dollars",
                   lambda c: None if c.usd_per_good is None else c.usd_per_good * 1000,
                   note=BELOW_SATURATION),
        tail_chart(decided, cells, "gap", "Burst gap, p99"),
        tail_chart(decided, cells, "ttft", "Time to first token, p99"),
        "</div>",
        "<h2>Speculation</h2>", '<div class="charts">',
        position_chart(decided, cells), cohort_forest(decided), "</div>", _sweep(decided),
        "<h2>The filled grid</h2>", _grid_table(decided, cells), _policy(decided),
        "<h2>Validity gates</h2>", _gates(decided),
        "<h2>Contract and way back</h2>", _contract(decided),
        "<h2>Provenance and checklist</h2>", _checklist(decided),
    ]  # fmt: skip
    title = f"Breakeven: {decided.outcome.decision.value}"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>"
        + "".join(parts)
        + f'<p class="soft">loadgen {__version__}</p></body></html>'
    )


def _head(decided: Decided) -> str:
    record = decided.record
    labels = decided.assessment.labels
    why = " and ".join(labels.why_not_evidence)
    mark = f'<span class="mark">method check: {escape(why)}</span>' if why else ""
    bounds = ", ".join(
        f"{name.removesuffix('_s')} {format_duration(value)}"
        for name, value in decided.assessment.grid.record.slo.bounds().items()
    )
    objective = decided.assessment.grid.record.slo.objective
    return (
        "<h1>Does the draft pay for itself?</h1>"
        f'<p class="soft">SLO: {escape(bounds)}; objective {objective:.1%}. '
        f"Blocks of {decided.assessment.grid.record.window_s:g} s, the unit of inference.</p>"
        f'<div class="verdict"><b>{escape(str(record["decision"]))}</b> · action '
        f"{escape(str(record['action']))} {mark}<p>{escape(str(record['reasons']))}</p></div>"
    )


def table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], left: Sequence[int] = (0,)
) -> str:
    """A table; cells are HTML already."""
    head = "".join(
        f'<th class="left">{escape(h)}</th>' if i in left else f"<th>{escape(h)}</th>"
        for i, h in enumerate(headings)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f'<td class="left">{cell}</td>' if i in left else f"<td>{cell}</td>"
            for i, cell in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'


WORD_CLASS = {"pays": "good", "loses": "bad", "even": "soft", "inconclusive": "open"}


def _verdicts(decided: Decided) -> str:
    rows = []
    for candidate in decided.assessment.candidates:
        for line in candidate.lines:
            cell = line.cell
            broken = ", ".join(f.name for f in cell.broken)
            shaky = ", ".join(f"{f.name} not shown" for f in cell.open_floors)
            word = f'<span class="{WORD_CLASS[cell.word.value]}">{cell.word.value}</span>'
            rows.append([
                escape(candidate.arm.name), escape(cell.cohort), f"{cell.rate:g}", word,
                "unstable" if cell.unstable else interval(cell.margin), _num(cell.m),
                _num(cell.inflation), str(cell.blocks),
                escape(", ".join(p for p in (broken, shaky) if p) or "kept"),
            ])  # fmt: skip
    return table(
        ["arm", "cohort", "req/s", "", "margin [95 %]", "M", "C/T", "blocks", "floors"],
        rows, (0, 1, 8),
    )  # fmt: skip


def _sweep(decided: Decided) -> str:
    if not decided.fits:
        return (
            '<p class="soft">No k-sweep: D, V and H singly are not exposed by an engine; three '
            "depths of one draft at one rate give a fit.</p>"
        )
    rows = [
        [escape(f.family), f"{f.rate:g}", ", ".join(map(str, f.depths)),
         f"{f.slope_s * 1e3:.3f} [{f.slope_low_s * 1e3:.3f}, {f.slope_high_s * 1e3:.3f}]",
         f"{f.intercept_s * 1e3:.3f}", f.source]
        for f in decided.fits
    ]  # fmt: skip
    return table(["draft", "req/s", "depths", "ms per further draft token [95 %]",
                  "ms of the cycle at depth 0", "source"], rows)  # fmt: skip


def _grid_table(decided: Decided, cells: Sequence[Captured]) -> str:
    def q(c: Captured, kind: str) -> str:
        found = c.latency[kind]
        if found is None:
            return NOT_EXPOSED
        return " / ".join(_digits(found[name] * 1e3) for name in ("p50", "p95", "p99"))

    rows = []
    for c in cells:
        where = c.cell if c.traffic == "main" else c.traffic
        rows.append([
            escape(where), escape(c.arm), f"{c.rate:g}", str(c.blocks), q(c, "ttft"), q(c, "tpot"),
            q(c, "gap"), q(c, "e2e"), _share(c.goodput), _share(c.errors), _share(c.timeouts),
            _share(c.dropped), str(c.cancelled), _num(c.output_per_s), _num(c.committed_per_s),
            _num(c.queue), _num(c.preemptions), _num(c.kv_capacity_tokens), _share(c.kv_usage),
            _gib(c.device_memory_bytes), _num(c.m), _ms(c.cycle_s), _share(c.acceptance),
            _num(c.discarded),
            "undefined" if c.usd_per_good is None else f"{c.usd_per_good * 1000:.4g}",
        ])  # fmt: skip
    done = {c.cell for c in cells} | {c.traffic for c in cells}
    rows += [
        [escape(name), "(not run)", *[""] * 23]
        for name in decided.assessment.grid.record.cells
        if name not in done and name not in ("peak", "restart_fallback", "policy")
    ]
    note = ('<p class="soft">Latencies in ms: p50 / p95 / p99, median over blocks. $ per 1,000 '
            "good responses; undefined without a price or a good response.</p>")  # fmt: skip
    return table(
        ["cell", "arm", "req/s", "blocks", "TTFT", "TPOT", "gap", "e2e", "goodput", "errors",
         "timeouts", "dropped", "cancelled", "output tok/s", "committed tok/s", "queue",
         "preemptions", "KV tokens", "KV used", "device GiB", "M", "cycle ms", "acceptance",
         "discarded tok/s", "$/1,000"], rows, (0, 1),
    ) + note  # fmt: skip


def _policy(decided: Decided) -> str:
    """The policy cell: a row of its own kind, for it measures a gateway and no arm."""
    found = decided.record["checklist"]["policy_cell"]
    row = [escape(cell) for cell in policy_row(found)]
    word = {"passed": "good", "failed": "bad"}.get(found["state"], "open")
    row[1] = f'<span class="{word}">{row[1]}</span>'
    why = "".join(f'<p class="bad">policy: {escape(why)}</p>' for why in found["why_not"])
    note = ('<p class="soft">Rates in total; gaps in ms: p99 / longest (requests). Wrong mode: on '
            "the arm that the offered rate did not ask for.</p>")  # fmt: skip
    return table(HEADINGS, [row], (0, 1)) + why + note


NOT_EXPOSED = '<span class="soft">not exposed</span>'


def _num(value: float | None) -> str:
    return NOT_EXPOSED if value is None else f"{value:,.3g}" if value < 1000 else f"{value:,.0f}"


def _share(value: float | None) -> str:
    return NOT_EXPOSED if value is None else f"{value:.1%}"


def _ms(value: float | None) -> str:
    return NOT_EXPOSED if value is None else f"{value * 1e3:.2f}"


def _gib(value: float | None) -> str:
    return NOT_EXPOSED if value is None else f"{value / 2**30:.2f}"


def _gates(decided: Decided) -> str:
    words = {True: '<span class="good">passed</span>', False: '<span class="bad">failed</span>',
             None: '<span class="soft">not evaluated</span>'}  # fmt: skip
    rows = [
        [escape(c.arm.name), g.name, words[g.passed], escape(g.reason)]
        for c in decided.assessment.candidates
        for g in c.gates
    ]
    flags = "".join(
        f'<p class="open">{escape(c.arm.name)}: {escape(flag)}</p>'
        for c in decided.assessment.candidates
        for flag in c.flags
    )
    return table(["arm", "gate", "", "figures"], rows, (0, 1, 3)) + flags


def _contract(decided: Decided) -> str:
    grid = decided.assessment.grid
    rows = [
        [escape(arm), escape(feature), escape(str(found.get("support"))),
         escape(str(found.get("detail", "")))]
        for arm, features in grid.probes.items()
        for feature, found in features.items()
    ]  # fmt: skip
    support = table(["arm", "feature", "", "shown"], rows, (0, 1, 3)) if rows else (
        '<p class="soft">No feature was probed.</p>')  # fmt: skip
    lines = [
        f"<p>{escape(arm)}: " + escape("; ".join(f"{k} {_plain(v)}" for k, v in found.items()))
        + "</p>"
        for arm, found in grid.restart.items()
    ]  # fmt: skip
    back = decided.rollback
    capacity = "none of the swept rates" if back.headroom_rps is None else (
        f"{'at least ' if back.open_end else ''}{back.headroom_rps:.3g} req/s")  # fmt: skip
    return support + f"<p>The baseline carries {capacity} within the SLO.</p>" + "".join(lines)


def _digits(value: float) -> str:
    """Three digits that count, never an exponent for a large number."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _plain(value: object) -> str:
    return (
        "not exposed"
        if value is None
        else _digits(value)
        if isinstance(value, float)
        else str(value)
    )


def _checklist(decided: Decided) -> str:
    found = decided.record["checklist"]
    rows = [[escape(p["name"]), escape(str(p["value"])), p["how"]] for p in found["pinned"]]
    rows += [[escape(name), "", '<span class="open">not pinned</span>']
             for name in found["not_pinned"]]  # fmt: skip
    unproven = ", ".join(found["quality_unproven"]) or "nothing"
    first = "".join(
        f'<p class="bad">Before promotion: {escape(one)}.</p>' for one in found["before_promotion"]
    )
    deployable = {True: "yes", False: "no", None: "not stated"}[
        found["previous_configuration_deployable"]
    ]
    return table(["pinned", "value", "how"], rows, (0, 1)) + (
        f"<p>Not shown of quality: {escape(unproven)}. Identity unverified: "
        f"{escape(', '.join(found['identity_unverified']) or 'nothing')}. "
        f"Previous configuration deployable: {deployable}.</p>{first}"
    )
