"""`decide`: a grid's folder in, decision.json, certificate.json and policy.json out.

Here: putting the parts together, and the words around the decision. Not here: the table (core
decision), the facts (assess), pictures (report). Reads a folder, never talks to a server.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from breakeven.certificate import Certificate, certificate_json
from breakeven.decision import Action, Decision, Outcome, choose, decide
from breakeven.errors import InputError
from breakeven.facts import ALL, Interval
from breakeven.provenance import Evidence

from ..replay import results
from .assess import Assessment, Candidate, assess
from .capture import certified
from .certify import certify
from .checklist import checklist
from .dataset import Grid, read_grid
from .headroom import Rollback, rollback
from .money import BELOW_SATURATION, largest_draft, prices
from .pairs import Book, mean_batch
from .policy import DepthPoint, LoadPolicy, depth_schedule, load_policy, policy_json
from .policy_cell import before_promotion, policy_cell
from .worksheet_fit import BreakEvenBand, SweepFit, band, fit_sweep

DECISION = "decision.json"
CERTIFICATE = "certificate.json"
POLICY = "policy.json"


@dataclass(frozen=True, slots=True)
class Decided:
    """A grid's decision with everything that the report draws.

    Attributes:
        outcome: of the candidate that stands for the grid; `outcomes` of all of them.
        action: what may be done on this evidence; a method check never retains.
        record: the content of decision.json.
    """

    assessment: Assessment
    outcome: Outcome
    outcomes: tuple[Outcome, ...]
    action: Action
    evidence: Evidence
    rollback: Rollback
    bands: Mapping[str, BreakEvenBand]
    fits: tuple[SweepFit, ...]
    policy: LoadPolicy | None
    schedule: list[Any] | None
    certificate: Certificate | None
    record: Mapping[str, Any]


def decide_folder(folder: Path, *, now: datetime | None = None) -> Decided:
    """Read a grid folder, decide, and write the three files into it.

    Raises:
        InputError: no grid folder, nothing finished, or no contract in it.
    """
    decided = decide_grid(read_grid(folder), now=now or datetime.now(UTC), file=os.fspath(folder))
    results.write_json(folder / DECISION, decided.record)
    results.write_json(folder / POLICY, policy_json(decided.policy, decided.schedule))
    path = folder / CERTIFICATE
    if decided.certificate is not None:
        new = path.with_name(f".{CERTIFICATE}.new")
        new.write_text(certificate_json(decided.certificate), "utf-8")
        new.replace(path)
    else:
        path.unlink(missing_ok=True)  # an older decision's proof must not outlive it
    return decided


def decide_grid(grid: Grid, *, now: datetime, file: str = "grid") -> Decided:
    """Decide on a grid in memory.

    Raises:
        InputError: the grid has no contract or no candidate.
    """
    if grid.record.contract is None:
        raise InputError(
            "a decision needs the contract", file=file, key="contract",
            mend="give floors, error_budget and max_cost_per_good_usd in the grid's YAML",
        )  # fmt: skip
    if not grid.record.candidates:
        raise InputError(
            "the grid has no candidate", file=file, key="arms", mend="add an arm: role: candidate"
        )
    assessment = assess(grid)
    outcomes = tuple(decide(candidate.facts) for candidate in assessment.candidates)
    outcome = choose(outcomes)
    evidence = assessment.labels.evidence
    winner = next(c for c in assessment.candidates if c.arm.name == outcome.arm)
    back = rollback(assessment.baseline_capacity, outcome.rates[1] if outcome.rates else None)
    bands = {c.arm.name: margin_band(c) for c in assessment.candidates}
    policy = _policy(winner, outcome, bands[winner.arm.name])
    fits = sweeps(assessment)
    schedule = _schedule(assessment, winner)
    certificate = certify(assessment, winner, outcome, back, policy, now)
    decided = Decided(
        assessment, outcome, outcomes, outcome.on(evidence), evidence, back, bands, fits, policy,
        schedule, certificate, {},
    )  # fmt: skip
    return Decided(**{
        name: getattr(decided, name) for name in Decided.__dataclass_fields__ if name != "record"
    }, record=_record(decided, now))  # fmt: skip


def margin_band(candidate: Candidate) -> BreakEvenBand:
    """Break-even band of the whole traffic over the offered rate."""
    return band([(c.rate, c.margin) for c in candidate.facts.whole if c.margin is not None])


def _policy(winner: Candidate, outcome: Outcome, found: BreakEvenBand) -> LoadPolicy | None:
    if outcome.rates is None:
        return None
    inside = [b for b in found.estimate if b.low <= outcome.rates[0] <= b.high and not b.high_open]
    crossing = inside[0].high if inside else None
    return load_policy(outcome.arm, outcome.rates, winner.arm.fleet.replicas, crossing)


def sweeps(assessment: Assessment) -> tuple[SweepFit, ...]:
    """k-sweep fits: per draft family and rate with at least three depths."""
    points: dict[tuple[str, float], list[tuple[int, float]]] = {}
    for candidate in assessment.candidates:
        for line in candidate.lines:
            c_s, k = line.sheet.c_s, candidate.k
            if line.traffic == "main" and line.cell.cohort == ALL and c_s and k:
                family = candidate.arm.family or "unnamed"
                points.setdefault((family, line.cell.rate), []).append((k, c_s))
    fits = (fit_sweep(family, rate, found) for (family, rate), found in sorted(points.items()))
    return tuple(fit for fit in fits if fit is not None)


def _schedule(assessment: Assessment, winner: Candidate) -> list[Any] | None:
    """Engine-side schedule from all depths of the winner's draft family."""
    family = winner.arm.family
    if family is None:
        return None
    grid = assessment.grid
    book = Book(grid)
    points: list[DepthPoint] = []
    for candidate in assessment.candidates:
        if candidate.arm.family == family and candidate.k:
            points += _depth_points(book, candidate.arm.name, candidate.k)
    return depth_schedule(points, _depth_points(book, grid.record.baseline.name, 0))


