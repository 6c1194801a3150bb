"""Figures of a demo cell, the token check, and the sentence that follows from the figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from breakeven.worksheet import break_even
from breakeven.worksheet import margin as margin_of

from ..replay.results import RunResult

NOTHING = 0.02
"""Margins smaller than this are called neither gain nor loss: one window cannot carry more."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One arm at one rate. Seconds; None is unknown.

    `inflation` = C/T, the cycle over the baseline's, and `margin` = 1 − (C/T)/M, both from the
    engines' own counters at the same rate; `client_margin` is the same from the decode seconds
    per token that the generator saw, with everything that lies between. None for the baseline.
    """

    arm: str
    rate: float
    goodput: float | None
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    tpot_p50_s: float | None
    gap_p99_s: float | None
    m: float | None
    cycle_s: float | None
    s_per_token: float | None
    decode_s: float
    decode_tokens: int
    usd_per_good: float | None
    inflation: float | None
    margin: float | None
    client_margin: float | None
    failed_gates: tuple[str, ...]
    answered: int
    offered: int
    tokens: Tokens


@dataclass(frozen=True, slots=True)
class Tokens:
    """Output tokens of one run as three witnesses counted them."""

    generator: int
    proxy: int | None
    engine: int | None

    @property
    def agree(self) -> bool:
        """All three counted, and counted the same."""
        return self.generator == self.proxy == self.engine


def cell(arm: str, rate: float, result: RunResult, tokens: Tokens, baseline: Cell | None) -> Cell:
    """The figures of one run, beside the baseline's at the same rate."""
    summary = result.summary
    latency, decode, spec = summary["latency"], summary["decode"], summary["speculation"]
    seen = even = None
    if baseline is not None and baseline.s_per_token:
        seen = margin_of(baseline.s_per_token, decode["seconds"], decode["tokens"])
    if baseline is not None and baseline.cycle_s and spec["cycle_s"] and spec["m_counters"]:
        even = break_even(baseline.cycle_s, spec["cycle_s"], spec["m_counters"])
    return Cell(
        arm=arm,
        rate=rate,
        goodput=summary["goodput"]["share"],
        ttft_p50_s=_at(latency["ttft_s"], "p50"),
        ttft_p95_s=_at(latency["ttft_s"], "p95"),
        tpot_p50_s=_at(latency["tpot_s"], "p50"),
        gap_p99_s=_at(latency["gap_s"], "p99"),
        m=spec["m_counters"],
        cycle_s=spec["cycle_s"],
        s_per_token=decode["s_per_token"],
        decode_s=decode["seconds"],
        decode_tokens=decode["tokens"],
        usd_per_good=summary["cost"]["usd_per_good"] if summary["cost"] else None,
        inflation=even.inflation if even is not None else None,
        margin=even.margin if even is not None else None,
        client_margin=seen,
        failed_gates=tuple(result.failed_gates),
        answered=summary["verdicts"]["good"] + _slow(summary["verdicts"]),
        offered=summary["arrivals"]["offered"],
        tokens=tokens,
    )


def _at(found: dict[str, Any] | None, name: str) -> float | None:
    return found[name] if found is not None else None


def _slow(verdicts: dict[str, int]) -> int:
    return sum(n for name, n in verdicts.items() if name.startswith("slow_"))


def verdict(cells: Sequence[Cell]) -> str:
    """One sentence on the candidate, from its margins at the rates that were run."""
    candidates = [c for c in cells if c.margin is not None]
    if not candidates:
        return "No margin could be measured: too few answers carried token counts."
    parts = [_part(c) for c in candidates]
    signs = [_sign(c.margin or 0.0) for c in candidates]
    if len(set(signs)) == 1:
        joined = " and ".join(parts)
    else:
        joined = " but ".join(parts) if -1 in signs else " and ".join(parts)
    name = candidates[0].arm
    return f"On this simulated engine, {name} {joined}; that checks the method and is no evidence."


def _sign(margin: float) -> int:
    return 0 if abs(margin) < NOTHING else (1 if margin > 0 else -1)


def _part(c: Cell) -> str:
    word = {1: "pays", 0: "breaks even", -1: "loses"}[_sign(c.margin or 0.0)]
    text = f"{word} at {c.rate:g}/s (margin {(c.margin or 0.0) * 100:+.0f} %".replace("-", "−")
    if c.inflation is not None and c.m is not None:
        text += f": a cycle costs {c.inflation:.2f}× and commits {c.m:.2f} tokens"
    return text + ")"


def problems(cells: Sequence[Cell], dead: Sequence[str]) -> list[str]:
    """What makes the demo fail: an arm that ended or answered nothing, or unequal token sums."""
    found = [f"{name} ended by itself" for name in dead]
    for c in cells:
        place = f"{c.arm} at {c.rate:g}/s"
        if not c.answered:
            found.append(f"{place} answered nothing")
        if not c.tokens.agree:
            t = c.tokens
            found.append(
                f"{place}: output tokens differ: generator {t.generator}, proxy {t.proxy}, "
                f"engine {t.engine}"
            )
    return found


def as_json(cells: Sequence[Cell], sentence: str, found: Sequence[str]) -> dict[str, Any]:
    """demo.json."""
    return {
        "breakeven_demo": 1,
        "evidence": "method_check",
        "labels": {"engine": "simulated", "content": "synthetic", "acceptance": "synthetic"},
        "cells": [asdict(c) for c in cells],
        "verdict": sentence,
        "problems": list(found),
    }
