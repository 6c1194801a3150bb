"""Intended arrival times: constant, Poisson, gamma, or a trace's own shape rescaled.

Here: numbers in, offsets out; every random draw of the generator comes from `generator`.
Not here: waiting for a time (pacer), what is sent (content).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from breakeven.errors import InputError

Offsets = NDArray[np.float64]
Kind = Literal["trace", "constant", "poisson", "gamma"]

COUNT_SLACK = 1e-9
"""rate × duration may come out as 199.99999999999997: floor it as 200."""


class Purpose(IntEnum):
    """What a stream of random numbers is for; each purpose has its own, so adding a draw to
    one never shifts another."""

    ARRIVALS = 0
    CANCEL = 1
    CONTENT = 2
    SAMPLING = 3


def generator(seed: int, block: int, purpose: Purpose, *more: int) -> np.random.Generator:
    """The one seeded generator of (seed, block, purpose); the same in every process and arm."""
    return np.random.Generator(
        np.random.PCG64(np.random.SeedSequence([seed, block, purpose, *more]))
    )


@dataclass(frozen=True, slots=True)
class Arrival:
    """How arrivals are spaced. `cv` is the coefficient of variation of the gaps (gamma only)."""

    kind: Kind
    cv: float = 1.0


def parse_arrival(text: str) -> Arrival:
    """`trace`, `constant`, `poisson` or `gamma:CV`.

    Raises:
        InputError: unknown kind, or a CV that is not finite and above 0.
    """
    kind, _, rest = text.partition(":")
    if kind in ("trace", "constant", "poisson") and not rest:
        return Arrival(kind)  # type: ignore[arg-type]  # narrowed by the line above
    mend = "write trace, constant, poisson or gamma:CV, e.g. gamma:2.5"
    if kind != "gamma":
        raise InputError("unknown kind of arrivals", key="--arrival", value=text, mend=mend)
    try:
        cv = float(rest)
    except ValueError:
        cv = float("nan")
    if not (np.isfinite(cv) and cv > 0):
        raise InputError("the CV must be finite and > 0", key="--arrival", value=text, mend=mend)
    return Arrival("gamma", cv)


def constant(rate: float, count: int) -> Offsets:
    """i / rate seconds, shape (count,): no time carries the rounding of the ones before it."""
    return np.arange(count, dtype=np.float64) / rate


def renewal(arrival: Arrival, rate: float, count: int, rng: np.random.Generator) -> Offsets:
    """Cumulated independent gaps of mean 1/rate: exponential, or gamma with the asked CV.

    Gamma gaps of shape 1/CV² and scale CV²/rate. Never rescaled to hit count/rate exactly: the
    count in a window of a Poisson process is random, and forcing it makes the process another.
    """
    if arrival.kind == "gamma":
        shape = 1.0 / arrival.cv**2
        gaps = rng.gamma(shape, 1.0 / (rate * shape), count)
    else:
        gaps = rng.exponential(1.0 / rate, count)
    return np.cumsum(gaps)


def draw(
    arrival: Arrival,
    rate: float,
    rng: np.random.Generator,
    *,
    duration_s: float | None,
    count: int | None,
) -> Offsets:
    """Offsets of a constant, Poisson or gamma process: the first `count`, or all below
    `duration_s`, or the shorter of both when both are given."""
    if arrival.kind == "constant":
        least: list[float] = [count] if count is not None else []
        least += [rate * duration_s + COUNT_SLACK] if duration_s is not None else []
        return constant(rate, int(min(least)))
    if duration_s is None:
        assert count is not None
        return renewal(arrival, rate, count, rng)
    # No more than `count`: a window of a year at 1000/s need not be drawn for 200 requests.
    most = math.inf if count is None else count
    offsets = renewal(arrival, rate, int(min(most, max(16.0, rate * duration_s * 1.2))), rng)
    while offsets[-1] < duration_s and len(offsets) < most:
        more = renewal(arrival, rate, max(16, len(offsets) // 4), rng)
        offsets = np.concatenate([offsets, offsets[-1] + more])
    offsets = offsets[offsets < duration_s]
    return offsets if count is None else offsets[:count]


def cap_gaps(times: Offsets, cap_s: float) -> Offsets:
    """Times with every gap above `cap_s` cut to it. Applied in the trace's own time, before any
    rescaling: capping after it would make the cap depend on the rate."""
    if len(times) == 0:
        return times
    gaps = np.minimum(np.diff(times), cap_s)
    return np.concatenate([[0.0], np.cumsum(gaps)])


def mean_rate(times: Offsets) -> float | None:
    """(n − 1) / (last − first); None where that has no value."""
    span = float(times[-1] - times[0]) if len(times) > 1 else 0.0
    return (len(times) - 1) / span if span > 0 else None


def rescale(times: Offsets, rate: float) -> Offsets:
    """The same shape, first arrival at 0, with mean rate `rate`.

    Raises:
        InputError: all arrivals have one time, so there is no shape to rescale.
    """
    if len(times) == 1:
        return np.zeros(1)
    own = mean_rate(times)
    if own is None:
        raise InputError(
            f"all {len(times)} arrivals of the chosen window have the same time",
            key="--rate",
            value=rate,
            mend="take more arrivals (--requests, --duration) or use --arrival poisson",
        )
    scaled: Offsets = (times - times[0]) * (own / rate)
    return scaled
