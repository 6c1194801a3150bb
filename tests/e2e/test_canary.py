"""A canary in prompts and completions reaches no log, metric, result file, report or crash output.

The engine of the test answers with the canary in every place where text can stand. The generator
sends it from a content pool, with an Authorization value and customer ids beside it, straight and
through the proxy; then everything that both left behind is decoded and searched.
"""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest
from tests.support import processes
from tests.support.canary_engine import CanaryEngine
from tests.support.leaks import leaks_in_bytes, leaks_in_folder

CANARY = "Kanarienvögel-7f3a"
TOKEN = "sk-secret-9c1d2e"


def pool(path: Path) -> Path:
    """A content pool whose every prompt, customer field and contract holds the canary."""
    rows = [
        {"messages": [{"role": "user", "content": f"{i} {CANARY} " + "word " * 30}]}
        for i in range(40)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def replay(url: str, folder: Path, *extra: str) -> str:
    """Runs the generator at this URL; returns what it printed."""
    done = processes.run(
        "loadgen", "replay", "synthetic:in=40,out=2", "--url", url, "--model", "m",
        "--rate", "30", "--requests", "36", "--arrival", "constant", "--endpoint", "chat",
        "--content", str(pool(folder.parent / "pool.jsonl")), "--out", str(folder),
        "--header", f"X-Request-Id: {CANARY.encode('ascii', 'replace').decode()}",
        "--header", f"Authorization: Bearer {TOKEN}", *extra,
    )  # fmt: skip
    assert (folder / "requests.parquet").exists(), done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def engine() -> CanaryEngine:
    return CanaryEngine(CANARY)


def test_the_generator_writes_no_text_anywhere(engine: CanaryEngine, tmp_path: Path) -> None:
    """Result folder, spool, report, terminal: no prompt, completion, error body or key."""
    folder = tmp_path / "out"
    with engine.listening() as url:
        printed = replay(url, folder, "--metrics-url", f"{url}/metrics")
        printed += processes.run("loadgen", "report", str(folder)).stdout
    assert engine.prompts_with_canary == len(engine.served) >= 36
    for secret in (CANARY, TOKEN):
        assert leaks_in_bytes("terminal", printed.encode(), secret) == []
        assert leaks_in_folder(folder, secret) == []


def test_the_proxy_writes_no_text_anywhere(engine: CanaryEngine, tmp_path: Path) -> None:
    """Logs, metrics, status, trace files and spans of the proxy hold no text of anyone."""
    traces = tmp_path / "traces"
    traces.mkdir()
    with engine.listening() as url:
        config = tmp_path / "proxy.yaml"
        config.write_text(
            f"""
listen: 127.0.0.1:0
admin: 127.0.0.1:0
token_counts: request
arms:
  baseline: {{url: "{url}", role: baseline, metrics_urls: ["{url}/metrics"]}}
routing: {{policy: single, arm: baseline}}
trace_recording: {{directory: "{traces}"}}
tracing: {{endpoint: "{url}/otlp/v1/traces", sample_ratio: 1.0}}
""",
            "utf-8",
        )
        with processes.running("breakeven-proxy", "serve", "--config", str(config)) as proxy:
            replay(proxy.urls[0], tmp_path / "out")
            pages = [
                urllib.request.urlopen(proxy.urls[1] + path).read()
                for path in ("/metrics", "/status", "/engine/metrics?arm=baseline")
            ]
            proxy.end()
            said = proxy.text()
    assert engine.prompts_with_canary == len(engine.served) >= 36
    assert engine.spans, "no span arrived: the search would prove nothing"
    assert list(traces.iterdir()), "no trace file: the search would prove nothing"
    assert '"event"' in said
    for secret in (CANARY, TOKEN):
        assert leaks_in_bytes("log", said.encode(), secret) == []
        assert leaks_in_folder(traces, secret) == []
        for page in pages:
            assert leaks_in_bytes("page", page, secret) == []
        for span in engine.spans:
            assert leaks_in_bytes("span", span, secret) == []
