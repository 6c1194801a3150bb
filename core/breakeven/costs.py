"""The cost ledger: what an interval cost, and what one good response cost.

Here: resources, hours, prices, and the ratio of sums. Not here: which responses are good (slo),
statistics. Failed, retried and cancelled work needs no extra penalty: it is fleet time, and all
fleet time is in the numerator. Money in US dollars; docs/definitions.md, "Cost".
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from .errors import InputError


class Resource(StrEnum):
    """What fleet time is paid for."""

    TARGET = "target"
    DRAFT = "draft"  # a separate draft GPU; a draft on the target's GPU costs nothing extra
    STANDBY = "standby"  # a second provisioned route, and hysteresis
    WARM_UP = "warm_up"
    DRAIN = "drain"
    CANARY = "canary"
    IDLE = "idle"  # provisioned, not serving, inside the interval
    OPERATIONS = "operations"  # people and tooling, priced per hour


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a ledger: `units` (GPUs, or 1 for operations) for `hours` at a price.

    Raises:
        InputError: hours, units or price not finite or negative.
    """

    resource: Resource
    hours: float
    units: float
    usd_per_unit_hour: float

    def __post_init__(self) -> None:
        for name in ("hours", "units", "usd_per_unit_hour"):
            value = getattr(self, name)
            if not math.isfinite(value) or value < 0:
                raise InputError(
                    "a ledger takes finite numbers of at least 0", key=f"{self.resource}.{name}",
                    value=value, mend="correct the price or the count",
                )  # fmt: skip

    @property
    def usd(self) -> float:
        """hours * units * price."""
        return self.hours * self.units * self.usd_per_unit_hour


@dataclass(frozen=True, slots=True)
class Ledger:
    """All fleet time of one arm in one interval, and what came of it.

    Attributes:
        lines: every resource, each hour once.
        good: SLO-compliant responses; offered: arrivals in the interval (failures included).
    """

    lines: tuple[Line, ...]
    good: int
    offered: int

    @property
    def usd(self) -> float:
        """Sum of all lines."""
        return math.fsum(line.usd for line in self.lines)

    @property
    def usd_per_good(self) -> float | None:
        """Dollars per good response; None (undefined) without a single one, never a number."""
        return self.usd / self.good if self.good > 0 else None

    def usd_of(self, *resources: Resource) -> float:
        """Sum of the lines of these resources."""
        return math.fsum(line.usd for line in self.lines if line.resource in resources)

    def repriced(self, factor: float) -> float | None:
        """Dollars per good response if every price changed by `factor`: one multiplication."""
        per_good = self.usd_per_good
        return None if per_good is None else per_good * factor

    def plus(self, other: Ledger) -> Ledger:
        """Two intervals as one: a ratio of sums, never a mean of ratios."""
        return Ledger(
            self.lines + other.lines, self.good + other.good, self.offered + other.offered
        )


def total(ledgers: Iterable[Ledger]) -> Ledger:
    """All intervals as one."""
    out = Ledger((), 0, 0)
    for ledger in ledgers:
        out = out.plus(ledger)
    return out


@dataclass(frozen=True, slots=True)
class Fleet:
    """What stands there for one arm.

    Attributes:
        replicas: engines that serve.
        gpus: target GPUs per replica; draft_gpus: separate draft GPUs per replica.
        usd_per_gpu_hour: price of one GPU.
        standby_replicas: provisioned beside it so that traffic can be routed back.
        operations_usd_per_hour: people and tooling.
    """

    replicas: int = 1
    gpus: float = 1.0
    draft_gpus: float = 0.0
    usd_per_gpu_hour: float = 0.0
    standby_replicas: int = 0
    operations_usd_per_hour: float = 0.0

    @property
    def usd_per_replica_hour(self) -> float:
        """Target and separate draft GPUs of one replica."""
        return (self.gpus + self.draft_gpus) * self.usd_per_gpu_hour

    @property
    def usd_per_hour(self) -> float:
        """The standing bill."""
        standby = self.standby_replicas * self.gpus * self.usd_per_gpu_hour
        return self.replicas * self.usd_per_replica_hour + standby + self.operations_usd_per_hour


def ledger_of(
    fleet: Fleet,
    *,
    serving_s: float,
    warm_up_s: float = 0.0,
    drain_s: float = 0.0,
    good: int,
    offered: int,
) -> Ledger:
    """The ledger of one measured interval; each second of each GPU is booked once.

    Args:
        serving_s: seconds in which arrivals were offered.
        warm_up_s, drain_s: before and after; the fleet stands then, too.
    """
    price = fleet.usd_per_gpu_hour
    hours = serving_s / 3600
    around = (warm_up_s + drain_s) / 3600
    lines = [
        Line(Resource.TARGET, hours, fleet.replicas * fleet.gpus, price),
        Line(Resource.DRAFT, hours, fleet.replicas * fleet.draft_gpus, price),
        Line(Resource.STANDBY, hours + around, fleet.standby_replicas * fleet.gpus, price),
        Line(Resource.WARM_UP, warm_up_s / 3600, fleet.replicas, fleet.usd_per_replica_hour),
        Line(Resource.DRAIN, drain_s / 3600, fleet.replicas, fleet.usd_per_replica_hour),
        Line(Resource.OPERATIONS, hours + around, 1, fleet.operations_usd_per_hour),
    ]
    return Ledger(tuple(line for line in lines if line.usd > 0), good, offered)


def marginal_usd_per_good(
    fleet: Fleet, capacity_good_per_s_per_replica: float | None
) -> float | None:
    """The marginal price: a replica's hour over the good responses that it can give in it.

    What one more response costs once the fleet is full; None where the capacity is unknown or 0.
    """
    if not capacity_good_per_s_per_replica or capacity_good_per_s_per_replica <= 0:
        return None
    return fleet.usd_per_replica_hour / (capacity_good_per_s_per_replica * 3600)


@dataclass(frozen=True, slots=True)
class Reserved:
    """The bill of a fleet that must carry a peak.

    Attributes:
        replicas: ceil(peak * headroom / capacity per replica at SLO).
        usd_per_hour: replicas * price, standby and operations included.
    """

    replicas: int
    usd_per_hour: float


def reserved(
    fleet: Fleet, *, peak_rps: float, headroom: float, capacity_rps_per_replica: float | None
) -> Reserved | None:
    """The reserved price: it moves only when replicas are removed or avoided.

    Args:
        peak_rps: req/s that must be carried; headroom: >= 1, e.g. 1.2.
        capacity_rps_per_replica: highest rate that one replica carries within the SLO; None or 0
            (it carries none of the swept rates) gives None: undefined.
    """
    if not capacity_rps_per_replica or capacity_rps_per_replica <= 0:
        return None
    count = math.ceil(peak_rps * headroom / capacity_rps_per_replica - 1e-9)
    count = max(1, count)
    standby = fleet.standby_replicas * fleet.gpus * fleet.usd_per_gpu_hour
    usd = count * fleet.usd_per_replica_hour + standby + fleet.operations_usd_per_hour
    return Reserved(count, usd)


def largest_draft_usd_per_hour(
    baseline_usd_per_good: float | None, candidate_good_per_hour: float, fleet_usd_per_hour: float
) -> float | None:
    """What a draft may cost per hour before its arm is dearer per good response than the baseline.

    baseline $/good * candidate good/h - the candidate's bill without the draft; negative where
    not even a free draft pays. None where the baseline's price is undefined.
    """
    if baseline_usd_per_good is None:
        return None
    return baseline_usd_per_good * candidate_good_per_hour - fleet_usd_per_hour
