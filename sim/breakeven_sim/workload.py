"""What the offline sweep plays: arrivals with lengths, made up or read from a public trace.

An own reader on purpose: the simulator stays an independent witness of the other rooms.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import numpy as np

from .defaults import (
    OUTPUT_CLIP,
    OUTPUT_MEDIAN,
    OUTPUT_SIGMA,
    PROMPT_CLIP,
    PROMPT_MEDIAN,
    PROMPT_SIGMA,
)
from .errors import SimInputError
from .kv import BLOCK_TOKENS

# Tokens that one of Mooncake's block hashes stands for.
MOONCAKE_BLOCK = 512
_TIME = ("TIMESTAMP", "arrived_at", "timestamp", "t")
_PROMPT = ("ContextTokens", "num_prefill_tokens", "input_length", "in")
_OUTPUT = ("GeneratedTokens", "num_decode_tokens", "output_length", "out")


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request: when (seconds from the start), prompt and output tokens, prefix-cache keys."""

    t_s: float
    prompt_tokens: int
    output_tokens: int
    block_keys: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Lengths:
    """Log-normal token counts of a made-up workload."""

    prompt_median: float = PROMPT_MEDIAN
    prompt_sigma: float = PROMPT_SIGMA
    prompt_clip: tuple[int, int] = PROMPT_CLIP
    output_median: float = OUTPUT_MEDIAN
    output_sigma: float = OUTPUT_SIGMA
    output_clip: tuple[int, int] = OUTPUT_CLIP


MAX_ARRIVALS = 1_000_000
"""More would play for hours: a slip in the rate."""


def poisson(
    rate_per_s: float, duration_s: float, seed: int, lengths: Lengths | None = None
) -> list[Arrival]:
    """Poisson arrivals over `duration_s` with log-normal lengths; the same for every arm."""
    shape = lengths or Lengths()
    if not 0 < rate_per_s < math.inf:
        raise SimInputError(f"rate {rate_per_s}: give a positive number of requests per second")
    if rate_per_s * duration_s > MAX_ARRIVALS:
        raise SimInputError(
            f"rate {rate_per_s:g} over {duration_s:g} s: more than {MAX_ARRIVALS} arrivals; "
            "give a lower rate or a shorter duration"
        )
    random = np.random.default_rng(seed)
    times: list[float] = []
    now = random.exponential(1 / rate_per_s)
    while now < duration_s:
        times.append(now)
        now += random.exponential(1 / rate_per_s)

    def draw(median: float, sigma: float, clip: tuple[int, int]) -> list[int]:
        values = median * np.exp(sigma * random.standard_normal(len(times)))
        return [int(v) for v in np.clip(np.rint(values), *clip)]

    prompts = draw(shape.prompt_median, shape.prompt_sigma, shape.prompt_clip)
    outputs = draw(shape.output_median, shape.output_sigma, shape.output_clip)
    return [Arrival(t, p, o) for t, p, o in zip(times, prompts, outputs, strict=True)]


def at_rate(arrivals: list[Arrival], rate_per_s: float) -> list[Arrival]:
    """The same arrivals, time scaled to a mean rate: a trace keeps its shape."""
    if len(arrivals) < 2:
        raise SimInputError(f"a trace of {len(arrivals)} arrivals has no rate: give at least 2")
    first, span = arrivals[0].t_s, arrivals[-1].t_s - arrivals[0].t_s
    if span <= 0:
        raise SimInputError("all arrivals of the trace are at one time: it has no rate to scale")
    factor = (len(arrivals) - 1) / rate_per_s / span
    return [
        Arrival((a.t_s - first) * factor, a.prompt_tokens, a.output_tokens, a.block_keys)
        for a in arrivals
    ]


