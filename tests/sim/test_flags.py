"""Durations take units; --config holds long options and refuses unknown ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from breakeven_sim.cli import cli
from breakeven_sim.errors import SimInputError
from breakeven_sim.flags import seconds


@pytest.mark.parametrize(
    ("text", "value"),
    [("500ms", 0.5), ("2s", 2), ("3", 3), (".5", 0.5), ("1.5m", 90), ("1h", 3600)],
)
def test_durations(text: str, value: float) -> None:
    """Bare numbers are seconds."""
    assert seconds(text) == value


@pytest.mark.parametrize("text", ["", "fast", "1w", "-1s", "nan", "inf", "1 2"])
def test_bad_durations_are_named(text: str) -> None:
    """No silent default, no negative, no NaN."""
    with pytest.raises(SimInputError, match=r"write e\.g\. 500ms"):
        seconds(text)


def run(path: Path, text: str, *flags: str) -> str:
    path.write_text(text)
    result = CliRunner().invoke(cli, ["sweep", "--config", str(path), *flags])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


def test_config_gives_defaults_and_flags_win(tmp_path: Path) -> None:
    """Keys are the long options, with dashes or underscores."""
    path = tmp_path / "sweep.yaml"
    text = "batches: 1,2\ncontext: 700\narm: [ngram:5, eagle3:2]\n"
    out = run(path, text)
    assert "eagle3:2" in out
    assert "ngram:5" in out
    assert "draft-1b" not in out
    assert "eagle3:2" not in run(path, text, "--arm", "ngram:3")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rate: 3\n", "unknown key 'rate': did you mean rates?"),
        ("a: [\n", "sweep.yaml:2: not YAML"),
        ("- 1\n", "write `option: value` lines"),
        ("seed: " + "9" * 5000 + "\n", "sweep.yaml: no plain value"),
    ],
)
def test_bad_config_names_file_and_mend(tmp_path: Path, text: str, message: str) -> None:
    """The nearest known key is offered."""
    with pytest.raises(SimInputError) as caught:
        run(tmp_path / "sweep.yaml", text)
    assert message in str(caught.value)
