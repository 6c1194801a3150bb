"""The arms: each an engine's pool, its load window and its room; and the desk that chooses."""

from __future__ import annotations

import asyncio
import math
import time

from breakeven.load import ArrivalWindow, LoadClass, LoadClasses
from breakeven_proxy.config import OTHER, ArmSettings, ProxySettings
from breakeven_proxy.control.admission import Admission, Waiting
from breakeven_proxy.observe.meter import Meter
from breakeven_proxy.observe.metrics import Metrics
from breakeven_proxy.relay.seams import Arrival, Guest, Observation, Refusal, Transform
from breakeven_wire import Deadlines, EnginePool, Headers, Origin

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
        return self._classes.classify(self.rate(now))

    def rate(self, now: float) -> float:
        """Arrivals per second and replica over the last 30 s."""
        return self._window.rate(now) / self.settings.replicas


class Stay:
    """One request at the desk: the relay's `Visit`."""

    __slots__ = ("_left", "_waiting", "arm", "extra_headers", "observation", "pool", "transform")

    def __init__(self, arm: Arm, observation: Observation) -> None:
        self.arm = arm
        self.pool = arm.pool
        self.observation = observation
        self.transform: Transform | None = None
        self.extra_headers: Headers = ()
        self._waiting: Waiting | None = None
        self._left = False

    def leave(self) -> None:
        """Gives the place back; once."""
        if not self._left:
            self._left = True
            if self._waiting is not None:
                self._waiting.leave()


class FrontDesk:
    """The relay's `Desk`: single routing, admission per arm, an observation for each request."""

    def __init__(
        self, config: ProxySettings, arms: dict[str, Arm], meter: Meter, metrics: Metrics
    ) -> None:
        self._config = config
        self.arms = arms
        self._default = arms[config.chosen_arm()]
        self._meter = meter
        self.draining = False
        self._cohorts = {name.encode(): name for name in config.cohorts}
        self._overflow = {
            label: metrics["label_overflow_total"].cell(label) for label in ("cohort", "arm")
        }
        self._rejections = {
            (name, reason): metrics["rejections_total"].cell(name, reason)
            for name in arms
            for reason in ("queue_full", "queue_timeout", "draining")
        }

    def enter(self, arrival: Arrival, guest: Guest) -> Stay:
        """Chooses the arm, opens the observation, asks for a place."""
        arm = self._arm_for(arrival)
        if arrival.method == b"POST" and arrival.path in METERED:
            load = arm.arrive(arrival.monotonic)
            cohort = self._cohort_of(arrival)
            seen: Observation = self._meter.open(arrival, arm.name, cohort, load, arm.pool.stamps)
        else:
            seen = self._meter.passing(arm.name)
        stay = Stay(arm, seen)
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
        self._rejections[stay.arm.name, reason].inc()
        wait = max(1, math.ceil(self._config.admission.queue_timeout_s))
        if reason == "queue_full":
            refusal = Refusal(429, "too many requests wait already", wait)
        elif reason == "queue_timeout":
            refusal = Refusal(503, "no place became free in time", wait)
        else:
            refusal = Refusal(503, "this proxy is shutting down", 1)
        guest.refused(stay, refusal)

    def _arm_for(self, arrival: Arrival) -> Arm:
        if self._config.allow_arm_header:
            wanted = arrival.get(ARM_HEADER)
            if wanted is not None:
                arm = self.arms.get(wanted.decode("latin-1"))
                if arm is not None:
                    return arm
                self._overflow["arm"].inc()
        return self._default

    def _cohort_of(self, arrival: Arrival) -> str:
        named = arrival.get(COHORT_HEADER)
        if named is None:
            return OTHER
        cohort = self._cohorts.get(named)
        if cohort is None:
            self._overflow["cohort"].inc()
            return OTHER
        return cohort
