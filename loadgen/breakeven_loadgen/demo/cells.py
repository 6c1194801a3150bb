"""The demo's plan: two arms, two rates, one slice of a public trace.

Here: names and numbers of what is run. Not here: running (loop), figures (figures).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PRESET = "8b-h100"
TRACE = Path(__file__).parents[1] / "data" / "azure-2023-conv-head1000.csv"
"""Azure 2023 conversation trace, first 1,000 rows, CC-BY-4.0 (licence beside it)."""
TRACE_WORDS = "Azure 2023 conversation trace (CC-BY-4.0)"
GOODPUT = "ttft:500ms,tpot:30ms,gap_p99:250ms,e2e:20s"
"""A prefill of 8,192 tokens alone takes 170 ms of this model, so no arm could keep a gap of 100."""
USD_PER_HOUR = 3.0
"""Assumed price of one H100 replica."""


@dataclass(frozen=True, slots=True)
class ArmPlan:
    """One engine: its name, what it drafts with, and the flags of the simulated engine."""

    name: str
    role: str
    flags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Load:
    """One offered rate: arrivals per second over a window of seconds."""

    rate: float
    window_s: float


BASELINE = ArmPlan("baseline", "baseline", ())
CANDIDATE = ArmPlan("ngram-k5", "candidate", ("--draft", "ngram", "--k", "5"))
ARMS = (BASELINE, CANDIDATE)
LOADS = (Load(2.0, 9.0), Load(28.0, 7.0))
