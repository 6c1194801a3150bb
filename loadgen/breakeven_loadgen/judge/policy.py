"""Load-policy output: the proven range with hysteresis, and the engine-side schedule of depths.

Here: thresholds for the proxy's load-aware routing, and vLLM's
`num_speculative_tokens_per_batch_size` where a k-sweep supports it. Not here: routing itself.
A badly chosen schedule throws the gain away (a model study: TPOT 15.4 ms against 7.3 ms of a
static k = 3), so it is printed only from measured depths, never guessed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .worksheet_fit import MIN_DEPTHS

LEAVE_SHARE = 0.95
"""Leave the candidate at this share of the proven maximum: a margin for the estimate of load."""
ENTER_SHARE = 0.80
"""Come back below this share: the band that a week's model study needed (24 against 1,526 switches
of a single threshold)."""
MIN_WINDOW_S = 300.0
"""Observation window of the load: 300 s cut switches from 1,526 to 184 in that study."""
DWELL_S = 300.0
"""Shortest stay on a route."""


@dataclass(frozen=True, slots=True)
class LoadPolicy:
    """Thresholds in req/s per replica of the candidate; see the constants."""

    arm: str
    min_rps: float
    max_rps: float
    leave_above_rps: float
    enter_below_rps: float
    window_s: float = MIN_WINDOW_S
    dwell_s: float = DWELL_S


def load_policy(
    arm: str, rates: tuple[float, float], replicas: int, crossing: float | None
) -> LoadPolicy:
    """Policy for a proven range.

    Args:
        rates: (lowest, highest) proven offered rate in total, req/s.
        crossing: break-even rate by interpolation, req/s in total; the policy never goes above
            the highest proven rate whatever it is, and stays below the crossing.
    """
    top = rates[1] if crossing is None else min(rates[1], crossing)
    top_per_replica = top / replicas
    return LoadPolicy(
        arm,
        rates[0] / replicas,
        top_per_replica,
        LEAVE_SHARE * top_per_replica,
        ENTER_SHARE * top_per_replica,
    )


@dataclass(frozen=True, slots=True)
class DepthPoint:
    """One depth at one load: mean batch (requests decoding) and seconds per token."""

    k: int
    batch: float
    s_per_token: float


def depth_schedule(
    points: Sequence[DepthPoint], baseline: Sequence[DepthPoint]
) -> list[Any] | None:
    """[[low, high, K], …] for vLLM, or None where the sweep does not support one.

    Needs at least three depths (0, the baseline, counts) at two loads or more. At each load the
    depth with the least time per token wins; borders between loads lie half-way in batch size.

    Args:
        points: candidates of one draft; baseline: the same loads without drafts (k = 0).
    """
    by_load = _by_load([*points, *baseline])
    depths = {point.k for load in by_load for point in load}
    if len(depths) < MIN_DEPTHS or len(by_load) < 2:
        return None
    best = [(_batch(load), min(load, key=lambda p: p.s_per_token).k) for load in by_load]
    rows: list[list[int]] = []
    low = 1
    for i, (batch, k) in enumerate(best):
        last = i + 1 == len(best)
        high = 1_000_000 if last else max(low, round((batch + best[i + 1][0]) / 2))
        if rows and rows[-1][2] == k:
            rows[-1][1] = high
        else:
            rows.append([low, high, k])
        low = high + 1
    return rows


def _by_load(points: Sequence[DepthPoint]) -> list[list[DepthPoint]]:
    """Group the i-th load of every depth, loads ascending by batch."""
    per_depth: dict[int, list[DepthPoint]] = {}
    for point in points:
        per_depth.setdefault(point.k, []).append(point)
    for found in per_depth.values():
        found.sort(key=lambda point: point.batch)
    count = min(len(found) for found in per_depth.values()) if per_depth else 0
    return [[found[i] for found in per_depth.values()] for i in range(count)]


def _batch(load: Sequence[DepthPoint]) -> float:
    return sum(point.batch for point in load) / len(load)


def policy_json(policy: LoadPolicy | None, schedule: list[Any] | None) -> Mapping[str, Any]:
    """policy.json: thresholds for the proxy, and the engine-side alternative."""
    out: dict[str, Any] = {"proxy": None, "engine": None}
    if policy is not None:
        out["proxy"] = {
            "arm": policy.arm,
            "range_rps_per_replica": [policy.min_rps, policy.max_rps],
            "leave_above_rps": policy.leave_above_rps,
            "enter_below_rps": policy.enter_below_rps,
            "window_s": policy.window_s,
            "dwell_s": policy.dwell_s,
        }
    if schedule is not None:
        out["engine"] = {"num_speculative_tokens_per_batch_size": schedule}
    return out