def read_trace(path: Path) -> list[Arrival]:
    """Arrivals of a CSV (Azure, Vidur) or JSONL (redacted trace, Mooncake) file, columns by name.

    Raises SimInputError with file, line, value and the mend.
    """
    try:
        text = path.read_text("utf-8-sig")  # some editors write a byte order mark
    except OSError as error:
        raise SimInputError(f"{path}: cannot read the trace: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SimInputError(f"{path}: not UTF-8: convert the trace") from None
    rows = _json_rows(path, text) if path.suffix == ".jsonl" else _csv_rows(text)
    arrivals = [_arrival(path, line, row) for line, row in rows]
    if not arrivals:
        raise SimInputError(f"{path}: no arrivals: is it a trace?")
    for line, (before, after) in enumerate(pairwise(arrivals), 2):
        if after.t_s < before.t_s:
            raise SimInputError(
                f"{path}: arrival {line} is before arrival {line - 1}: sort by time"
            )
    return arrivals


Rows = Iterable[tuple[int, dict[str, object]]]


def _csv_rows(text: str) -> Rows:
    reader = csv.DictReader(text.splitlines())
    return [(reader.line_num, dict(row)) for row in reader]


def _json_rows(path: Path, text: str) -> Rows:
    rows: list[tuple[int, dict[str, object]]] = []
    for line, words in enumerate(text.splitlines(), 1):
        if not words.strip():
            continue
        try:
            row = json.loads(words)
        except ValueError as error:
            raise SimInputError(f"{path}:{line}: not JSON: {error}") from None
        if not isinstance(row, dict):
            raise SimInputError(f"{path}:{line}: write one JSON object per line")
        if "breakeven_trace" not in row:
            rows.append((line, row))
    return rows


def _arrival(path: Path, line: int, row: dict[str, object]) -> Arrival:
    def pick(names: tuple[str, ...]) -> tuple[str, object]:
        for name in names:
            if row.get(name) not in (None, ""):
                return name, row[name]
        raise SimInputError(f"{path}:{line}: no column of {', '.join(names)}")

    def tokens(names: tuple[str, ...]) -> int:
        name, value = pick(names)
        try:
            count = int(str(value))
        except ValueError:
            count = 0
        if count < 1:
            raise SimInputError(f"{path}:{line}: {name}={value!r}: give a whole number ≥ 1")
        return count

    name, when = pick(_TIME)
    # Mooncake's `timestamp` counts milliseconds.
    seconds = _seconds(path, line, when) / (1e3 if name == "timestamp" else 1)
    prompt = tokens(_PROMPT)
    return Arrival(seconds, prompt, tokens(_OUTPUT), _block_keys(row, prompt))


def _block_keys(row: dict[str, object], prompt_tokens: int) -> tuple[int, ...]:
    """Keys of the engine's blocks from a trace's coarser ones.

    Mooncake's `hash_ids` stand for 512 tokens each. A redacted trace's `prefix` stands for blocks
    of message bytes: the prompt's tokens are spread evenly over them (no tokenizer is needed).
    """
    ids = row.get("hash_ids", row.get("prefix"))
    if not isinstance(ids, list) or not ids:
        return ()
    size = MOONCAKE_BLOCK if "hash_ids" in row else max(prompt_tokens // len(ids), BLOCK_TOKENS)
    keys = [hash((key, part)) for key in ids for part in range(size // BLOCK_TOKENS)]
    return tuple(keys[: prompt_tokens // BLOCK_TOKENS])


def _seconds(path: Path, line: int, value: object) -> float:
    text = str(value)
    try:
        seconds = float(text)
    except ValueError:
        try:
            head, _, fraction = text.partition(".")
            moment = datetime.fromisoformat(head).replace(tzinfo=UTC)
            seconds = moment.timestamp() + float(f"0.{fraction or 0}")
        except ValueError:
            raise SimInputError(
                f"{path}:{line}: time {text!r}: write seconds or YYYY-MM-DD HH:MM:SS"
            ) from None
    if not math.isfinite(seconds):
        raise SimInputError(f"{path}:{line}: time {text!r}: give a finite number")
    return seconds
