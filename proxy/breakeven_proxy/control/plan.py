"""From the configuration (and a certificate's range) to core's steering plan.

Here: the checks of `routing:` against the arms, and the translation. Not here: reading files.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

from breakeven.errors import ConfigError
from breakeven.guard import GuardBudget
from breakeven.health import HealthRules
from breakeven.policy import LoadAwareRules
from breakeven.proven import ProvenRange, headroom_shortfall
from breakeven.routing import Reason
from breakeven.steering import Candidate, Plan
from breakeven_proxy.config import ArmSettings, ProxySettings

SECONDS_PER_HOUR = 3600.0


def baseline_of(config: ProxySettings) -> str:
    """The arm to fall back to. A sidecar before a single candidate has nothing else."""
    chosen = config.chosen_arm()
    baselines = [name for name, arm in config.arms.items() if arm.role == "baseline"]
    return chosen if chosen in baselines or not baselines else baselines[0]


def candidates_of(config: ProxySettings) -> list[str]:
    """Arms that need a reason to be used: role candidate, or named by the policy."""
    routing, baseline = config.routing, baseline_of(config)
    named = {routing.arm, *(routing.weights if routing.policy == "split" else ())}
    return [
        name
        for name, arm in config.arms.items()
        if name != baseline and (arm.role == "candidate" or name in named)
    ]


def check_routing(config: ProxySettings, file: str | None) -> None:
    """What `routing:` says against the arms.

    Raises:
        ConfigError: with file, key, value and mend.
    """
    routing = config.routing

    def wrong(key: str, what: str, value: object, mend: str) -> ConfigError:
        return ConfigError(what, file=file, key=f"routing.{key}", value=value, mend=mend)

    if routing.policy == "split":
        for name in routing.weights:
            if name not in config.arms:
                raise wrong("weights", "no such arm", name, f"one of: {', '.join(config.arms)}")
        if not any(routing.weights.values()):
            raise wrong("weights", "no arm has a weight", None, "e.g. {baseline: 90, draft: 10}")
    if routing.policy == "load_aware":
        _load_aware(config, wrong_key="routing", file=file)
        _candidate_of_load_aware(config, file)


def _candidate_of_load_aware(config: ProxySettings, file: str | None) -> str:
    names = candidates_of(config)
    if config.routing.arm in names:
        return str(config.routing.arm)
    if config.routing.arm is not None or len(names) != 1:
        raise ConfigError(
            "load_aware steers one candidate beside the baseline",
            file=file,
            key="routing.arm",
            value=config.routing.arm,
            mend=f"name one of: {', '.join(names)}" if names else "give an arm role: candidate",
        )
    return names[0]


def _load_aware(config: ProxySettings, *, wrong_key: str, file: str | None) -> LoadAwareRules:
    given = config.routing.load_aware
    enter, leave = given.enter_below_rps, given.leave_above_rps
    if given.break_even_rps is not None and enter is None and leave is None:
        around = LoadAwareRules.around(given.break_even_rps, given.band)
        enter, leave = around.enter_below, around.leave_above
    elif given.break_even_rps is not None or enter is None or leave is None:
        raise ConfigError(
            "load_aware needs its thresholds",
            file=file,
            key=f"{wrong_key}.load_aware",
            mend="give break_even_rps, or both enter_below_rps and leave_above_rps",
        )
    if enter > leave:
        raise ConfigError(
            f"must not be below enter_below_rps ({enter:g})",
            file=file,
            key=f"{wrong_key}.load_aware.leave_above_rps",
            value=leave,
            mend="leave room between the two, or the traffic flaps",
        )
    return LoadAwareRules(enter, leave, window_s=given.window_s, dwell_s=given.dwell_s)


def plan_of(
    config: ProxySettings,
    *,
    proven: Mapping[str, ProvenRange] | None = None,
    refused: Mapping[str, Reason] | None = None,
) -> Plan:
    """The plan of a checked configuration.

    Args:
        proven: range per candidate, of those that a certificate covers.
        refused: candidates whose certificate may not be used, and why.

    Raises:
        ConfigError: see `check_routing`.
    """
    routing, baseline = config.routing, baseline_of(config)
    candidates = {
        name: Candidate(
            replicas=config.arms[name].replicas,
            proven=(proven or {}).get(name),
            refused=(refused or {}).get(name),
            usd_per_s=_usd_per_s(config.arms[name]),
        )
        for name in candidates_of(config)
    }
    aware = routing.policy == "load_aware"
    return Plan(
        baseline=baseline,
        policy=routing.policy,
        arm=_candidate_of_load_aware(config, None) if aware else routing.arm or baseline,
        candidates=candidates,
        weights=dict(routing.weights),
        load_aware=_load_aware(config, wrong_key="routing", file=None) if aware else None,
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


def headroom_problems(config: ProxySettings, plan: Plan) -> list[ConfigError]:
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
