"""The name contract: every metric that a rule, a panel or a runbook reads exists, with its labels.

A name that nobody exports is a "No data" panel. Names come from the proxy's own table, the engine
schema tables, loadgen's own tables and our recording rules; nothing is listed here by hand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from tests.ops.rulefiles import RUNBOOKS, concrete, expressions, rules

from breakeven.engine_schemas import SCHEMAS
from breakeven.slo import Verdict
from breakeven_loadgen.replay import metrics as loadgen_metrics
from breakeven_proxy.observe.engine import BUCKETED
from breakeven_proxy.observe.metrics import PREFIX, SPECS

pytestmark = pytest.mark.ops

TARGET_LABELS = {"job", "instance"}
PROMETHEUS = {
    "up": TARGET_LABELS,
    "ALERTS": TARGET_LABELS | {"alertname", "alertstate", "severity", "arm"},
}
HISTOGRAM = ("_bucket", "_sum", "_count")


def proxy_names() -> dict[str, set[str]]:
    """Name -> labels, from the proxy's table."""
    names: dict[str, set[str]] = {}
    for name, spec in SPECS.items():
        labels = set(spec.labels) | TARGET_LABELS
        if spec.kind == "histogram":
            names |= {f"{PREFIX}{name}{part}": labels | {"le"} for part in HISTOGRAM}
        else:
            names[f"{PREFIX}{name}"] = labels
    return names


def engine_names() -> dict[str, set[str]]:
    """Normalised engine names that at least one schema can give."""
    labels = TARGET_LABELS | {"arm"}
    names = {f"{PREFIX}engine_kv_capacity_tokens": labels}
    for schema in SCHEMAS:
        names |= {f"{PREFIX}engine_{name}_total": labels for name in schema.counters}
        names |= {f"{PREFIX}engine_{name}": labels for name in (*schema.gauges, *schema.ratios)}
        for name in schema.histograms:
            unit = "" if name == "iteration_tokens" else "_seconds"
            names |= {f"{PREFIX}engine_{name}{unit}{part}": labels for part in ("_sum", "_count")}
    names[f"{PREFIX}engine_{BUCKETED}_seconds_bucket"] = labels | {"le"}
    return names


def loadgen_names() -> dict[str, set[str]]:
    """Names of a running replay."""
    names = {f"{name}_total": TARGET_LABELS for name in loadgen_metrics.COUNTERS}
    names |= dict.fromkeys(loadgen_metrics.GAUGES, TARGET_LABELS)
    names[f"{loadgen_metrics.REQUESTS}_total"] = TARGET_LABELS | {"verdict"}
    return names


def recorded_names() -> dict[str, set[str]]:
    """Names of our recording rules; the labels are those that the name promises, and the job."""
    return {
        rule["record"]: TARGET_LABELS | set(rule["record"].split(":")[0].split("_"))
        for rule in rules("record")
    }


KNOWN = proxy_names() | engine_names() | loadgen_names() | recorded_names() | PROMETHEUS


def selectors(expr: str) -> Iterator[Any]:
    """Every vector selector of an expression, by promql-parser."""
    import promql_parser

    found: list[Any] = []

    def visit(node: Any) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            found.append(node)
        for child in _children(node):
            visit(child)

    visit(promql_parser.parse(expr))
    yield from found


def _children(node: Any) -> Iterator[Any]:
    for name in ("expr", "lhs", "rhs", "param", "vector_selector", "vs"):
        child = getattr(node, name, None)
        if child is not None and not isinstance(child, str | int | float):
            yield child
    yield from getattr(node, "args", None) or ()


def runbook_queries() -> dict[str, str]:
    """Queries that a runbook tells a person to type."""
    found = {}
    for path in sorted(RUNBOOKS.glob("*.md")):
        queries = re.findall(r"promtool query instant \S+ '([^']+)'", path.read_text("utf-8"))
        found |= {f"runbook {path.stem} {i}": query for i, query in enumerate(queries)}
    return found


