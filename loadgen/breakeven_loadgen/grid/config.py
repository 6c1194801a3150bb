"""Settings of a grid: what GRID.yaml may hold, and what makes it impossible.

Here: the settings classes and their checks. Not here: the plan (plan), running (runner).
"""

from __future__ import annotations

import os
from dataclasses import field
from pathlib import Path
from typing import Literal

from breakeven.costs import Fleet
from breakeven.errors import ConfigError
from breakeven.provenance import PINS
from breakeven.quality import Feature
from breakeven.settings import load_settings, settings_class
from breakeven.slo import SLO
from breakeven.units import Seconds, parse_rate

from ..judge.dataset import ContractRecord
from ..judge.statistics import DEFAULT_BLOCKS
from .cells import CELLS
from .gateway import GatewayConfig, check_gateway

TARGET_KEYS = ("model", "note", *PINS)
"""What `target` may pin; `model` is also the name that requests ask for."""


@settings_class
class SimArm:
    """A simulated engine that the grid starts itself: `breakeven-sim serve` with these flags."""

    preset: str = "8b-h100"
    draft: str = "none"
    k: int | None = None
    seed: int = 0
    flags: tuple[str, ...] = ()


@settings_class
class ArmConfig:
    """One arm. Exactly one of `url`, `launch`, `sim` says how it is reached.

    `launch` is a command; "{port}" in it becomes a free port, and the arm is then reached at
    http://127.0.0.1:PORT unless `url` names another address. `alone` starts a launched arm for
    its runs only and stops it after: for arms that share hardware.
    """

    role: Literal["baseline", "candidate"] = "candidate"
    url: str | None = None
    launch: tuple[str, ...] = ()
    sim: SimArm | None = None
    metrics_url: str | tuple[str, ...] | None = None
    alone: bool = True
    ready_timeout: Seconds = 600.0
    env: dict[str, str] = field(default_factory=dict)
    gpus: float = 1.0
    draft_gpus: float = 0.0
    usd_per_gpu_hour: float = 0.0
    replicas: int = 1
    standby_replicas: int = 0
    operations_usd_per_hour: float = 0.0
    k: int | None = None
    family: str | None = None
    rejection_sample_method: str | None = None
    acceptance: Literal["measured", "synthetic"] | None = None
    separate: bool = False


@settings_class
class SloConfig:
    """Bounds of the SLO, as durations."""

    ttft: Seconds | None = None
    tpot: Seconds | None = None
    gap_p99: Seconds | None = None
    e2e: Seconds | None = None
    objective: float = 0.99


@settings_class
class FloorConfig:
    """Floor of one cohort or task/lang: share of answers that are whole and well-formed."""

    quality: float


@settings_class
class ContractConfig:
    """What the user demands; required for a decision."""

    error_budget: float = 0.01
    max_cost_per_good_usd: float | None = None
    floors: dict[str, FloorConfig] = field(default_factory=dict)
    features: tuple[str, ...] = ()
    headroom: float = 1.2
    prompts: int = 16


@settings_class
class GridConfig:
    """GRID.yaml; see the skeleton in the README.

    `prefix_cache`: reset (asked of each engine before each run) | keep. `long_context`: a trace
    for that cell. `aa`: run the baseline twice in each block. `gateway`: adds the cell `policy`.
    """

    target: dict[str, str | None] = field(default_factory=dict)
    arms: dict[str, ArmConfig]
    trace: str
    content: str | None = None
    content_label: Literal["real", "public-proxy"] = "real"
    rates: dict[str, float] = field(default_factory=dict)
    blocks: int = DEFAULT_BLOCKS
    window: Seconds = 120.0
    warmup: Seconds = 20.0
    cells: tuple[str, ...] = tuple(CELLS)[:6]
    slo: SloConfig = field(default_factory=SloConfig)
    contract: ContractConfig | None = None
    arrival: str | None = None
    endpoint: Literal["chat", "completions"] | None = None
    sampling: Literal["greedy", "sampled"] | None = None
    output_length: Literal["forced", "capped"] | None = None
    reuse_content: bool = False
    aa: bool = True
    seed: int = 0
    epsilon: Seconds | None = None
    max_inflight: int = 1024
    timeout: Seconds = 600.0
    prefix_cache: Literal["reset", "keep"] = "reset"
    cancel_share: float = 0.05
    long_context: str | None = None
    api_key_env: str | None = None
    stamps: Literal["kernel", "loop"] = "kernel"
    previous_deployable: bool | None = None
    gateway: GatewayConfig | None = None

    @property
    def baseline(self) -> str:
        """Name of the baseline arm."""
        return next(name for name, arm in self.arms.items() if arm.role == "baseline")


def read_grid_config(path: Path) -> GridConfig:
    """GRID.yaml, checked.

    Raises:
        ConfigError: names file, line, key, value and mend.
    """
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise ConfigError(
            f"cannot be read: {error.strerror}", file=os.fspath(path), mend="check the path"
        ) from None
    except UnicodeDecodeError:
        raise ConfigError("no UTF-8", file=os.fspath(path), mend="save it as UTF-8") from None
    config = load_settings(text, file=os.fspath(path), model=GridConfig)
    _check(config, os.fspath(path))
    return config


