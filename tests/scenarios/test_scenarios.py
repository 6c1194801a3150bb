"""Public reports of drafts that did not pay, or were mis-measured: the tool diagnoses each kind.

Numbers in brackets are those of the design's scenario table. Each scenario runs `loadgen decide`
(or the command that a user would take) on a grid folder made by the engine model, or by the
report's own numbers, and asserts the verdict and the figure or gate that carries it. Labels are
set to evidence, except where the label is the point.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from tests.support.gridfolder import decide, gate, verdict
from tests.support.offline import KNEE_34, SIMULATED, Arm, Plan, Shape

from breakeven.slo import SLO
from breakeven.stream import Ending, StreamObserver
from breakeven_loadgen.engine_report import engine_command
from breakeven_loadgen.judge.dataset import ContractRecord, RunData
from breakeven_sim.drafts import Draft

SHAPE = Shape(prompt=(120.0, 0.4), output=(40.0, 0.3), output_clip=(16, 120))
RATES = {"low": 3.0, "peak": 16.0}
BASE = Arm(engine=KNEE_34)


def draft(accept: float, d_ms: float = 0.3, h_ms: float = 0.2, k: int = 4, **more: Any) -> Draft:
    """A draft of constant conditional acceptance."""
    return Draft("d", d_ms / 1e3, 0.0, 0.0, h_ms / 1e3, False, (accept,) * k, 1.0, 0, 0.0, **more)


def arm(accept: float, d_ms: float = 0.3, h_ms: float = 0.2, k: int = 4, **more: Any) -> Arm:
    """A candidate on the engine whose knee lies at 34 tokens."""
    return Arm(draft(accept, d_ms, h_ms, k), k, KNEE_34, **more)


def plan(candidate: Arm, **changes: Any) -> Plan:
    """Six blocks, two rates, no A/A: small enough for a test, enough for a decision."""
    settings: dict[str, Any] = {
        "rates": RATES, "blocks": 6, "window_s": 6.0, "traffic": SHAPE, "aa": False,
        "contract": ContractRecord(error_budget=0.05),
    }  # fmt: skip
    return Plan({"base": BASE, "draft": candidate}, **(settings | changes))


PAYING = arm(0.8)


def with_page(**changes: Any) -> Callable[[RunData], RunData]:
    """An alteration of the engine's accounting."""
    return lambda run: replace(run, engine=({**run.engine[0], **changes},))


# --- it loses, or loses somewhere -----------------------------------------------------------------


def test_more_requests_per_second_worse_latency(tmp_path: Path) -> None:
    """[1, 7, 36] vLLM #4266, #17984, PR #17202: gain at low load, reversal at peak."""
    found = decide(tmp_path, plan(arm(0.5, d_ms=0.6, k=5)))
    assert verdict(found, "all", 3.0)["word"] == "pays"
    assert verdict(found, "all", 16.0)["word"] == "loses"
    assert found["decision"] == "limit_to_rate"
    assert found["proven_rates_rps"] == [3.0, 3.0]
    (band,) = found["break_even"]["draft"]["rates_rps"]
    assert 3.0 < band["high"] < 16.0  # the break-even rate, by interpolation


def test_no_gain_even_at_low_rate(tmp_path: Path) -> None:
    """[2] vLLM #5239: M is too low for D."""
    found = decide(tmp_path, plan(arm(0.35, d_ms=3.0)))
    line = verdict(found, "all", 3.0)
    assert line["word"] == "loses"
    assert line["inflation"] > line["m"]
    assert found["action"] in ("tune", "disable")


def test_good_acceptance_and_yet_slower(tmp_path: Path) -> None:
    """[3] vLLM #7540: acceptance .655, C/T above M: a cheaper draft, or the baseline."""
    found = decide(tmp_path, plan(arm(0.655, d_ms=5.0)))
    line = verdict(found, "all", 3.0)
    assert line["m"] > 2.0
    assert line["inflation"] > line["m"]
    assert found["decision"] == "cheaper_draft"
    assert "M " in found["reasons"]