def _depth_points(book: Book, arm: str, k: int) -> list[DepthPoint]:
    record = book.grid.record
    out = []
    for load in record.rates:
        found = [f for run in book.grid.of(arm, load).values() if (f := book.figures(run))]
        batches = [b for f in found if (b := mean_batch(f, record.window_s)) is not None]
        tokens = sum(f.decode_tokens for f in found)
        if batches and tokens:
            seconds = sum(f.decode_s for f in found)
            out.append(DepthPoint(k, sum(batches) / len(batches), seconds / tokens))
    return out


# --- decision.json ------------------------------------------------------------------------------


def _record(decided: Decided, now: datetime) -> dict[str, Any]:
    assessment, outcome = decided.assessment, decided.outcome
    record = assessment.grid.record
    winner = next(c for c in assessment.candidates if c.arm.name == outcome.arm)
    return {
        "breakeven_decision": 1,
        "created": now.astimezone(UTC).isoformat(timespec="seconds"),
        "decision": outcome.decision.value,
        "action": decided.action.value,
        "action_on_evidence": outcome.action.value,
        "evidence": decided.evidence.value,
        "labels": assessment.labels.as_dict(),
        "arm": outcome.arm,
        "gate": outcome.gate,
        "numbers": dict(outcome.numbers),
        "reasons": reasons(decided),
        "next_risk": outcome.risk,
        "blocks_needed": outcome.blocks_needed,
        "proven_rates_rps": outcome.rates,
        "denied_cohorts": list(outcome.denied),
        "rollback": asdict(decided.rollback),
        "verdicts": [_verdict(c, line) for c in assessment.candidates for line in c.lines],
        "candidates": [_outcome_json(one) for one in decided.outcomes],
        "break_even": {arm: _band_json(found) for arm, found in decided.bands.items()},
        "k_sweep": [asdict(fit) for fit in decided.fits],
        "costs": _costs(assessment),
        "p99_certified": certified(assessment),
        "gates": {
            c.arm.name: [
                {"name": g.name, "passed": g.passed, "reason": g.reason, "figures": g.figures}
                for g in c.gates
            ]
            for c in assessment.candidates
        },
        "flags": {c.arm.name: list(c.flags) for c in assessment.candidates},
        "quality_unproven": {c.arm.name: list(c.unproven) for c in assessment.candidates},
        "support": {arm: dict(found) for arm, found in assessment.grid.probes.items()},
        "restart": {arm: dict(found) for arm, found in assessment.grid.restart.items()},
        "policy": policy_json(decided.policy, decided.schedule),
        "checklist": checklist(assessment, winner, decided.rollback),
        "bottleneck": assessment.bottleneck,
        "slo": {**record.slo.bounds(), "objective": record.slo.objective},
        "epsilon_s": record.epsilon_s,
    }


