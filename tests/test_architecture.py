"""Walls of the house: who may import whom, what core must not touch, how long a file may be.

If a test here fails, move the code; the tables are not edited to make it pass.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = {
    "breakeven": ROOT / "core/breakeven",
    "breakeven_wire": ROOT / "wire/breakeven_wire",
    "breakeven_proxy": ROOT / "proxy/breakeven_proxy",
    "breakeven_loadgen": ROOT / "loadgen/breakeven_loadgen",
    "breakeven_sim": ROOT / "sim/breakeven_sim",
}
MAY_IMPORT: dict[str, set[str]] = {
    "breakeven": set(),
    "breakeven_wire": {"breakeven"},
    "breakeven_proxy": {"breakeven", "breakeven_wire"},
    "breakeven_loadgen": {"breakeven", "breakeven_wire"},
    "breakeven_sim": set(),
}
# Core is pure: no event loop, no sockets, no clocks, no environment, no metrics client.
IMPURE = {
    "asyncio", "aiohttp", "prometheus_client", "socket", "selectors", "ssl", "time", "os",
    "subprocess", "threading", "multiprocessing", "random", "secrets", "uvloop", "httptools",
    "logging", "signal", "urllib", "http", "requests", "scipy", "statsmodels", "pyarrow", "rich",
    "click", "opentelemetry", "pandas",
}  # fmt: skip
# The sidecar's container stays small: none of loadgen's heavy libraries.
HEAVY = {"pyarrow", "scipy", "statsmodels", "pandas", "numpy", "rich"}
MAX_LINES = 400
# Inside core: a module imports only modules of a lower level. A new module gets its row here.
CORE_LEVEL = {
    "__init__": 0,
    "errors": 0,
    "exitcodes": 0,
    "value": 0,
    "sse": 1,
    "histogram": 1,
    "units": 1,
    "settings": 2,
    "chunks": 1,
    "gaps": 2,
    "repeat": 2,
    "report": 2,
    "counting": 3,
    "stream": 4,
    "slo": 5,
    "load": 1,
    "worksheet": 1,
    "exposition": 1,
    "engine_schemas": 2,
    "engine_histogram": 2,
    "engine_metrics": 3,
    "keyed": 1,
    "trace": 2,
    "costs": 2,
    "provenance": 2,
    "quality": 3,
    "certificate": 6,
    "routing": 6,
    "health": 1,
    "policy": 1,
    "guard": 7,
    "proven": 7,
    "steering": 8,
    "facts": 6,
    "decision": 7,
}


def sources() -> list[tuple[str, Path]]:
    return [(room, path) for room, top in ROOMS.items() for path in sorted(top.rglob("*.py"))]


def imports(path: Path) -> list[tuple[int, str]]:
    """(level, dotted name) of each import; level 0 is absolute."""
    found: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found += [(0, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            found += [(node.level, f"{base}.{alias.name}".strip(".")) for alias in node.names]
    return found


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_import_only_what_the_table_allows(room: str) -> None:
    """No arrow runs back, and proxy and loadgen never meet."""
    for path in sorted(ROOMS[room].rglob("*.py")):
        for level, name in imports(path):
            top = name.split(".")[0]
            if level == 0 and top in ROOMS and top != room:
                assert top in MAY_IMPORT[room], f"{path}: {room} must not import {top}"


def test_core_is_pure() -> None:
    """Core takes bytes, numbers and times; it has no clock, socket, loop or environment."""
    for path in sorted(ROOMS["breakeven"].rglob("*.py")):
        for level, name in imports(path):
            assert level or name.split(".")[0] not in IMPURE, f"{path}: core must not import {name}"


def test_core_modules_import_downwards() -> None:
    """A core module imports only modules of a lower level; each has its row in the table."""
    for path in sorted(ROOMS["breakeven"].glob("*.py")):
        assert path.stem in CORE_LEVEL, f"give {path.stem} its level in CORE_LEVEL"
        for level, name in imports(path):
            parts = name.split(".")
            if level == 0 and parts[0] == "breakeven":
                parts = parts[1:]
            elif level == 0:
                continue
            target = parts[0] if parts and parts[0] in CORE_LEVEL else "__init__"
            assert CORE_LEVEL[target] < CORE_LEVEL[path.stem], f"{path}: imports {target} upwards"


def test_proxy_has_no_heavy_imports() -> None:
    """The proxy, and what it imports of ours, needs none of loadgen's heavy libraries."""
    for room in ("breakeven", "breakeven_wire", "breakeven_proxy"):
        for path in sorted(ROOMS[room].rglob("*.py")):
            for level, name in imports(path):
                assert level or name.split(".")[0] not in HEAVY, f"{path}: {name} is too heavy here"


@pytest.mark.parametrize(("room", "path"), sources(), ids=lambda v: str(v).split("/")[-1])
def test_files_fit_on_a_few_screens(room: str, path: Path) -> None:
    """A module is one noun of the trade: fewer than 400 lines."""
    lines = len(path.read_text("utf-8").splitlines())
    assert lines <= MAX_LINES, f"{path} has {lines} lines: split it by nouns"
