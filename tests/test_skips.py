"""The rule that `make test` fails on an unlisted skip, tried on a suite of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
SUITE = """
import pytest

@pytest.mark.skip(reason="planted")
def test_planted() -> None:
    "A skipped test."
"""


def run_suite(tmp_path: Path, skips: str, *extra: str) -> int:
    """Exit status of pytest on a folder with our conftest, one skipped test and this SKIPS.md."""
    (tmp_path / "conftest.py").write_text((HERE / "conftest.py").read_text("utf-8"), "utf-8")
    (tmp_path / "SKIPS.md").write_text(skips, "utf-8")
    (tmp_path / "test_planted.py").write_text(SUITE, "utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\n", "utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *extra, str(tmp_path)],
        capture_output=True,
        check=False,
        cwd=tmp_path,
    )
    return done.returncode


@pytest.mark.parametrize("extra", [(), ("-n", "1")], ids=["plain", "xdist"])
def test_an_unlisted_skip_fails_the_suite(tmp_path: Path, extra: tuple[str, ...]) -> None:
    """A skip that SKIPS.md does not name turns a green suite red."""
    assert run_suite(tmp_path, "| node id | reason |\n|---|---|\n", *extra) == 1


def test_a_listed_skip_passes(tmp_path: Path) -> None:
    """A skip listed with its reason leaves the suite green."""
    assert run_suite(tmp_path, "| `test_planted.py::test_planted` | planted on purpose |\n") == 0


def test_a_listing_without_a_reason_does_not_count(tmp_path: Path) -> None:
    """The reason column must not be empty."""
    assert run_suite(tmp_path, "| `test_planted.py::test_planted` | |\n") == 1