def test_overhead_shows_in_the_k_sweep(tmp_path: Path) -> None:
    """[5] vLLM #9565: far from 2x at low QPS: H is in the sweep's intercept."""
    deep = {f"k{k}": Arm(draft(0.7, 0.5, 6.0, k), k, KNEE_34, family="d") for k in (1, 3, 5)}
    found = decide(tmp_path, replace(plan(PAYING), arms={"base": BASE, **deep}))
    fit = next(f for f in found["k_sweep"] if f["rate"] == 3.0)
    t_s = verdict(found, "all", 3.0)["t_s"]
    assert fit["depths"] == [1, 3, 5]
    assert fit["intercept_s"] - t_s == pytest.approx(0.006, abs=0.0015)
    assert fit["slope_s"] >= 0.0005


def test_a_draft_that_is_loaded_but_disabled(tmp_path: Path) -> None:
    """[15] vLLM PR #5000: 5.8 s with it disabled, 5.4 s without: M is 1 and it still costs."""

    def slower(run: RunData) -> RunData:
        numbers = dict(run.rows.numbers)
        for name in ("decode_s", "tpot_s", "e2e_s"):
            numbers[name] = numbers[name] * 5.8 / 5.4
        return replace(run, rows=replace(run.rows, numbers=numbers))

    found = decide(tmp_path, plan(BASE, alter={"draft": slower}))
    line = verdict(found, "all", 3.0)
    assert line["word"] == "loses"
    assert line["m"] == pytest.approx(1.0)
    assert line["margin"]["value"] == pytest.approx(1 - 5.8 / 5.4, abs=0.03)
    assert found["decision"] == "keep_off"


def test_acceptance_decays_with_context(tmp_path: Path) -> None:
    """[18] vLLM #47602: the long prompts lose while the mean gains."""
    shape = replace(SHAPE, prompt=(700.0, 0.9), prompt_clip=(64, 6000), output=(40.0, 0.2))
    candidate = Arm(draft(0.92, 0.9), 4, decay=1.2)  # the real preset: long prompts are cheap
    grid_plan = plan(candidate, traffic=shape, rates={"low": 6.0}, window_s=8.0)
    found = decide(tmp_path, replace(grid_plan, arms={"base": Arm(), "draft": candidate}))
    assert verdict(found, "prompt<1k", 6.0)["word"] == "pays"
    assert verdict(found, "prompt 1k-8k", 6.0)["word"] == "loses"
    assert found["decision"] == "baseline_for_cohort"
    assert "prompt 1k-8k" in found["denied_cohorts"]


def test_one_cohort_rejects_most_drafts(tmp_path: Path) -> None:
    """High rejection in one language: keep the baseline for it."""
    shape = replace(SHAPE, cohorts={"en": 0.75, "xx": 0.25})
    candidate = arm(0.85, d_ms=0.8, by_cohort={"xx": (0.02,) * 4})
    found = decide(tmp_path, plan(candidate, traffic=shape, rates={"low": 8.0}))
    assert found["decision"] == "baseline_for_cohort"
    assert found["denied_cohorts"] == ["xx"]
    assert verdict(found, "en", 8.0)["word"] == "pays"


def test_ttft_gets_worse_while_decoding_gets_better(tmp_path: Path) -> None:
    """[10] vLLM #39790: TTFT p99 up with k = 15: the TTFT floor fails, the margin passes."""

    def late(run: RunData) -> RunData:
        numbers = {k: v.copy() for k, v in run.rows.numbers.items()}
        slow = np.arange(len(run.rows)) % 4 == 0
        numbers["ttft_s"][slow] += 0.6
        verdicts = np.where(slow, "slow_ttft", run.rows.verdict)
        return replace(run, rows=replace(run.rows, numbers=numbers, verdict=verdicts))

    found = decide(tmp_path, plan(PAYING, alter={"draft": late}))
    line = verdict(found, "all", 3.0)
    assert line["margin"]["low"] > 0
    floors = {floor["name"]: floor["held"] for floor in line["floors"]}
    assert floors["ttft"] is False
    assert floors["tpot"] is True
    assert found["action"] != "retain"
    assert found["proven_rates_rps"] is None


