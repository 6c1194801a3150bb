"""From the configuration (and a certificate's range) to core's steering plan.

Here: the translation, and the rollback headroom. Not here: reading files, checking keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

from breakeven.errors import ConfigError
from breakeven.guard import GuardBudget
from breakeven.health import HealthRules
from breakeven.proven import ProvenRange, headroom_shortfall
from breakeven.routing import Reason
from breakeven.steering import Candidate, Plan
from breakeven_proxy.config import ArmSettings, ProxySettings
from breakeven_proxy.routing_settings import (
    baseline_of,
    candidates_of,
    load_aware_arm,
    load_aware_rules,
)

SECONDS_PER_HOUR = 3600.0


def roles_of(config: ProxySettings) -> dict[str, str]:
    """Arm -> role."""
    return {name: arm.role for name, arm in config.arms.items()}


def plan_of(
    config: ProxySettings,
    *,
    proven: Mapping[str, ProvenRange] | None = None,
    refused: Mapping[str, Reason] | None = None,
    certified: Mapping[str, object] | None = None,
) -> Plan:
    """The plan of a checked configuration.

    Args:
        proven: range per candidate, of those that a certificate covers.
        refused: candidates whose certificate may not be used, and why.
        certified: a certificate's `policy`: the thresholds where the configuration gives none.

    Raises:
        ConfigError: see `routing_settings.check_routing`.
    """
    routing, roles = config.routing, roles_of(config)
    baseline = baseline_of(routing, roles)
    candidates = {
        name: Candidate(
            replicas=config.arms[name].replicas,
            proven=(proven or {}).get(name),
            refused=(refused or {}).get(name),
            usd_per_s=_usd_per_s(config.arms[name]),
        )
        for name in candidates_of(routing, roles)
    }
    aware = routing.policy == "load_aware"
    return Plan(
        baseline=baseline,
        policy=routing.policy,
        arm=load_aware_arm(routing, roles) if aware else routing.arm or baseline,
        candidates=candidates,
        weights=dict(routing.weights),
        load_aware=load_aware_rules(routing.load_aware, certified=certified) if aware else None,
        salt=blake2b(routing.sticky_salt.encode(), digest_size=32).digest(),
        health=HealthRules(
            fail_after=routing.health.fail_after,
            rise_after=routing.health.rise_after,
            hold_s=routing.health.hold_s,
            max_hold_s=routing.health.max_hold_s,
        ),
        budget=budget_of(config),
        load_classes=config.classes(),
        baseline_replicas=config.arms[baseline].replicas,
        baseline_usd_per_s=_usd_per_s(config.arms[baseline]),
    )


def budget_of(config: ProxySettings) -> GuardBudget:
    """The guard's limits; where a latency limit is not given, the SLO's bound is it."""
    guard, slo = config.routing.guard, config.slo
    goodput = None
    if guard.goodput_burn is not None:
        goodput = max(0.0, 1.0 - guard.goodput_burn * (1.0 - slo.objective))
    return GuardBudget(
        window_s=guard.window_s,
        min_requests=guard.min_requests,
        error_share=guard.error_share,
        gap_p99_s=guard.gap_p99_s if guard.gap_p99_s is not None else slo.gap_p99_s,
        ttft_p95_s=guard.ttft_p95_s if guard.ttft_p95_s is not None else slo.ttft_s,
        goodput_share=goodput,
        cost_per_good_usd=guard.cost_per_good_usd,
        error_excess=guard.error_excess,
        gap_p99_ratio=guard.gap_p99_ratio,
        ttft_p95_ratio=guard.ttft_p95_ratio,
        goodput_excess=guard.goodput_excess,
        cost_ratio=guard.cost_ratio,
    )


def headroom_problems(plan: Plan) -> list[ConfigError]:
    """Candidates that may get more than the baseline is certified to take over."""
    problems = []
    for name, candidate in plan.candidates.items():
        if candidate.proven is None or plan.share(name) == 0:
            continue
        allowed = candidate.proven.max_rps * candidate.replicas
        if plan.load_aware is not None:
            allowed = min(allowed, plan.load_aware.leave_above * candidate.replicas)
        short = headroom_shortfall(
            candidate.proven, replicas=candidate.replicas, allowed_rps=allowed
        )  # fmt: skip
        if short is not None:
            problems.append(
                ConfigError(
                    f"arm {name} may get {allowed:g}/s, but the baseline is certified to take over "
                    f"{candidate.proven.headroom_rps:g}/s: {short:g}/s too much for a rollback",
                    key="routing",
                    mend="add baseline replicas and certify them, lower the candidate's replicas "
                    "or thresholds, or start with routing.force: true",
                )
            )
    return problems


def _usd_per_s(arm: ArmSettings) -> float | None:
    cost = arm.fleet_cost_usd_per_hour
    return None if cost is None else cost / SECONDS_PER_HOUR
