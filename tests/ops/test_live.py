"""The live proof: a real Prometheus fed by the real proxy, the real generator and simulated arms.

One story is told once for all tests here (`deploy/demo`): both arms measured, the draft made slow,
BreakEvenLost delivered to a webhook, the draft mended, the alert cleared. Rule windows, holds and
the evaluation interval are shortened for this only.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.ops.rulefiles import DASHBOARDS, concrete, panels

pytestmark = [pytest.mark.ops, pytest.mark.timeout(700)]
WITHIN = 0.02
WINDOW_S = 100
"""What [5m] of the rules is in the demo."""
STEP_S = 4.0
RATE_INTERVAL = "16s"

# These say the same whatever the load is: they must be finite, not move.
CONSTANT = {
    "on_call / TTFT p95 / B": "the SLO's bound",
    "on_call / Burst gap p99, with tokens per burst / C": "the SLO's bound",
    "on_call / Upstream of each arm / A": "up, but for the moment of the restart",
    "on_call / Routing state of each candidate / A": "a state",
    "on_call / Token coverage / A": "1 where all counts are known",
    "on_call / Telemetry errors / A": "0 is the good value",
    "on_call / Telemetry errors / B": "0 is the good value",
    "on_call / Queue time in the engine p95 / A": "under the first bound of the engine's histogram",
    "does_the_draft_pay / Memory: KV capacity / A": "a capacity",
    "does_the_draft_pay / Preemptions / A": "0 while the KV cache suffices",
    "replay / Dropped / A": "0 below --max-inflight",
    "replay / Offered, admitted, dropped, served / C": "0 below --max-inflight",
    "replay / Worst lag behind the schedule / A": "a maximum",
    "replay / Lag behind the schedule, and of the event loop / B": "a maximum",
    "replay / Lag behind the schedule, and of the event loop / C": "0 is the good value",
}


@dataclass
class Told:
    """The story, the Prometheus that saw it, and what the webhook got."""

    story: Any
    prometheus: Any
    webhook: Any
    folder: Path


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    """The story, told once; everything is ended afterwards, by pid."""
    from deploy.demo.scenario import tell
    from deploy.demo.stack import Stack

    folder = tmp_path_factory.mktemp("ops") / "demo"

    def say(words: str) -> None:
        sys.stderr.write(f"  {words}\n")

    with Stack(folder) as stack:
        yield Told(tell(stack, say), stack.prometheus, stack.webhook, folder)


def generator(told: Told) -> dict[str, dict[str, Any]]:
    """The generator's own figures by arm: its rows that ended inside the rule window."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    from breakeven_loadgen.replay.columns import Columns

    found = {}
    for out in told.story.outs:
        provenance = json.loads((out / "provenance.json").read_text("utf-8"))
        until = told.story.measured_at - provenance["start"]["unix_s"]
        rows = pq.read_table(out / "requests.parquet")
        rows = rows.filter((pc.field("end_s") > until - WINDOW_S) & (pc.field("end_s") <= until))
        columns = Columns(rows)
        verdicts = columns.words("verdict")
        good, offered = verdicts.count("good"), len(verdicts)
        tokens = columns.total("decode_tokens") or 0.0
        spoken = rows.filter(pc.is_valid(pc.field("block_cycles")))
        cycles = Columns(spoken).total("block_cycles")
        found[provenance["options"]["arm"]] = {
            "s_per_token": (columns.total("decode_s") or 0.0) / tokens,
            "goodput": good / offered,
            "m": (Columns(spoken).total("decode_tokens") or 0.0) / cycles if cycles else None,
            # The ledger of the same interval: fleet time, idle seconds included.
            "cost": provenance["options"]["usd_per_hour"] / 3600 * WINDOW_S / good,
            "gaps": columns.burst_gaps_s(),
        }
    return found


def bucketed_p99(gaps: Any, bounds: list[float]) -> float:
    """p99 of exact gaps as histogram_quantile reads it off buckets with these bounds."""
    below = [sum(1 for gap in gaps if gap <= bound) for bound in bounds]
    rank = 0.99 * len(gaps)
    index = next(i for i, count in enumerate(below) if count >= rank)
    low, before = (bounds[index - 1], below[index - 1]) if index else (0.0, 0)
    return low + (bounds[index] - low) * (rank - before) / (below[index] - before)