def test_prefill_dominates_short_outputs(tmp_path: Path) -> None:
    """TTFT dominates with short outputs: mend prefill and queue first."""
    shape = Shape(prompt=(3000.0, 0.2), output=(9.0, 0.1), output_clip=(8, 10))
    found = decide(tmp_path, plan(PAYING, traffic=shape, rates={"low": 1.0}, blocks=6,
                                  window_s=10.0))  # fmt: skip
    assert found["decision"] == "fix_prefill"
    assert found["gate"] == "ttft"


# --- the comparison is not one --------------------------------------------------------------


def test_unequal_output_lengths(tmp_path: Path) -> None:
    """[4] vLLM #8439: 1,000 against 947 tokens: not the same work, whatever the speed."""

    def shorter(run: RunData) -> RunData:
        numbers = dict(run.rows.numbers)
        numbers["output_tokens"] = np.floor(numbers["output_tokens"] * 0.947)
        return replace(run, rows=replace(run.rows, numbers=numbers))

    found = decide_invalid(tmp_path, plan(BASE, alter={"draft": shorter}))
    assert found["decision"] == "invalid"
    assert found["gate"] == "workload"
    assert "output lengths are unequal" in gate(found, "draft", "workload")["reason"]
    assert verdict(found, "all", 3.0)["m"] == pytest.approx(1.0)


def test_prefix_cache_hit_rates_differ(tmp_path: Path) -> None:
    """[9] vLLM #39680: acceptance 96.6 %, slower, and hit rates 44.5 against 22.3 %."""

    def hits(share: float) -> Callable[[RunData], RunData]:
        counters = {"prefix_cache_queries": 1000.0, "prefix_cache_hits": 1000 * share}
        return with_page(counters=counters)

    slow = arm(0.966, d_ms=8.0)
    found = decide_invalid(tmp_path, plan(slow, alter={"draft": hits(0.223), "base": hits(0.445)}))
    assert found["gate"] == "workload"
    reason = gate(found, "draft", "workload")["reason"]
    assert "22.3%" in reason
    assert "44.5%" in reason
    line = verdict(found, "all", 3.0)
    assert line["inflation"] > line["m"]


def test_warm_cache_is_a_cell_of_its_own(tmp_path: Path) -> None:
    """[11] vLLM #19996: EAGLE with prefix-cache hits is not the cold result."""
    warm = replace(SHAPE, prompt=(900.0, 0.2), prefixes=3)
    found = decide(tmp_path, plan(PAYING, rates={"low": 4.0}, cells={"warm_cache": warm}))
    cold = verdict(found, "all", 4.0)
    hot = verdict(found, "warm_cache", 4.0, "warm_cache")
    assert cold["traffic"] == "main"
    assert hot["margin"] is not None
    assert hot["margin"] != cold["margin"]


def test_engine_version_changed_within_the_grid(tmp_path: Path) -> None:
    """[21] vLLM #40551: acceptance fell with a new runner: M belongs to a version."""

    def newer(run: RunData) -> RunData:
        version = "0.33.0" if run.plan.block < 3 else "0.34.0"
        return replace(run, facts={**run.facts, "engine_version": version})

    found = decide_invalid(tmp_path, plan(PAYING, alter={"draft": newer}))
    assert found["gate"] == "identity"
    assert "0.34.0" in gate(found, "draft", "identity")["reason"]


def test_another_model_behind_the_arm(tmp_path: Path) -> None:
    """The engines must show the same target."""
    identity = {"base": {"model": "m-8b", "tokenize": "a"}, "draft": {"model": "m-7b"}}
    found = decide_invalid(tmp_path, plan(PAYING), identity=identity)
    assert found["gate"] == "identity"


