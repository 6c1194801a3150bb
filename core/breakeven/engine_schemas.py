"""Names of each engine's metrics, by engine and version: the one place where they stand.

Here: tables, and the choice of a table for a page. Not here: any arithmetic.
Sources: pages recorded from vLLM 0.32 (tests/data/vllm); vLLM `v1/metrics/loggers.py` (renames:
gpu_cache_usage_perc -> kv_cache_usage_perc and gpu_prefix_cache_* -> prefix_cache_* announced in
0.9.2, time_per_output_token_seconds -> inter_token_latency_seconds in 0.11); SGLang
`srt/metrics/collector.py`; TensorRT-LLM `metrics/collector.py`.
A deprecated name can stand on one page beside its successor: the first alternative present counts,
never their sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from .errors import SchemaError
from .exposition import Page

StepSamples = Literal["per_step", "per_token", "unknown"]
"""What one sample of the engine's inter-token histogram stands for.

per_step: one per engine output, whatever number of tokens it carries (vLLM V1).
per_token: an output of n tokens is n samples of 1/n of its gap (SGLang), so the count of samples
    says nothing about steps.
"""


@dataclass(frozen=True, slots=True)
class Schema:
    """One engine's names.

    Attributes:
        name: stable key, exported as `engine_schema_info{schema}`.
        engine: vllm, sglang or tensorrt-llm.
        versions: the versions it was read from, in words.
        marks: names that show that a page is written in it; any one suffices.
        counters: our name -> alternatives of theirs, first present wins; summed over label sets.
        gauges: the same for gauges that may be summed (requests).
        ratios: the same for gauges that are shares: the highest of the engines stands.
        histograms: our name -> alternatives of the family's name.
        per_position: counter of accepted tokens with a label `position`.
        step_samples: what a sample of `step_gap` stands for.
        verify_steps: our counter that counts verification steps where `step_gap` cannot.
    """

    name: str
    engine: str
    versions: str
    marks: tuple[str, ...]
    counters: Mapping[str, tuple[str, ...]]
    gauges: Mapping[str, tuple[str, ...]]
    ratios: Mapping[str, tuple[str, ...]]
    histograms: Mapping[str, tuple[str, ...]]
    per_position: str | None
    step_samples: StepSamples
    verify_steps: str | None = None


_VLLM_COUNTERS = {
    "generation_tokens": ("vllm:generation_tokens_total",),
    "prompt_tokens": ("vllm:prompt_tokens_total",),
    "preemptions": ("vllm:num_preemptions_total", "vllm:num_preemptions_total_total"),
    "requests_finished": ("vllm:request_success_total",),
    "admission_rejections": ("vllm:admission_rejections_total",),
    "prefix_cache_queries": (
        "vllm:prefix_cache_queries_total",
        "vllm:gpu_prefix_cache_queries_total",
    ),
    "prefix_cache_hits": ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
    "spec_drafts": ("vllm:spec_decode_num_drafts_total",),
    "spec_draft_tokens": ("vllm:spec_decode_num_draft_tokens_total",),
    "spec_accepted_tokens": ("vllm:spec_decode_num_accepted_tokens_total",),
}
_VLLM_GAUGES = {
    "requests_running": ("vllm:num_requests_running",),
    "requests_waiting": ("vllm:num_requests_waiting",),
}
_VLLM_RATIOS = {"kv_cache_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")}
_VLLM_HISTOGRAMS = {
    "ttft": ("vllm:time_to_first_token_seconds",),
    "step_gap": ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
    "request_tpot": ("vllm:request_time_per_output_token_seconds",),
    "e2e": ("vllm:e2e_request_latency_seconds",),
    "queue_time": ("vllm:request_queue_time_seconds",),
    "prefill_time": ("vllm:request_prefill_time_seconds",),
    "decode_time": ("vllm:request_decode_time_seconds",),
    "inference_time": ("vllm:request_inference_time_seconds",),
    "iteration_tokens": ("vllm:iteration_tokens_total",),
}

VLLM = Schema(
    name="vllm-v1",
    engine="vllm",
    versions="0.11 to 0.33",
    marks=("vllm:inter_token_latency_seconds_count", "vllm:kv_cache_usage_perc"),
    counters=_VLLM_COUNTERS,
    gauges=_VLLM_GAUGES,
    ratios=_VLLM_RATIOS,
    histograms=_VLLM_HISTOGRAMS,
    per_position="vllm:spec_decode_num_accepted_tokens_per_pos_total",
    step_samples="per_step",
)

VLLM_OLD_NAMES = Schema(
    name="vllm-v1-old-names",
    engine="vllm",
    versions="0.8 to 0.10 (gpu_cache_usage_perc, time_per_output_token_seconds)",
    marks=("vllm:time_per_output_token_seconds_count", "vllm:gpu_cache_usage_perc"),
    counters=_VLLM_COUNTERS,
    gauges=_VLLM_GAUGES,
    ratios=_VLLM_RATIOS,
    histograms=_VLLM_HISTOGRAMS,
    per_position="vllm:spec_decode_num_accepted_tokens_per_pos_total",
    step_samples="per_step",
)

VLLM_V0 = Schema(
    name="vllm-v0",
    engine="vllm",
    versions="before 0.8 (the V0 engine)",
    marks=(
        "vllm:num_requests_swapped",
        "vllm:cpu_cache_usage_perc",
        "vllm:spec_decode_num_emitted_tokens_total",
    ),
    counters=_VLLM_COUNTERS,
    gauges=_VLLM_GAUGES,
    ratios=_VLLM_RATIOS,
    histograms=_VLLM_HISTOGRAMS,
    per_position=None,
    step_samples="unknown",
)

SGLANG = Schema(
    name="sglang",
    engine="sglang",
    versions="0.4 and later, --enable-metrics",
    marks=("sglang:generation_tokens_total", "sglang:num_running_reqs", "sglang:token_usage"),
    counters={
        "generation_tokens": ("sglang:generation_tokens_total",),
        "prompt_tokens": ("sglang:prompt_tokens_total",),
        "requests_finished": ("sglang:num_requests_total",),
        "requests_aborted": ("sglang:num_aborted_requests_total",),
        "preemptions": ("sglang:num_retracted_requests_total",),
        "prefix_cache_hits": ("sglang:cached_tokens_total",),
        "spec_drafts": ("sglang:spec_verify_calls_total",),
        # Every prompt token is looked up, so the prompt's tokens are the queries.
        "prefix_cache_queries": ("sglang:prompt_tokens_total",),
    },
    gauges={
        "requests_running": ("sglang:num_running_reqs",),
        "requests_waiting": ("sglang:num_queue_reqs",),
    },
    ratios={
        "kv_cache_usage": ("sglang:token_usage",),
        "spec_accept_length": ("sglang:spec_accept_length",),
        "spec_accept_rate": ("sglang:spec_accept_rate",),
    },
    histograms={
        "ttft": ("sglang:time_to_first_token_seconds",),
        "step_gap": ("sglang:inter_token_latency_seconds",),
        "request_tpot": ("sglang:time_per_output_token_seconds",),
        "e2e": ("sglang:e2e_request_latency_seconds",),
        "queue_time": ("sglang:queue_time_seconds",),
    },
    per_position=None,
    step_samples="per_token",
    verify_steps="spec_drafts",
)

TENSORRT_LLM = Schema(
    name="tensorrt-llm",
    engine="tensorrt-llm",
    versions="1.x, trtllm-serve",
    marks=("trtllm_generation_tokens_total", "trtllm_request_success_total",
           "trtllm_kv_cache_utilization"),
    counters={
        "generation_tokens": ("trtllm_generation_tokens_total",),
        "prompt_tokens": ("trtllm_prompt_tokens_total",),
        "requests_finished": ("trtllm_request_success_total",),
        "spec_draft_tokens": (
            "trtllm_spec_decode_num_draft_tokens_total",
            "trtllm_spec_decode_drafted_tokens_total",
        ),
        "spec_accepted_tokens": (
            "trtllm_spec_decode_num_accepted_tokens_total",
            "trtllm_spec_decode_accepted_tokens_total",
        ),
    },
    gauges={
        "requests_running": ("trtllm_num_requests_running",),
        "requests_waiting": ("trtllm_num_requests_waiting",),
    },
    ratios={
        "kv_cache_usage": ("trtllm_kv_cache_utilization",),
        "spec_accept_length": ("trtllm_spec_decode_acceptance_length",),
    },
    histograms={
        "ttft": ("trtllm_time_to_first_token_seconds",),
        "request_tpot": ("trtllm_time_per_output_token_seconds",),
        "e2e": ("trtllm_e2e_request_latency_seconds",),
        "queue_time": ("trtllm_request_queue_time_seconds",),
        "prefill_time": ("trtllm_request_prefill_time_seconds",),
        "decode_time": ("trtllm_request_decode_time_seconds",),
        "inference_time": ("trtllm_request_inference_time_seconds",),
    },
    per_position=None,
    step_samples="unknown",
)  # fmt: skip

SCHEMAS = (VLLM_V0, VLLM, VLLM_OLD_NAMES, SGLANG, TENSORRT_LLM)
"""In order of choice: an older page is known by series that the newer ones dropped."""


def schema_of(page: Page) -> Schema:
    """The table that a page is written in.

    Raises:
        SchemaError: none fits; the message lists the first words of the names that are there.
    """
    names = page.names
    for schema in SCHEMAS:
        if any(mark in names for mark in schema.marks):
            return schema
    prefixes = sorted({name.split(":")[0].split("_")[0] for name in names})[:8]
    raise SchemaError(
        "no engine's metrics on this page: expected series that start with vllm:, sglang: or "
        f"trtllm_, found {', '.join(prefixes) or 'no series at all'}; "
        "give the engine's own /metrics"
    )
