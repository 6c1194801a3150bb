"""The arms: each an engine's pool, its load window and its room; and the desk that chooses."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Protocol

from breakeven.load import ArrivalWindow, LoadClass, LoadClasses
from breakeven_proxy.config import OTHER, ArmSettings, ProxySettings
from breakeven_proxy.control.admission import Admission, Waiting
from breakeven_proxy.control.passive import unreachable_signal
from breakeven_proxy.control.steer import Control
from breakeven_proxy.observe.meter import Meter, RequestObservation
from breakeven_proxy.observe.metrics import Metrics
from breakeven_proxy.observe.passing import PassingObservation
from breakeven_proxy.relay.seams import Arrival, Guest, Observation, Refusal, Transform
from breakeven_wire import Deadlines, EnginePool, Failure, Headers, Origin

METERED = {
    b"/v1/chat/completions": "chat",
    b"/v1/completions": "completions",
    b"/v1/responses": "responses",
}
"""Paths whose POSTs are metered; every other path is passed through and only counted."""

COHORT_HEADER = b"x-breakeven-cohort"
ARM_HEADER = b"x-breakeven-arm"


class Arm:
    """One engine (or fleet of equal ones) behind one URL."""

    def __init__(self, name: str, settings: ArmSettings, config: ProxySettings) -> None:
        self.name = name
        self.settings = settings
        self.up: bool | None = None
        """What the last health check said; None before the first."""
        timeouts = config.timeouts
        self.pool = EnginePool(
            Origin.parse(settings.url),
            stamps=config.stamps,
            deadlines=Deadlines(
                connect_s=timeouts.connect_s,
                first_byte_s=timeouts.first_byte_s,
                idle_s=timeouts.idle_s,
            ),
            retry_stale=config.retry_stale,
            ca_file=settings.ca_file,
            verify=settings.tls_verify,
        )
        loop = asyncio.get_running_loop()
        self.admission = Admission(
            loop,
            max_inflight=config.admission.max_inflight,
            max_queue=config.admission.max_queue,
            queue_timeout_s=config.admission.queue_timeout_s,
        )
        self._classes: LoadClasses = config.classes()
        self._window = ArrivalWindow(time.monotonic())

    @property
    def inflight(self) -> int:
        """Admitted requests."""
        return self.admission.inflight

    @property
    def queued(self) -> int:
        """Requests that wait for a place."""
        return self.admission.queued

    def arrive(self, now: float) -> LoadClass:
        """Counts an arrival (admitted, queued or rejected alike) and names the load it meets."""
        self._window.record(now)
        return self._classes.classify(self._window.rate(now) / self.settings.replicas)

    def rate(self, now: float) -> float:
        """Arrivals per second and replica over the last 30 s."""
        return self.rate_total(now) / self.settings.replicas

    def rate_total(self, now: float) -> float:
        """Arrivals per second over the last 30 s, all replicas together."""
        return self._window.rate(now)


class Companions(Protocol):
    """What a metered request gets on its way beside a place; see `beside.Beside`."""

    def headers_for(self, arrival: Arrival) -> Headers:
        """Headers for the engine, in place of the client's of that name."""

    def transform_for(self, arm: str, arrival: Arrival) -> Transform | None:
        """The change of its body, if any."""


def _nothing() -> None:
    """For a place that is granted at once: nobody has to be called."""


class Stay:
    """One request at the desk: the relay's `Visit`."""

    __slots__ = (
        "_desk", "_left", "_waiting", "arm", "cohort", "diverted", "extra_headers", "observation",
        "pool", "steered", "transform",
    )  # fmt: skip

    def __init__(
        self,
        desk: FrontDesk,
        arm: Arm,
        cohort: str,
        observation: Observation,
        *,
        steered: bool,
    ) -> None:
        self._desk = desk
        self.arm = arm
        self.pool = arm.pool
        self.cohort = cohort
        self.observation = observation
        self.steered = steered
        """False: the client named the arm, so no other will do."""
        self.diverted = False
        self.transform: Transform | None = None
        self.extra_headers: Headers = ()
        self._waiting: Waiting | None = None
        self._left = False

    def divert(self, failure: Failure) -> EnginePool | None:
        """See `relay.seams.Visit`; once a request."""
        return self._desk.divert(self, failure)

    def move(self, arm: Arm, waiting: Waiting | None) -> None:
        """Goes on at another arm, with a place there if it held one here."""
        if self._waiting is not None:
            self._waiting.leave()
        self.arm, self.pool, self._waiting, self.diverted = arm, arm.pool, waiting, True

    @property
    def holds_place(self) -> bool:
        """Whether it takes one of the arm's places."""
        return self._waiting is not None

    def leave(self) -> None:
        """Gives the place back; once."""
        if not self._left:
            self._left = True
            if self._waiting is not None:
                self._waiting.leave()


