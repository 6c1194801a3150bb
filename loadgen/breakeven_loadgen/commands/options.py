"""Options that may also stand in a YAML file: `--config FILE`, whose keys are the long options.

A flag on the command line wins over the file; unknown keys are refused with the nearest one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from breakeven.errors import ConfigError
from breakeven.settings import load_settings, parse_settings

T = TypeVar("T")
COMMAND_LINE = "command line"


def merged(context: click.Context, values: Mapping[str, Any], model: type[T]) -> T:
    """The settings of a command: defaults, then the file, then the flags that were given.

    Raises:
        ConfigError: the file cannot be read, or any value cannot be.
    """
    path = values.get("config")
    given = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in values.items()
        if name != "config" and context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    base: dict[str, Any] = {}
    if path is not None:
        loaded = load_settings(_read(path), file=path, model=model)
        base = {
            item.name: _plain(getattr(loaded, item.name))
            for item in fields(loaded)  # type: ignore[arg-type]  # settings classes are dataclasses
        }
    try:
        return parse_settings(base | given, file=COMMAND_LINE, model=model)
    except ConfigError as error:
        raise _as_flags(error) from None


def _as_flags(error: ConfigError) -> ConfigError:
    """The same faults, each under the flag that was given."""
    key = f"--{error.key.replace('_', '-')}" if error.key else None
    also = [_as_flags(one) for one in error.also if isinstance(one, ConfigError)]
    return ConfigError(error.what, key=key, value=error.value, mend=error.mend, also=also)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _read(path: str) -> str:
    try:
        return Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "invalid UTF-8"
        raise ConfigError(
            f"the configuration cannot be read: {why}", file=path, mend="check --config"
        ) from None
