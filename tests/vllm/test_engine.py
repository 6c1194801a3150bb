"""The core against the real engine, without proxy or generator: schema, identities, greedy
equality, disconnect.
"""

from __future__ import annotations

import pytest
from tests.vllm.client import USAGE, ask, completion, counters, stream, until
from tests.vllm.engine import ARMS, BASELINE, CANDIDATES, Engine, K
from tests.vllm.prompts import OUTPUT_TOKENS, PROMPTS
from tests.vllm.solo import Reference, Solo, idle, settled_counters

from breakeven.engine_schemas import VLLM
from breakeven.quality import first_divergence

TAU_NATS = 0.01
"""Closer than this the two best tokens are a near-tie: float32 sums in another order differ by
1e-4."""

every_arm = pytest.mark.parametrize("arm_name", ARMS)
every_candidate = pytest.mark.parametrize("arm_name", CANDIDATES)


@every_arm
def test_the_installed_version_has_a_schema_with_all_its_series(solo: Solo, arm: Engine) -> None:
    """The page of the installed vLLM is read by the vllm-v1 schema, and no series of it is absent.

    Allowed to be absent: names of features that are not switched on here.
    """
    page = solo.after
    assert page.schema == "vllm-v1"
    off = {"admission_rejections"}
    if arm.name == BASELINE:
        off |= {"spec_drafts", "spec_draft_tokens", "spec_accepted_tokens"}
    assert set(VLLM.counters) - set(page.counters) <= off
    assert set(VLLM.gauges) | set(VLLM.ratios) == set(page.gauges)
    assert set(VLLM.histograms) == set(page.histograms)
    assert page.k == (None if arm.name == BASELINE else K)
    assert ask(arm.url, "GET", "/version").json()["version"].startswith("0.32.0")


@every_arm
def test_tokens_of_the_streams_are_the_engines(solo: Solo) -> None:
    """Streams and counters agree on prompt tokens, output tokens and first tokens, exactly."""
    reports = [s.report for s in solo.streams]
    assert {r.tokens for r in reports} == {OUTPUT_TOKENS}
    assert all(r.events_counted == r.events and r.counted_tokens == r.tokens for r in reports)
    assert sum(r.tokens or 0 for r in reports) == solo.engine.g
    assert sum(r.prompt_tokens or 0 for r in reports) == solo.engine.counters["prompt_tokens"]
    assert solo.engine.f == len(PROMPTS)
    assert [s.token_ids() and len(s.token_ids()) for s in solo.streams] == [OUTPUT_TOKENS] * len(
        PROMPTS
    )


@every_arm
def test_m_from_the_stream_is_m_of_the_counters(solo: Solo) -> None:
    """At concurrency 1 one event is one step: tokens / events after the first is the counters' M.

    A merged first read hides steps, and then the stream's M is an estimate that is too high.
    """
    tokens = sum(s.report.decode_tokens or 0 for s in solo.streams)
    steps = sum(s.report.stream_cycles for s in solo.streams)
    assert solo.engine.s is not None
    assert solo.engine.m is not None
    if solo.merged_reads == 0:
        assert (tokens, steps) == (solo.engine.g - solo.engine.f, solo.engine.s)
        assert tokens / steps == pytest.approx(solo.engine.m, rel=1e-12)
    else:
        assert steps <= solo.engine.s
        assert tokens / steps >= solo.engine.m * (1 - 1e-12)


@pytest.mark.parametrize("arm_name", [BASELINE])
def test_the_baseline_commits_one_token_a_cycle(solo: Solo) -> None:
    """M is exactly 1 without speculation, and no response carries a block."""
    assert solo.engine.m == 1.0
    assert all(s.report.spec is None for s in solo.streams)


@every_candidate
def test_the_blocks_are_the_counters(solo: Solo) -> None:
    """Summed over responses the blocks are the engine's counters, position by position."""
    blocks = [s.report.spec for s in solo.streams]
    assert None not in blocks
    engine = solo.engine
    assert sum(b.cycles for b in blocks if b) == engine.drafts
    assert sum(b.drafted for b in blocks if b) == engine.draft_tokens
    assert sum(b.accepted for b in blocks if b) == engine.accepted
    by_length = [0] * (K + 1)
    for block in blocks:
        for length, count in enumerate(block.by_accepted_length if block else ()):
            by_length[length] += count
    reached = tuple(float(sum(by_length[i + 1 :])) for i in range(K))
    assert reached == engine.accepted_per_position
    assert engine.drafts, "an arm that never drafted proves nothing"
    assert engine.accepted, "an arm that never accepted proves nothing"


@every_candidate
def test_m_from_the_blocks_is_m_of_the_counters(solo: Solo) -> None:
    """Decode tokens over the block's cycles is (G − F)/S, tokens that max_tokens cut included."""
    reports = [s.report for s in solo.streams]
    cycles = [r.block_cycles for r in reports]
    assert None not in cycles
    engine = solo.engine
    assert engine.s is not None
    if solo.merged_reads == 0:
        assert sum(c or 0 for c in cycles) == engine.s
    # Without the events the last, cut cycle of each answer is not known: at most K tokens each.
    alone = sum((r.decode_tokens or 0) - (r.spec.accepted if r.spec else 0) for r in reports)
    cut = engine.cut_tokens
    assert cut is not None
    assert alone == engine.s - cut
    assert 0 <= cut <= K * len(reports)


@every_candidate
def test_greedy_answers_do_not_diverge(solo: Solo, reference: Reference) -> None:
    """At float32 and concurrency 1 a candidate answers what the baseline does, near-ties apart."""
    partings = [
        first_divergence(known.ids, streamed.token_ids(), known.top_gaps)
        for known, streamed in zip(reference, solo.streams, strict=True)
    ]
    assert [p for p in partings if p.hard(TAU_NATS)] == []
    assert sum(p.compared for p in partings) > len(PROMPTS) * OUTPUT_TOKENS * 0.9, partings


@pytest.mark.parametrize("arm_name", [BASELINE])
def test_the_baseline_repeats_itself(solo: Solo, reference: Reference) -> None:
    """The A/A control: the baseline's answers with and without logprobs are equal."""
    assert [s.token_ids() for s in solo.streams] == [known.ids for known in reference]


@every_arm
def test_a_client_that_goes_away_ends_generation(arm: Engine) -> None:
    """The engine stops within the answer, and no counter of it counts the abort: the proxy must."""
    asked = 900
    before = settled_counters(arm.url)
    left = stream(
        arm.url,
        completion(PROMPTS[0], max_tokens=asked, min_tokens=asked, stream_options=USAGE),
        leave_after=lambda body: body.count(b"data: ") >= 4,
    )
    until(lambda: idle(arm.url))
    after = counters(arm.url)
    made = after.counters["generation_tokens"] - before.counters["generation_tokens"]
    assert left.report.tokens is not None
    assert left.report.tokens <= made < asked
    assert after.counters["requests_finished"] == before.counters["requests_finished"]
