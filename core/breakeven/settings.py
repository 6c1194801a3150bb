"""YAML text -> one frozen settings dataclass per command, or an error that names the place.

Here: the loader, and the decorator that makes a settings class. Not here: any setting.
All faults of a file are reported at once, each with file, line, key, value and mend.
"""

from __future__ import annotations

import difflib
import math
import re
import typing
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import TYPE_CHECKING, Any, TypeVar, dataclass_transform, get_args, get_origin

import orjson
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass

from .errors import ConfigError

if TYPE_CHECKING:
    import yaml

T = TypeVar("T")
Loc = tuple[int | str, ...]

_ABSENT = object()

MAX_DEPTH = 32
"""Deepest nesting accepted: no setting is that deep, and YAML aliases can build endless ones."""

MIN_INT, MAX_INT = -(2**63), 2**64 - 1
"""Whole numbers that JSON mode can carry."""

_SURROGATE = re.compile("[\ud800-\udfff]")

MAX_NODES = 50_000
"""Most values accepted: a few lines of YAML aliases can stand for billions."""


@dataclass_transform(frozen_default=True, kw_only_default=True)
def settings_class(cls: type[T]) -> type[T]:
    """Class decorator: frozen, slotted, keyword-only; unknown keys, NaN and infinity refused."""
    made = pydantic_dataclass(
        cls,
        frozen=True,
        slots=True,
        kw_only=True,
        config=ConfigDict(extra="forbid", allow_inf_nan=False, strict=True),
    )
    return typing.cast(type[T], made)


def load_settings(text: str, *, file: str, model: type[T]) -> T:
    """Read YAML (or JSON) text into `model`, a class made by `settings_class`.

    Hyphens in top-level keys stand for underscores, so that a key may be spelt like its option.

    Args:
        text: the file's text; empty text gives the defaults.
        file: name for messages.

    Raises:
        ConfigError: the text is no YAML, a key is unknown or given twice, or a value cannot be.
            Further errors of the same text are in `.also`.
    """
    node = _compose(text, file)
    lines: dict[Loc, int] = {}
    faults: list[ConfigError] = []
    data = None if node is None else _plain(node, (), lines, faults, file)
    data = {} if data is None else data
    if not isinstance(data, dict):
        faults.append(
            ConfigError("the file must be a mapping", file=file, line=1, mend="write key: value")
        )
    if faults:
        raise _joined(faults)
    return _validated(_underscored(data, model, lines), lines, file, model)


def parse_settings(data: Mapping[str, Any], *, file: str, model: type[T]) -> T:
    """The same for data that is already parsed (flags of a command line); no line numbers."""
    return _validated(dict(data), {}, file, model)


def _validated(data: Any, lines: dict[Loc, int], file: str, model: type[T]) -> T:
    faults = list(_no_json(data, (), lines, file))
    if faults:
        raise _joined(faults)
    adapter = TypeAdapter(model)
    try:
        # JSON mode: strict about types, yet lists become tuples and mappings dataclasses.
        return adapter.validate_json(orjson.dumps(data))
    except ValidationError as error:
        faults = [_fault(item, data, lines, file, model) for item in error.errors()]
        raise _joined(faults) from None


def _no_json(data: Any, loc: Loc, lines: dict[Loc, int], file: str) -> Iterator[ConfigError]:
    """The values that JSON mode would lose or refuse without a place: a NaN would turn into null
    and so into the default, whole numbers end at 64 bits, text has no lone surrogates."""
    items = (
        data.items()
        if isinstance(data, dict)
        else enumerate(data)
        if isinstance(data, list | tuple)
        else ()
    )
    for part, value in items:
        yield from _no_json(value, (*loc, part), lines, file)
    if isinstance(data, float) and not math.isfinite(data):
        what, mend = "a number must be finite", "write a finite number"
    elif isinstance(data, int) and not MIN_INT <= data <= MAX_INT:
        what, mend = "a whole number beyond 64 bits", "write a smaller number"
    elif isinstance(data, str) and _SURROGATE.search(data):
        what, mend = "text that is no UTF-8", "write it as UTF-8"
    else:
        return
    yield ConfigError(
        what, file=file, line=_line(loc, lines), key=_dotted(loc), value=data, mend=mend
    )


def _joined(faults: list[ConfigError]) -> ConfigError:
    faults.sort(key=lambda fault: fault.line or 0)
    first, rest = faults[0], faults[1:]
    return ConfigError(
        first.what,
        file=first.file,
        line=first.line,
        key=first.key,
        value=first.value,
        mend=first.mend,
        also=rest,
    )


# --- YAML: imported where it is read, since a command with flags alone never reads any ----------


def _compose(text: str, file: str) -> yaml.Node | None:
    import yaml

    try:
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise ConfigError(
            f"not valid YAML: {error.problem}", file=file, line=line, mend="mend the syntax there"
        ) from None
    except yaml.YAMLError:
        raise ConfigError(
            "not valid YAML: a character that YAML does not allow", file=file, mend="use UTF-8 text"
        ) from None


def _plain(
    node: yaml.Node, loc: Loc, lines: dict[Loc, int], faults: list[ConfigError], file: str
) -> Any:
    """Node -> dicts, lists and scalars; notes each place's line and what cannot be data."""
    import yaml

    line = node.start_mark.line + 1
    lines.setdefault(loc, line)
    if len(loc) > MAX_DEPTH or len(lines) > MAX_NODES:
        raise ConfigError("nested too deep or too large", file=file, line=line, mend="flatten it")
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item, (*loc, i), lines, faults, file) for i, item in enumerate(node.value)]
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, loc, lines, faults, file)
    return _scalar(node, loc, faults, file)


