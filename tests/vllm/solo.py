"""Runs at concurrency 1, straight at the engine: what the identities are checked on."""

from __future__ import annotations

from dataclasses import dataclass

from tests.vllm.client import USAGE, Streamed, ask, completion, counters, stream, until
from tests.vllm.prompts import PROMPTS

from breakeven.engine_metrics import EngineCounters, EngineDelta, delta


@dataclass(frozen=True, slots=True)
class GreedyAnswer:
    """One greedy answer of the baseline: ids, and per token best minus second-best logprob."""

    prompt_ids: list[int]
    ids: list[int]
    top_gaps: list[float]


Reference = list[GreedyAnswer]


def record_reference(url: str) -> Reference:
    """Greedy answers to every prompt, with the two best log-probabilities of each token."""
    answers = []
    for prompt in PROMPTS:
        body = completion(prompt, logprobs=2, return_token_ids=True)
        choice = ask(url, "POST", "/v1/completions", body).json()["choices"][0]
        gaps = []
        for candidates in choice["logprobs"]["top_logprobs"]:
            best, second = sorted(candidates.values(), reverse=True)[:2]
            gaps.append(best - second)
        answers.append(GreedyAnswer(choice["prompt_token_ids"], choice["token_ids"], gaps))
    return answers


@dataclass(frozen=True, slots=True)
class Solo:
    """Every prompt, one at a time, streamed; and the engine's counters around it."""

    before: EngineCounters
    after: EngineCounters
    streams: list[Streamed]

    @property
    def engine(self) -> EngineDelta:
        return delta(self.before, self.after)

    @property
    def merged_reads(self) -> int:
        return sum(s.report.merged_reads for s in self.streams)


def settled_counters(url: str) -> EngineCounters:
    """The counters once nothing runs or waits: in flight, a page stands between two steps."""
    until(lambda: idle(url))
    return counters(url)


def idle(url: str) -> bool:
    """Whether the engine says that no request runs or waits."""
    gauges = counters(url).gauges
    return gauges["requests_running"] == 0 and gauges["requests_waiting"] == 0


def run_solo(url: str) -> Solo:
    """All prompts one after another, with cumulative usage and token ids in every event."""
    before = settled_counters(url)
    streams = [
        stream(url, completion(prompt, stream_options=USAGE, return_token_ids=True))
        for prompt in PROMPTS
    ]
    return Solo(before, settled_counters(url), streams)
