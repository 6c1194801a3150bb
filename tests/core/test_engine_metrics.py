"""Two pages of an engine: the identities on recorded counters, and what is not known."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.engine_metrics import EngineDelta, delta, read_counters
from breakeven.engine_schemas import SCHEMAS
from breakeven.errors import SchemaError

VLLM = Path(__file__).parents[1] / "data/vllm"


def recorded(arm: str) -> EngineDelta:
    before, after = (
        read_counters((VLLM / arm / f"metrics_{when}.raw").read_bytes())
        for when in ("before", "after")
    )
    return delta(before, after)


def between(before: str, after: str) -> EngineDelta:
    return delta(read_counters(before), read_counters(after))


def test_recorded_baseline_commits_one_token_per_step() -> None:
    """(2493 - 67) / 2426 = 1.000; 65.496 s / 2426 = 27.0 ms."""
    found = recorded("base")
    assert (found.g, found.f, found.s) == (2493, 67, 2426)
    assert found.m == pytest.approx(1.0, abs=5e-4)
    assert found.cycle_s == pytest.approx(0.0270, abs=5e-5)
    assert found.accepted is None
    assert "without speculation" in found.reasons["accepted"]


def test_recorded_ngram_commits_1_564_tokens_per_step() -> None:
    """(2520 - 67) / 1568 = 1.564; 58.207 s / 1568 = 37.1 ms; K from four position labels."""
    found = recorded("ngram")
    assert (found.g, found.f, found.s) == (2520, 67, 1568)
    assert (found.drafts, found.draft_tokens, found.accepted) == (343, 1366, 971)
    assert found.m == pytest.approx(1.564, abs=5e-4)
    assert found.cycle_s == pytest.approx(0.0371, abs=5e-5)
    assert found.s_per_token == pytest.approx(58.2069 / 2453, rel=1e-4)
    assert found.accepted_per_position == (275, 248, 238, 210)
    assert found.k == 4
    assert found.reasons == {}


def test_per_drafted_step_is_not_m() -> None:
    """1 + 971 / 343 = 3.83 where 1.56 is true: most steps went undrafted."""
    found = recorded("ngram")
    assert found.per_drafted_step == pytest.approx(3.831, abs=5e-4)


def test_cut_tokens_close_the_identity() -> None:
    """F + S + A - G = 67 + 1568 + 971 - 2520 = 86 accepted tokens were cut by a stop."""
    assert recorded("ngram").cut_tokens == 86


def test_survival_and_conditional_acceptance_by_position() -> None:
    """S_1 = 248/343, c_1 = 248/275."""
    found = recorded("ngram")
    assert found.survival is not None
    assert found.conditional is not None
    assert found.survival[1] == pytest.approx(248 / 343)
    assert found.conditional[0] == pytest.approx(275 / 343)
    assert found.conditional[1] == pytest.approx(248 / 275)


def test_kv_capacity_comes_from_the_info_series() -> None:
    """364 blocks of 128 tokens."""
    counters = read_counters((VLLM / "ngram/metrics_after.raw").read_bytes())
    assert counters.kv_capacity_tokens == 46592
    assert counters.engines == ("0",)
    assert counters.models == ("smol",)


PAGE = """
vllm:generation_tokens_total{{engine="0",model_name="m"}} {g0}
vllm:generation_tokens_total{{engine="1",model_name="m"}} {g1}
vllm:time_to_first_token_seconds_count{{engine="0",model_name="m"}} {f}
vllm:time_to_first_token_seconds_sum{{engine="0",model_name="m"}} 1
vllm:{itl}_count{{engine="0",model_name="m"}} {s}
vllm:{itl}_sum{{engine="0",model_name="m"}} {t}
vllm:{kv}{{engine="0",model_name="m"}} 0.25
vllm:{kv}{{engine="1",model_name="m"}} 0.75
"""
NEW = {"itl": "inter_token_latency_seconds", "kv": "kv_cache_usage_perc"}
OLD = {"itl": "time_per_output_token_seconds", "kv": "gpu_cache_usage_perc"}


def page(names: dict[str, str], g0: float, g1: float, f: float, s: float, t: float) -> str:
    return PAGE.format(**names, g0=g0, g1=g1, f=f, s=s, t=t)


@pytest.mark.parametrize(
    ("names", "schema"), [(NEW, "vllm-v1"), (OLD, "vllm-v1-old-names")], ids=["new", "old"]
)
def test_old_and_new_names_mean_the_same(names: dict[str, str], schema: str) -> None:
    """G = 40 + 60, F = 10, S = 45, 0.9 s: M = 90/45 = 2, cycle 20 ms."""
    found = between(page(names, 0, 0, 0, 0, 0), page(names, 40, 60, 10, 45, 0.9))
    assert found.schema == schema
    assert found.m == pytest.approx(2.0)
    assert found.cycle_s == pytest.approx(0.020)


def test_shares_are_not_summed_over_engines() -> None:
    """KV usage of two engines at .25 and .75 is .75, not 1."""
    assert read_counters(page(NEW, 1, 1, 1, 1, 1)).gauges["kv_cache_usage"] == 0.75


def test_a_deprecated_name_beside_its_successor_is_not_counted_twice() -> None:
    """vLLM 0.11 can show both."""
    both = page(NEW, 40, 60, 10, 45, 0.9) + "\n".join(
        line for line in page(OLD, 0, 0, 0, 45, 0.9).splitlines() if "time_per" in line
    )
    assert between(page(NEW, 0, 0, 0, 0, 0), both).s == 45


def test_a_counter_that_went_down_is_a_reset() -> None:
    """A restart, or swapped pages: no number comes out of it."""
    found = between(page(NEW, 40, 60, 10, 45, 0.9), page(NEW, 4, 6, 1, 4, 0.1))
    assert "generation_tokens" in found.resets
    assert found.m is None
    assert "restarted" in found.reasons["m"]


def test_a_restart_shows_even_when_the_counters_overtook() -> None:
    """The process start time gives it away."""
    start = "\nprocess_start_time_seconds {}\n"
    found = between(
        page(NEW, 1, 1, 1, 1, 1) + start.format(100), page(NEW, 9, 9, 9, 9, 9) + start.format(200)
    )
    assert found.resets == ("process_start_time_seconds",)


def test_nothing_happened_is_not_zero() -> None:
    """Two equal pages have no M."""
    same = page(NEW, 40, 60, 10, 45, 0.9)
    found = between(same, same)
    assert found.m is None
    assert found.cycle_s is None
    assert found.reasons["m"] == "nothing happened between the two pages"


def test_a_missing_series_is_none_with_a_reason() -> None:
    """Without the inter-token histogram there are no steps."""
    bare = 'vllm:kv_cache_usage_perc 0\nvllm:generation_tokens_total{model_name="m"} 5\n'
    found = between(bare.replace("5", "1"), bare)
    assert found.g == 4
    assert found.f is None
    assert found.m is None
    assert "inter-token" in found.reasons["m"]


SPEC = """
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 45
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 90
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 45
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 30
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 15
"""


def test_a_series_that_appears_counts_from_zero() -> None:
    """Client libraries create a labelled series at its first increment."""
    found = between(page(NEW, 0, 0, 0, 0, 0), page(NEW, 40, 60, 10, 45, 0.9) + SPEC)
    assert found.accepted == 45
    assert found.accepted_per_position == (30, 15)
    assert found.acceptance == pytest.approx(0.5)
    assert found.cut_tokens == 0


@pytest.mark.parametrize("position", ["x", "", "²", "-1", "1000", "99999999999999999999"])
def test_a_draft_position_that_is_none_is_refused(position: str) -> None:
    """No crash, and no list as long as whatever number an engine writes."""
    wrong = SPEC.replace('position="1"', f'position="{position}"')
    with pytest.raises(SchemaError, match="position"):
        between(page(NEW, 0, 0, 0, 0, 0), page(NEW, 40, 60, 10, 45, 0.9) + wrong)


@pytest.mark.parametrize("bound", ['le="0.5NaN"', 'le="nan"', 'le=""', 'other="1"'])
def test_a_bucket_whose_bound_is_no_number_is_refused(bound: str) -> None:
    """A page that lies about its buckets is a schema error, never another exception."""
    name = "vllm:request_queue_time_seconds"
    buckets = f"{name}_bucket{{{bound}}} 1\n{name}_count 1\n{name}_sum 1\n"
    with pytest.raises(SchemaError, match="le is no number"):
        read_counters(page(NEW, 1, 1, 1, 1, 1) + buckets)


def test_a_histogram_that_counts_tokens_gives_no_m() -> None:
    """S = G - F although 45 drafts were accepted: another version's meaning, so no M of 1.0."""
    found = between(page(NEW, 0, 0, 0, 0, 0), page(NEW, 40, 60, 10, 90, 0.9) + SPEC)
    assert found.m is None
    assert "tokens, not steps" in found.reasons["m"]


