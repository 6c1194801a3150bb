"""The certificate of a decision: what it proved, frozen.

Here: which figures go into it. Not here: its format (core certificate). Issued only where some
traffic may use the candidate; its labels travel with it, so that a method check stays one.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import numpy as np

from breakeven.certificate import (
    DEFAULT_VALID_DAYS,
    Certificate,
    Fingerprint,
    FrozenBaseline,
)
from breakeven.decision import Outcome
from breakeven.load import LoadClass

from .assess import Assessment, Candidate
from .dataset import Grid, RunData
from .figures import Figures, figures, summed
from .headroom import Rollback
from .pairs import faults
from .policy import LoadPolicy, policy_json


def certify(
    assessment: Assessment,
    winner: Candidate,
    outcome: Outcome,
    back: Rollback,
    policy: LoadPolicy | None,
    now: datetime,
) -> Certificate | None:
    """The certificate, or None where the decision keeps nothing of the candidate."""
    if outcome.rates is None:
        return None
    grid = assessment.grid
    record = grid.record
    replicas = winner.arm.fleet.replicas
    top = outcome.rates[1] / replicas if policy is None else policy.max_rps
    return Certificate(
        created=now.replace(microsecond=0),
        expires=(now + timedelta(days=DEFAULT_VALID_DAYS)).replace(microsecond=0),
        arm=outcome.arm,
        slo=record.slo,
        epsilon_s=record.epsilon_s,
        load_classes=record.load_classes,
        min_rps=outcome.rates[0] / replicas,
        max_rps=top,
        baseline=frozen_baseline(assessment),
        rollback_headroom_rps=back.headroom_rps,
        fingerprint=fingerprint(grid, winner),
        labels=assessment.labels,
        denied_cohorts=outcome.denied,
        policy=policy_json(policy, None)["proxy"] or {},
    )


def frozen_baseline(
    assessment: Assessment,
) -> dict[tuple[str, LoadClass], FrozenBaseline]:
    """The baseline's figures per configured cohort and load class."""
    grid = assessment.grid
    record = grid.record
    costs = {c.load: c.usd_per_good for c in assessment.costs if c.arm == record.baseline.name}
    out: dict[tuple[str, LoadClass], FrozenBaseline] = {}
    for load, rate in record.rates.items():
        runs = [r for r in grid.of(record.baseline.name, load).values() if not faults(r)]
        name = record.load_classes.classify(rate / record.baseline.fleet.replicas)
        for cohort in sorted({str(c) for run in runs for c in np.unique(run.rows.cohort)}):
            whole = summed([_of_cohort(run, cohort, grid) for run in runs])
            if whole.decode_tokens > 0:
                out[cohort, name] = FrozenBaseline(
                    whole.s_per_token,
                    whole.gap_s["p99"] if whole.gap_s else None,
                    whole.ttft_s["p95"] if whole.ttft_s else None,
                    costs.get(load),
                )
    return out


def _of_cohort(run: RunData, cohort: str, grid: Grid) -> Figures:
    return figures(run.rows.where(run.rows.cohort == cohort), grid.record.slo)


def fingerprint(grid: Grid, winner: Candidate) -> Fingerprint:
    """How the candidate can be recognised: what its runs showed, where they all agree."""
    runs = [run for run in grid.runs if run.plan.arm == winner.arm.name]

    def one(name: str) -> str | None:
        values = {run.facts.get(name) for run in runs}
        return values.pop() if len(values) == 1 else None

    return Fingerprint(one("engine_version"), one("system_fingerprint"), one("model"), winner.k)
