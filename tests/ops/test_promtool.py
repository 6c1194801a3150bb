"""promtool and amtool on the real files; and a mutation that must turn the tests red."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.ops.rulefiles import PROMTOOL_TESTS, ROOT, RULES

pytestmark = pytest.mark.ops
MINIMUM = (2, 42)


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    """The command's result; 5 minutes at most."""
    return subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=300, check=False
    )


def test_promtool_is_the_stated_minimum_or_newer() -> None:
    """The rules are proven with a Prometheus that is no older than what the README asks for."""
    said = run("promtool", "--version")
    found = re.search(r"version (\d+)\.(\d+)", said.stdout + said.stderr)
    assert found
    assert (int(found[1]), int(found[2])) >= MINIMUM


def test_rules_and_configs_are_valid() -> None:
    """promtool accepts the rules and prometheus.yml, amtool accepts alertmanager.yml."""
    for command in (
        ("promtool", "check", "rules", *sorted(RULES.glob("*.yml"))),
        ("promtool", "check", "config", ROOT / "deploy/prometheus/prometheus.yml"),
        ("amtool", "check-config", ROOT / "deploy/alertmanager/alertmanager.yml"),
    ):
        result = run(*command)
        assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.timeout(300)
@pytest.mark.parametrize("path", PROMTOOL_TESTS, ids=lambda path: path.name.split(".")[0])
def test_promtool_unit_tests(path: Path) -> None:
    """Every rule and alert behaves as its test says, both ways."""
    result = run("promtool", "test", "rules", path)
    assert result.returncode == 0, result.stdout + result.stderr


HYSTERESIS = re.compile(
    r"\n +or\n +\(\n +\(arm:breakeven_margin:ratio_rate5m < 0\.05\)\n +and on \(job, arm\)\n"
    r' +ALERTS\{alertname="BreakEvenLost", alertstate="firing"\}\n +\)'
)
MUTATIONS = {
    # Without the clause that reads its own firing state the band is gone: +3 % clears it.
    "hysteresis": ("breakeven_lost", HYSTERESIS, ""),
    # Without the hold, silence clears it.
    "hold without traffic": (
        "breakeven_lost",
        re.compile(r"\(max by \(job, arm\) \(max_over_time\([^)]*\)\) \* NaN\)"),
        "(max by (job, arm) (breakeven_arm_info > 1) * NaN)",
    ),
    # Without the floor a trickle wakes somebody.
    "traffic floor": (
        "breakeven_lost",
        re.compile(r"arm:breakeven_decode_tokens:rate5m > 10"),
        "arm:breakeven_decode_tokens:rate5m > 0",
    ),
    "cap of the burn threshold": (
        "goodput_fast",
        re.compile(r"clamp_max\(14\.4 \* \(1 - max by \(job\) \(breakeven_slo_objective\)\), 1\)"),
        "(14.4 * (1 - max by (job) (breakeven_slo_objective)))",
    ),
    "cancelled in the denominator": (
        "recording_slo",
        re.compile(r'verdict!~"cancelled\|interrupted"'),
        'verdict!=""',
    ),
    "all-failed arm": (
        "recording_slo",
        re.compile(r"\n +or\n +0 \* arm:breakeven_offered_requests:rate5m"),
        "",
    ),
    "exclusive arms only": (
        "telemetry",
        re.compile(
            r"and on \(job, arm\)\n +\(max by \(job, arm\) \(breakeven_arm_exclusive\) == 1\)"
        ),
        "",
    ),
    "slow clients": (
        "latency",
        re.compile(r"breakeven_backpressured_requests_total\[5m\]"),
        'breakeven_backpressured_requests_total{arm="nobody"}[5m]',
    ),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", MUTATIONS)
def test_removing_a_clause_turns_the_tests_red(name: str, tmp_path: Path) -> None:
    """A clause that no test misses is not tested: each mutation must fail its promtool tests."""
    test, pattern, replacement = MUTATIONS[name]
    shutil.copytree(RULES, tmp_path / "rules")
    (tmp_path / "tests").mkdir()
    shutil.copy(RULES.parent / f"tests/{test}.test.yml", tmp_path / "tests")
    changed = 0
    for path in (tmp_path / "rules").glob("*.yml"):
        text, count = pattern.subn(replacement, path.read_text("utf-8"))
        changed += count
        path.write_text(text, "utf-8")
    assert changed, "the mutation no longer finds its clause: update it"
    assert run("promtool", "check", "rules", *(tmp_path / "rules").glob("*.yml")).returncode == 0
    result = run("promtool", "test", "rules", tmp_path / f"tests/{test}.test.yml")
    assert result.returncode != 0, f"{name}: the tests stayed green"
    assert "FAILED" in result.stdout + result.stderr