def _mapping(
    node: yaml.MappingNode, loc: Loc, lines: dict[Loc, int], faults: list[ConfigError], file: str
) -> dict[str, Any]:
    import yaml

    data: dict[str, Any] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        key = key_node.value if isinstance(key_node, yaml.ScalarNode) else "?"
        if key in data:
            mend = "give each key once"
            faults.append(
                ConfigError(
                    "key given twice", file=file, line=line, key=_dotted((*loc, key)), mend=mend
                )
            )
            continue
        lines[(*loc, key)] = line
        data[key] = _plain(value_node, (*loc, key), lines, faults, file)
    return data


def _scalar(node: yaml.Node, loc: Loc, faults: list[ConfigError], file: str) -> Any:
    import yaml

    line = node.start_mark.line + 1
    try:
        value = yaml.SafeLoader("").construct_object(node)
    except (yaml.YAMLError, ValueError):
        faults.append(
            ConfigError(
                "no plain value", file=file, line=line, key=_dotted(loc), value=node.value,
                mend="write text, a number, true, false or null",
            )
        )  # fmt: skip
        return None
    if isinstance(value, float) and not math.isfinite(value):
        faults.append(
            ConfigError(
                "a number must be finite", file=file, line=line, key=_dotted(loc), value=value,
                mend="write a finite number",
            )
        )  # fmt: skip
        return None
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    return node.value  # a date, say: keep what was written


def _underscored(data: Any, model: type[Any], lines: dict[Loc, int]) -> Any:
    """Top-level keys spelt like options (max-inflight) become field names (max_inflight)."""
    known = set(known_keys(model))
    renamed: dict[str, Any] = {}
    for key, value in data.items():
        plain = key.replace("-", "_")
        use = plain if key not in known and plain in known and plain not in data else key
        renamed[use] = value
        if use != key:
            for loc in [loc for loc in lines if loc[:1] == (key,)]:
                lines[(use, *loc[1:])] = lines[loc]
    return renamed


# --- pydantic's errors in our words ------------------------------------------------------------


def _fault(
    item: Mapping[str, Any], data: Any, lines: dict[Loc, int], file: str, model: type[Any]
) -> ConfigError:
    loc = _place(item["loc"], data)
    kind = item["type"]
    key = _dotted(loc)
    line = _line(loc, lines)
    if kind in ("unexpected_keyword_argument", "extra_forbidden"):
        mend = _nearest(str(loc[-1]), known_keys(_type_at(model, loc[:-1])))
        return ConfigError("unknown key", file=file, line=line, key=key, mend=mend)
    if kind in ("missing", "missing_argument", "missing_keyword_only_argument"):
        missing = _dotted((*loc, item["loc"][-1]) if item["loc"][-1:] != loc[-1:] else loc)
        return ConfigError(
            "required key is missing", file=file, line=line, key=missing, mend="add it"
        )
    what = item["msg"].removeprefix("Value error, ").removeprefix("Input ")
    what, _, mend = what.replace("an object", "a mapping").partition("; ")
    value = item.get("input")
    value = None if isinstance(value, dict | list) else value  # a block is not quoted
    mend = mend or "correct the value"
    return ConfigError(what, file=file, line=line, key=key or None, value=value, mend=mend)


def _place(loc: Loc, data: Any) -> Loc:
    """The part of pydantic's location that exists in the data (it also names union members)."""
    place: list[int | str] = []
    for i, part in enumerate(loc):
        found = _child(data, part)
        if found is not _ABSENT:
            data = found
        elif i == len(loc) - 1 and isinstance(data, dict) and isinstance(part, str):
            place.append(part)
            break
        else:
            continue
        place.append(part)
    return tuple(place)


def _child(data: Any, part: int | str) -> Any:
    if isinstance(data, dict):
        return data.get(part, _ABSENT)
    if isinstance(data, list) and isinstance(part, int) and part < len(data):
        return data[part]
    return _ABSENT


def _line(loc: Loc, lines: dict[Loc, int]) -> int | None:
    for end in range(len(loc), -1, -1):
        if loc[:end] in lines:
            return lines[loc[:end]]
    return None


def _dotted(loc: Loc) -> str:
    return ".".join(str(part) for part in loc)


def _nearest(key: str, known: list[str]) -> str:
    close = difflib.get_close_matches(key.replace("-", "_"), known, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]}?"
    return f"known keys: {', '.join(known)}" if known else "remove it"


def known_keys(model: Any) -> list[str]:
    """Field names of a settings class; empty for any other type."""
    return [field.name for field in fields(model)] if is_dataclass(model) else []


def _type_at(model: Any, loc: Loc) -> Any:
    """The settings class that stands at a place of the data, or None."""
    for part in loc:
        candidates = list(_members(model))
        found = None
        for candidate in candidates:
            if is_dataclass(candidate):
                hints = typing.get_type_hints(candidate)
                found = hints.get(str(part), found)
            elif get_origin(candidate) in (dict, Mapping, list, tuple) and get_args(candidate):
                found = [arg for arg in get_args(candidate) if arg is not Ellipsis][-1]
            elif getattr(get_origin(candidate), "__name__", "") == "Mapping":
                found = get_args(candidate)[-1]
        model = found
    return next((member for member in _members(model) if is_dataclass(member)), None)


def _members(kind: Any) -> Iterator[Any]:
    """The alternatives of a union, each without its Annotated wrapper."""
    if get_origin(kind) is typing.Annotated:
        kind = get_args(kind)[0]
    if get_origin(kind) in (UnionType, typing.Union):
        for member in get_args(kind):
            yield from _members(member)
    else:
        yield kind
