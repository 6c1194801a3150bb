"""`gateway:` of GRID.yaml, and the run of the cell `policy` inside a grid.

Here: settings, their checks, what stands in the plan, the run and what it leaves. Not here: the
cell itself (policy_cell), which `loadgen grid policy` runs as well. The gateway and the engines
behind it are the user's: the grid starts neither.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from breakeven.errors import ConfigError, InputError, NotReadyError
from breakeven.settings import settings_class
from breakeven.units import Seconds
from breakeven_wire import Origin

from ..judge.dataset import GatewayRecord, read_policy
from .policy_profile import PolicyCell

Refuse = Callable[[str, str, object, str], None]
Say = Callable[[str], None]
CELL = "policy"


@settings_class
class GatewayConfig:
    """A gateway with `routing.policy: load_aware`; giving it adds the cell `policy` to the grid.

    `low` and `high`: offered rates in total on either side of both thresholds; `hold`: time at each
    low level, `high_hold` at each high one (default: as long); `cycles`: times high → low. `model`:
    default `target.model`, else the first that the gateway names.
    """

    url: str
    admin: str
    low: float
    high: float
    hold: Seconds
    high_hold: Seconds | None = None
    cycles: int = 2
    in_tokens: int = 64
    out_tokens: int = 32
    model: str | None = None


def check_gateway(gateway: GatewayConfig | None, cells: tuple[str, ...], refuse: Refuse) -> None:
    """What `gateway:` says in itself; what it says of a gateway's thresholds is seen there."""
    if gateway is None:
        if CELL in cells:
            refuse("the cell policy drives a gateway", "cells", CELL,
                   "give gateway: {url, admin, low, high, hold}, or take it out")  # fmt: skip
        return
    for key in ("url", "admin"):
        value = getattr(gateway, key)
        try:
            Origin.parse(value)
        except InputError as error:
            refuse(error.what, f"gateway.{key}", error.value, error.mend or "http://HOST:PORT")
    if not 0 < gateway.low < gateway.high < float("inf"):
        refuse("the two rates must rise from above 0", "gateway.low/high",
               f"{gateway.low:g}, {gateway.high:g}", "req/s in total, e.g. 2 and 30")  # fmt: skip
    for key in ("hold", "high_hold"):
        value = getattr(gateway, key)
        if value is not None and not value > 0:
            refuse("must be above 0", f"gateway.{key}", value, "e.g. 22m")
    for key in ("cycles", "in_tokens", "out_tokens"):
        if getattr(gateway, key) < 1:
            refuse("at least 1", f"gateway.{key}", getattr(gateway, key), "e.g. 2")


def gateway_record(gateway: GatewayConfig | None) -> GatewayRecord | None:
    """What the plan holds of it: all but its addresses."""
    if gateway is None:
        return None
    high_s = gateway.high_hold if gateway.high_hold is not None else gateway.hold
    return GatewayRecord(
        gateway.low, gateway.high, gateway.hold, high_s, gateway.cycles, gateway.in_tokens,
        gateway.out_tokens,
    )  # fmt: skip


def policy_cell_of(
    gateway: GatewayConfig, out: Path, *, model: str | None, seed: int, timeout_s: float,
    api_key_env: str | None,
) -> PolicyCell:  # fmt: skip
    """The cell that this section describes, with its results in `out`."""
    return PolicyCell(
        url=gateway.url, admin=gateway.admin, out=str(out), low_rps=gateway.low,
        high_rps=gateway.high, hold_s=gateway.hold, high_hold_s=gateway.high_hold,
        cycles=gateway.cycles, in_tokens=gateway.in_tokens, out_tokens=gateway.out_tokens,
        model=gateway.model or model, seed=seed, timeout_s=timeout_s, force=True,
        api_key_env=api_key_env,
    )  # fmt: skip


def look_ahead(cell: PolicyCell, say: Say) -> None:
    """Before hours of runs: a gateway that answers already must be one that the cell can judge.

    Raises:
        InputError: another policy, or a profile that cannot tell.
    """
    from .policy_cell import check

    try:
        check(cell.admin, cell)
    except NotReadyError:
        say(f"{CELL}: no gateway answers yet at {cell.admin}; it is driven after the blocks")
    except InputError as error:
        raise in_yaml(error) from None


def run_policy(folder: Path, cell: PolicyCell, say: Say) -> list[str] | None:
    """Run the cell unless the folder holds its report.

    Returns:
        Why it did not pass; empty where it did; None if somebody interrupted it.

    Raises:
        InputError: see `look_ahead`.
        NotReadyError: the gateway does not answer or settle; `grid resume` goes on here.
    """
    from .policy_cell import run_policy_cell

    found = read_policy(folder)
    if not found:
        say(f"{CELL}: driving the gateway at {cell.url}")
        try:
            if run_policy_cell(cell, say=say) is None:
                return None
        except NotReadyError as error:
            raise NotReadyError(f"cell {CELL}: {error}; then: loadgen grid resume") from None
        except InputError as error:
            raise in_yaml(error) from None
        found = read_policy(folder)
    again = f"remove {cell.out} and resume to run it again"
    return [f"{CELL}: {why} ({again})" for why in found.get("why_not", ["its report is damaged"])]


_KEYS = {
    "--admin": "gateway.admin", "--low/--high": "gateway.low/high", "--low": "gateway.low",
    "--high": "gateway.high", "--hold": "gateway.hold", "--high-hold": "gateway.high_hold",
    "--url": "gateway.url", "--model": "gateway.model",
}  # fmt: skip


def in_yaml(error: InputError) -> InputError:
    """The fault as it reads to somebody who wrote GRID.yaml and no flags."""
    key = _KEYS.get(error.key or "")
    if key is None:
        return error
    return ConfigError(error.what, key=key, value=error.value, mend=error.mend)
