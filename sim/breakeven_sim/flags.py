"""Kinds of command-line values: durations with units, and `--config FILE` for any command."""

from __future__ import annotations

import difflib
import math
import re
from pathlib import Path
from typing import Any

import click
import yaml

from .errors import SimInputError

_UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "": 1.0}
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)")


def seconds(text: str) -> float:
    """`500ms`, `2s`, `1.5m`, bare seconds. Raises SimInputError."""
    found = _DURATION.fullmatch(text.strip())
    if found is None or found[2] not in _UNITS:
        raise SimInputError(f"duration {text!r}: write e.g. 500ms, 2s, 3m, or bare seconds")
    return float(found[1]) * _UNITS[found[2]]


def duration(value: object) -> float:
    """Option type: a duration of any length. A number, as in a config file, is seconds."""
    return seconds(str(value))


def longer(value: object) -> float:
    """Option type: a duration longer than nothing."""
    found = seconds(str(value))
    if found <= 0:
        raise SimInputError(f"duration {value!r}: give a longer one")
    return found


class FiniteRange(click.FloatRange):
    """A FloatRange without NaN, which compares with nothing and so passes one, and infinity."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not finite.", param, ctx)
        return number


seed_type = click.IntRange(min=0, max=2**63 - 1)
"""A seed as every generator takes it: numpy's has no negative ones."""


def _load(ctx: click.Context, _: click.Parameter, value: Path | None) -> None:
    """Read defaults of the command from YAML whose keys are the long options."""
    if value is None:
        return
    try:
        given = yaml.safe_load(value.read_text("utf-8")) or {}
    except OSError as error:
        raise SimInputError(f"{value}: cannot read the config: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SimInputError(f"{value}: invalid UTF-8: save the file as UTF-8") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark is not None else ""
        raise SimInputError(f"{value}{line}: not YAML: write `option: value` lines") from None
    except ValueError as error:  # yaml's constructors: a number of thousands of digits, a bad date
        raise SimInputError(f"{value}: no plain value: {error}") from None
    if not isinstance(given, dict):
        raise SimInputError(f"{value}: write `option: value` lines")
    known: dict[str, click.Parameter] = {}
    for param in ctx.command.params:
        for option in param.opts:
            known[option.lstrip("-").replace("-", "_")] = param
    defaults: dict[str, Any] = {}
    for key, one in given.items():
        param_of = known.get(str(key).replace("-", "_"))
        if param_of is None or param_of.name is None:
            near = difflib.get_close_matches(str(key).replace("-", "_"), known, 1)
            mend = f": did you mean {near[0].replace('_', '-')}?" if near else ""
            raise SimInputError(f"{value}: unknown key {key!r}{mend}")
        defaults[param_of.name] = one
    ctx.default_map = defaults


config_option = click.option(
    "--config",
    type=click.Path(path_type=Path),
    is_eager=True,
    expose_value=False,
    callback=_load,
    help="YAML whose keys are the long options; flags win.",
)