SGLANG = """
sglang:generation_tokens_total{{model_name="m"}} {g}
sglang:time_to_first_token_seconds_count{{model_name="m"}} {f}
sglang:time_to_first_token_seconds_sum{{model_name="m"}} 1
sglang:inter_token_latency_seconds_count{{model_name="m"}} {s}
sglang:inter_token_latency_seconds_sum{{model_name="m"}} {t}
sglang:token_usage{{model_name="m"}} 0.5
"""
VERIFY = 'sglang:spec_verify_calls_total{{model_name="m"}} {v}\n'


def test_sglang_counts_tokens_so_steps_come_from_verify_calls() -> None:
    """An output of n tokens is n samples: M = (100 - 10) / 45, not (100 - 10) / 90."""
    before = SGLANG.format(g=0, f=0, s=0, t=0) + VERIFY.format(v=0)
    after = SGLANG.format(g=100, f=10, s=90, t=0.9) + VERIFY.format(v=45)
    found = between(before, after)
    assert found.schema == "sglang"
    assert found.m == pytest.approx(2.0)
    assert found.cycle_s == pytest.approx(0.020)


def test_sglang_without_verify_calls_has_no_m() -> None:
    """Samples per token say nothing about steps; seconds per token are still known."""
    found = between(SGLANG.format(g=0, f=0, s=0, t=0), SGLANG.format(g=100, f=10, s=90, t=0.9))
    assert found.m is None
    assert found.s_per_token == pytest.approx(0.010)


