"""The release checklist: what was pinned, what was not, and what must be true before a rollout.

Here: the list and its evidence. Not here: the decision; the checklist never changes it.
"""

from __future__ import annotations

from typing import Any

from breakeven.provenance import pins

from .assess import Assessment, Candidate
from .certify import fingerprint
from .gates import IDENTITY
from .headroom import Rollback
from .policy_cell import before_promotion, policy_cell


def checklist(assessment: Assessment, winner: Candidate, back: Rollback) -> dict[str, Any]:
    """Pinned things, what engines did not show, quality not run, the way back, the policy."""
    grid = assessment.grid
    found = fingerprint(grid, winner)
    method = winner.arm.rejection_sample_method
    shown = {"engine_version": found.engine_version, "target_model": found.model}
    stated = {**grid.record.target, "sampler": grid.record.target.get("sampler") or method}
    listed = pins(shown, stated)
    arms = {name: grid.identity.get(name, {}) for name in (grid.record.baseline.name,
                                                           winner.arm.name)}  # fmt: skip
    policy = policy_cell(grid)
    return {
        "before_promotion": before_promotion(policy),
        "policy_cell": policy,
        "pinned": [{"name": p.name, "value": p.value, "how": p.how} for p in listed if p.value],
        "not_pinned": [p.name for p in listed if not p.value],
        "identity_unverified": [
            name for name in IDENTITY if any(arm.get(name) is None for arm in arms.values())
        ],
        "quality_unproven": list(winner.unproven),
        "sampler_stated": method is not None,
        "previous_configuration_deployable": grid.record.previous_deployable,
        "rollback_possible": back.possible,
        "separate_resource_configuration": winner.arm.separate,
        "restart": dict(grid.restart.get(winner.arm.name, {})),
    }
