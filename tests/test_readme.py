"""The README's commands: those with output are run and compared, the others parse as they stand."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text("utf-8")
BIN = Path(sys.executable).parent


def blocks(kind: str) -> list[str]:
    """Bodies of the fenced blocks of one kind, indented ones too."""
    found = re.findall(rf"^( *)```{kind}\n(.*?)^\1```$", README, flags=re.MULTILINE | re.DOTALL)
    return ["\n".join(line.removeprefix(pad) for line in body.splitlines()) for pad, body in found]


def dialogues() -> list[tuple[str, list[str]]]:
    """(command, expected lines) of all console blocks."""
    found: list[tuple[str, list[str]]] = []
    for line in "\n".join(blocks("console")).splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif line.strip():
            found[-1][1].append(line)
    return found


def commands() -> list[str]:
    """The commands of all sh blocks."""
    return [line for line in "\n".join(blocks("sh")).splitlines() if line.strip()]


def run(words: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(BIN / words[0]), *words[1:]], capture_output=True, text=True, check=False, cwd=ROOT
    )


def squeezed(text: str) -> str:
    """Without the padding of table columns."""
    return re.sub(r"[ ─]+", " ", text).strip()


@pytest.mark.parametrize(("command", "lines"), dialogues(), ids=lambda v: str(v)[:40])
def test_shown_output_is_what_the_command_prints(command: str, lines: list[str]) -> None:
    """Every line shown under a `$` command is a line of its output."""
    done = run(shlex.split(command))
    assert done.returncode == 0, done.stderr
    printed = [squeezed(line) for line in done.stdout.splitlines()]
    for line in lines:
        assert squeezed(line) in printed


@pytest.mark.parametrize("command", commands(), ids=lambda v: str(v)[:40])
def test_every_flag_of_a_shown_command_exists(command: str) -> None:
    """Each option in the README is an option of that command's --help."""
    words = shlex.split(command)
    shown = run([*words[:2], "--help"])
    assert shown.returncode == 0, shown.stderr
    for word in words[2:]:
        if word.startswith("--"):
            assert word in shown.stdout, f"{word} is no option of {' '.join(words[:2])}"


def test_the_readme_names_the_two_commands() -> None:
    """A newcomer finds exactly `make demo` and `make test` under "Two commands"."""
    section = README.split("## Two commands")[1].split("\n## ")[0]
    assert re.findall(r"^    (make \w+)$", section, flags=re.MULTILINE) == [
        "make demo",
        "make test",
    ]


@pytest.mark.parametrize(
    "path", sorted(set(re.findall(r"\b(?:docs|deploy|tests|benchmarks)/[\w/.-]+\w", README)))
)
def test_every_named_file_exists(path: str) -> None:
    """No dead pointer: each file that the README names is there."""
    assert (ROOT / path).exists()
