"""Settings of `routing:`: which arm a request gets, and what takes a candidate out.

Here: the keys and what one says against another. Not here: their use (`control`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from breakeven.policy import DEFAULT_BAND, DEFAULT_DWELL_S, DEFAULT_WINDOW_S
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

    Either `break_even_rps`, with the thresholds `band` below and above it, or both thresholds.
    `dwell_s`: least time between two switches for load.
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

    interval_s: Positive = 2.0
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