def _check(config: GridConfig, file: str) -> None:
    def refuse(what: str, key: str, value: object, mend: str) -> None:
        raise ConfigError(what, file=file, key=key, value=value, mend=mend)

    baselines = [name for name, arm in config.arms.items() if arm.role == "baseline"]
    if len(baselines) != 1:
        refuse("exactly one arm is the baseline", "arms", baselines, "role: baseline on one arm")
    for name, arm in config.arms.items():
        _check_arm(name, arm, refuse)
    if not config.rates:
        refuse("at least one offered rate", "rates", None, "rates: {low: 2, normal: 8, peak: 20}")
    for name, rate in config.rates.items():
        if not rate > 0:
            refuse("a rate must be above 0", f"rates.{name}", rate, "requests per second")
        parse_rate(rate)
    if len(set(config.rates.values())) != len(config.rates):
        refuse("rates must differ", "rates", sorted(config.rates.values()), "one name per rate")
    if config.blocks < 1:
        refuse("at least one block", "blocks", config.blocks, f"e.g. {DEFAULT_BLOCKS}")
    if config.window <= 0:
        refuse("a window must be above 0", "window", config.window, "e.g. 120s")
    if config.max_inflight < 1:
        refuse("must be at least 1", "max_inflight", config.max_inflight, "e.g. 1024")
    for cell in config.cells:
        if cell not in CELLS:
            refuse("unknown cell", "cells", cell, f"known: {', '.join(CELLS)}")
    for key in config.target:
        if key not in TARGET_KEYS:
            refuse("unknown pin", f"target.{key}", None, f"known: {', '.join(TARGET_KEYS)}")
    if not 0 <= config.cancel_share <= 1:
        refuse("must be within 0 and 1", "cancel_share", config.cancel_share, "e.g. 0.05")
    _check_contract(config.contract, refuse)
    check_gateway(config.gateway, config.cells, refuse)


def _check_arm(name: str, arm: ArmConfig, refuse: object) -> None:
    assert callable(refuse)
    ways = [way for way in ("launch", "sim") if getattr(arm, way)]
    if len(ways) > 1 or (not ways and not arm.url):
        refuse("one way to reach it: url, launch or sim", f"arms.{name}", ways or None, "give one")
    if arm.sim is not None and arm.url is not None:
        refuse("sim starts its own engine", f"arms.{name}.url", arm.url, "remove url or sim")
    if arm.replicas < 1:
        refuse("at least one replica", f"arms.{name}.replicas", arm.replicas, "e.g. 1")
    for key in ("gpus", "draft_gpus", "usd_per_gpu_hour", "operations_usd_per_hour"):
        if getattr(arm, key) < 0:
            refuse("must not be negative", f"arms.{name}.{key}", getattr(arm, key), "0 or more")


def _check_contract(contract: ContractConfig | None, refuse: object) -> None:
    assert callable(refuse)
    if contract is None:
        return
    if not 0 < contract.error_budget < 1:
        refuse("a share above 0", "contract.error_budget", contract.error_budget, "e.g. 0.01")
    if contract.headroom < 1:
        refuse("must be at least 1", "contract.headroom", contract.headroom, "e.g. 1.2")
    for name, floor in contract.floors.items():
        if not 0 < floor.quality <= 1:
            refuse("a share above 0", f"contract.floors.{name}", floor.quality, "e.g. 0.98")
    for feature in contract.features:
        if feature not in {f.value for f in Feature}:
            known = ", ".join(f.value for f in Feature)
            refuse("unknown feature", "contract.features", feature, f"known: {known}")


def slo_of(config: GridConfig) -> SLO:
    """The SLO in seconds.

    Raises:
        InputError: a bound or objective that cannot be.
    """
    s = config.slo
    return SLO(s.ttft, s.tpot, s.gap_p99, s.e2e, s.objective)


def goodput_text(slo: SLO) -> str | None:
    """The SLO as `--goodput` takes it; None without a bound."""
    kinds = {"ttft_s": "ttft", "gap_p99_s": "gap_p99", "tpot_s": "tpot", "e2e_s": "e2e"}
    parts = [f"{kinds[name]}:{bound!r}s" for name, bound in slo.bounds().items()]
    return ",".join(parts) or None


def fleet_of(arm: ArmConfig) -> Fleet:
    """What stands there for an arm."""
    return Fleet(
        replicas=arm.replicas,
        gpus=arm.gpus,
        draft_gpus=arm.draft_gpus,
        usd_per_gpu_hour=arm.usd_per_gpu_hour,
        standby_replicas=arm.standby_replicas,
        operations_usd_per_hour=arm.operations_usd_per_hour,
    )


def contract_of(config: GridConfig) -> ContractRecord | None:
    """The contract as the judge reads it."""
    contract = config.contract
    if contract is None:
        return None
    return ContractRecord(
        error_budget=contract.error_budget,
        max_cost_per_good_usd=contract.max_cost_per_good_usd,
        floors={name: {"quality": floor.quality} for name, floor in contract.floors.items()},
        features=contract.features,
        headroom=contract.headroom,
    )