def reasons(decided: Decided) -> str:
    """One paragraph: what, why, on which evidence, and the way back."""
    outcome, labels = decided.outcome, decided.assessment.labels
    parts = [f"{outcome.arm}: {outcome.decision.value}. {_sentence(outcome.reason)}"]
    if labels.why_not_evidence:
        why = " and ".join(labels.why_not_evidence)
        kept = outcome.action is Action.RETAIN
        parts.append(
            f"This is a method check, not evidence: {why}"
            + ("; on evidence the action would be retain." if kept else ".")
        )
    back = decided.rollback
    if back.wanted_rps is not None:
        most = "none of the swept rates" if back.headroom_rps is None else (
            f"{'at least ' if back.open_end else ''}{back.headroom_rps:.3g}/s"
        )  # fmt: skip
        word = "can" if back.possible else "cannot"
        parts.append(
            f"The baseline {word} take the traffic back at {back.wanted_rps:.3g}/s: it carries "
            f"{most} within the SLO."
        )
    if outcome.decision not in (Decision.INVALID,) and outcome.risk:
        parts.append(f"Next risk to test: {outcome.risk}.")
    others = [one for one in decided.outcomes if one.arm != outcome.arm]
    if others:
        words = "; ".join(f"{one.arm}: {one.decision.value} ({one.reason})" for one in others)
        parts.append(_sentence(f"Other candidates: {words}"))
    open_ = before_promotion(policy_cell(decided.assessment.grid))
    parts += [_sentence(f"Before promotion: {one}") for one in open_]
    return " ".join(parts)


def _sentence(text: str) -> str:
    text = text[:1].upper() + text[1:]
    return text if text.endswith(".") else f"{text}."


def _interval(found: Interval | None) -> dict[str, float] | None:
    return None if found is None else asdict(found)


def _verdict(candidate: Candidate, line: Any) -> dict[str, Any]:
    cell, found = line.cell, line.sheet
    return {
        "arm": candidate.arm.name,
        "traffic": line.traffic,
        "cohort": cell.cohort,
        "load": cell.load,
        "rate_rps": cell.rate,
        "word": cell.word.value,
        "margin": _interval(cell.margin),
        "p": line.effect.p if line.effect else None,
        "p_sign_flip": line.effect.p_flip if line.effect else None,
        "t_s": found.t_s,
        "cycle_s": found.c_s,
        "m": found.m,
        "m_source": found.m_source,
        "inflation": found.inflation,
        "k": found.k,
        "break_even_alpha": found.alpha,
        "cost_ratio": _interval(cell.cost_ratio),
        "share": cell.share,
        "blocks": cell.blocks,
        "blocks_needed": cell.blocks_needed,
        "unstable": cell.unstable,
        "floors": [asdict(floor) for floor in cell.floors],
    }


def _outcome_json(one: Outcome) -> dict[str, Any]:
    return {
        "arm": one.arm,
        "decision": one.decision.value,
        "action_on_evidence": one.action.value,
        "gate": one.gate,
        "reason": one.reason,
        "numbers": dict(one.numbers),
        "next_risk": one.risk,
        "proven_rates_rps": one.rates,
        "denied_cohorts": list(one.denied),
        "blocks_needed": one.blocks_needed,
    }


def _band_json(found: BreakEvenBand) -> dict[str, Any]:
    return {
        "rates_rps": [asdict(one) for one in found.estimate],
        "rates_rps_shown": [asdict(one) for one in found.shown],
    }


def _costs(assessment: Assessment) -> dict[str, Any]:
    record = assessment.grid.record
    peak = max(record.rates.values())
    headroom = record.contract.headroom if record.contract else 1.2
    arms = {c.arm.name: (c.arm, c.capacity) for c in assessment.candidates}
    arms = {record.baseline.name: (record.baseline, assessment.baseline_capacity), **arms}
    by_load = {(cost.arm, cost.load): cost for cost in assessment.costs}
    largest: dict[str, dict[str, float | None]] = {}
    for candidate in assessment.candidates:
        for load in record.rates:
            base = by_load.get((record.baseline.name, load))
            mine = by_load.get((candidate.arm.name, load))
            if base and mine and base.usd_per_good is not None:
                found = largest_draft(base, mine, candidate.arm.fleet)
                largest.setdefault(candidate.arm.name, {})[load] = found
    return {
        "per_load": [asdict(cost) for cost in assessment.costs],
        "prices": [
            asdict(prices(arm, cap.rps, cap.open_end, peak_rps=peak, headroom=headroom))
            for arm, cap in arms.values()
        ],
        "largest_draft_usd_per_hour": largest,
        "sensitivity": "usd_per_good is proportional to every price: multiply it",
        "note": BELOW_SATURATION,
    }
