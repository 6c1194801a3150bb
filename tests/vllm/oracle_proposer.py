"""A draft whose acceptance and cost are chosen, for the real engine; imported by vLLM, not by us.

    --speculative-config '{"method": "custom_class", "model": "oracle_proposer.OracleProposer",
                           "num_speculative_tokens": 4}'

vLLM's own plug-in point gives the real scheduler, rejection sampler and counters a proposer of
ours: needed on CPU, where `rejection_sample_method=synthetic` is refused. It looks the newest
tokens up in a table of recorded greedy continuations and proposes the next k, each spoilt with
probability 1 − ORACLE_ALPHA. Acceptance is therefore *synthetic*: a run on it is a check of methods
and never evidence.

Environment: ORACLE_TABLE (JSON lines, token id lists), ORACLE_ALPHA (0..1, default 1),
ORACLE_DRAFT_MS (cost of one proposal, default 0), ORACLE_SEED.
"""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path

CONTEXT = 8
"""Tokens that must match for a continuation to be proposed."""


class OracleProposer:
    """The interface that vLLM 0.32 calls: __init__(vllm_config), load_model, propose."""

    def __init__(self, vllm_config) -> None:
        self.k = vllm_config.speculative_config.num_speculative_tokens
        self.vocabulary = vllm_config.model_config.get_vocab_size()
        self.alpha = float(os.environ.get("ORACLE_ALPHA", "1"))
        self.cost_s = float(os.environ.get("ORACLE_DRAFT_MS", "0")) / 1e3
        self.random = random.Random(int(os.environ.get("ORACLE_SEED", "0")))
        self.next: dict[tuple[int, ...], list[int]] = {}
        for line in Path(os.environ["ORACLE_TABLE"]).read_text("utf-8").splitlines():
            ids = json.loads(line)
            for i in range(1, len(ids)):
                self.next[tuple(ids[max(0, i - CONTEXT) : i])] = ids[i : i + self.k]

    def load_model(self, *args, **kwargs) -> None:
        """Nothing to load."""

    def propose(self, sampled_token_ids, num_tokens_no_spec, token_ids_cpu, slot_mappings=None):
        """One list of draft ids per request of the batch, possibly empty."""
        if self.cost_s:
            time.sleep(self.cost_s)
        drafts = []
        for row, sampled in enumerate(sampled_token_ids):
            if not sampled:  # a prefill chunk: nothing to continue yet
                drafts.append([])
                continue
            end = int(num_tokens_no_spec[row])
            newest = tuple(int(t) for t in token_ids_cpu[row, max(0, end - CONTEXT) : end])
            drafts.append([self._spoil(token) for token in self.next.get(newest, [])])
        return drafts

    def _spoil(self, token: int) -> int:
        if self.random.random() < self.alpha:
            return token
        return self.random.randrange(self.vocabulary)