def test_panels_equal_the_generators_own_figures(told: Told) -> None:
    """Margin, goodput, M, cost and gap p99 on the panels are the generator's, within 2 %."""
    own, at = generator(told), told.story.measured_at
    draft = "draft-k4"

    def panel(expr: str, arm: str = draft) -> float:
        value = told.prometheus.value(expr.replace("ARM", f'{{arm="{arm}"}}'), at)
        assert value is not None, f"no data: {expr}"
        return float(value)

    margin = 1 - own[draft]["s_per_token"] / own["baseline"]["s_per_token"]
    pairs = {
        "margin": (panel("arm:breakeven_margin:ratio_rate5mARM"), margin),
        "M": (panel("arm:breakeven_committed_tokens_per_cycle:ratio_rate5mARM"), own[draft]["m"]),
    }
    for arm in own:
        pairs |= {
            f"goodput {arm}": (
                panel("arm:breakeven_goodput:ratio_rate5mARM", arm),
                own[arm]["goodput"],
            ),
            f"cost {arm}": (
                panel("arm:breakeven_cost_usd_per_good_response:ratio_rate5mARM", arm),
                own[arm]["cost"],
            ),
            f"s/token {arm}": (
                panel("arm:breakeven_decode_seconds_per_token:ratio_rate5mARM", arm),
                own[arm]["s_per_token"],
            ),
        }
        rows = told.prometheus.now(f'breakeven_burst_gap_seconds_bucket{{arm="{arm}"}}', at)
        bounds = sorted({float(labels["le"]) for labels, _ in rows} - {math.inf})
        pairs[f"gap p99 {arm}"] = (
            panel("arm:breakeven_burst_gap_seconds:p99_rate5mARM", arm),
            bucketed_p99(own[arm]["gaps"], bounds),
        )
    for name, (shown, truth) in pairs.items():
        sys.stderr.write(
            f"  {name}: panel {shown:.6g}, generator {truth:.6g}, ratio {shown / truth:.4f}\n"
        )
    wrong = {name: pair for name, pair in pairs.items() if abs(pair[0] / pair[1] - 1) > WITHIN}
    assert not wrong


def targets() -> Iterator[tuple[str, str]]:
    """Every query of every panel, with where it stands."""
    for path in sorted(DASHBOARDS.glob("*.json")):
        for panel in panels(path.stem):
            for target in panel.get("targets") or []:
                where = f"{path.stem} / {panel['title']} / {target['refId']}"
                yield where, concrete(target["expr"], RATE_INTERVAL)


def test_every_panel_query_gives_finite_values_that_change_with_load(told: Told) -> None:
    """No panel says "No data", and none is stuck: rates went from 3/s to 6/s, the draft slowed."""
    story = told.story
    empty, stuck = [], []
    for where, expr in targets():
        found = told.prometheus.range(expr, story.began, story.ended, STEP_S)
        finite = [series.finite for series in found if series.finite]
        if not finite:
            empty.append(where)
            continue
        moved = any(max(values) > min(values) for values in finite) or len(finite) > 1
        if not moved and where not in CONSTANT and "Firing" not in where:
            stuck.append(where)
    assert not empty, f"no data: {empty}"
    assert not stuck, f"does not change with load: {stuck}"


def test_break_even_lost_fires_is_delivered_and_clears_after_its_band(told: Told) -> None:
    """Slow: margin below 0, webhook. Mended: held inside the band, then resolved."""
    story = told.story
    assert story.worst_margin < 0.05
    assert story.slow_at < story.fired_at < story.recovered_at < story.cleared_at
    states = [s for s, labels in told.webhook.alerts if labels["alertname"] == "BreakEvenLost"]
    assert states[0] == "firing"
    assert states[-1] == "resolved"
    (labels,) = [
        labels
        for state, labels in told.webhook.alerts
        if labels["alertname"] == "BreakEvenLost" and state == "resolved"
    ][:1]
    assert labels["arm"] == "draft-k4"
    assert labels["severity"] == "page"
    margin = told.prometheus.range(
        'arm:breakeven_margin:ratio_rate5m{arm="draft-k4"}', story.slow_at, story.ended, 1.0
    )
    firing = told.prometheus.range(
        'ALERTS{alertname="BreakEvenLost",alertstate="firing"}', story.slow_at, story.ended, 1.0
    )
    values = dict(zip(margin[0].times, margin[0].values, strict=True))
    assert min(values.values()) < 0
    lit = set(firing[0].times)
    after = [t for t in values if t > min(lit)]
    assert all(t in lit for t in after if values[t] < 0.05), "cleared below its band"
    assert any(t not in lit for t in after), "never cleared"


def test_pictures_are_drawn_from_the_panels(told: Told) -> None:
    """A contact sheet per dashboard, none of them blank."""
    from deploy.demo.pictures import draw

    for path in sorted(DASHBOARDS.glob("*.json")):
        out = told.folder / f"{path.stem}.png"
        draw(
            path,
            told.prometheus,
            told.story.began,
            told.story.ended,
            out,
            rate_interval=RATE_INTERVAL,
        )
        assert out.stat().st_size > 50_000


OPERATORS = {
    "MatchOp.Equal": "=",
    "MatchOp.NotEqual": "!=",
    "MatchOp.Re": "=~",
    "MatchOp.NotRe": "!~",
}
# These need what the demo does not have: a certificate, load_aware, a peak.
CONDITIONAL = re.compile(
    r"certifi|_load_requests_per_second|_threshold_requests|simulated_evidence"
    r'|margin:ratio_rate5m{load="peak"}'
)


def test_every_selector_of_rules_panels_and_runbooks_matches_live_series(told: Told) -> None:
    """Names with their label values: what the tables promise is really on the page."""
    from tests.ops.test_names import QUERIES, selectors

    missing = []
    for where, expr in QUERIES.items():
        for selector in selectors(concrete(expr, RATE_INTERVAL)):
            matchers = ",".join(
                f"{m.name}{OPERATORS[str(m.op)]}{json.dumps(m.value)}"
                for m in selector.matchers.matchers
            )
            text = f"{selector.name}{{{matchers}}}"
            if CONDITIONAL.search(text) or selector.name == "ALERTS":
                continue
            if not told.prometheus.range(text, told.story.began, told.story.ended, STEP_S):
                missing.append(f"{where}: {text}")
    assert missing == []
