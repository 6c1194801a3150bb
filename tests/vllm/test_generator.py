"""Generator, proxy and real engine on the same traffic: tokens, cycles and M reconciled."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.leaks import leaks_in_folder
from tests.vllm.engine import ARMS, BASELINE, CANDIDATES, Engine, K
from tests.vllm.prompts import CANARY, OUTPUT_TOKENS, PROMPTS
from tests.vllm.shells import arm_settings, proxy, replay, write_traffic
from tests.vllm.solo import settled_counters

from breakeven.engine_metrics import delta


@pytest.mark.parametrize("arm_name", ARMS)
def test_every_side_counts_the_same_tokens_and_cycles(arm: Engine, tmp_path: Path) -> None:
    """Without cancellations generator = proxy = engine: tokens, drafts, accepted tokens; and M.

    Under load the engine's front end merges events, so the stream's M is only an estimate: it is
    named so, and never below the counters'.
    """
    traffic = write_traffic(tmp_path, arrivals=len(PROMPTS))
    before = settled_counters(arm.url)
    with proxy(tmp_path, {arm.name: arm_settings(arm)}) as front:
        metrics = ("--metrics-url", f"{arm.url}/metrics", "--arm", arm.name)
        run = replay(front.url, traffic, tmp_path / "out", *metrics)
        engine = delta(before, settled_counters(arm.url))
        tokens = run.total("output_tokens")

        assert run.status in (0, 4), run.printed  # 4: a busy machine may miss a timing gate
        assert run.verdicts() == {"good": len(PROMPTS)}
        assert front.verdicts(arm=arm.name) == {"good": len(PROMPTS)}
        assert tokens == len(PROMPTS) * OUTPUT_TOKENS
        assert front.total("completion_tokens_total", arm=arm.name) == tokens == engine.g
        prompts = run.total("prompt_tokens")
        assert front.total("prompt_tokens_total", arm=arm.name) == prompts
        assert engine.counters["prompt_tokens"] == prompts

        gates = {gate["name"]: gate for gate in run.summary["gates"]}
        assert gates["tokens"]["passed"] is True, gates["tokens"]
        figures = gates["accounting"]["figures"]  # the gate itself is about times
        assert figures["rows"] == figures["offered"] == len(PROMPTS)
        found = run.summary["speculation"]
        assert found["m_counters"] == engine.m
        assert engine.m is not None
        assert found["m_stream_estimate"] >= engine.m * (1 - 1e-12)

        block = {"arm": arm.name, "source": "block"}
        assert front.total("spec_draft_tokens_total", **block) == (engine.draft_tokens or 0)
        assert front.total("spec_accepted_tokens_total", **block) == (engine.accepted or 0)
        drafted = front.total("spec_cycles_by_accepted_length_total", arm=arm.name)
        assert drafted == (engine.drafts or 0)
        assert run.total("spec_cycles") == (engine.drafts or 0)
        assert run.total("spec_drafted") == (engine.draft_tokens or 0)
        assert run.total("spec_accepted") == (engine.accepted or 0)
        if arm.name == BASELINE:
            assert engine.m == 1.0
            assert front.total("spec_reports_total", arm=arm.name, present="yes") == 0
        else:
            assert front.total("spec_reports_total", arm=arm.name, present="yes") == len(PROMPTS)
            assert engine.s is not None
            cycles = front.total("spec_cycles_total", **block)
            # Merged events hide the cut last cycle of an answer, never more.
            assert 0 <= engine.s - cycles <= K * len(PROMPTS)
    assert leaks_in_folder(tmp_path / "out", CANARY) == []


@pytest.mark.parametrize("arm_name", [BASELINE, *CANDIDATES])
def test_with_cancellations_the_engine_made_a_little_more(arm: Engine, tmp_path: Path) -> None:
    """0 ≤ engine − proxy ≤ engine − client, and no more than what the cancelled had left to get."""
    asked = 40
    traffic = write_traffic(tmp_path, arrivals=8, out_tokens=asked)
    before = settled_counters(arm.url)
    with proxy(tmp_path, {arm.name: arm_settings(arm)}) as front:
        metrics = ("--metrics-url", f"{arm.url}/metrics", "--cancel-share", "0.6", "--seed", "3")
        run = replay(front.url, traffic, tmp_path / "out", *metrics)
        made = delta(before, settled_counters(arm.url)).g
        through = front.total("completion_tokens_total", arm=arm.name)
        at_proxy = front.verdicts(arm=arm.name)
    cancelled = [row for row in run.rows if row["verdict"] == "cancelled"]
    assert made is not None
    assert run.status in (0, 4), run.printed
    assert run.verdicts() == {"cancelled": len(cancelled), "good": 8 - len(cancelled)}
    assert len(cancelled) >= 2
    assert sum(at_proxy.values()) == 8
    assert set(at_proxy) <= {"cancelled", "good"}
    received = run.total("output_tokens")
    left = sum(asked - row["output_tokens"] for row in cancelled)
    print(f"{arm.name}: engine {made:g}, proxy {through:g}, client {received}, left {left}")
    assert 0 <= made - through <= made - received <= left
    assert made < 8 * asked, "cancelling saved nothing"
    gates = {gate["name"]: gate for gate in run.summary["gates"]}
    assert gates["tokens"]["passed"] is True, gates["tokens"]
