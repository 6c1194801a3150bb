"""docs/gateway.md says what the code does: its configuration loads, its tables are complete."""

from __future__ import annotations

import re
from pathlib import Path

from breakeven.routing import State
from breakeven.settings import load_settings
from breakeven_proxy.config import ProxySettings, check
from breakeven_proxy.control.plan import plan_of
from breakeven_proxy.observe.metrics import SPECS
from breakeven_proxy.reload import CHANGEABLE

TEXT = (Path(__file__).resolve().parents[3] / "docs/gateway.md").read_text("utf-8")


def test_the_example_is_a_valid_configuration() -> None:
    """It loads, checks, and means what the words beside it say: defaults where it shows them."""
    found = re.search(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    assert found is not None
    settings = load_settings(found[1], file="docs/gateway.md", model=ProxySettings)
    check(settings, "docs/gateway.md")
    plan = plan_of(settings)
    assert (plan.policy, plan.baseline, plan.arm) == ("load_aware", "baseline", "draft-k4")
    plain = ProxySettings().routing
    assert settings.routing.health == plain.health
    assert settings.routing.guard == plain.guard
    shown = settings.routing.load_aware
    assert (shown.band, shown.window_s, shown.dwell_s) == (
        plain.load_aware.band, plain.load_aware.window_s, plain.load_aware.dwell_s,
    )  # fmt: skip


def test_states_metrics_and_reloadable_keys_are_those_of_the_code() -> None:
    """Each state has its row; each metric that is named exists; each reloadable key is named."""
    assert re.findall(r"^\| ([a-z_]+) \|", TEXT, re.MULTILINE)[1:] == [
        "serving", "standby", "out_of_range", "unhealthy", "refused", "tripped",
    ]  # fmt: skip
    assert {row.value for row in State} == set(re.findall(r"^\| ([a-z_]+) \|", TEXT, re.M)[1:])
    for name in re.findall(r"breakeven_([a-z_]+)", TEXT):
        assert name in SPECS or name == "proxy"
    for key in CHANGEABLE:
        assert key in TEXT
