"""What the contract demands of a candidate: floors, features, a sampler that keeps the target.

Here: which demand applies to which cohort, and what is missing. Not here: the floors' tests
(floors), the counts behind a feature (grid).
"""

from __future__ import annotations

from breakeven.facts import ALL, Floor
from breakeven.provenance import LOSSLESS_METHODS

from . import floors as floor_tests
from .dataset import ArmRecord, ContractRecord, Grid
from .figures import summed
from .pairs import Book, Pair


def floor_share(cohort: str, contract: ContractRecord) -> float | None:
    """Quality floor of a cohort, by its name or its task/lang (chat-en for chat/en)."""
    for name, demands in contract.floors.items():
        if name in (cohort, "*", ALL) or name.replace("/", "-") == cohort:
            return demands.get("quality")
    return None


def cohort_floor(cohort: str, pairs: list[Pair], contract: ContractRecord) -> tuple[Floor, ...]:
    share = floor_share(cohort, contract)
    if share is None:
        return ()
    pooled = summed([pair.arm for pair in pairs])
    return (floor_tests.quality_floor(cohort, pooled, share),)


def quality_floors(book: Book, arm: str, load: str, contract: ContractRecord) -> list[Floor]:
    """Floors of the contract that apply to all traffic: one for `*`, or of its only cohort."""
    pairs = book.pairs(arm, load)
    if not pairs or book.cohorts(load):
        return []
    names = {str(name) for pair in pairs for name in pair.arm_run.rows.cohort}
    shares = [s for name in names if (s := floor_share(name, contract)) is not None]
    if not shares:
        return []
    pooled = summed([pair.arm for pair in pairs])
    return [floor_tests.quality_floor(ALL, pooled, max(shares))]


def unsupported(grid: Grid, arm: ArmRecord, contract: ContractRecord) -> tuple[str, ...]:
    """Features that the service uses and the candidate failed, or never showed.

    A feature that the baseline fails too is no fault of the draft, but not promised either.
    """
    out = []
    probes = grid.probes.get(arm.name, {})
    control = grid.probes.get(grid.record.baseline.name, {})
    for feature in contract.features:
        support = probes.get(feature, {}).get("support", "untested")
        if support != "supported":
            usual = control.get(feature, {}).get("support", "untested")
            out.append(f"{feature} is {support} on {arm.name} (baseline: {usual})")
    for feature, found in sorted(probes.items()):
        usual = control.get(feature, {}).get("support", "untested")
        failed = found.get("support") == "failed" and usual == "supported"
        if failed and feature not in contract.features:
            out.append(f"{feature} fails on {arm.name} and works on the baseline")
    return tuple(out)


def unverified(arm: ArmRecord) -> tuple[str, ...]:
    """Sampler semantics: a stated method that is lossy forbids; an unstated one is listed only."""
    method = arm.rejection_sample_method
    if method is None or method in LOSSLESS_METHODS or method == "synthetic":
        return ()
    return (f"rejection_sample_method {method} is lossy: outputs are not the target's",)
