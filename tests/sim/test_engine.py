"""The discrete-step engine on a virtual clock: rules, bookkeeping, determinism."""

from __future__ import annotations

from dataclasses import replace

import pytest

from breakeven_sim.config import engine_config
from breakeven_sim.drafts import draft_named
from breakeven_sim.engine import EngineConfig, SimEngine, Step, run
from breakeven_sim.errors import SimInputError
from breakeven_sim.kv import BLOCK_TOKENS
from breakeven_sim.sequences import Emission
from breakeven_sim.workload import poisson


def play(
    config: EngineConfig, arrivals: list[tuple[float, int, int]]
) -> tuple[SimEngine, list[Step], list[list[Emission]]]:
    engine = SimEngine(config)
    steps: list[Step] = []
    emissions: list[list[Emission]] = []
    for arrival in arrivals:
        engine.submit(*arrival, keep_events=True)

    def observe(step: Step, emitted: list[Emission]) -> None:
        steps.append(step)
        emissions.append(emitted)

    run(engine, 1e9, observe)
    return engine, steps, emissions


def small(kv_tokens: int, **changes: object) -> EngineConfig:
    base = engine_config("8b-h100", kv_tokens=kv_tokens, max_num_seqs=8, max_num_batched_tokens=256)
    return replace(base, **changes)  # type: ignore[arg-type]


def test_one_request_times_are_the_formula() -> None:
    """Prefill step T(prompt), then one token per step of T(1) with a growing context."""
    config = engine_config("8b-h100")
    _engine, steps, _ = play(config, [(0.5, 100, 3)])
    model = config.engine
    assert [s.duration_s for s in steps] == [
        model.step_s(100, 0),
        model.step_s(1, 100),
        model.step_s(1, 101),
    ]
    assert steps[0].start_s == 0.5
    assert steps[1].start_s == pytest.approx(steps[0].end_s)


def test_a_speculating_step_costs_verification_drafts_and_overhead() -> None:
    """T(k+1 tokens) + D(B)·k + H."""
    config = engine_config("8b-h100", "eagle3", 3)
    _, steps, _ = play(config, [(0.0, 50, 40)])
    draft = draft_named("eagle3", "8B")
    assert draft is not None
    step = steps[1]
    drafting = 3 * (0.65e-3 + 1e-6 + 2.4e-9 * 50) + 0.3e-3
    assert step.duration_s == pytest.approx(config.engine.step_s(4, 50) + drafting)


def test_tokens_per_step_follow_the_conditionals() -> None:
    """M of many steps is 1 + Σ cumulative products; acceptance is not i.i.d. α."""
    config = engine_config("8b-h100", "ngram", 5)
    _engine, _, emissions = play(config, [(0.0, 10, 2000)] * 12)
    drafted = [a for step in emissions for _, _, a, k in step if k]
    draft = draft_named("ngram", "8B")
    assert draft is not None
    assert 1 + sum(drafted) / len(drafted) == pytest.approx(draft.committed_per_cycle(5), rel=0.03)
    # "Rarely starts, then runs": most steps accept none, and five of five is common among the rest.
    assert drafted.count(0) / len(drafted) == pytest.approx(1 - 0.13, abs=0.02)
    started = [a for a in drafted if a]
    assert started.count(5) / len(started) == pytest.approx(0.76 * 0.82 * 0.86 * 0.87, abs=0.05)


def test_requests_differ_by_a_logit_shift() -> None:
    """τ spreads M over requests: published M(5) p10/50/90 2.33/2.65/3.08 has a width, ours too."""
    engine = SimEngine(engine_config("8b-h100", "eagle3", 5))
    sums = sorted(1 + sum(engine.submit(0.0, 10, 10).survival) for _ in range(400))
    low, middle, high = sums[40], sums[200], sums[360]
    assert low < 0.85 * middle < middle < 0.87 * high


def test_a_mix_of_cohorts_has_its_own_acceptance_each() -> None:
    """A share of the requests drafts well, the rest badly; M of the draft is the mean."""
    draft = draft_named("ngram", "8B")
    assert draft is not None
    mixed = replace(draft, mix=((0.25, (0.9,) * 5),))
    engine = SimEngine(replace(engine_config("8b-h100", "ngram", 5), draft=mixed))
    first = [engine.submit(0.0, 10, 10).survival[0] for _ in range(800)]
    assert set(first) == {0.13, 0.9}
    assert first.count(0.9) / 800 == pytest.approx(0.25, abs=0.05)
    good = replace(draft, conditional=(0.9,) * 5).committed_per_cycle(5)
    mean = 0.25 * good + 0.75 * draft.committed_per_cycle(5)
    assert mixed.committed_per_cycle(5) == pytest.approx(mean)


