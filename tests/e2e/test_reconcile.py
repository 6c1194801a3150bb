"""Generator, proxy and engine agree on every token; streams and non-streams, both endpoints."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.support import processes

from breakeven.exposition import parse_page


def total(url: str, name: str) -> float:
    """Sum of all series of one name on a /metrics page."""
    with urllib.request.urlopen(f"{url}/metrics") as response:
        page = response.read().decode()
    return sum(s.value for s in parse_page(page).samples if s.name == name)


@pytest.mark.parametrize("draft", [("none",), ("ngram", "--k", "5")], ids=["baseline", "ngram"])
@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_every_side_counts_the_same_tokens(
    draft: tuple[str, ...], endpoint: str, tmp_path: Path
) -> None:
    """Σ completion tokens: generator's rows = proxy's /metrics = engine's /metrics, exactly."""
    out = tmp_path / "out"
    with (
        processes.running(
            "breakeven-sim", "serve", "--listen", "127.0.0.1:0", "--preset", "8b-h100",
            "--model", "m", "--draft", *draft,
        ) as engine,
        processes.running(
            "breakeven-proxy", "serve", "--upstream", engine.url,
            "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0",
        ) as proxy,
    ):  # fmt: skip
        done = processes.run(
            "loadgen", "replay", "synthetic:in=60,out=33", "--rate", "12", "--requests", "30",
            "--endpoint", endpoint, "--url", proxy.urls[0], "--model", "m", "--out", str(out),
        )  # fmt: skip
        assert done.returncode in (0, 4), done.stderr  # 4: a busy machine may miss a timing gate
        rows = pq.read_table(out / "requests.parquet")
        generator = sum(rows.column("output_tokens").to_pylist())
        assert generator == 30 * 33
        assert total(proxy.urls[1], "breakeven_completion_tokens_total") == generator
        assert total(engine.url, "vllm:generation_tokens_total") == generator
    assert rows.num_rows == 30
    assert set(rows.column("verdict").to_pylist()) == {"good"}
