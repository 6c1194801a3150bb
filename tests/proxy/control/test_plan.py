"""`routing:` as people write it: what is refused, with which words, and the plan it becomes."""

from __future__ import annotations

import pytest

from breakeven.errors import ConfigError
from breakeven.load import LoadClasses
from breakeven.proven import ProvenRange
from breakeven.settings import load_settings
from breakeven_proxy.config import ProxySettings, check
from breakeven_proxy.control.plan import headroom_problems, plan_of

ARMS = """
arms:
  base: {url: http://127.0.0.1:1, replicas: 2, fleet_cost_usd_per_hour: 7.2}
  draft: {url: http://127.0.0.1:2, role: candidate, replicas: 3, fleet_cost_usd_per_hour: 3.6}
"""


def settings(text: str, arms: str = ARMS) -> ProxySettings:
    made = load_settings(arms + text, file="p.yaml", model=ProxySettings)
    check(made, "p.yaml")
    return made


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("routing: {arm: drafty}", "routing.arm: no such arm (got 'drafty'); one of: base, draft"),
        ("routing: {policy: split}", "routing.weights: no arm has a weight"),
        ("routing: {policy: split, weights: {base: 0, draft: 0}}", "no arm has a weight"),
        ("routing: {policy: split, weights: {nobody: 1}}", "no such arm (got 'nobody')"),
        ("routing: {weights: {draft: 1}}", "weights act under split"),
        ("routing: {policy: load_aware}", "give break_even_rps, or both"),
        (
            "routing: {policy: load_aware, load_aware: {enter_below_rps: 9, leave_above_rps: 8}}",
            "leave_above_rps: lies below enter_below_rps (9) (got 8.0)",
        ),
        (
            "routing: {policy: load_aware, load_aware: {break_even_rps: 8, enter_below_rps: 9}}",
            "give break_even_rps, or both",
        ),
        ("routing: {policy: load-aware}", "routing.policy"),
        ("routing: {polcy: split}", "did you mean policy?"),
        ("routing: {guard: {min_request: 3}}", "did you mean min_requests?"),
        ("routing: {policy: split, weights: {base: -1}}", "routing.weights.base"),
        ("routing: {sticky_header: 'x y'}", "routing.sticky_header"),
        ("routing: {guard: {rearm: auto}}", "routing.guard.rearm"),
    ],
)
def test_refused(text: str, words: str) -> None:
    """Each wrong key or value is named, with the mend."""
    with pytest.raises(ConfigError) as caught:
        settings(text)
    assert words in str(caught.value)
    assert "p.yaml" in str(caught.value)


def test_load_aware_needs_exactly_one_candidate() -> None:
    """Two candidates and none named, or none at all: refused."""
    aware = "routing: {policy: load_aware, load_aware: {break_even_rps: 8}}"
    two = ARMS + "  draft2: {url: http://127.0.0.1:3, role: candidate}\n"
    with pytest.raises(ConfigError, match="name one of: draft, draft2"):
        settings(aware, two)
    with pytest.raises(ConfigError, match="role: candidate"):
        settings(aware, "arms: {base: {url: http://127.0.0.1:1}}\n")
    named = "routing: {policy: load_aware, arm: draft2, load_aware: {break_even_rps: 8}}"
    assert plan_of(settings(named, two)).arm == "draft2"


def test_plan_of_load_aware() -> None:
    """Thresholds around break-even, both arms' costs per second, the baseline as fallback."""
    plan = plan_of(settings("routing: {policy: load_aware, load_aware: {break_even_rps: 10}}"))
    assert (plan.baseline, plan.arm) == ("base", "draft")
    assert plan.load_aware is not None
    assert plan.load_aware.enter_below == pytest.approx(8.5)
    assert plan.load_aware.leave_above == pytest.approx(11.5)
    assert plan.load_classes == LoadClasses(4, 12)
    assert plan.candidates["draft"].usd_per_s == pytest.approx(0.001)
    assert plan.baseline_usd_per_s == pytest.approx(0.002)


def test_limits_default_to_the_slo() -> None:
    """No own latency limits: the SLO's; five times the bad share that the objective allows."""
    text = "slo: {ttft_s: 0.5, gap_p99_s: 0.1, objective: 0.99}\n"
    budget = plan_of(settings(text)).budget
    assert (budget.ttft_p95_s, budget.gap_p99_s) == (0.5, 0.1)
    assert budget.goodput_share == pytest.approx(0.95)
    own = plan_of(settings(text + "routing: {guard: {ttft_p95_s: 2, goodput_burn: null}}")).budget
    assert (own.ttft_p95_s, own.goodput_share) == (2.0, None)


@pytest.mark.parametrize(
    ("arms", "routing", "baseline", "arm", "candidates"),
    [
        ("arms: {a: {url: http://h:1}}", "", "a", "a", []),
        # a sidecar before a candidate alone has nothing to fall back to
        ("arms: {d: {url: http://h:1, role: candidate}}", "", "d", "d", []),
        (ARMS, "", "base", "base", ["draft"]),
        (ARMS, "routing: {arm: draft}", "base", "draft", ["draft"]),
        # A/A: two baselines, the second named by a weight
        (
            "arms: {a: {url: http://h:1}, b: {url: http://h:2}}",
            "routing: {policy: split, weights: {a: 1, b: 1}}",
            "a", "a", ["b"],
        ),
    ],
)  # fmt: skip
def test_who_is_baseline(
    arms: str, routing: str, baseline: str, arm: str, candidates: list[str]
) -> None:
    """The baseline is what everything falls back to; all other used arms are candidates."""
    plan = plan_of(settings(routing, arms + "\n"))
    assert (plan.baseline, plan.arm, list(plan.candidates)) == (baseline, arm, candidates)


@pytest.mark.parametrize(
    ("headroom", "routing", "short"),
    [
        (60.0, "routing: {arm: draft}", False),  # 20/s × 3 replicas = 60/s fits
        (59.0, "routing: {arm: draft}", True),
        (59.0, "", False),  # the policy gives the candidate nothing
        # load_aware lets 11.5/s × 3 = 34.5/s through at most
        (35.0, "routing: {policy: load_aware, load_aware: {break_even_rps: 10}}", False),
        (34.0, "routing: {policy: load_aware, load_aware: {break_even_rps: 10}}", True),
        (None, "routing: {arm: draft}", False),
    ],
)
def test_rollback_headroom(headroom: float | None, routing: str, short: bool) -> None:
    """What the policy may give the candidate must fit into what the baseline can take over."""
    proven = ProvenRange(min_rps=1, max_rps=20, headroom_rps=headroom, expires_s=9e9)
    problems = headroom_problems(plan_of(settings(routing), proven={"draft": proven}))
    assert bool(problems) is short
    for problem in problems:
        assert "routing.force: true" in str(problem)
