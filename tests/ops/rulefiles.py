"""Reads deploy/prometheus/rules and dashboards/json for the tests of this folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy/prometheus/rules"
PROMTOOL_TESTS = sorted((ROOT / "deploy/prometheus/tests").glob("*.test.yml"))
RUNBOOKS = ROOT / "deploy/runbooks"
DASHBOARDS = ROOT / "dashboards/json"


def rules(kind: str) -> list[dict[str, Any]]:
    """All rules with the key `record` or `alert`, in file order."""
    found = []
    for path in sorted(RULES.glob("*.yml"), reverse=True):
        for group in yaml.safe_load(path.read_text("utf-8"))["groups"]:
            found += [rule for rule in group["rules"] if kind in rule]
    return found


def panels(name: str) -> list[dict[str, Any]]:
    """The panels of a dashboard, rows flattened, rows themselves left out."""
    made = json.loads((DASHBOARDS / f"{name}.json").read_text("utf-8"))
    flat = []
    for panel in made["panels"]:
        flat += [panel, *(panel.get("panels") or [])]
    return [panel for panel in flat if panel["type"] != "row"]


def expressions() -> dict[str, str]:
    """Where it stands -> PromQL, of every rule, alert and panel."""
    found = {f"rule {rule['record']}": rule["expr"] for rule in rules("record")}
    found |= {f"alert {rule['alert']}": rule["expr"] for rule in rules("alert")}
    for path in sorted(DASHBOARDS.glob("*.json")):
        for panel in panels(path.stem):
            for target in panel.get("targets") or []:
                found[f"{path.stem} / {panel['title']} / {target['refId']}"] = target["expr"]
    return found


VARIABLES = {
    "$__rate_interval": "1m",
    '"$job"': '".*"',
    '"$arm"': '".*"',
    '"$cohort"': '".*"',
}


def concrete(expr: str, rate_interval: str = "1m") -> str:
    """A panel's query as Grafana sends it: variables filled in, `All` chosen."""
    for name, value in (VARIABLES | {"$__rate_interval": rate_interval}).items():
        expr = expr.replace(name, value)
    return expr
