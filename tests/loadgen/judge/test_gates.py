"""Each gate across arms: a sound grid passes it, and one broken thing fails it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.support.offline import KNEE_34, Arm, Noise, Plan, Shape, grid

from breakeven_loadgen.judge import gates
from breakeven_loadgen.judge.assess import assess
from breakeven_loadgen.judge.dataset import Grid, RunData
from breakeven_loadgen.judge.pairs import Book

LOADS = ["low"]
SHOWN = {"model": "m", "max_model_len": 8, "tokenize": "t", "sampling": None}
IDENTITY = {"base": SHOWN, "draft": SHOWN}


def sound(**changes: Any) -> Grid:
    """Two equal arms, six blocks, A/A."""
    plan = Plan(
        {"base": Arm(engine=KNEE_34), "draft": Arm(engine=KNEE_34)}, {"low": 5.0}, 6, 3.0,
        Shape(prompt=(60.0, 0.3), output=(24.0, 0.2), output_clip=(12, 60)), Noise(0.05, 0.01),
    )  # fmt: skip
    return grid(replace(plan, **changes), identity=IDENTITY)


SOUND = sound()


def altered(change: Callable[[RunData], RunData], arm: str = "draft", blocks: int = 99) -> Grid:
    """The sound grid with the runs of one arm changed, in the first `blocks` blocks."""
    runs = tuple(
        change(run) if run.plan.arm == arm and not run.plan.repeat and run.plan.block < blocks
        else run
        for run in SOUND.runs
    )  # fmt: skip
    return replace(SOUND, runs=runs)


def numbers(run: RunData, **scale: float) -> RunData:
    """Columns multiplied."""
    found = dict(run.rows.numbers)
    for name, factor in scale.items():
        found[name] = found[name] * factor
    return replace(run, rows=replace(run.rows, numbers=found))


def test_a_sound_grid_passes_every_gate() -> None:
    """None fails; identity is shown but for what engines do not expose."""
    found = {gate.name: gate for gate in gates.grid_gates(Book(SOUND), "draft")}
    assert {name: gate.passed for name, gate in found.items()} == dict.fromkeys(found, True)
    assert "unverified: sampling" in found["identity"].reason


def test_sound_grids_pass_in_99_percent_of_tries() -> None:
    """Over 100 grids of two equal arms with other noise, at most one fails a gate."""
    failed = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        weather = {block: rng.normal(0, 0.05) for block in range(6)}

        def noisy(
            run: RunData,
            rng: np.random.Generator = rng,
            weather: dict[int, float] = weather,
        ) -> RunData:
            factor = float(np.exp(weather[run.plan.block] + rng.normal(0, 0.02)))
            return numbers(run, decode_s=factor, ttft_s=factor, e2e_s=factor)

        found = replace(SOUND, runs=tuple(noisy(run) for run in SOUND.runs))
        failed += any(g.passed is False for g in gates.grid_gates(Book(found), "draft"))
    assert failed <= 1


def test_runs_gate_breaks_on_many_failed_runs() -> None:
    """Half of the runs failed their own gates: no accident."""
    bad = altered(lambda r: replace(r, gates={**r.gates, "schedule": (False, "lag p99 80 ms")}))
    found = gates.single_runs(bad, "draft")
    assert found.passed is False
    assert "lag p99 80 ms" in found.reason


def test_one_failed_run_costs_its_block_only() -> None:
    """The block is left out: five remain, and the blocks gate says what failed."""
    bad = altered(lambda r: replace(r, gates={**r.gates, "client": (False, "CPU 97 %")}), blocks=1)
    assert gates.single_runs(bad, "draft").passed is True
    found = gates.blocks(Book(bad), "draft", LOADS)
    assert found.passed is False
    assert "5 sound blocks" in found.reason
    assert "CPU 97 %" in found.reason


def test_an_unstable_run_is_not_invalid() -> None:
    """Stability limits what may be compared; it does not void the run."""
    shaky = altered(lambda r: replace(r, gates={**r.gates, "stability": (False, "a queue grows")}))
    assert gates.blocks(Book(shaky), "draft", LOADS).passed is True


WORK: list[tuple[str, Callable[[RunData], RunData], str]] = [
    ("arrivals", lambda r: replace(r, facts={**r.facts, "schedule": "x"}), "different arrivals"),
    ("prompts", lambda r: replace(r, facts={**r.facts, "content": "x"}), "different prompts"),
    ("prompt tokens", lambda r: numbers(r, prompt_tokens=1.01), "prompt tokens differ"),
    ("lengths", lambda r: numbers(r, output_tokens=0.96), "output lengths are unequal"),
    (
        "ends",
        lambda r: replace(r, rows=replace(r.rows, finish=np.where(
            np.arange(len(r.rows)) % 8 == 0, "stop", r.rows.finish))),
        "finish reasons differ",
    ),
    (
        "sampling",
        lambda r: replace(r, rows=replace(r.rows, sampling=np.full(len(r.rows), "sampled"))),
        "sampled differently",
    ),
    (
        "cache",
        lambda r: replace(r, engine=({**r.engine[0], "counters": {
            "prefix_cache_queries": 100.0, "prefix_cache_hits": 30.0}},)),
        "hit rates differ",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "change", "what"), WORK, ids=[row[0] for row in WORK])
def test_workload_gate_breaks_on_other_work(
    name: str, change: Callable[[RunData], RunData], what: str
) -> None:
    """Same arrivals, prompts, lengths, ends, sampling and cache, or no comparison."""
    base = altered(
        lambda r: replace(r, engine=({**r.engine[0], "counters": {
            "prefix_cache_queries": 100.0, "prefix_cache_hits": 10.0}},)), "base",
    )  # fmt: skip
    runs = tuple(change(run) if run.plan.arm == "draft" else run for run in base.runs)
    found = gates.workload(Book(replace(base, runs=runs)), "draft", LOADS)
    assert found.passed is False, name
    assert what in found.reason


@pytest.mark.parametrize("field", ["model", "max_model_len", "tokenize"])
def test_identity_gate_breaks_on_another_target(field: str) -> None:
    """Whatever the engines show and show differently."""
    other = {**IDENTITY, "draft": {**IDENTITY["draft"], field: "other"}}
    found = gates.identity(replace(SOUND, identity=other), "draft")
    assert found.passed is False
    assert field in found.reason


def test_identity_is_not_evaluated_where_nothing_is_shown() -> None:
    """Unverified is printed, not passed."""
    assert gates.identity(replace(SOUND, identity={}), "draft").passed is None


def test_aa_gate_breaks_when_the_baseline_differs_from_itself() -> None:
    """The second run of each block is 10 % slower: the setup is at fault."""
    runs = tuple(numbers(r, decode_s=1.1) if r.plan.repeat else r for r in SOUND.runs)
    found = gates.aa(Book(replace(SOUND, runs=runs)), LOADS)
    assert found.passed is False
    assert "differs from itself" in found.reason


def test_aa_is_not_evaluated_without_repeats() -> None:
    """The noise floor is unknown, and that is said."""
    runs = tuple(run for run in SOUND.runs if not run.plan.repeat)
    assert gates.aa(Book(replace(SOUND, runs=runs)), LOADS).passed is None


@pytest.mark.parametrize(
    ("page", "what"),
    [
        ({"acceptance": 1.2}, "outside 0..1"),
        ({"acceptance": -0.1}, "outside 0..1"),
        ({"m": 0.9}, "below 1"),
        ({"m": 5.2, "k": 4, "drafts": 3.0}, "exceeds k + 1"),
        ({"g": 1.0}, "the client got"),
    ],
)
def test_plausibility_gate_breaks_on_impossible_counters(page: dict[str, Any], what: str) -> None:
    """Acceptance, M and sums have bounds."""
    bad = altered(lambda r: replace(r, engine=({**r.engine[0], **page},)))
    found = gates.plausibility(Book(bad), "draft", LOADS)
    assert found.passed is False
    assert what in found.reason


def test_plausibility_gate_breaks_on_parts_above_their_whole() -> None:
    """TTFT cannot exceed the response time."""
    bad = altered(lambda r: numbers(r, ttft_s=100.0))
    assert gates.plausibility(Book(bad), "draft", LOADS).passed is False


def test_epsilon_among_the_gaps_is_a_flag() -> None:
    """A gap distribution that is not bimodal around ε is told, with arm, load and the mend."""
    assert gates.epsilon_among_gaps(Book(SOUND), "draft", LOADS) is None
    few = altered(lambda r: replace(r, near_epsilon=0.05))
    assert gates.epsilon_among_gaps(Book(few), "draft", LOADS) is None
    many = altered(lambda r: replace(r, near_epsilon=0.12))
    found = gates.epsilon_among_gaps(Book(many), "draft", LOADS)
    assert found is not None
    assert "12% of them" in found
    assert "set epsilon in GRID.yaml" in found
    flags = assess(many).candidates[0].flags
    assert found in flags


def test_coalescing_is_a_flag() -> None:
    """Bursts above k + 1 are told; without k nothing can be."""
    assert gates.coalescing(Book(SOUND), "draft", LOADS, 4) is None
    merged = altered(lambda r: numbers(r, max_burst_tokens=9.0))
    found = gates.coalescing(Book(merged), "draft", LOADS, 4)
    assert found is not None
    assert "merged on the way" in found
    assert gates.coalescing(Book(merged), "draft", LOADS, None) is None
