"""The profile of the policy cell: which rates it offers, for how long, and whether that can tell.

Here: levels, arrivals and the check against a gateway's thresholds. Pure. Not here: the gateway
(policy_gateway), the run (policy_cell).

A gateway decides on its arrivals over 30 s, which for Poisson arrivals at r req/s have a standard
deviation of sqrt(r / 30 s). A rate whose noise reaches a threshold, or a level that ends before
the load can have crossed it, says nothing of the policy: such a profile is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from breakeven.errors import InputError
from breakeven.load import WINDOW_S
from breakeven.trace import Arrival, Header, arrival_line, header_line

from ..traffic.plan import MAX_ARRIVALS, MAX_RUN_S
from .policy_figures import Level

CLEAR_SD = 4.0
"""Standard deviations between a rate and a threshold: noise crosses once in 30,000 looks."""
LOOKS_S = 2.0
"""Two looks of the gateway, which it takes once a second."""


@dataclass(frozen=True, slots=True)
class PolicyCell:
    """One run of the cell.

    Attributes:
        url, admin: the gateway's traffic and admin port.
        low_rps, high_rps: offered rates in total, on either side of both thresholds and clear of
            them by the noise of the load.
        hold_s: seconds at each low level: longer than window + dwell of the policy plus the 30 s
            over which a load is defined, or the gateway cannot follow.
        high_hold_s: the same at each high level; None: as long. A rate far above the thresholds
            shows in fewer than the 30 s.
        cycles: times high → low; the run begins and ends high.
        in_tokens, out_tokens: lengths of every request.
        api_key_env: environment variable that holds the key of the gateway's engines.
    """

    url: str
    admin: str
    out: str
    low_rps: float
    high_rps: float
    hold_s: float
    high_hold_s: float | None = None
    cycles: int = 2
    in_tokens: int = 64
    out_tokens: int = 32
    model: str | None = None
    seed: int = 0
    timeout_s: float = 120.0
    force: bool = False
    api_key_env: str | None = None


@dataclass(frozen=True, slots=True)
class Rules:
    """What a gateway goes by; rates in req/s of all replicas together, times in seconds."""

    arm: str
    enter_rps: float
    leave_rps: float
    window_s: float
    dwell_s: float

    @property
    def break_even_rps(self) -> float:
        """Half-way between the thresholds."""
        return (self.enter_rps + self.leave_rps) / 2

    @classmethod
    def of(cls, routing: Mapping[str, Any]) -> Rules:
        """The rules of a /status.

        Raises:
            InputError: the gateway has another policy.
        """
        if routing.get("policy") != "load_aware" or not routing.get("load_aware"):
            raise InputError(
                "the gateway's policy is not load_aware", key="--admin",
                value=routing.get("policy"), mend="set routing.policy: load_aware",
            )  # fmt: skip
        arm, rules = str(routing["load_aware_arm"]), routing["load_aware"]
        replicas = int(routing["candidates"][arm]["replicas"])
        return cls(
            arm, rules["enter_below"] * replicas, rules["leave_above"] * replicas,
            float(rules["window_s"]), float(rules["dwell_s"]),
        )  # fmt: skip


def levels(
    low_rps: float, high_rps: float, hold_s: float, high_hold_s: float | None, cycles: int
) -> tuple[Level, ...]:
    """high, low, high, …, low, high."""
    high_s = high_hold_s if high_hold_s is not None else hold_s
    found, start_s = [], 0.0
    for i in range(2 * cycles + 1):
        rps, length_s = (low_rps, hold_s) if i % 2 else (high_rps, high_s)
        found.append(Level(start_s, rps, length_s))
        start_s += length_s
    return tuple(found)


def levels_of(cell: PolicyCell) -> tuple[Level, ...]:
    """The levels of a cell."""
    return levels(cell.low_rps, cell.high_rps, cell.hold_s, cell.high_hold_s, cell.cycles)


def arrivals_of(cell: PolicyCell) -> list[Arrival]:
    """Poisson arrivals at each level's rate, from one seeded generator.

    One more arrives at 0: a replay counts its times from the first arrival.
    """
    rng = np.random.default_rng(cell.seed)
    found = [Arrival(0.0, cell.in_tokens, cell.out_tokens)]
    for level in levels_of(cell):
        count = int(rng.poisson(level.rps * level.hold_s))
        times = np.sort(rng.uniform(level.start_s, level.end_s, count))
        found += [Arrival(float(t), cell.in_tokens, cell.out_tokens) for t in times]
    return found


def write_profile(cell: PolicyCell, path: Path) -> None:
    """The arrivals as a trace."""
    with path.open("wb") as file:
        file.write(header_line(Header()))
        file.writelines(arrival_line(arrival) for arrival in arrivals_of(cell))


# --- can it tell? -----------------------------------------------------------------------------


def noise_rps(rps: float) -> float:
    """How far the load over 30 s strays from Poisson arrivals at `rps` (4 standard deviations)."""
    return CLEAR_SD * math.sqrt(rps / WINDOW_S)


def least_holds_s(cell: PolicyCell, rules: Rules) -> tuple[float, float]:
    """Seconds that a low and a high level must last for the gateway to be able to follow.

    The load over 30 s moves from one rate to the other within 30 s; then come the policy's window
    and dwell, and two looks.
    """
    span = cell.high_rps - cell.low_rps
    down = (cell.high_rps - rules.enter_rps + noise_rps(cell.low_rps)) / span
    up = (rules.leave_rps + noise_rps(rules.leave_rps) - cell.low_rps) / span
    then = rules.window_s + rules.dwell_s + LOOKS_S
    return WINDOW_S * min(1.0, down) + then, WINDOW_S * min(1.0, up) + then


def check_profile(cell: PolicyCell, rules: Rules) -> None:
    """Whether the profile can judge a gateway with these rules.

    Raises:
        InputError: the rates do not lie around the thresholds, their noise reaches them, or a
            level is too short; with what would do.
    """
    _check_size(cell)
    enter, leave = rules.enter_rps, rules.leave_rps
    if not cell.low_rps < enter <= leave < cell.high_rps:
        raise InputError(
            f"the rates must lie on either side of the thresholds ({enter:g} and {leave:g} req/s)",
            key="--low/--high", value=f"{cell.low_rps:g}, {cell.high_rps:g}",
            mend="choose low below the first and high above the second",
        )  # fmt: skip
    for key, rps, clear, where, mend in _noisy(cell, enter, leave):
        if not clear:
            raise InputError(
                f"over {WINDOW_S:g} s the load at this rate strays by {noise_rps(rps):.2g} req/s, "
                f"which reaches the threshold at {where:g}: switches would be chance",
                key=key, value=rps, mend=mend,
            )  # fmt: skip
    high_s = cell.high_hold_s if cell.high_hold_s is not None else cell.hold_s
    for key, given_s, least_s in zip(
        ("--hold", "--high-hold"), (cell.hold_s, high_s), least_holds_s(cell, rules), strict=True
    ):
        if given_s < least_s:
            raise InputError(
                f"too short for the gateway to follow: its load is defined over {WINDOW_S:g} s, "
                f"its window is {rules.window_s:g} s, its dwell {rules.dwell_s:g} s",
                key=key, value=f"{given_s:g}s", mend=f"at least {math.ceil(least_s)}s",
            )  # fmt: skip


def _check_size(cell: PolicyCell) -> None:
    high_s = cell.high_hold_s if cell.high_hold_s is not None else cell.hold_s
    low_s, high_s = cell.cycles * cell.hold_s, (cell.cycles + 1) * high_s
    if low_s + high_s > MAX_RUN_S:
        raise InputError(
            "the run would last longer than a year", key="--hold/--cycles",
            value=f"{low_s + high_s:.3g}s", mend="hold shorter, or fewer cycles",
        )  # fmt: skip
    expected = cell.low_rps * low_s + cell.high_rps * high_s
    if expected > MAX_ARRIVALS:
        raise InputError(
            f"the run would offer {expected:.3g} requests", key="--high",
            value=cell.high_rps, mend=f"stay below {MAX_ARRIVALS}",
        )  # fmt: skip


def _noisy(
    cell: PolicyCell, enter: float, leave: float
) -> Iterator[tuple[str, float, bool, float, str]]:
    low, high = cell.low_rps, cell.high_rps
    yield ("--low", low, low + noise_rps(low) < enter, enter,
           "choose a lower rate, or set the thresholds further apart")  # fmt: skip
    yield ("--high", high, high - noise_rps(high) > leave, leave,
           "choose a higher rate, or set the thresholds further apart")  # fmt: skip