@pytest.mark.parametrize(
    ("page", "what"),
    [
        ({"acceptance": 1.2}, "acceptance 1.200"),  # [28] SGLang PR #11572
        ({"m": 5.7, "k": 4, "drafts": 10.0}, "exceeds k + 1"),
        ({"g": 10.0}, "the client got"),  # [25, 30] parts above their whole
    ],
)
def test_impossible_figures(tmp_path: Path, page: dict[str, Any], what: str) -> None:
    """An acceptance above 1, an M above k + 1, fewer tokens made than received."""
    found = decide_invalid(tmp_path, plan(PAYING, alter={"draft": with_page(**page)}))
    assert found["gate"] == "plausibility"
    assert what in gate(found, "draft", "plausibility")["reason"]


def test_chunks_counted_as_tokens(tmp_path: Path) -> None:
    """[27] llama-benchy PR #11: 5.5 where 25.2 is true: usage and engine disagree."""

    def uncounted(run: RunData) -> RunData:
        fault = (False, "engine counts 2520 tokens, the client 550")
        return replace(run, gates={**run.gates, "tokens": fault})

    found = decide_invalid(tmp_path, plan(PAYING, alter={"draft": uncounted}))
    assert found["gate"] == "runs"
    assert "tokens: engine counts 2520" in gate(found, "draft", "runs")["reason"]


def decide_invalid(folder: Path, one: Plan, **extras: Any) -> dict[str, Any]:
    """`loadgen decide` on a grid that is no evidence: exit 4, decision invalid, action none."""
    from tests.support.gridfolder import write_grid
    from tests.support.offline import grid

    from breakeven.exitcodes import ExitCode
    from breakeven_loadgen.cli import run

    write_grid(folder, grid(one, **extras))
    assert run(["decide", str(folder)]) is ExitCode.NOT_EVIDENCE
    found: dict[str, Any] = json.loads((folder / "decision.json").read_text())
    assert (found["decision"], found["action"]) == ("invalid", "none")
    assert not (folder / "certificate.json").exists()
    return found


# --- it must not be enabled -----------------------------------------------------------------------


def test_structured_output_breaks(tmp_path: Path) -> None:
    """[32] vLLM #9423 and others: a feature that the service uses fails with the draft."""
    probes = {
        "base": {"structured_output": {"support": "supported"}},
        "draft": {"structured_output": {"support": "failed"}},
    }
    found = decide(tmp_path, plan(PAYING), probes=probes)
    assert (found["decision"], found["action"]) == ("do_not_enable", "disable")
    assert found["gate"] == "contract"


def test_an_untested_feature_is_not_promised(tmp_path: Path) -> None:
    """The contract names tools, and nobody probed them."""
    contract = ContractRecord(error_budget=0.05, features=("tools",))
    found = decide(tmp_path, plan(PAYING, contract=contract))
    assert found["decision"] == "do_not_enable"
    assert "untested" in found["reasons"]


def test_greedy_answers_part_where_the_baseline_was_sure(tmp_path: Path) -> None:
    """[33] vLLM #43559: corruption with a warm cache shows in L1, beside a clean A/A."""
    quality = {
        "base": {"l1": {"pairs": 200, "hard": 0, "tau": 0.1}},
        "draft": {"l1": {"pairs": 200, "hard": 9, "tau": 0.1}},
    }
    found = decide(tmp_path, plan(PAYING), quality=quality)
    assert found["decision"] == "do_not_enable"
    assert found["gate"] == "quality"
    assert "9 of 200" in found["reasons"]


def test_a_looping_arm_is_fast_and_broken(tmp_path: Path) -> None:
    """A looping output was once the fastest arm."""
    guards = {"answers": 100, "tokens": 6400}
    quality = {
        "base": {"guards": {**guards, "loops": 0}},
        "draft": {"guards": {**guards, "loops": 12}},
    }
    found = decide(tmp_path, plan(PAYING), quality=quality)
    assert found["decision"] == "do_not_enable"
    assert "repeat themselves" in found["reasons"]


