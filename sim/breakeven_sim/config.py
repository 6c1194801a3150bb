"""The one config of `breakeven-sim serve`, built once by the CLI."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from hashlib import blake2b

from .defaults import (
    DEFAULT_MAX_MODEL_LEN,
    DEFAULT_MODEL,
    MAX_NUM_BATCHED_TOKENS,
    MAX_NUM_SEQS,
)
from .drafts import DEFAULT_K, draft_named
from .engine import EngineConfig
from .errors import SimInputError
from .faults import Fault
from .kv import BLOCK_TOKENS
from .model import engine_named
from .options import Options
from .wire import VERSION


def engine_config(
    preset: str,
    draft: str = "none",
    k: int | None = None,
    *,
    seed: int = 0,
    k_by_batch: tuple[tuple[int, int, int], ...] = (),
    max_num_seqs: int = MAX_NUM_SEQS,
    max_num_batched_tokens: int = MAX_NUM_BATCHED_TOKENS,
    prefix_caching: bool = True,
    kv_tokens: int | None = None,
) -> EngineConfig:
    """An EngineConfig from names; `k` None is the draft's usual depth. Raises SimInputError."""
    engine = engine_named(preset)
    if kv_tokens is not None:
        engine = replace(engine, kv_tokens=kv_tokens)
    method = draft_named(draft, engine.size)
    if method is None and k:
        raise SimInputError(f"--k {k} with --draft none: choose a draft, or leave --k out")
    if method is None:
        k = 0
    elif k is None:
        k = DEFAULT_K.get(draft, len(method.conditional))
    if method is not None and k < 1:
        raise SimInputError(f"--k {k}: give at least 1, or --draft none")
    return EngineConfig(
        engine=engine,
        draft=method,
        k=0 if k_by_batch else k,
        k_by_batch=k_by_batch,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        prefix_caching=prefix_caching,
        seed=seed,
    )


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """What `breakeven-sim serve` runs."""

    engine: EngineConfig
    host: str = "127.0.0.1"
    port: int = 0
    draft: str = "none"
    model: str = DEFAULT_MODEL
    max_model_len: int = DEFAULT_MAX_MODEL_LEN
    time_scale: float = 1.0
    options: Options = field(default_factory=Options)
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    sse_keep_alive_interval_s: float | None = None
    faults: tuple[Fault, ...] = ()

    @property
    def context_tokens(self) -> int:
        """The longest prompt + output that can run: max_model_len, or what the KV cache holds."""
        pool = self.engine.kv_capacity_tokens // BLOCK_TOKENS * BLOCK_TOKENS
        return min(self.max_model_len, pool - self.engine.max_k - 1)

    @property
    def fingerprint(self) -> str:
        """Differs per engine configuration, as vLLM's does, and says that it is simulated."""
        digest = blake2b(repr((self.engine, self.max_model_len)).encode(), digest_size=4)
        return f"vllm-{VERSION}-{digest.hexdigest()}"
