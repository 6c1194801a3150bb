"""The gateway: `Control` wired to arms, meter, probes and the clock.

Here: what runs beside the traffic (probes, the tick), and the change to another configuration.
Not here: the choice of an arm (`steer`), the path of a request (`arms`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from breakeven.certificate import Certificate
from breakeven.errors import ConfigError
from breakeven.guard import ArmCounters
from breakeven.health import Signal
from breakeven.proven import ProvenRange
from breakeven.provenance import Evidence
from breakeven.routing import Reason
from breakeven.steering import Plan
from breakeven_proxy.config import ProxySettings
from breakeven_proxy.control.arms import Arm
from breakeven_proxy.control.passive import counters_of, signal_of
from breakeven_proxy.control.plan import headroom_problems, plan_of
from breakeven_proxy.control.probe import Prober
from breakeven_proxy.control.steer import Control
from breakeven_proxy.observe.log import Log
from breakeven_proxy.observe.meter import Meter, Metered
from breakeven_proxy.observe.metrics import Metrics
from breakeven_wire.origin import tls_context

TICK_S = 1.0
"""How often load, range, expiry and guard are looked at; health acts at once."""


def steering_plan(settings: ProxySettings, certificate: Certificate | None, log: Log) -> Plan:
    """The plan of a configuration and its certificate.

    Raises:
        ConfigError: the certificate names no candidate of this gateway; or the candidate may get
            more than the baseline is certified to take over, and `routing.force` is not set.
    """
    certified = None if certificate is None else certificate.policy
    plan = plan_of(settings, certified=certified)
    if certificate is None or not plan.candidates:
        return plan
    if certificate.arm not in plan.candidates:
        raise ConfigError(
            "the certificate was given to another arm",
            key="certificate",
            value=certificate.arm,
            mend=f"rename the candidate, or decide for one of: {', '.join(plan.candidates)}",
        )
    proven = ProvenRange(
        min_rps=certificate.min_rps,
        max_rps=certificate.max_rps,
        headroom_rps=certificate.rollback_headroom_rps,
        expires_s=certificate.expires.timestamp(),
        denied_cohorts=frozenset(certificate.denied_cohorts),
        enforce_min=settings.routing.enforce_range_min,
    )
    # What nobody proved has no place beside a certificate, nor has what was proven on a simulator.
    refused = dict.fromkeys(plan.candidates, Reason.NOT_EVIDENCE)
    if certificate.evidence is Evidence.EVIDENCE or settings.allow_simulated:
        del refused[certificate.arm]
    plan = plan_of(
        settings, proven={certificate.arm: proven}, refused=refused, certified=certified
    )  # fmt: skip
    for problem in headroom_problems(plan):
        if not settings.routing.force:
            raise problem
        log.warning("rollback headroom", problem=problem.what)
    if plan.load_aware is not None and plan.load_aware.leave_above > certificate.max_rps:
        log.warning(
            "load_aware leaves above the proven range: the range decides, without its band",
            leave_above_rps=plan.load_aware.leave_above,
            proven_max_rps=certificate.max_rps,
        )
    return plan


class Gateway:
    """Steers by a plan; `start` begins what runs beside the traffic.

    Args:
        arms: changed in place by `adopt`; shared with the desk.
        contradiction: how the engine contradicts the certificate, in words, or None.
    """

    def __init__(
        self,
        settings: ProxySettings,
        certificate: Certificate | None,
        arms: Mapping[str, Arm],
        meter: Meter,
        metrics: Metrics,
        log: Log,
        contradiction: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._contradiction = contradiction
        self._settings = settings
        self._certificate = certificate
        self._arms = arms
        self._meter = meter
        self._metrics = metrics
        self._log = log
        guard = settings.routing.guard
        self.control = Control(
            steering_plan(settings, certificate, log),
            arms=arms,
            counters=self._counters,
            contradiction=self._contradicted,
            metrics=metrics,
            log=log,
            guard_enabled=guard.enabled,
            rearm=guard.rearm,
            state_file=settings.routing.state_file,
        )
        meter.listeners.append(self._heard)
        self._probes: dict[str, tuple[Arm, asyncio.Task[None]]] = {}
        self._ticker: asyncio.Task[None] | None = None
        self._say_simulated()

    def start(self) -> None:
        """Begins probes and the tick; inside the loop."""
        self._ticker = asyncio.get_running_loop().create_task(self._tick_for_ever())
        self._probe_all()

    async def close(self) -> None:
        """Ends them."""
        tasks = [task for _, task in self._probes.values()]
        if self._ticker is not None:
            tasks.append(self._ticker)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def adopt(
        self,
        settings: ProxySettings,
        plan: Plan,
        certificate: Certificate | None,
        renewed: frozenset[str],
    ) -> None:
        """Goes on under another configuration, whose plan was made before anything changed."""
        same_questions = bool(self.control.plan.candidates) is bool(plan.candidates)
        restart = settings.routing.health != self._settings.routing.health or not same_questions
        self._settings, self._certificate = settings, certificate
        self.control.guard_enabled = settings.routing.guard.enabled
        self.control.rearm_rule = settings.routing.guard.rearm
        self.control.replan(plan, renewed)
        self._say_simulated()
        self._probe_all(restart=restart)

    def _say_simulated(self) -> None:
        shout = self._settings.allow_simulated
        self._metrics["simulated_evidence_allowed"].set(1 if shout else 0)
        if shout:
            self._log.warning("SIMULATED EVIDENCE MAY STEER TRAFFIC: allow_simulated is true")

    def _probe_all(self, *, restart: bool = False) -> None:
        for name, (arm, task) in list(self._probes.items()):
            if restart or self._arms.get(name) is not arm:
                task.cancel()
                del self._probes[name]
        for name, arm in self._arms.items():
            if name not in self._probes:
                task = asyncio.get_running_loop().create_task(self._prober(name, arm).run())
                self._probes[name] = (arm, task)

    def _prober(self, name: str, arm: Arm) -> Prober:
        health, settings = self._settings.routing.health, arm.settings
        tls = arm.pool.origin.tls
        return Prober(
            str(arm.pool.origin),
            interval_s=health.interval_s,
            timeout_s=health.timeout_s,
            model=self._model,
            tell=lambda seen: self._probed(name, arm, seen),
            tls=tls_context(ca_file=settings.ca_file, verify=settings.tls_verify) if tls else None,
            # A sidecar has nowhere else to send a request: its engine's list decides nothing.
            list_models=health.model is not None or bool(self.control.plan.candidates),
        )

    def _model(self) -> str | None:
        asked = self._settings.routing.health.model
        if asked is None and self._certificate is not None:
            return self._certificate.fingerprint.model
        return asked

    def _probed(self, name: str, arm: Arm, seen: Signal) -> None:
        self.control.saw(name, seen)
        if name not in self.control.plan.candidates and name != self.control.baseline:
            arm.up = seen is Signal.READY  # reached only by the arm header

    def _heard(self, metered: Metered) -> None:
        signal = signal_of(metered)
        if signal is not None:
            self.control.saw(metered.arm, signal)

    def _contradicted(self) -> tuple[str, str] | None:
        words = self._contradiction()
        return (
            None if words is None or self._certificate is None else (self._certificate.arm, words)
        )

    def _counters(self, name: str) -> ArmCounters | None:
        meters = self._meter.arms.get(name)
        if meters is None:
            return None
        limit_s, overdue = self.control.plan.budget.ttft_p95_s, 0
        if limit_s is not None:
            overdue = self._meter.overdue(name, limit_s, time.monotonic())
        return counters_of(meters, overdue)

    async def _tick_for_ever(self) -> None:
        while True:
            self.control.tick()
            await asyncio.sleep(TICK_S)


def read_token(path: str | None) -> str | None:
    """The admin token of a file.

    Raises:
        ConfigError: it cannot be read, or is too short to be a secret.
    """
    if path is None:
        return None
    try:
        token = Path(path).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        raise ConfigError(
            "cannot be read", key="admin_token_file", value=path, mend="give a readable text file"
        ) from None
    if len(token) < 16:
        mend = "put at least 16 random characters into it"
        raise ConfigError("holds no secret", key="admin_token_file", value=path, mend=mend)
    return token
