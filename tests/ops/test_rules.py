"""Rule files as text: names, comments, labels, runbooks, and the traps that cost others a night."""

from __future__ import annotations

import re

import pytest
import yaml
from tests.ops.rulefiles import PROMTOOL_TESTS, ROOT, RULES, RUNBOOKS, rules

ALERTS = rules("alert")
RECORDS = rules("record")
NAME = re.compile(r"[a-z_]+:breakeven_[a-z0-9_]+:[a-z0-9_]+\Z")
EXPECTED_ALERTS = {
    "GoodputBurnFast", "GoodputBurnSlow", "BreakEvenLost", "BreakEvenLostAtLoad",
    "BurstGapRegression", "PeakQueueRegression", "HighRejectionCohort", "CertificateExpired",
    "OutOfProvenRange", "TelemetryAbsent", "EngineSeriesAbsent", "TokenCountsMissing",
    "TokenMismatch", "ProxyOverhead", "RollbackFired", "PolicyFlapping", "CandidateOutOfRange",
    "SimulatedEvidenceAllowed",
}  # fmt: skip


def test_every_alert_that_was_promised_exists() -> None:
    """No alert is lost, none is there twice."""
    names = [rule["alert"] for rule in ALERTS]
    assert len(names) == len(set(names))
    assert set(names) == EXPECTED_ALERTS


@pytest.mark.parametrize("rule", RECORDS, ids=lambda rule: rule["record"])
def test_recorded_names_are_level_metric_operation(rule: dict[str, str]) -> None:
    """Names follow level:metric:operation, so a reader knows the labels without looking."""
    assert NAME.match(rule["record"]), rule["record"]
    level = rule["record"].split(":")[0]
    for label in re.findall(r"arm|cohort|load|source|verdict|job", level):
        assert label in rule["expr"], f"{rule['record']} promises {label}"


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_alerts_have_severity_words_and_a_runbook_that_exists(
    rule: dict[str, dict[str, str]],
) -> None:
    """Somebody is told what it means, how urgent it is, and where the way back stands."""
    assert rule["labels"]["severity"] in {"page", "ticket"}
    assert rule["annotations"]["summary"]
    assert rule["annotations"]["description"]
    page = ROOT / rule["annotations"]["runbook_url"]
    assert page.is_file()
    assert page.stem == rule["alert"]
    text = page.read_text("utf-8")
    for heading in ("## What it means", "## What to look at", "## What to do", "## How to undo"):
        assert heading in text
    assert "```sh" in text or "`" in text


def test_runbooks_of_arms_hold_the_exact_way_back() -> None:
    """Each alert about an arm shows the commands that lead back to the baseline."""
    without = {"EngineSeriesAbsent", "TokenCountsMissing", "TokenMismatch", "ProxyOverhead"}
    for rule in ALERTS:
        text = (RUNBOOKS / f"{rule['alert']}.md").read_text("utf-8")
        assert (rule["alert"] in without) != (
            "kubectl apply -k deploy/kubernetes/overlays/rollback" in text
        ), rule["alert"]
    assert (ROOT / "deploy/kubernetes/overlays/rollback/kustomization.yaml").is_file()


def test_every_alert_says_why_its_threshold() -> None:
    """A comment block stands right above each alert."""
    lines = (RULES / "breakeven-alerts.yml").read_text("utf-8").splitlines()
    for number, line in enumerate(lines):
        if line.strip().startswith("- alert:"):
            above = [text.strip() for text in lines[max(0, number - 2) : number]]
            assert all(text.startswith("#") for text in above), line


def test_every_rule_has_a_promtool_test() -> None:
    """Each recorded name stands in a promtool test, each alert both firing and silent."""
    texts = "\n".join(path.read_text("utf-8") for path in PROMTOOL_TESTS)
    for rule in RECORDS:
        assert rule["record"] in texts, f"no promtool test of {rule['record']}"
    cases: dict[str, set[bool]] = {}
    for path in PROMTOOL_TESTS:
        for test in yaml.safe_load(path.read_text("utf-8"))["tests"]:
            for case in test.get("alert_rule_test", []):
                cases.setdefault(case["alertname"], set()).add(bool(case["exp_alerts"]))
    for rule in ALERTS:
        assert cases.get(rule["alert"]) == {True, False}, rule["alert"]


@pytest.mark.parametrize(
    "rule", ALERTS + RECORDS, ids=lambda rule: rule.get("alert") or rule["record"]
)
def test_known_promql_traps_are_not_stepped_into(rule: dict[str, str]) -> None:
    """group_left has its parentheses, absent() keeps no labels it lost, joins name the job."""
    expr = rule["expr"]
    for match in re.finditer(r"group_(?:left|right)\s*(.?)", expr):
        assert match.group(1) == "(", (
            "write group_left (), or the next parenthesis is its label list"
        )
    assert not re.search(r"absent\(\s*up", expr), "absent(up{…}) drops the labels of the target"
    for labels in re.findall(r"\bon\s*\(([^)]*)\)", expr):
        assert "job" in [label.strip() for label in labels.split(",")], (
            f"on ({labels}) mixes services"
        )
    for labels in re.findall(r"\bby\s*\(([^)]*)\)", expr):
        assert "job" in [label.strip() for label in labels.split(",")], (
            f"by ({labels}) mixes services"
        )
    _and_or_are_parenthesised(expr)


def _and_or_are_parenthesised(expr: str) -> None:
    """No `and`/`unless` beside an `or` at one depth: `and` binds tighter, readers do not."""
    seen: list[set[str]] = [set()]
    for word in re.findall(r"[()]|\b(?:and|or|unless)\b", expr):
        if word == "(":
            seen.append(set())
        elif word == ")":
            seen.pop()
        else:
            seen[-1].add("or" if word == "or" else "and")
            assert len(seen[-1]) == 1, f"parenthesise the mix of and/unless with or: {expr}"
