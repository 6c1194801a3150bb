"""From settings to everything a run needs before it talks to the target.

Here: trace, plan, prompts, output folder; reading files and refusing bad input. Not here: the
network (target), the run itself.
"""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from breakeven.errors import InputError
from breakeven.slo import SLO, parse_goodput
from breakeven.trace import Block

from .. import config as settings
from ..config import ReplayConfig, Shard
from ..traffic.content import (
    Bodies,
    BodyFormat,
    Calibration,
    Prompts,
    TokenIdPrompts,
    WordPrompts,
)
from ..traffic.formats import TraceSource, load_trace
from ..traffic.plan import Plan, PlanSettings, make_plan, split_inflight, take_shard
from .results import WORKERS

if TYPE_CHECKING:
    from ..traffic.pool import Pool, PoolPrompts

MAX_PROMPT_TOKENS = 10_000_000
"""No engine takes a longer prompt, and a few longer ones would not fit in memory."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run that could start now.

    `whole` is the plan of all shards, `plan` this shard's part; `max_inflight` its share of the
    bound. `pool` is None for synthetic prompts.
    """

    config: ReplayConfig
    source: TraceSource
    whole: Plan
    plan: Plan
    shard: Shard
    max_inflight: int
    slo: SLO | None
    pool: Pool | None

    @property
    def block(self) -> Block:
        """Size of the trace's prefix blocks."""
        return self.source.trace.header.block


def prepare(config: ReplayConfig) -> Prepared:
    """Read and check everything; nothing is sent and nothing written.

    Raises:
        InputError: any option or file that cannot be used.
    """
    settings.check(config)
    # An empty text is refused there: an unset shell variable must not turn the SLO off.
    slo = None if config.goodput is None else parse_goodput(config.goodput)
    shard = settings.shard_of(config)
    source = load_trace(
        config.trace,
        skip_empty=config.skip_empty,
        time_unit=config.time_unit,
        block_size=config.block_size,
    )
    arrivals = source.arrivals
    if config.sampling is not None:
        arrivals = tuple(replace(a, sampling=config.sampling) for a in arrivals)
    whole = make_plan(arrivals, plan_settings(config))
    plan = take_shard(whole, shard.number, shard.of)
    pool = _read_pool(config.content) if config.content else None
    prepared = Prepared(
        config,
        source,
        whole,
        plan,
        shard,
        split_inflight(config.max_inflight, shard.number, shard.of),
        slo,
        pool,
    )
    if pool is None:
        _check_lengths(plan)
    else:
        _pool_prompts(prepared, pool)  # a pool that is too small is refused before anything is sent
    return prepared


def _check_lengths(plan: Plan) -> None:
    longest = max((planned.arrival.in_tokens for planned in plan.arrivals), default=0)
    if longest > MAX_PROMPT_TOKENS:
        raise InputError(
            f"a synthetic prompt has at most {MAX_PROMPT_TOKENS} tokens", key="TRACE",
            value=longest, mend="mend the prompt length in the trace",
        )  # fmt: skip


def plan_settings(config: ReplayConfig) -> PlanSettings:
    """The part of the settings that decides which arrivals come when."""
    return PlanSettings(
        arrival=settings.arrival_of(config),
        rate=config.rate,
        duration_s=config.duration,
        requests=config.requests,
        warmup_s=config.warmup,
        window_s=settings.window_of(config),
        skip=config.skip,
        gap_cap_s=config.gap_cap,
        cancel_share=config.cancel_share,
        seed=config.seed,
        block=config.block,
    )


def needs_calibration(prepared: Prepared) -> bool:
    """Synthetic words need to know how the target counts tokens."""
    return prepared.pool is None and settings.endpoint_of(prepared.config) == "chat"


def bodies(prepared: Prepared, model: str, calibration: Calibration | None) -> Bodies:
    """The builder of this run's request bodies."""
    config = prepared.config
    prompts: Prompts
    key = hashlib.blake2b(b"synthetic", digest_size=32).digest()
    if prepared.pool is not None:
        prompts, key = _pool_prompts(prepared, prepared.pool), prepared.pool.key
    elif calibration is not None:
        endpoint = settings.endpoint_of(config)
        prompts = WordPrompts(config.seed, config.block, prepared.block, calibration, endpoint)
    else:
        ids = settings.token_ids_of(config)
        prompts = TokenIdPrompts(config.seed, config.block, prepared.block, ids)
    body_format = BodyFormat(model, settings.forced_length(config), config.seed)
    return Bodies(prompts, body_format, key)


def _read_pool(path: str) -> Pool:
    from ..traffic.pool import read_pool  # here: a run without --content starts sooner

    return read_pool(path)


def _pool_prompts(prepared: Prepared, pool: Pool) -> PoolPrompts:
    from ..traffic.pool import PoolPrompts  # here: as in _read_pool

    config = prepared.config
    return PoolPrompts(
        pool,
        prepared.whole.arrivals,
        seed=config.seed,
        block=config.block,
        endpoint=settings.endpoint_of(config),
        reuse=config.reuse_content,
        label=config.content_label,
    )


def make_folder(out: str, force: bool) -> Path:
    """The result folder, empty.

    Raises:
        InputError: it cannot be made, or holds something and `force` is not set.
    """
    folder = Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held = sorted(path.name for path in folder.iterdir())
    except (OSError, ValueError) as error:  # ValueError: a NUL byte
        why = (isinstance(error, OSError) and error.strerror) or error
        raise InputError(
            f"cannot be used as a folder: {why}", key="--out", value=out,
            mend="choose another folder",
        ) from None  # fmt: skip
    if held and not force:
        raise InputError(
            f"the folder holds {held[0]}{' and more' if len(held) > 1 else ''}",
            key="--out",
            value=out,
            mend="choose an empty folder, or pass --force to overwrite its results",
        )
    return folder


def drop_if_empty(folder: Path) -> None:
    """A run that sent nothing leaves no folder behind; one that holds anything stays."""
    workers = folder / WORKERS
    for path in (*sorted(workers.glob("*")), workers, folder):
        with contextlib.suppress(OSError):
            path.rmdir()
