"""Dashboards: the JSON is what the sources give, survives the SDK, and explains itself."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from tests.ops.rulefiles import DASHBOARDS, panels

pytestmark = pytest.mark.ops
NAMES = ("does_the_draft_pay", "on_call", "replay")
ALL = [(name, panel) for name in NAMES for panel in panels(name)]
IDS = [f"{name}/{panel['title']}" for name, panel in ALL]


def test_json_did_not_drift_from_the_sources() -> None:
    """`python -m dashboards.generate` would change nothing."""
    from dashboards.generate import drifted

    assert drifted() == []


@pytest.mark.parametrize("name", NAMES)
def test_the_sdk_reads_back_what_it_wrote(name: str) -> None:
    """JSON -> SDK objects -> JSON loses nothing: no field that Grafana's schema does not know."""
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    register_default_plugins()
    text = (DASHBOARDS / f"{name}.json").read_text("utf-8")
    again = json.dumps(Dashboard.from_json(json.loads(text)), cls=JSONEncoder)
    assert json.loads(again) == json.loads(text)


@pytest.mark.parametrize("name", NAMES)
def test_dashboards_have_variables_links_and_stable_ids(name: str) -> None:
    """The datasource is a variable, the three link to one another, uids are fixed."""
    made = json.loads((DASHBOARDS / f"{name}.json").read_text("utf-8"))
    assert re.fullmatch(r"breakeven-[a-z-]+", made["uid"])
    variables = {variable["name"]: variable for variable in made["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    if name != "replay":
        assert {"job", "arm", "cohort"} <= variables.keys()
        assert variables["arm"]["multi"]
        assert variables["arm"]["allValue"] == ".*"
    assert made["links"][0]["tags"] == ["breakeven"]
    assert made["tags"] == ["breakeven"]


@pytest.mark.parametrize(("name", "panel"), ALL, ids=IDS)
def test_panels_explain_themselves(name: str, panel: dict[str, Any]) -> None:
    """Each panel says what it means and which metrics it is drawn from, and fits the grid."""
    assert len(panel["description"]) > 30
    for target in panel.get("targets") or []:
        assert target["datasource"]["uid"] == "${datasource}"
        for metric in re.findall(
            r"\b(?:[a-z_]+:)?(?:breakeven|loadgen)_[a-z0-9_:]+", target["expr"]
        ):
            assert metric in panel["description"], f"{metric} is not named"
    grid = panel["gridPos"]
    assert grid["x"] + grid["w"] <= 24
    if "Acceptance" in panel["title"]:
        assert "never alone" in panel["title"]
        assert "never alone" in panel["description"]


@pytest.mark.parametrize("name", NAMES)
def test_panels_do_not_overlap(name: str) -> None:
    """No two panels share a cell of the grid."""
    taken: dict[tuple[int, int], str] = {}
    for panel in panels(name):
        grid = panel["gridPos"]
        for x in range(grid["x"], grid["x"] + grid["w"]):
            for y in range(grid["y"], grid["y"] + grid["h"]):
                assert (x, y) not in taken, f"{panel['title']} over {taken[(x, y)]}"
                taken[(x, y)] = panel["title"]


def test_decision_words_match_the_codes_of_the_rule() -> None:
    """The dashboard maps exactly the codes that the recording rule writes."""
    from dashboards.does_the_draft_pay import DECISIONS
    from tests.ops.rulefiles import rules

    (rule,) = [
        rule for rule in rules("record") if rule["record"] == "arm:breakeven_decision_row:live"
    ]
    codes = set(re.findall(r"^\s*(\d) \* \(", rule["expr"], flags=re.MULTILINE))
    assert codes == {code for code, _, _ in DECISIONS}


def test_route_words_match_the_codes_of_the_rule() -> None:
    """The same for the routing states."""
    from dashboards.on_call import ROUTE_STATES
    from tests.ops.rulefiles import rules

    (rule,) = [
        rule for rule in rules("record") if rule["record"] == "arm:breakeven_route_state:code"
    ]
    pairs = set(re.findall(r'state="([a-z_]+)"\} == 1\) \* (\d)', rule["expr"]))
    assert {(words.replace(" ", "_"), code) for code, words, _ in ROUTE_STATES} == pairs
