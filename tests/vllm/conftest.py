"""Servers of the engine tests: one baseline for the session, one candidate at a time beside it.

Tests are ordered by arm, so that each server starts once. Without vLLM's venv a run is an error,
not a skip: `make test-vllm` makes the venv, and says loudly when it cannot.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.vllm.engine import ARMS, BASELINE, CANDIDATES, VENV, Engine, Engines, engines, lines
from tests.vllm.solo import Reference, Solo, record_reference, run_solo

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what needs a server `vllm`, and puts the tests of one arm together."""
    ours = [item for item in items if item.path.parent == HERE]
    for item in [i for i in ours if "held_engines" in getattr(i, "fixturenames", ())]:
        item.add_marker(pytest.mark.vllm)
        item.add_marker(pytest.mark.timeout(900))
    ours.sort(key=_arm_order)
    places = [i for i, item in enumerate(items) if item.path.parent == HERE]
    for place, item in zip(places, ours, strict=True):
        items[place] = item


def _arm_name(item: pytest.Item) -> str | None:
    callspec = getattr(item, "callspec", None)
    return callspec.params.get("arm_name") if callspec is not None else None


def _arm_order(item: pytest.Item) -> int:
    name = _arm_name(item)
    return list(ARMS).index(name) if name in ARMS else -1


@pytest.fixture(scope="session")
def log_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the servers log; kept and deleted as pytest does with its temporary folders."""
    return tmp_path_factory.mktemp("vllm-logs")


@pytest.fixture(scope="session")
def held_engines(log_folder: Path) -> Iterator[Engines]:
    """All servers of this session."""
    if not (VENV / "bin" / "vllm").exists():
        pytest.fail(f"no vLLM in {VENV}: run `make test-vllm`, which installs it")
    with engines(log_folder) as held:
        yield held


@pytest.fixture(scope="session")
def baseline(request: pytest.FixtureRequest, held_engines: Engines) -> Engine:
    """The server without speculation; it stays up for the whole session.

    The first candidate starts beside it, if it is one that needs nothing of the baseline.
    """
    held_engines.begin(BASELINE)
    wanted = {_arm_name(item) for item in request.session.items}
    if first := next((name for name in CANDIDATES if name in wanted and name != "custom"), None):
        held_engines.begin(first)
    return held_engines.get(BASELINE)


@pytest.fixture(scope="session")
def reference(baseline: Engine, held_engines: Engines, log_folder: Path) -> Reference:
    """What the baseline answers greedily; also the table of the custom proposer."""
    found = record_reference(baseline.url)
    table = log_folder / "oracle-table.jsonl"
    table.write_text(lines([a.prompt_ids + a.ids for a in found]), "utf-8")
    held_engines.environ["custom"] = {"ORACLE_TABLE": str(table)}
    return found


@pytest.fixture
def arm(arm_name: str, held_engines: Engines, reference: Reference) -> Engine:
    """The running server of the arm that the test is parametrised with."""
    return held_engines.get(arm_name)


@pytest.fixture(scope="session")
def solos() -> dict[str, Solo]:
    """Runs at concurrency 1 by arm: made once, looked at by several tests."""
    return {}


@pytest.fixture
def solo(arm: Engine, solos: dict[str, Solo]) -> Solo:
    """All prompts one after another on the arm, with the counters before and after."""
    if arm.name not in solos:
        solos[arm.name] = run_solo(arm.url)
    return solos[arm.name]
