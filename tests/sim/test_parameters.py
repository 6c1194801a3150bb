"""Parameters are exactly the design's (engine-model.md): engines, drafts, defaults."""

from __future__ import annotations

import pytest

from breakeven_sim import defaults
from breakeven_sim.drafts import draft_named
from breakeven_sim.model import ENGINES

# preset: t_mem ms, t_flop µs, p, c_kv ns, overhead ms, KV tokens.
ENGINE_ROWS = {
    "8b-h100": (5.5, 20.5, 1.5, 39, 1.2, 410_000),
    "70b-tp4-h100": (14.3, 54, 1.6, 26, 1.5, 440_000),
}
# draft, size: d_fix, d_tok, d_kv, H (ms), parallel, conditionals, KV factor, tokens held, τ,
# draft prefill ms/token.
DRAFT_ROWS = {
    ("eagle3", "8B"): (
        0.65, 0.001, 2.4e-6, 0.3, False, (0.70, 0.68, 0.70, 0.70, 0.70, 0.68, 0.66),
        33 / 32, 5_000, 0.6, 0,
    ),
    ("eagle3", "70B"): (
        0.9, 0.001, 2.0e-6, 0.4, False, (0.72, 0.70, 0.70), 33 / 32, 5_000, 0.6, 0,
    ),
    ("draft-1b", "8B"): (
        1.6, 0.003, 9.8e-6, 0.5, False, (0.80, 0.80, 0.81, 0.82, 0.82), 1.25, 19_000, 0.7, 0.003,
    ),
    ("draft-1b", "70B"): (
        1.9, 0.003, 9.8e-6, 0.6, False, (0.80,) * 5, 1.10, 19_000, 0.7, 0.003,
    ),
    ("ngram", "8B"): (0.04, 0, 0, 0.2, True, (0.13, 0.76, 0.82, 0.86, 0.87), 1, 0, 0, 0),
    ("ngram-open", "8B"): (0.04, 0, 0, 0.2, True, (0.24, 0.76, 0.82, 0.86, 0.87), 1, 0, 0.9, 0),
    ("ngram-code", "70B"): (0.04, 0, 0, 0.2, True, (0.305, 0.90, 0.90, 0.95, 0.94), 1, 0, 0, 0),
}  # fmt: skip


@pytest.mark.parametrize("name", ENGINE_ROWS)
def test_engine_parameters(name: str) -> None:
    """The row of the preset table, in seconds."""
    engine = ENGINES[name]
    t_mem, t_flop, knee, c_kv, overhead, kv_tokens = ENGINE_ROWS[name]
    assert engine.t_mem_s == pytest.approx(t_mem * 1e-3)
    assert engine.t_flop_s == pytest.approx(t_flop * 1e-6)
    assert engine.knee == knee
    assert engine.c_kv_s == pytest.approx(c_kv * 1e-9)
    assert engine.overhead_s == pytest.approx(overhead * 1e-3)
    assert engine.kv_tokens == kv_tokens


@pytest.mark.parametrize(("name", "size"), DRAFT_ROWS)
def test_draft_parameters(name: str, size: str) -> None:
    """The row of the draft table, in seconds."""
    draft = draft_named(name, size)
    assert draft is not None
    found = (
        draft.d_fix_s * 1e3, draft.d_tok_s * 1e3, draft.d_kv_s * 1e3, draft.h_s * 1e3,
        draft.kv_factor, draft.held_tokens, draft.tau, draft.prefill_token_s * 1e3,
    )  # fmt: skip
    row = DRAFT_ROWS[name, size]
    assert found == pytest.approx((*row[:4], *row[6:]))
    assert (draft.parallel, draft.conditional) == (row[4], row[5])


def test_scheduler_and_workload_defaults() -> None:
    """Budget 8192, 256 sequences; ShareGPT-like lengths; $3/h assumed."""
    assert (defaults.MAX_NUM_BATCHED_TOKENS, defaults.MAX_NUM_SEQS) == (8192, 256)
    prompt = (defaults.PROMPT_MEDIAN, defaults.PROMPT_SIGMA, defaults.PROMPT_CLIP)
    output = (defaults.OUTPUT_MEDIAN, defaults.OUTPUT_SIGMA, defaults.OUTPUT_CLIP)
    assert prompt == (182, 1.15, (8, 4000))
    assert output == (480, 0.9, (8, 2048))
    assert (defaults.USD_PER_HOUR, defaults.CONTEXT_TOKENS) == (3.0, 600)
