"""Figures of one run and one cohort: sums, shares and quantiles that blocks are compared by.

Here: arithmetic over one run's measured rows. Not here: files (dataset), comparing (assess).
What is unknown is NaN in an array and None in a figure; a share without requests is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from breakeven.slo import OUTSIDE_GOODPUT, SLO, Verdict

from ..replay.columns import Columns
from ..replay.quantiles import plain
from ..replay.summary import FAILED

Floats = NDArray[np.float64]
Words = NDArray[np.str_]
Mask = NDArray[np.bool_]

PROMPT_CLASSES = (("prompt<1k", 0, 1024), ("prompt 1k-8k", 1024, 8192), ("prompt>8k", 8192, None))
"""Cohorts by context length: acceptance can decay with it while the mean looks well."""
MIN_COHORT_ROWS = 3
"""A cohort of fewer answers in a run is left out of that block."""
MISFORMED = (Verdict.MALFORMED.value, Verdict.TRUNCATED.value)

_FLOATS = (
    "ttft_s", "tpot_s", "gap_p99_s", "gap_max_s", "e2e_s", "decode_s", "decode_tokens", "events",
    "prompt_tokens", "output_tokens", "block_cycles", "max_burst_tokens",
)  # fmt: skip


COLUMNS = (*_FLOATS, "cohort", "verdict", "finish_reason", "sampling", "stream", "warmup",
           "content_hash", "system_fingerprint")  # fmt: skip
"""Columns of requests.parquet that the judge reads."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Measured (not warm-up) rows of one run as arrays of shape (rows,).

    `numbers` holds the columns of _FLOATS, NaN where unknown; `cohort`, `verdict`, `finish` and
    `sampling` are words, "" where unknown; `stream` marks streams.
    """

    numbers: Mapping[str, Floats]
    cohort: Words
    verdict: Words
    finish: Words
    sampling: Words
    stream: Mask

    def __len__(self) -> int:
        return len(self.cohort)

    def __getitem__(self, name: str) -> Floats:
        return self.numbers[name]

    def where(self, mask: Mask) -> Rows:
        """The rows for which the mask is true."""
        return Rows(
            {name: values[mask] for name, values in self.numbers.items()},
            self.cohort[mask],
            self.verdict[mask],
            self.finish[mask],
            self.sampling[mask],
            self.stream[mask],
        )

    @classmethod
    def of(cls, columns: Columns) -> Rows:
        """From a result folder's rows; warm-up is left out."""
        measured = columns.where(~columns.flags("warmup"))

        def words(name: str) -> Words:
            return np.array([word or "" for word in measured.words(name)], np.str_)

        return cls(
            {name: measured.numbers(name) for name in _FLOATS},
            words("cohort"),
            words("verdict"),
            words("finish_reason"),
            words("sampling"),
            measured.flags("stream"),
        )


@dataclass(frozen=True, slots=True)
class Figures:
    """One run, one cohort. Sums are additive over runs; see `plus`.

    Attributes:
        offered: arrivals that count for goodput (not cancelled, not interrupted).
        good, failed, misformed: of those; failed got no whole answer, misformed broke a contract.
        slow: verdict-independent counts of answers over each SLO bound, by kind.
        decode_s, decode_tokens: over whole answers with known counts.
        steps: engine outputs after the first, over answers whose tokens are counted.
        step_tokens: tokens after the first of those.
        block_steps, block_tokens: cycles by the response's own speculation block, and the tokens
            after the first of the same answers; 0 without such blocks.
        ttft_s, tpot_s, gap_s, e2e_s: {"p50", "p95", "p99"} of answered requests; None without.
        ttft_sum_s, e2e_sum_s: sums over answered streams, for TTFT's share of a response.
    """

    rows: int
    offered: int
    good: int
    failed: int
    misformed: int
    cancelled: int
    slow: Mapping[str, int]
    decode_s: float
    decode_tokens: float
    steps: float
    step_tokens: float
    block_steps: float
    block_tokens: float
    prompt_tokens: float
    output_tokens: float
    finish: Mapping[str, int]
    ttft_s: Mapping[str, float] | None
    tpot_s: Mapping[str, float] | None
    gap_s: Mapping[str, float] | None
    e2e_s: Mapping[str, float] | None
    ttft_sum_s: float
    e2e_sum_s: float
    median_output: float | None
    max_burst_tokens: float | None

    @property
    def s_per_token(self) -> float:
        """Decode seconds per token, a ratio of sums; NaN without tokens."""
        return self.decode_s / self.decode_tokens if self.decode_tokens > 0 else float("nan")

    @property
    def goodput(self) -> float:
        """good / offered; NaN without arrivals."""
        return self.good / self.offered if self.offered else float("nan")

    @property
    def m(self) -> float | None:
        """Committed tokens per cycle from the stream (one event per step): an estimate."""
        return self.step_tokens / self.steps if self.steps > 0 else None

    def share(self, count: int) -> float:
        """count / offered; NaN without arrivals."""
        return count / self.offered if self.offered else float("nan")


