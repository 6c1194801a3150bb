"""`breakeven-sim sweep`: the claim of the demo, the tables it prints, its input errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from breakeven_sim.cli import cli
from breakeven_sim.errors import SimInputError
from breakeven_sim.workload import at_rate, poisson, read_trace

TRACES = Path(__file__).resolve().parents[1] / "data/traces"
CONV = TRACES / "azure-2023-conv-head1000.csv"


def sweep(*args: str) -> dict[str, Any]:
    result = CliRunner().invoke(cli, ["sweep", "--json", *args], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    value = json.loads(result.output)
    assert isinstance(value, dict)
    return value


def test_speculation_pays_at_2_per_s_and_loses_at_28() -> None:
    """ngram chat k=5 on the first 280 Azure conversation arrivals: margin about +.27 and −.2."""
    found = sweep("--trace", str(CONV), "--rates", "2,28", "--requests", "280")
    rows = {(row["arm"], row["rate_per_s"]): row for row in found["rates"]}
    low, high = rows["ngram:5", 2], rows["ngram:5", 28]
    assert low["margin"] == pytest.approx(0.27, abs=0.05)
    assert high["margin"] == pytest.approx(-0.2, abs=0.05)
    assert (low["verdict"], high["verdict"]) == ("pays", "loses")
    # The same acceptance at both rates: only the cycle got dearer (C/T beside M).
    assert low["m"] == pytest.approx(high["m"], rel=0.02)
    assert low["c_over_t"] < low["m"] < high["m"] + 0.02 < high["c_over_t"]


def test_reversal_holds_on_the_whole_trace_and_for_another_seed() -> None:
    """The sign does not hang on one slice or one seed."""
    found = sweep("--trace", str(CONV), "--rates", "2,28", "--seed", "1")
    margins = {row["rate_per_s"]: row["margin"] for row in found["rates"] if row["margin"]}
    assert margins[2] > 0.2
    assert margins[28] < -0.1


def test_every_output_says_simulated() -> None:
    """Tables and JSON carry the label; a reader cannot take them for evidence."""
    text = CliRunner().invoke(cli, ["sweep", "--batches", "1,8"]).output
    assert "simulated" in text
    assert sweep("--batches", "1")["simulated"] is True


def test_trace_formats_are_read_by_column_name() -> None:
    """Azure, Vidur's relative seconds, Mooncake (milliseconds) and the redacted JSONL."""
    azure = read_trace(CONV)
    relative = read_trace(TRACES / "relative-seconds-conv-head1000.csv")
    mooncake = read_trace(TRACES / "mooncake-conversation-head1500.jsonl")
    assert len(azure) == 1000
    assert (azure[0].prompt_tokens, azure[0].output_tokens) == (374, 44)
    gap = azure[1].t_s - azure[0].t_s
    assert gap == pytest.approx(4.314579, abs=1e-6)
    assert relative[1].t_s - relative[0].t_s == pytest.approx(gap, abs=1e-4)
    assert mooncake[-1].t_s < 3600


def test_a_byte_order_mark_and_crlf_are_no_part_of_the_trace(tmp_path: Path) -> None:
    """As some editors and spreadsheets save CSV."""
    path = tmp_path / "t.csv"
    path.write_bytes(
        b"\xef\xbb\xbfTIMESTAMP,ContextTokens,GeneratedTokens\r\n"
        b"2023-11-16 18:17:03.9,10,5\r\n2023-11-16 18:17:04.4,12,6\r\n"
    )
    first, second = read_trace(path)
    assert second.t_s - first.t_s == 0.5


def test_prefixes_of_a_trace_become_engine_blocks(tmp_path: Path) -> None:
    """512-token hashes are 32 blocks of 16; byte blocks share the prompt's tokens evenly."""
    row = read_trace(TRACES / "mooncake-conversation-head1500.jsonl")[0]
    assert len(row.block_keys) == row.prompt_tokens // 16
    path = tmp_path / "t.jsonl"
    path.write_text(
        '{"breakeven_trace": 1, "block": {"unit": "bytes", "size": 2048}}\n'
        '{"t": 0, "in": 128, "out": 4, "prefix": ["a", "b"]}\n'
        '{"t": 1, "in": 128, "out": 4, "prefix": ["a", "c"]}\n'
    )
    first, second = read_trace(path)
    assert [len(a.block_keys) for a in (first, second)] == [8, 8]
    assert first.block_keys[:4] == second.block_keys[:4]
    assert first.block_keys[4] != second.block_keys[4]


def test_a_trace_scaled_to_a_rate_keeps_its_shape() -> None:
    """Mean rate R; the ratio of any two gaps stays."""
    trace = read_trace(CONV)
    scaled = at_rate(trace, 28)
    assert (len(scaled) - 1) / scaled[-1].t_s == pytest.approx(28)
    ratio = (trace[2].t_s - trace[1].t_s) / (trace[1].t_s - trace[0].t_s)
    assert (scaled[2].t_s - scaled[1].t_s) / scaled[1].t_s == pytest.approx(ratio)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--rates", "0"], "--rates '0': give positive numbers"),
        (["--rates", "nan"], "--rates 'nan'"),
        (["--preset", "9b"], "unknown preset '9b'"),
        (["--arm", "eagle3:9"], "k=9 for draft 'eagle3': acceptance is known for 1..7"),
        (["--arm", "medusa:2"], "unknown draft 'medusa'"),
        (["--arm", "ngram:x"], "write DRAFT:K"),
        (["--trace", "absent.csv"], "absent.csv: cannot read the trace"),
    ],
)
def test_bad_input_names_value_and_mend(args: list[str], message: str) -> None:
    """Exit 2's message quotes the value and says the mend."""
    with pytest.raises(SimInputError) as caught:
        cli.main(["sweep", *args], standalone_mode=False)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n0,5,0\n", "trace.csv:2: GeneratedTokens='0'"),
        ("TIMESTAMP,ContextTokens\n0,5\n", "no column of GeneratedTokens"),
        ("t,in,out\n2,1,1\n1,1,1\n", "arrival 2 is before arrival 1"),
        ("t,in,out\nnoon,1,1\n", "time 'noon'"),
        ("t,in,out\n", "no arrivals"),
    ],
)
def test_bad_traces_name_file_line_and_value(tmp_path: Path, rows: str, message: str) -> None:
    """A broken trace is refused before anything runs."""
    path = tmp_path / "trace.csv"
    path.write_text(rows)
    with pytest.raises(SimInputError) as caught:
        read_trace(path)
    assert message in str(caught.value)


def test_arrivals_are_seeded() -> None:
    """The same seed gives the same workload; another one does not."""
    assert poisson(5, 20, 3) == poisson(5, 20, 3) != poisson(5, 20, 4)