class FrontDesk:
    """The relay's `Desk`: the arm that `control` names, room in it, an observation a request."""

    def __init__(
        self,
        config: ProxySettings,
        arms: dict[str, Arm],
        meter: Meter,
        metrics: Metrics,
        control: Control,
        beside: Companions,
    ) -> None:
        self._config = config
        self.arms = arms
        self._meter = meter
        self._metrics = metrics
        self._control = control
        self._beside = beside
        self.draining = False
        self._cohorts = {name.encode(): name for name in config.cohorts}
        self._overflow = {
            label: metrics["label_overflow_total"].cell(label) for label in ("cohort", "arm")
        }
        self._sticky = (config.routing.sticky_header or "").lower().encode()
        for name in arms:
            self._welcome(name)

    def _welcome(self, name: str) -> None:
        """An arm's series stand from the start."""
        for reason in ("queue_full", "queue_timeout", "draining"):
            self._metrics["rejections_total"].cell(name, reason)
        self._metrics["route_diverted_total"].cell(name)

    def adopt(self, config: ProxySettings) -> None:
        """Goes on under another configuration; `arms` was changed in place."""
        self._config = config
        self._cohorts = {name.encode(): name for name in config.cohorts}
        self._sticky = (config.routing.sticky_header or "").lower().encode()
        for name in self.arms:
            self._welcome(name)

    def enter(self, arrival: Arrival, guest: Guest) -> Stay:
        """Chooses the arm, opens the observation, asks for a place."""
        cohort = self._cohort_of(arrival)
        named = self._named_arm(arrival) if self._config.allow_arm_header else None
        arm = named or self._arm_for(arrival, cohort)
        seen: Observation
        metered = arrival.method == b"POST" and arrival.path in METERED
        if metered:
            load = arm.arrive(arrival.monotonic)
            seen = self._meter.open(arrival, arm.name, cohort, load, arm.pool.stamps)
        else:
            seen = self._meter.passing(arm.name)
        stay = Stay(self, arm, cohort, seen, steered=named is None)
        if metered:
            stay.extra_headers = self._beside.headers_for(arrival)
            stay.transform = self._beside.transform_for(arm.name, arrival)
        if self.draining:
            self._refuse(stay, guest, "draining")
        elif arrival.method != b"POST":
            guest.admitted(stay)  # models, health, version: never behind generations
        else:
            self._admit(stay, guest)
        return stay

    def _admit(self, stay: Stay, guest: Guest) -> None:
        waiting = stay.arm.admission.enter(
            lambda: guest.admitted(stay), lambda: self._refuse(stay, guest, "queue_timeout")
        )
        if waiting is None:
            self._refuse(stay, guest, "queue_full")
            return
        stay._waiting = waiting
        if waiting.granted:
            guest.admitted(stay)

    def _refuse(self, stay: Stay, guest: Guest, reason: str) -> None:
        self._metrics["rejections_total"].cell(stay.arm.name, reason).inc()
        wait = max(1, math.ceil(self._config.admission.queue_timeout_s))
        if reason == "queue_full":
            refusal = Refusal(429, "too many requests wait already", wait)
        elif reason == "queue_timeout":
            refusal = Refusal(503, "no place became free in time", wait)
        else:
            refusal = Refusal(503, "this proxy is shutting down", 1)
        guest.refused(stay, refusal)

    def divert(self, stay: Stay, failure: Failure) -> EnginePool | None:
        """No connection to the stay's arm: it is told to `control`, and the request moves on.

        Only a steered request moves, once, and only where there is room at once. Nothing of it
        was sent since, at most, one stale keep-alive connection: no more than a retry.
        """
        self._control.saw(stay.arm.name, unreachable_signal(failure))
        if stay.diverted or not stay.steered:
            return None
        name = self._control.other_arm(stay.arm.name, stay.cohort)
        other = self.arms.get(name) if name is not None else None
        if other is None or (stay.holds_place and not other.admission.has_room):
            return None
        waiting = other.admission.enter(_nothing, _nothing) if stay.holds_place else None
        self._metrics["route_diverted_total"].cell(stay.arm.name).inc()
        if isinstance(stay.observation, RequestObservation):
            load = other.arrive(time.monotonic())
            stay.observation.moved(other.name, load, other.pool.stamps)
        elif isinstance(stay.observation, PassingObservation):
            stay.observation.moved(other.name)
        stay.move(other, waiting)
        return other.pool

    def _named_arm(self, arrival: Arrival) -> Arm | None:
        """The arm that a test names, where that is allowed."""
        wanted = arrival.get(ARM_HEADER)
        if wanted is None:
            return None
        arm = self.arms.get(wanted.decode("latin-1"))
        if arm is None:
            self._overflow["arm"].inc()
        return arm

    def _arm_for(self, arrival: Arrival, cohort: str) -> Arm:
        sticky = arrival.get(self._sticky) if self._sticky else None
        name = self._control.arm_for(cohort, sticky)
        return self.arms.get(name) or self.arms[self._control.baseline]

    def _cohort_of(self, arrival: Arrival) -> str:
        named = arrival.get(COHORT_HEADER)
        if named is None or named == OTHER.encode():
            return OTHER
        cohort = self._cohorts.get(named)
        if cohort is None:
            self._overflow["cohort"].inc()
            return OTHER
        return cohort