def test_tensorrt_llm_counts_acceptance_but_no_steps() -> None:
    """Acceptance is known, M is not."""
    text = """
trtllm_generation_tokens_total {g}
trtllm_spec_decode_num_draft_tokens_total {d}
trtllm_spec_decode_num_accepted_tokens_total {a}
"""
    found = between(text.format(g=0, d=0, a=0), text.format(g=100, d=90, a=45))
    assert found.schema == "tensorrt-llm"
    assert found.acceptance == pytest.approx(0.5)
    assert found.m is None


def test_the_v0_engine_is_recognised_and_not_trusted_for_m() -> None:
    """Its inter-token samples mean something else."""
    old = page(OLD, 0, 0, 0, 0, 0) + "vllm:num_requests_swapped 0\n"
    new = page(OLD, 40, 60, 10, 45, 0.9) + "vllm:num_requests_swapped 0\n"
    assert between(old, new).schema == "vllm-v0"
    assert between(old, new).m is None


@pytest.mark.parametrize("text", ["", "python_info 1\n", 'breakeven_requests_total{arm="a"} 1\n'])
def test_a_page_of_something_else_is_refused(text: str) -> None:
    """The proxy's own page, say: the message tells what was found and what to give."""
    with pytest.raises(SchemaError, match="/metrics"):
        read_counters(text)


def test_pages_of_two_engines_do_not_mix() -> None:
    """Another schema, another model."""
    with pytest.raises(SchemaError, match="schema"):
        between(page(NEW, 1, 1, 1, 1, 1), SGLANG.format(g=1, f=1, s=1, t=1))
    with pytest.raises(SchemaError, match="models"):
        between(page(NEW, 1, 1, 1, 1, 1), page(NEW, 2, 2, 2, 2, 2).replace('"m"', '"other"'))


def test_a_nan_counter_is_an_engine_error() -> None:
    """NaN must not travel on as a number."""
    with pytest.raises(SchemaError, match="NaN"):
        read_counters("vllm:generation_tokens_total NaN\nvllm:kv_cache_usage_perc 0\n")


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda s: s.name)
def test_each_schema_knows_itself_by_its_marks(schema: object) -> None:
    """One mark is enough, and no earlier schema claims it."""
    from breakeven.engine_schemas import Schema, schema_of
    from breakeven.exposition import parse_page

    assert isinstance(schema, Schema)
    for mark in schema.marks:
        assert schema_of(parse_page(f"{mark} 1\n")).name == schema.name


@given(st.integers(1, 500), st.integers(1, 500), st.floats(0.001, 9))
def test_m_times_steps_is_what_was_committed(steps: int, extra: int, seconds: float) -> None:
    """M * S = G - F, and M * s_per_token = cycle, whatever the counts."""
    g = 7 + steps + extra
    found = between(page(NEW, 0, 0, 0, 0, 0), page(NEW, g, 0, 7, steps, seconds))
    assert found.m is not None
    assert found.cycle_s is not None
    assert found.s_per_token is not None
    assert found.m * steps == pytest.approx(g - 7)
    assert found.m * found.s_per_token == pytest.approx(found.cycle_s)
