"""A valid answer for a structured-output request: the simplest text that the grammar takes.

The simulator has no language model; it must still not be the reason why a contract check fails.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import orjson

_PIECE = re.compile(r"\s*[A-Za-z0-9_.]+|\s*.", re.DOTALL)


class GrammarError(Exception):
    """The grammar cannot be read."""


def answer(values: Mapping[str, object]) -> tuple[str, ...] | None:
    """Token texts of the fixed answer to a request body, None when it asks for free text.

    Understands `response_format` (json_object, json_schema) and `structured_outputs` (json, regex,
    choice). For a regex a matching string is built for literals, classes and counted repeats only;
    what that cannot build is answered by free text.
    """
    text = _wanted(values)
    return None if text is None else tuple(_PIECE.findall(text))


def tool_name(tool: Mapping[str, object]) -> str:
    """The name of a tool's function."""
    function = tool.get("function")
    return str(function.get("name", "")) if isinstance(function, dict) else ""


def arguments(tool: Mapping[str, object]) -> tuple[str, ...]:
    """Token texts of valid arguments for a tool's function."""
    function = tool.get("function")
    schema = function.get("parameters") if isinstance(function, dict) else None
    return tuple(_PIECE.findall(_json(schema or {"type": "object"})))


def _wanted(values: Mapping[str, object]) -> str | None:
    form = values.get("response_format")
    if isinstance(form, dict):
        if form.get("type") == "json_object":
            return "{}"
        schema = form.get("json_schema")
        if form.get("type") == "json_schema" and isinstance(schema, dict):
            return _json(schema.get("schema"))
    wish = values.get("structured_outputs")
    if isinstance(wish, dict):
        if wish.get("json") is not None:
            return _json(wish["json"])
        choices = wish.get("choice")
        if isinstance(choices, list) and choices:
            return str(choices[0])
        if isinstance(wish.get("regex"), str):
            return _match(wish["regex"])
    return None


def _json(schema: object) -> str:
    if isinstance(schema, str):
        try:
            schema = orjson.loads(schema)
        except ValueError:
            raise GrammarError("the JSON schema is not JSON") from None
    return orjson.dumps(example(schema)).decode()


def example(schema: object) -> object:
    """The smallest instance of a JSON schema (the usual keywords; no references)."""
    if not isinstance(schema, dict):
        return None
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    if schema.get("enum"):
        return schema["enum"][0]
    for key in ("anyOf", "oneOf"):
        if schema.get(key):
            return example(schema[key][0])
    kind = schema.get("type", "object")
    if isinstance(kind, list):
        kind = kind[0]
    if kind == "object":
        return {name: example(part) for name, part in (schema.get("properties") or {}).items()}
    if kind == "array":
        return [example(schema.get("items"))] * int(schema.get("minItems", 0))
    if kind == "string":
        return "river"[: int(schema.get("maxLength", 5))].ljust(
            int(schema.get("minLength", 0)), "x"
        )
    if kind in ("integer", "number"):
        return max(schema.get("minimum", 0), 0)
    return True if kind == "boolean" else None


_ATOM = re.compile(r"(\[[^\]]+\]|\\[dws]|[A-Za-z0-9 _:,\-])(?:\{(\d+)(?:,\d*)?\}|([+*?]))?")


def _match(pattern: str) -> str | None:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise GrammarError(f"invalid regex: {error.msg}") from None
    built = ""
    at = 0
    while at < len(pattern):
        atom = _ATOM.match(pattern, at)
        if atom is None:
            return None
        one = re.compile(atom[1])
        letter = next((c for c in "a0A _-:,x" if one.fullmatch(c)), None)
        if letter is None:
            return None
        built += letter * (int(atom[2]) if atom[2] else 1)
        at = atom.end()
    return built if compiled.fullmatch(built) else None