def test_a_lossy_sampler_is_not_the_target(tmp_path: Path) -> None:
    """`fly` accepts what the target would not."""
    found = decide(tmp_path, plan(replace(PAYING, method="fly")))
    assert found["decision"] == "do_not_enable"
    assert found["gate"] == "sampler"


def test_the_arm_hangs_with_more_than_one_client(tmp_path: Path) -> None:
    """[37] TRT-LLM #3499: timeouts break the error floor; speed of the rest is no argument."""

    def hangs(run: RunData) -> RunData:
        stuck = np.arange(len(run.rows)) % 5 == 0
        return replace(run, rows=replace(run.rows, verdict=np.where(stuck, "timeout",
                                                                    run.rows.verdict)))  # fmt: skip

    found = decide(tmp_path, plan(PAYING, alter={"draft": hangs}))
    floors = {f["name"]: f["held"] for f in verdict(found, "all", 3.0)["floors"]}
    assert floors["errors"] is False
    assert floors["goodput"] is False
    assert found["action"] != "retain"


def test_the_draft_eats_the_kv_cache(tmp_path: Path) -> None:
    """[37] SGLang PR #20872: KV capacity and preemptions are shown per arm."""
    from tests.support.offline import grid

    from breakeven_loadgen.judge.assess import assess
    from breakeven_loadgen.judge.capture import capture

    engine = replace(KNEE_34, kv_tokens=2600)
    heavy = replace(draft(0.8), kv_factor=1.8)
    arms = {"base": Arm(engine=engine), "draft": Arm(heavy, 4, engine)}
    cells = capture(assess(grid(replace(plan(PAYING), arms=arms))))
    peak = {c.arm: c for c in cells if c.rate == 16.0}
    assert peak["draft"].preemptions is not None
    assert peak["base"].preemptions is not None
    assert peak["draft"].preemptions > peak["base"].preemptions


# --- what is not known, and what is not evidence --------------------------------------------------


def test_synthetic_content_is_never_evidence(tmp_path: Path) -> None:
    """[35] dynamo #12918: a paying arm, and the action is not retain."""
    found = decide(tmp_path, plan(PAYING, labels=SIMULATED, rates={"low": 3.0}))
    assert found["decision"] == "canary"
    assert found["evidence"] == "method_check"
    assert found["action"] == "none"
    assert found["action_on_evidence"] == "retain"
    assert "not evidence" in found["reasons"]
    certificate = json.loads((tmp_path / "certificate.json").read_text())
    assert certificate["evidence"] == "method_check"


def test_missing_speculation_counters_are_not_zero(tmp_path: Path) -> None:
    """[30] vLLM #13916: counters absent or pinned: M comes from the stream and says so."""
    bare = with_page(g=None, f=None, s=None, m=None, k=None, drafts=None, acceptance=None)
    found = decide(tmp_path, plan(PAYING, alter={"draft": bare}))
    line = verdict(found, "all", 3.0)
    assert line["m_source"] == "stream"
    assert line["m"] > 2
    assert line["word"] == "pays"


def test_merged_outputs_are_flagged_not_believed(tmp_path: Path) -> None:
    """Bursts of more than k + 1 tokens are coalescing, never acceptance."""

    def merged(run: RunData) -> RunData:
        numbers = dict(run.rows.numbers)
        numbers["max_burst_tokens"] = numbers["max_burst_tokens"] + 6
        return replace(run, rows=replace(run.rows, numbers=numbers))

    found = decide(tmp_path, plan(PAYING, alter={"draft": merged}))
    assert any("merged on the way" in flag for flag in found["flags"]["draft"])
    assert verdict(found, "all", 3.0)["m_source"] == "counters"


