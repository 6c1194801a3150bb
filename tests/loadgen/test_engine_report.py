"""`loadgen engine` on recorded pages, as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from breakeven.errors import InputError
from breakeven_loadgen.engine_report import engine_command

VLLM = Path(__file__).parents[1] / "data/vllm"
KEYS = ["schema", "m", "cycle_s", "g", "f", "s", "drafts", "draft_tokens", "accepted",
        "accepted_per_position"]  # fmt: skip


def call(*args: str) -> str:
    result = CliRunner().invoke(engine_command, list(args), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def pages(arm: str) -> list[str]:
    return [str(VLLM / arm / f"metrics_{when}.raw") for when in ("before", "after")]


@pytest.mark.parametrize(("arm", "m", "cycle_ms"), [("base", 1.000, 27.0), ("ngram", 1.564, 37.1)])
def test_json_on_recorded_pages(arm: str, m: float, cycle_ms: float) -> None:
    """The fixed keys come first, with the values that the recordings prove."""
    found = json.loads(call(*pages(arm), "--json"))
    assert list(found)[: len(KEYS)] == KEYS
    assert found["m"] == pytest.approx(m, abs=5e-4)
    assert found["cycle_s"] * 1e3 == pytest.approx(cycle_ms, abs=0.05)


def test_the_baselines_speculation_is_null_not_zero() -> None:
    """Absent is not zero."""
    found = json.loads(call(*pages("base"), "--json"))
    assert found["accepted"] is None
    assert found["accepted_per_position"] is None
    assert "accepted" in found["reasons"]


def test_the_table_says_not_exposed() -> None:
    """A reader sees what the engine does not tell."""
    assert "1.000" in call(*pages("base"))
    assert "not exposed" in call(*pages("base"))


@pytest.mark.parametrize(
    "content", [None, b"<html>", b"python_info 1\n", b"HTTP/1.1 500 x\r\n\r\n"]
)
def test_a_file_that_is_no_page_is_the_users_error(tmp_path: Path, content: bytes | None) -> None:
    """Names the file; exit code 2 follows from the type."""
    path = tmp_path / "page.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        call(str(path), pages("base")[1])
    assert caught.value.file == str(path)
    assert caught.value.mend


def test_swapped_pages_are_told() -> None:
    """No number comes out of them."""
    before, after = pages("ngram")
    found = json.loads(call(after, before, "--json"))
    assert found["m"] is None
    assert "swapped" in found["reasons"]["m"]