def test_acceptance_depends_on_seed_and_order_only() -> None:
    """The same arrivals give the same tokens at any load; another seed does not."""
    config = engine_config("8b-h100", "eagle3", 3, seed=4)
    alone = play(config, [(0.0, 10, 60)])[0]
    lone = SimEngine(config).submit(0.0, 10, 60)
    crowd = SimEngine(config)
    first = crowd.submit(0.0, 10, 60, keep_events=True)
    for _ in range(30):
        crowd.submit(0.0, 400, 200)
    run(crowd, 1e9)
    assert first.survival == lone.survival
    again = SimEngine(config)
    single = again.submit(0.0, 10, 60, keep_events=True)
    run(again, 1e9)
    assert single.event_tokens == first.event_tokens
    other = SimEngine(replace(config, seed=5)).submit(0.0, 10, 60)
    assert other.survival != lone.survival
    assert alone.preemptions == 0


def test_last_step_is_cut_at_max_tokens_and_acceptance_is_counted_before() -> None:
    """F + S + A − G = accepted tokens that the cut threw away (fact 10)."""
    config = engine_config("8b-h100", "draft-1b", 5)
    _engine, _, emissions = play(config, [(0.0, 20, n) for n in range(1, 40)])
    flat = [e for step in emissions for e in step]
    generated = sum(t for _, t, _, _ in flat)
    first = sum(1 for *_, k in flat if not k)
    steps = len(flat) - first
    accepted = sum(a for _, _, a, _ in flat)
    cut = sum(a + 1 - t for _, t, a, k in flat if k)
    assert generated == sum(range(1, 40))
    assert first + steps + accepted - generated == cut > 0


def test_eos_ends_before_max_tokens() -> None:
    """The end-of-sequence token is the last one, and the reason is stop."""
    engine = SimEngine(engine_config("8b-h100"))
    early = engine.submit(0.0, 5, 50, eos_at=7)
    late = engine.submit(0.0, 5, 5, eos_at=7)
    run(engine, 1e9)
    assert (early.output, early.finish) == (7, "stop")
    assert (late.output, late.finish) == (5, "length")


def test_chunked_prefill_keeps_decodes_running() -> None:
    """A long prompt is split under the token budget; decodes are in every step."""
    config = small(100_000)
    _, steps, _ = play(config, [(0.0, 10, 30), (0.001, 1000, 2)])
    chunks = [s for s in steps if s.prefill_tokens and s.decodes]
    assert len(chunks) == 4
    assert all(s.decodes + s.prefill_tokens <= 256 for s in chunks)


def test_no_more_sequences_than_allowed() -> None:
    """max_num_seqs bounds the batch; the rest waits in order."""
    _engine, steps, _ = play(small(100_000), [(0.0, 10, 20)] * 20)
    assert max(s.decodes for s in steps) == 8


def test_preemption_by_recompute_loses_no_token() -> None:
    """When the lookahead does not fit, the last admitted starts again; all outputs are whole."""
    config = small(40 * BLOCK_TOKENS)
    engine = SimEngine(config)
    sequences = [engine.submit(0.0, 64, 150, keep_events=True) for _ in range(6)]
    run(engine, 1e9)
    assert engine.preemptions > 0
    assert [s.output for s in sequences] == [150] * 6
    assert all(sum(s.event_tokens) == 150 for s in sequences)
    assert sequences[0].preemptions == 0
    assert engine.pool.available == engine.pool.total


def test_kv_capacity_shrinks_with_the_draft() -> None:
    """(KV tokens − the draft's own) ÷ its KV factor."""
    assert engine_config("8b-h100").kv_capacity_tokens == 410_000
    assert engine_config("8b-h100", "draft-1b").kv_capacity_tokens == int((410_000 - 19_000) / 1.25)