def test_prometheus_tpot_changes_its_meaning(tmp_path: Path) -> None:
    """[23] vLLM PR #47382: a step histogram that counts tokens gives no M of 1.0."""
    names = (
        "generation_tokens_total", "time_to_first_token_seconds_count",
        "time_to_first_token_seconds_sum", "inter_token_latency_seconds_count",
        "inter_token_latency_seconds_sum", "spec_decode_num_drafts_total",
        "spec_decode_num_draft_tokens_total", "spec_decode_num_accepted_tokens_total",
    )  # fmt: skip
    pages = []
    for i, values in enumerate(([0] * 8, [1000, 10, 1, 990, 9.9, 400, 1600, 600])):
        text = "".join(f"vllm:{n} {v}\n" for n, v in zip(names, values, strict=True))
        path = tmp_path / f"{i}.txt"
        path.write_text(text)
        pages.append(str(path))
    result = CliRunner().invoke(engine_command, [*pages, "--json"], catch_exceptions=False)
    found = json.loads(result.output)
    assert found["m"] is None
    assert "tokens, not steps" in found["reasons"]["m"]


def event(tokens: int, total: int) -> bytes:
    """One SSE event with `tokens` new tokens and cumulative usage."""
    chunk = {
        "choices": [{"index": 0, "text": "x" * tokens, "finish_reason": None}],
        "usage": {"prompt_tokens": 5, "completion_tokens": total, "total_tokens": 5 + total},
    }
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def test_gaps_between_chunks_are_not_time_per_token() -> None:
    """[22, 24] SGLang PR #12064: 8.72 ms between chunks, 3.42 ms per token.

    100 gaps of 8.72 ms carry 255 tokens: 872 / 255 = 3.42 ms; TTFT is in neither.
    """
    observer = StreamObserver(0.0)
    now, total = 5.0, 1
    observer.receive_data(event(1, total), now)
    for i in range(100):
        now += 0.00872
        new = 3 if i % 20 < 11 else 2
        total += new
        observer.receive_data(event(new, total), now)
    report = observer.finish(now, Ending.COMPLETE)
    assert report.ttft_s == pytest.approx(5.0)
    assert report.tpot_s == pytest.approx(0.872 / 255)
    assert report.tpot_s == pytest.approx(0.00342, abs=1e-5)
    assert report.burst_gap_max_s == pytest.approx(0.00872)


def test_reasoning_deltas_are_tokens() -> None:
    """[39] club-3090 #1096: TTFT on content alone showed a collapse that was none."""
    observer = StreamObserver(0.0)
    for at, key in ((0.2, "reasoning"), (0.3, "reasoning"), (4.0, "content")):
        chunk = {"choices": [{"index": 0, "delta": {key: "x"}, "finish_reason": None}]}
        observer.receive_data(b"data: " + json.dumps(chunk).encode() + b"\n\n", at)
    report = observer.finish(4.0, Ending.COMPLETE)
    assert report.ttft_s == pytest.approx(0.2)
    assert report.ttfo_s == pytest.approx(4.0)


def test_a_grid_without_contract_decides_nothing(tmp_path: Path) -> None:
    """Nobody said what must not break: exit 2, with the mend."""
    from breakeven.errors import InputError

    with pytest.raises(InputError, match="needs the contract"):
        decide(tmp_path, plan(PAYING, contract=None))


def test_too_few_blocks_is_no_evidence(tmp_path: Path) -> None:
    """Five blocks: the gate names itself and what is needed."""
    found = decide_invalid(tmp_path, plan(PAYING, blocks=5))
    assert found["gate"] == "blocks"


def test_data_that_cannot_carry_the_claim(tmp_path: Path) -> None:
    """A gain of a few percent in the noise: inconclusive, with the blocks that could tell."""
    from tests.support.offline import Noise

    candidate = arm(0.14, d_ms=0.3, k=1)
    noisy = plan(candidate, rates={"low": 3.0}, noise=Noise(0.05, 0.12), slo=SLO(e2e_s=60.0))
    found = decide(tmp_path, noisy)
    assert found["decision"] == "inconclusive"
    assert found["blocks_needed"] is None or found["blocks_needed"] > 6
    assert found["action"] == "none"