def figures(rows: Rows, slo: SLO) -> Figures:
    """Figures of these rows (already those of one cohort)."""
    judged = ~np.isin(rows.verdict, [v.value for v in OUTSIDE_GOODPUT])
    failed = np.isin(rows.verdict, [v.value for v in FAILED])
    answered = judged & ~failed
    whole = answered & (rows["decode_tokens"] > 0) & np.isfinite(rows["decode_s"])
    steps = rows["events"] - 1
    counted = whole & (steps > 0)
    streams = answered & rows.stream & np.isfinite(rows["ttft_s"]) & np.isfinite(rows["e2e_s"])
    spec = whole & (rows["block_cycles"] > 0)
    outputs = rows["output_tokens"][answered]
    bursts = rows["max_burst_tokens"][answered]
    return Figures(
        rows=len(rows),
        offered=int(np.sum(judged)),
        good=int(np.sum(rows.verdict == Verdict.GOOD.value)),
        failed=int(np.sum(failed & judged)),
        misformed=int(np.sum(np.isin(rows.verdict, MISFORMED))),
        cancelled=int(np.sum(~judged)),
        slow=_slow(rows, answered, slo),
        decode_s=float(np.sum(rows["decode_s"][whole])),
        decode_tokens=float(np.sum(rows["decode_tokens"][whole])),
        steps=float(np.sum(steps[counted])),
        step_tokens=float(np.sum(rows["decode_tokens"][counted])),
        block_steps=float(np.sum(rows["block_cycles"][spec])),
        block_tokens=float(np.sum(rows["decode_tokens"][spec])),
        prompt_tokens=float(np.nansum(rows["prompt_tokens"])),
        output_tokens=float(np.nansum(outputs)),
        finish=_counts(rows.finish[answered]),
        ttft_s=_quantiles(rows["ttft_s"][answered & rows.stream]),
        tpot_s=_quantiles(rows["tpot_s"][answered]),
        gap_s=_quantiles(rows["gap_p99_s"][answered]),
        e2e_s=_quantiles(rows["e2e_s"][answered]),
        ttft_sum_s=float(np.sum(rows["ttft_s"][streams])),
        e2e_sum_s=float(np.sum(rows["e2e_s"][streams])),
        median_output=float(np.nanmedian(outputs)) if np.any(np.isfinite(outputs)) else None,
        max_burst_tokens=float(np.nanmax(bursts)) if np.any(np.isfinite(bursts)) else None,
    )


def _slow(rows: Rows, answered: Mask, slo: SLO) -> dict[str, int]:
    """Answers over each bound; only e2e applies to what is no stream."""
    out: dict[str, int] = {}
    for name, bound in slo.bounds().items():
        applies = answered if name == "e2e_s" else answered & rows.stream
        out[name] = int(np.sum(rows[name][applies] > bound))
    return out


def _counts(words: Words) -> dict[str, int]:
    names, counts = np.unique(words, return_counts=True)
    return {str(name): int(count) for name, count in zip(names, counts, strict=True)}


def _quantiles(values: Floats) -> dict[str, float] | None:
    found = plain(values)
    return None if found is None else {name: found[name] for name in ("p50", "p95", "p99")}


def cohorts(rows: Rows) -> dict[str, Mask]:
    """Masks of the cohorts of a run: configured ones, and by prompt length.

    A single configured cohort is the whole and is not repeated.
    """
    out: dict[str, Mask] = {}
    names = [str(name) for name in np.unique(rows.cohort)]
    if len(names) > 1:
        out |= {name: rows.cohort == name for name in names}
    lengths = rows["prompt_tokens"]
    by_length: dict[str, Mask] = {}
    for name, low, high in PROMPT_CLASSES:
        by_length[name] = (lengths >= low) & (lengths < (high if high is not None else np.inf))
    big = {name: mask for name, mask in by_length.items() if np.sum(mask) >= MIN_COHORT_ROWS}
    if len(big) > 1:
        out |= big
    return out


def summed(parts: list[Figures]) -> Figures:
    """Several runs as one by their sums; quantiles are those of the worst part.

    Raises:
        ValueError: nothing to sum.
    """
    out = parts[0]
    for part in parts[1:]:
        out = replace(
            out,
            rows=out.rows + part.rows,
            offered=out.offered + part.offered,
            good=out.good + part.good,
            failed=out.failed + part.failed,
            misformed=out.misformed + part.misformed,
            cancelled=out.cancelled + part.cancelled,
            slow={k: out.slow.get(k, 0) + v for k, v in part.slow.items()},
            decode_s=out.decode_s + part.decode_s,
            decode_tokens=out.decode_tokens + part.decode_tokens,
            steps=out.steps + part.steps,
            step_tokens=out.step_tokens + part.step_tokens,
            block_steps=out.block_steps + part.block_steps,
            block_tokens=out.block_tokens + part.block_tokens,
            prompt_tokens=out.prompt_tokens + part.prompt_tokens,
            output_tokens=out.output_tokens + part.output_tokens,
            finish={k: out.finish.get(k, 0) + part.finish.get(k, 0)
                    for k in {*out.finish, *part.finish}},
            ttft_s=_worst(out.ttft_s, part.ttft_s),
            tpot_s=_worst(out.tpot_s, part.tpot_s),
            gap_s=_worst(out.gap_s, part.gap_s),
            e2e_s=_worst(out.e2e_s, part.e2e_s),
            ttft_sum_s=out.ttft_sum_s + part.ttft_sum_s,
            e2e_sum_s=out.e2e_sum_s + part.e2e_sum_s,
            median_output=_mean(out.median_output, part.median_output),
            max_burst_tokens=_max(out.max_burst_tokens, part.max_burst_tokens),
        )  # fmt: skip
    return out


def _max(a: float | None, b: float | None) -> float | None:
    return b if a is None else a if b is None else max(a, b)


def _mean(a: float | None, b: float | None) -> float | None:
    return b if a is None else a if b is None else (a + b) / 2


def _worst(
    a: Mapping[str, float] | None, b: Mapping[str, float] | None
) -> Mapping[str, float] | None:
    if a is None or b is None:
        return a or b
    return {name: max(a[name], b[name]) for name in a}