def test_prefix_cache_saves_prefill_and_time() -> None:
    """A second request with the same full blocks computes only the rest."""
    engine = SimEngine(engine_config("8b-h100"))
    keys = tuple(range(100, 110))
    first = engine.submit(0.0, 165, 5, block_keys=keys)
    second = engine.submit(1.0, 165, 5, block_keys=keys)
    third = engine.submit(2.0, 160, 5, block_keys=keys)
    run(engine, 1e9)
    assert (first.cached_tokens, second.cached_tokens) == (0, 160)
    # A full hit still computes the last block: something must be sampled from.
    assert third.cached_tokens == 144
    assert first.first_s is not None
    assert second.first_s is not None
    assert second.first_s - 1.0 < first.first_s
    assert (engine.prefix_queries, engine.prefix_hits) == (490, 304)
    off = SimEngine(replace(engine_config("8b-h100"), prefix_caching=False))
    again = [off.submit(float(t), 165, 5, block_keys=keys) for t in (0, 1)]
    run(off, 1e9)
    assert [s.cached_tokens for s in again] == [0, 0]
    assert off.prefix_queries == 0


def test_cached_blocks_give_way_to_new_requests() -> None:
    """Idle cached blocks count as free and are evicted, last block of a prompt first."""
    engine = SimEngine(small(20 * BLOCK_TOKENS))
    engine.submit(0.0, 161, 4, block_keys=tuple(range(10)))
    engine.submit(1.0, 200, 4, block_keys=tuple(range(50, 62)))
    third = engine.submit(2.0, 161, 4, block_keys=tuple(range(10)))
    run(engine, 1e9)
    assert 0 < third.cached_tokens < 160
    assert engine.pool.usage == 0.0


def test_abort_frees_the_slot_at_once() -> None:
    """A client that goes away, in the queue or inside a step, leaves nothing behind."""
    engine = SimEngine(small(100_000))
    sequences = [engine.submit(0.0, 10, 100) for _ in range(10)]
    assert engine.begin(0.0) is not None
    engine.abort(sequences[0])
    engine.abort(sequences[9])
    emitted = engine.finish()
    assert sequences[0] not in [e[0] for e in emitted]
    assert (engine.running, engine.waiting) == (7, 1)
    engine.abort(sequences[0])
    run(engine, 1e9)
    assert [s.finish for s in sequences].count("abort") == 2
    assert engine.pool.available == engine.pool.total


def test_k_by_batch() -> None:
    """Rows (low, high, k) choose the depth by the number of decodes; no row: none."""
    config = engine_config("8b-h100", "eagle3", k_by_batch=((1, 2, 3), (3, 4, 1)))
    _, steps, _ = play(config, [(0.0, 10, 40)] * 5)
    assert {(s.decodes, s.k) for s in steps if s.decodes} >= {(5, 0)}
    assert {s.k for s in steps if s.decodes in (1, 2)} <= {3}
    assert {s.k for s in steps if s.decodes in (3, 4)} <= {1}


def test_an_idle_engine_jumps_to_the_next_arrival() -> None:
    """Model time passes without steps when there is nothing to do."""
    _, steps, _ = play(engine_config("8b-h100"), [(0.0, 5, 1), (7.0, 5, 1)])
    assert [s.start_s for s in steps] == [0.0, 7.0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0, 0, 5), "both must be ≥ 1"),
        ((0.0, 600, 600), "can never fit in the KV cache"),
    ],
)
def test_what_can_never_run_is_refused(arguments: tuple[float, int, int], message: str) -> None:
    """Instead of waiting for ever."""
    with pytest.raises(SimInputError, match=message):
        SimEngine(small(64 * BLOCK_TOKENS)).submit(*arguments)


def test_arrivals_must_not_go_back() -> None:
    """Unsorted arrivals are the caller's mistake."""
    engine = SimEngine(engine_config("8b-h100"))
    engine.submit(2.0, 5, 5)
    with pytest.raises(SimInputError, match="before the last one"):
        engine.submit(1.0, 5, 5)


def test_seventy_b_preset_runs_the_same_rules() -> None:
    """The larger target is slower per step; its draft's rows are its own."""
    arrivals = [(a.t_s, a.prompt_tokens, a.output_tokens) for a in poisson(2, 10, 0)]
    small_steps = play(engine_config("8b-h100"), arrivals)[1]
    large_steps = play(engine_config("70b-tp4-h100", "draft-1b", 5), arrivals)[1]
    assert min(s.duration_s for s in large_steps) > 2 * min(s.duration_s for s in small_steps)
