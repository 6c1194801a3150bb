"""Settings of `routing:`: which arm a request gets, and what takes a candidate out.

Here: the keys, and what one says against another and against the arms' roles. Not here: their use
(`control`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from breakeven.errors import ConfigError
from breakeven.policy import DEFAULT_BAND, DEFAULT_DWELL_S, DEFAULT_WINDOW_S, LoadAwareRules
from breakeven.settings import settings_class
from breakeven.units import Seconds

Count = Annotated[int, Field(gt=0)]
Positive = Annotated[Seconds, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Rate = Annotated[float, Field(gt=0)]
Ratio = Annotated[float, Field(ge=1)]

DEFAULT_STICKY_SALT = "breakeven"
"""The same in every pod, so that a user meets the same arm everywhere; set your own where clients
must not be able to choose their arm by choosing an id."""


@settings_class
class LoadAwareSettings:
    """Thresholds in requests/s per replica of the candidate, on the mean load of `window_s`.

    Either `break_even_rps`, with the thresholds `band` below and above it, or both thresholds, or
    neither where a certificate brings them. `dwell_s`: least time between two switches for load.
    """

    break_even_rps: Rate | None = None
    band: Annotated[float, Field(ge=0, lt=1)] = DEFAULT_BAND
    enter_below_rps: Rate | None = None
    leave_above_rps: Rate | None = None
    window_s: Positive = DEFAULT_WINDOW_S
    dwell_s: Seconds = DEFAULT_DWELL_S


@settings_class
class HealthSettings:
    """Probes of /health and /v1/models, and hysteresis (see `breakeven.health`).

    `model`: name that /v1/models must hold; default the certificate's, else any model will do.
    """

    interval_s: Positive = 1.0
    timeout_s: Positive = 2.0
    fail_after: Count = 3
    rise_after: Count = 3
    hold_s: Seconds = 5.0
    max_hold_s: Positive = 300.0
    model: str | None = None


@settings_class
class GuardSettings:
    """Limits of a candidate over `window_s`; null switches a rule off (see `breakeven.guard`).

    `gap_p99_s`, `ttft_p95_s`: default the SLO's bounds. `goodput_burn`: the share of bad
    responses may be this many times what the SLO's objective allows. `rearm`: `manual` (POST
    /arms/NAME/rearm) or `never` while this process lives.
    """

    enabled: bool = True
    window_s: Positive = 300.0
    min_requests: Count = 100
    error_share: Share | None = 0.05
    gap_p99_s: Positive | None = None
    ttft_p95_s: Positive | None = None
    goodput_burn: Annotated[float, Field(gt=0)] | None = 5.0
    cost_per_good_usd: Annotated[float, Field(gt=0)] | None = None
    error_excess: Share | None = 0.02
    gap_p99_ratio: Ratio | None = 1.25
    ttft_p95_ratio: Ratio | None = 1.25
    goodput_excess: Share | None = 0.05
    cost_ratio: Ratio | None = None
    rearm: Literal["manual", "never"] = "manual"


@settings_class
class RoutingSettings:
    """Which arm a request gets.

    `single`: always `arm` (default: the only or the baseline one). `split`: by `weights` (any
    scale), sticky by the value of `sticky_header` where a request has it. `load_aware`: the
    candidate `arm` (default: the only one) at low load, else the baseline.

    `force`: start although the candidate may get more than the baseline is certified to take
    over. `enforce_range_min`: rates below the certificate's range are out of it, too.
    `state_file`: remembers tripped arms over a restart; without it a restart arms them again.
    """

    policy: Literal["single", "split", "load_aware"] = "single"
    arm: str | None = None
    weights: Mapping[str, Annotated[float, Field(ge=0)]] = Field(default_factory=dict)
    sticky_header: Annotated[str, Field(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")] | None = None
    sticky_salt: str = DEFAULT_STICKY_SALT
    load_aware: LoadAwareSettings = LoadAwareSettings()
    health: HealthSettings = HealthSettings()
    guard: GuardSettings = GuardSettings()
    enforce_range_min: bool = False
    force: bool = False
    state_file: str | None = None


Roles = Mapping[str, str]
"""Arm -> its role, `baseline` or `candidate`, in the order of the configuration."""


def baseline_of(routing: RoutingSettings, roles: Roles) -> str:
    """The arm to fall back to. A sidecar before a single candidate has nothing else."""
    baselines = [name for name, role in roles.items() if role == "baseline"]
    if routing.arm in baselines or (routing.arm is not None and not baselines):
        return str(routing.arm)
    return baselines[0] if baselines else next(iter(roles))


def candidates_of(routing: RoutingSettings, roles: Roles) -> list[str]:
    """Arms that need a reason to be used: role candidate, or named by the policy."""
    baseline = baseline_of(routing, roles)
    named = {routing.arm, *(routing.weights if routing.policy == "split" else ())}
    return [
        name
        for name, role in roles.items()
        if name != baseline and (role == "candidate" or name in named)
    ]


def load_aware_arm(routing: RoutingSettings, roles: Roles, file: str | None = None) -> str:
    """The candidate of `load_aware`.

    Raises:
        ConfigError: there is none, or several and `arm` names none of them.
    """
    names = candidates_of(routing, roles)
    if routing.arm in names:
        return str(routing.arm)
    if len(names) == 1 and roles.get(str(routing.arm), "baseline") == "baseline":
        return names[0]
    raise ConfigError(
        "load_aware steers one candidate beside the baseline",
        file=file,
        key="routing.arm",
        value=routing.arm,
        mend=f"name one of: {', '.join(names)}" if names else "give an arm role: candidate",
    )


def load_aware_rules(
    given: LoadAwareSettings,
    file: str | None = None,
    *,
    certified: Mapping[str, object] | None = None,
) -> LoadAwareRules:
    """The thresholds that were given, those around break-even, or those of a certificate.

    Raises:
        ConfigError: neither, both, or thresholds the wrong way round.
    """
    key = "routing.load_aware"
    enter, leave = given.enter_below_rps, given.leave_above_rps
    if given.break_even_rps is not None and enter is None and leave is None:
        around = LoadAwareRules.around(given.break_even_rps, given.band)
        enter, leave = around.enter_below, around.leave_above
    elif not _has_thresholds(given) and certified:
        enter, leave = (_rate(certified, name) for name in ("enter_below_rps", "leave_above_rps"))
    elif given.break_even_rps is not None or enter is None or leave is None:
        mend = "give break_even_rps, or both enter_below_rps and leave_above_rps"
        raise ConfigError("load_aware needs its thresholds", file=file, key=key, mend=mend)
    if enter is None or leave is None:
        mend = "give break_even_rps: the certificate holds no thresholds"
        raise ConfigError("load_aware needs its thresholds", file=file, key=key, mend=mend)
    if enter > leave:
        raise ConfigError(
            f"lies below enter_below_rps ({enter:g})",
            file=file,
            key=f"{key}.leave_above_rps",
            value=leave,
            mend="leave room between the two, or the traffic flaps",
        )
    return LoadAwareRules(enter, leave, window_s=given.window_s, dwell_s=given.dwell_s)


def _has_thresholds(given: LoadAwareSettings) -> bool:
    named = (given.break_even_rps, given.enter_below_rps, given.leave_above_rps)
    return any(value is not None for value in named)


def _rate(policy: Mapping[str, object], name: str) -> float | None:
    value = policy.get(name)
    good = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e9
    return float(value) if good and isinstance(value, int | float) else None


def check_routing(
    routing: RoutingSettings, roles: Roles, file: str | None, *, certified: bool = False
) -> None:
    """What `routing:` says against the arms.

    Args:
        certified: a certificate is configured, which may hold the thresholds of load_aware.

    Raises:
        ConfigError: with file, key, value and mend.
    """
    known = f"one of: {', '.join(roles)}"
    if routing.arm is not None and routing.arm not in roles:
        raise ConfigError(
            "no such arm", file=file, key="routing.arm", value=routing.arm, mend=known
        )  # fmt: skip
    health = routing.health
    if health.max_hold_s < health.hold_s:
        raise ConfigError(
            f"lies below hold_s ({health.hold_s:g})", file=file, key="routing.health.max_hold_s",
            value=health.max_hold_s, mend="raise it, or lower hold_s",
        )  # fmt: skip
    if routing.policy == "split":
        for name in routing.weights:
            if name not in roles:
                raise ConfigError(
                    "no such arm", file=file, key="routing.weights", value=name, mend=known
                )
        if not any(routing.weights.values()):
            mend = f"give e.g. weights: {{{next(iter(roles))}: 90, …}}"
            raise ConfigError("no arm has a weight", file=file, key="routing.weights", mend=mend)
    elif routing.weights:
        mend = "set policy: split, or take the weights out"
        raise ConfigError("weights act under split", file=file, key="routing.weights", mend=mend)
    if routing.policy == "load_aware":
        if _has_thresholds(routing.load_aware) or not certified:
            load_aware_rules(routing.load_aware, file)
        load_aware_arm(routing, roles, file)
