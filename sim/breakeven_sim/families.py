"""The table of metric families: vLLM 0.32's names, helps, labels and buckets. Data only.

tests/sim/test_contract.py compares the page with the recorded one, never with this table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]

_LATENCY = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5,
            10.0, 20.0, 40.0, 80.0)  # fmt: skip
_REQUEST = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0,
            120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0)  # fmt: skip
_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5,
         10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0)  # fmt: skip
_ITERATION = (1.0, *(2.0**i for i in range(3, 15)))


@dataclass(frozen=True, slots=True)
class Family:
    """One family. `buckets` () of a histogram of lengths means 1-2-5 steps up to max_model_len."""

    kind: Kind
    name: str
    help: str
    labels: tuple[str, ...] = ()
    values: tuple[str, ...] = ("",)
    buckets: tuple[float, ...] = ()


def _counter(name: str, text: str, label: str = "", values: tuple[str, ...] = ("",)) -> Family:
    return Family("counter", name, text, (label,) if label else (), values)


def _gauge(name: str, text: str, label: str = "", values: tuple[str, ...] = ("",)) -> Family:
    return Family("gauge", name, text, (label,) if label else (), values)


def _histogram(name: str, text: str, buckets: tuple[float, ...] = ()) -> Family:
    return Family("histogram", name, text, (), ("",), buckets)


SPEC_DECODE = (
    _counter("vllm:spec_decode_num_drafts", "Number of spec decoding drafts."),
    _counter("vllm:spec_decode_num_draft_tokens", "Number of draft tokens."),
    _counter("vllm:spec_decode_num_accepted_tokens", "Number of accepted tokens."),
)
SPEC_DECODE_PER_POSITION = _counter(
    "vllm:spec_decode_num_accepted_tokens_per_pos",
    "Accepted tokens per draft position.",
    "position",
)
_MFU = " (for Model Flops Utilization calculations)."
ENGINE = (
    _counter(
        "vllm:estimated_flops_per_gpu",
        "Estimated number of floating point operations per GPU" + _MFU,
    ),
    _counter(
        "vllm:estimated_read_bytes_per_gpu",
        "Estimated number of bytes read from memory per GPU" + _MFU,
    ),
    _counter(
        "vllm:estimated_write_bytes_per_gpu",
        "Estimated number of bytes written to memory per GPU" + _MFU,
    ),
    _gauge("vllm:num_requests_running", "Number of requests in model execution batches."),
    _gauge("vllm:num_requests_waiting", "Number of requests waiting to be processed."),
    _gauge(
        "vllm:num_requests_waiting_by_reason",
        "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for scheduling "
        "capacity; 'deferred' = deferred by transient constraints (LoRA budget, KV transfer, "
        "blocked status). Sum of all reasons equals vllm:num_requests_waiting.",
        "reason",
        ("capacity", "deferred"),
    ),
    _gauge(
        "vllm:engine_sleep_state",
        "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; "
        "weights_offloaded = 1 means sleep level 1; discard_all = 1 means sleep level 2.",
        "sleep_state",
        ("awake", "weights_offloaded", "discard_all"),
    ),
    _gauge("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage."),
    _counter(
        "vllm:prefix_cache_queries",
        "Prefix cache queries, in terms of number of queried tokens.",
    ),
    _counter("vllm:prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens."),
    _counter(
        "vllm:external_prefix_cache_queries",
        "External prefix cache queries from KV connector cross-instance cache sharing, in terms of "
        "number of queried tokens.",
    ),
    _counter(
        "vllm:external_prefix_cache_hits",
        "External prefix cache hits from KV connector cross-instance cache sharing, in terms of "
        "number of cached tokens.",
    ),
    _counter(
        "vllm:mm_cache_queries",
        "Multi-modal cache queries, in terms of number of queried items.",
    ),
    _counter("vllm:mm_cache_hits", "Multi-modal cache hits, in terms of number of cached items."),
    _counter("vllm:num_preemptions", "Cumulative number of preemption from the engine."),
    _counter("vllm:prompt_tokens", "Number of prefill tokens processed."),
    _counter(
        "vllm:prompt_tokens_by_source",
        "Number of prompt tokens by source.",
        "source",
        ("local_compute", "local_cache_hit", "external_kv_transfer"),
    ),
    _counter("vllm:prompt_tokens_cached", "Number of cached prompt tokens (local + external)."),
    _counter(
        "vllm:prompt_tokens_cached_by_source",
        "Prefix-cache hit tokens by the cache tier that supplied them: device (local HBM), host "
        "(offloaded to DRAM), disk, p2p (transferred from another vLLM instance) or "
        "external_unspecified. Counted at admission; sums to vllm:prefix_cache_hits + "
        "vllm:external_prefix_cache_hits.",
        "source",
        ("device", "host", "p2p", "disk", "external_unspecified"),
    ),
    _counter("vllm:generation_tokens", "Number of generation tokens processed."),
    _counter(
        "vllm:request_success",
        "Count of successfully processed requests.",
        "finished_reason",
        ("stop", "length", "abort", "error", "repetition"),
    ),
    _counter(
        "vllm:admission_rejections",
        "Number of admission attempts rejected by a queue limit, by reason.",
        "reason",
        ("max_num_queued_reqs", "max_num_queued_tokens"),
    ),
    _histogram("vllm:request_prompt_tokens", "Number of prefill tokens processed."),
    _histogram("vllm:request_generation_tokens", "Number of generation tokens processed."),
    _histogram(
        "vllm:iteration_tokens_total", "Histogram of number of tokens per engine_step.", _ITERATION
    ),
    _histogram(
        "vllm:request_max_num_generation_tokens",
        "Histogram of maximum number of requested generation tokens.",
    ),
    _histogram(
        "vllm:request_params_n",
        "Histogram of the n request parameter.",
        (1.0, 2.0, 5.0, 10.0, 20.0),
    ),
    _histogram("vllm:request_params_max_tokens", "Histogram of the max_tokens request parameter."),
    _histogram(
        "vllm:time_to_first_token_seconds", "Histogram of time to first token in seconds.", _TTFT
    ),
    _histogram(
        "vllm:inter_token_latency_seconds",
        "Histogram of inter-token latency in seconds.",
        _LATENCY,
    ),
    _histogram(
        "vllm:request_time_per_output_token_seconds",
        "Histogram of time_per_output_token_seconds per request.",
        _LATENCY,
    ),
    _histogram(
        "vllm:e2e_request_latency_seconds",
        "Histogram of e2e request latency in seconds.",
        _REQUEST,
    ),
    _histogram(
        "vllm:request_queue_time_seconds",
        "Histogram of time spent in WAITING phase for request.",
        _REQUEST,
    ),
    _histogram(
        "vllm:request_inference_time_seconds",
        "Histogram of time spent in RUNNING phase for request.",
        _REQUEST,
    ),
    _histogram(
        "vllm:request_prefill_time_seconds",
        "Histogram of time spent in PREFILL phase for request.",
        _REQUEST,
    ),
    _histogram(
        "vllm:request_decode_time_seconds",
        "Histogram of time spent in DECODE phase for request.",
        _REQUEST,
    ),
    _histogram(
        "vllm:request_num_preemptions",
        "Histogram of the number of times a request was preempted.",
        (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0),
    ),
    _histogram(
        "vllm:request_prefill_kv_computed_tokens",
        "Histogram of new KV tokens computed during prefill (excluding cached tokens).",
    ),
)
CACHE_CONFIG = ("vllm:cache_config_info", "Information of the LLMEngine CacheConfig")
# What the real page says of an engine like ours; the sizes are filled in.
CACHE_CONFIG_LABELS: dict[str, str] = {
    "_block_size_resolved": "True", "block_size": "16", "cache_dtype": "auto",
    "cache_hit_alignment_tokens": "None", "effective_attention_block_size": "16",
    "enable_mamba_shared_prefix_checkpoint": "False", "enable_prefix_caching": "True",
    "engine": "0", "gpu_memory_utilization": "0.92", "hash_block_size": "None",
    "is_attention_free": "False", "kv_cache_dtype_skip_layers": "[]", "kv_cache_layout": "None",
    "kv_cache_max_concurrency": "", "kv_cache_memory_bytes": "None", "kv_cache_size_tokens": "",
    "kv_offloading_backend": "native", "kv_offloading_size": "None",
    "kv_sharing_fast_prefill": "False", "mamba_block_size": "None", "mamba_cache_dtype": "auto",
    "mamba_cache_mode": "none", "mamba_page_size_padded": "None",
    "mamba_ssm_cache_dtype": "float32",
    "num_cpu_blocks": "None", "num_gpu_blocks": "", "num_gpu_blocks_override": "None",
    "prefix_cache_retention_interval": "0", "prefix_caching_hash_algo": "sha256",
    "prefix_match_unit": "None", "replayssm_buffer_len": "16", "skip_page_size_padded": "None",
    "sliding_window": "None", "swa_bounded_replay": "True", "use_kda_recoverssm": "False",
    "use_replayssm": "False", "user_specified_block_size": "False",
}  # fmt: skip


def length_buckets(longest: int) -> tuple[float, ...]:
    """1, 2, 5, 10, … up to `longest`: vLLM's buckets for token counts."""
    bounds: list[float] = []
    scale = 1
    while scale <= longest:
        bounds += [float(m * scale) for m in (1, 2, 5) if m * scale <= longest]
        scale *= 10
    return tuple(bounds)
