"""Rules for the whole suite: a skip that SKIPS.md does not list is a failure."""

from __future__ import annotations

import fnmatch
import re
from pathlib import Path

import hypothesis
import pytest

# No test asserts a time, not even hypothesis' own 200 ms an example: the machine is shared.
hypothesis.settings.register_profile("breakeven", deadline=None)
hypothesis.settings.load_profile("breakeven")

SKIPS = Path(__file__).with_name("SKIPS.md")


def listed_skips(text: str) -> list[str]:
    """Node id patterns of SKIPS.md: first column of each table row, in backticks."""
    return re.findall(r"^\|\s*`([^`]+)`\s*\|\s*[^|\s]", text, flags=re.MULTILINE)


def unlisted(skipped: list[str], patterns: list[str]) -> list[str]:
    """Skipped node ids that no pattern covers."""
    return [
        node for node in skipped if not any(fnmatch.fnmatch(node, p) or node == p for p in patterns)
    ]


class SkipGuard:
    """Collects skipped node ids; pytest_sessionfinish turns an unlisted one into a failure."""

    def __init__(self) -> None:
        self.skipped: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self.skipped.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self.skipped.append(report.nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        bad = unlisted(self.skipped, listed_skips(SKIPS.read_text("utf-8")))
        if bad:
            print("\nskipped, but not listed in tests/SKIPS.md:", *sorted(set(bad)), sep="\n  ")
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # with xdist the controller sees every report
        config.pluginmanager.register(SkipGuard(), "skip-guard")
