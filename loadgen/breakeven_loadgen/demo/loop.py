"""Runs the demo: engines, proxies, four replays, one table."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from breakeven.exitcodes import ExitCode

from ..config import ReplayConfig
from ..replay.results import RunResult, write_json
from ..replay.run import replay
from ..report.progress import progress_for
from .cells import ARMS, BASELINE, GOODPUT, LOADS, PRESET, TRACE, USD_PER_HOUR, ArmPlan, Load
from .figures import Cell, Tokens, as_json, cell, problems, verdict
from .processes import Children
from .show import Screen

ANY_PORT = "127.0.0.1:0"


@dataclass(frozen=True, slots=True)
class Arm:
    """A running engine with its proxy before it."""

    plan: ArmPlan
    engine_url: str
    proxy_url: str
    admin_url: str


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM while a replay ran; what it measured so far is in the folder."""


def demo(folder: Path, screen: Screen, loads: Sequence[Load] = LOADS) -> ExitCode:
    """Run everything into `folder`.

    Returns:
        OK, also when timing gates failed (they are printed); ERROR when an arm failed or the
        token sums differ.
    """
    began = time.monotonic()
    logs = folder / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    with terminable(), Children(logs) as children:
        screen.opening(folder)
        arms = _start(children)
        screen.started(arms)
        cells: list[Cell] = []
        for load in loads:
            for arm in arms:
                cells.append(_cell(folder, arm, load, cells))
                screen.measured(cells[-1])
        dead = children.dead()
    sentence, found = verdict(cells), problems(cells, dead)
    write_json(folder / "demo.json", as_json(cells, sentence, found))
    screen.result(cells, sentence, found, folder, time.monotonic() - began)
    return ExitCode.ERROR if found else ExitCode.OK


def _start(children: Children) -> list[Arm]:
    """A simulated engine per arm, then the proxies in front of them; each kind side by side."""
    serve = ["serve", "--listen", ANY_PORT]
    engines = [
        children.start(
            f"engine-{plan.name}",
            "breakeven_sim",
            [*serve, "--preset", PRESET, "--exit-with-parent", *plan.flags],
        )
        for plan in ARMS
    ]
    urls = [engine.wait_ready().urls[0] for engine in engines]
    proxies = [
        children.start(
            f"proxy-{plan.name}",
            "breakeven_proxy",
            [*serve, "--admin", ANY_PORT, "--upstream", url, "--arm", plan.name],
        )
        for plan, url in zip(ARMS, urls, strict=True)
    ]
    return [
        Arm(plan, url, *proxy.wait_ready().urls[:2])
        for plan, url, proxy in zip(ARMS, urls, proxies, strict=True)
    ]


def _cell(folder: Path, arm: Arm, load: Load, done: list[Cell]) -> Cell:
    """One replay through the proxy, and its figures beside the baseline's at the same rate."""
    config = ReplayConfig(
        trace=str(TRACE),
        url=arm.proxy_url,
        out=str(folder / f"{arm.plan.name}-{load.rate:g}"),
        rate=load.rate,
        duration=load.window_s,
        goodput=GOODPUT,
        usd_per_hour=USD_PER_HOUR,
        metrics_url=(f"{arm.engine_url}/metrics",),
        proxy_metrics_url=f"{arm.admin_url}/metrics",
        arm=arm.plan.name,
    )
    with progress_for(sys.stderr, f"{arm.plan.name} at {load.rate:g}/s") as progress:
        result = replay(config, progress=progress)
    if result.exit_code is ExitCode.INTERRUPTED:
        raise Interrupted
    baseline = next((c for c in done if c.arm == BASELINE.name and c.rate == load.rate), None)
    return cell(arm.plan.name, load.rate, result, _tokens(result), baseline)


def _tokens(result: RunResult) -> Tokens:
    figures = next(g["figures"] for g in result.summary["gates"] if g["name"] == "tokens")
    return Tokens(
        generator=result.summary["tokens"]["output"],
        proxy=_whole(figures.get("proxy")),
        engine=_whole(figures.get("engine")),
    )


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM ends the demo as Ctrl-C does, so that the children are ended, too."""

    def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signal's
        raise Interrupted

    try:
        before = signal.signal(signal.SIGTERM, stop)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