QUERIES = expressions() | runbook_queries()


@pytest.mark.parametrize("where", QUERIES)
def test_every_query_reads_names_and_labels_that_exist(where: str) -> None:
    """A metric renamed in the proxy, an engine schema, loadgen or a rule turns this red."""
    found = list(selectors(concrete(QUERIES[where])))
    assert found, "no selector: the walk of the syntax tree lost something"
    for selector in found:
        name = selector.name
        assert name in KNOWN, f"{where} reads {name}, which nothing exports"
        for matcher in selector.matchers.matchers:
            assert matcher.name in KNOWN[name], f"{where}: {name} has no label {matcher.name}"
            if matcher.name == "verdict":
                values = set(matcher.value.split("|"))
                assert values <= {verdict.value for verdict in Verdict}, f"{where}: {values}"


def test_the_walk_finds_every_selector() -> None:
    """The syntax tree walk sees selectors inside calls, aggregations, subqueries and both sides."""
    expr = (
        "sum by (a) (rate(m1[5m])) / on (a) group_left () max(m2) or histogram_quantile(0.9, m3) "
        "unless clamp_max(m4 - (m5 * -m6), 1) > max_over_time(m7[1h:1m])"
    )
    assert [selector.name for selector in selectors(expr)] == [f"m{i}" for i in range(1, 8)]


def test_a_renamed_metric_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Renaming any family of the proxy that is read leaves a query without its name."""
    read = {selector.name for expr in QUERIES.values() for selector in selectors(concrete(expr))}
    used = [name for name in SPECS if read & {f"{PREFIX}{name}{part}" for part in ("", *HISTOGRAM)}]
    assert len(used) > 30
    for name in used:
        renamed = {f"renamed_{k}" if k == name else k: spec for k, spec in SPECS.items()}
        monkeypatch.setattr(f"{__name__}.SPECS", renamed)
        known = proxy_names() | engine_names() | loadgen_names() | recorded_names() | PROMETHEUS
        assert read - known.keys(), f"nobody would notice that {name} was renamed"


def test_route_states_and_reasons_are_those_of_core() -> None:
    """States in rules and dashboards are the control room's own words."""
    from breakeven.routing import State

    texts = "\n".join(QUERIES.values())
    used = set(re.findall(r'breakeven_route_state\{[^}]*state="([a-z_]+)"', texts))
    assert used == {state.value for state in State}


GENERATORS_OWN = {"interrupted", "dropped"}
"""Verdicts that only loadgen gives: rules name them to leave them out wherever they come from."""


def test_matched_label_values_are_values_that_the_proxy_gives() -> None:
    """`known="true"` where the proxy says `yes` is a "No data" panel as much as a wrong name is."""
    from breakeven_proxy.config import ArmSettings, ProxySettings
    from breakeven_proxy.observe.bound import settings_bounds
    from breakeven_proxy.observe.meter import Meter
    from breakeven_proxy.observe.metrics import Metrics

    settings = ProxySettings(arms={"a": ArmSettings(url="http://127.0.0.1:1")})
    metrics = Metrics(settings_bounds(settings))
    Meter(metrics, settings.slo.slo(), settings.epsilon_s, settings.arms, [])
    given: dict[tuple[str, str], set[str]] = {}
    for name, family in metrics.families.items():
        for values in (*family.cells, *family.histograms):
            for label, value in zip(family.spec.labels, values, strict=True):
                given.setdefault((f"{PREFIX}{name}", label), set()).add(value)
    checked = 0
    for where, expr in QUERIES.items():
        for selector in selectors(concrete(expr)):
            for matcher in selector.matchers.matchers:
                allowed = given.get((selector.name, matcher.name))
                if matcher.name in {"arm", "cohort", "job"} or allowed is None:
                    continue
                wanted = set(matcher.value.split("|"))
                assert wanted <= allowed | GENERATORS_OWN, f"{where}: {matcher.name}={wanted}"
                checked += 1
    assert checked > 15
