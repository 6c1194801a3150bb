"""`loadgen worksheet`, as a user calls it."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from breakeven.errors import InputError
from breakeven_loadgen.worksheet_report import worksheet_command

GIVEN = [
    "--baseline-ms",
    "10",
    "--k",
    "4",
    "--alpha",
    "0.7",
    "--verify-ms",
    "12",
    "--overhead-ms",
    "2",
    "--draft-ms",
]


def call(*args: str) -> str:
    result = CliRunner().invoke(worksheet_command, list(args), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize(
    ("draft", "figures"),
    [
        ("4", ["2.7731", "6.49 ms", "+0.3509", "pays"]),
        ("16", ["2.7731", "10.82 ms", "-0.0818", "loses"]),
    ],
)
def test_the_printed_check_values(draft: str, figures: list[str]) -> None:
    """The worked example of the design."""
    output = call(*GIVEN, draft)
    assert all(figure in output for figure in figures), output
    assert "not a measurement" in output


def test_survival_instead_of_alpha() -> None:
    """The same M from the four cumulative shares."""
    args = (
        "--baseline-ms 10 --survival .7,.49,.343,.2401 --draft-ms 4 --verify-ms 12 --overhead-ms 2"
    )
    found = json.loads(call(*args.split(), "--json"))
    assert found["m"] == pytest.approx(2.7731)
    assert found["verdict"] == "pays"
    assert found["k"] == 4


@pytest.mark.parametrize(
    "change",
    [
        ["--alpha", "nan"],
        ["--alpha", "1.5"],
        ["--k", "-1"],
        ["--baseline-ms", "0"],
        ["--baseline-ms", "inf"],
        ["--survival", "0.5"],
    ],
)
def test_bad_figures_are_the_users_error(change: list[str]) -> None:
    """Each names the value and the mend."""
    with pytest.raises(InputError) as caught:
        call(*GIVEN, "4", *change)
    assert caught.value.mend


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (["--baseline-ms", "-3"], "--baseline-ms: a time must be finite and above 0 (got -3.0)"),
        (["--draft-ms", "-4"], "--draft-ms: a time must be finite and at least 0 (got -4.0)"),
        (["--overhead-ms", "nan"], "--overhead-ms: a time must be finite and at least 0 (got nan)"),
        (["--draft-ms", "0", "--verify-ms", "0", "--overhead-ms", "0"], "must take time"),
    ],
)
def test_messages_quote_what_was_typed(change: list[str], words: str) -> None:
    """Flag and milliseconds as given, not the core's seconds."""
    with pytest.raises(InputError) as caught:
        call(*GIVEN, "4", *change)
    assert words in str(caught.value)


def test_m_needs_a_source() -> None:
    """Neither alpha nor survival is no worksheet."""
    with pytest.raises(InputError, match="M cannot be computed"):
        call("--baseline-ms", "10", "--draft-ms", "4", "--verify-ms", "12")
    with pytest.raises(InputError, match="list of numbers"):
        call("--baseline-ms", "10", "--draft-ms", "4", "--verify-ms", "12", "--survival", "a,b")
