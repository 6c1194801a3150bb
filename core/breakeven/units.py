"""Durations and rates as people write them; seconds inside, milliseconds only in print.

Here: parsing and formatting. Not here: clocks.
"""

from __future__ import annotations

import math
import re
from typing import Annotated

from pydantic import BeforeValidator

from .errors import InputError

SECONDS_PER = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}
_DURATION = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-zµ]*)\s*\Z")


def parse_duration(text: str | int | float) -> float:
    """Seconds of "500ms", "2s", "1.5h" or a bare number (seconds).

    Raises:
        InputError: not a number, NaN, infinite, negative, or a unit that is not known.
    """
    if isinstance(text, bool):
        raise _bad("a duration is a number with a unit", text)
    if isinstance(text, int | float):
        return _checked(float(text), text)
    match = _DURATION.match(text)
    if match is None:
        raise _bad("no duration", text)
    number, unit = match.groups()
    if unit not in SECONDS_PER:
        raise _bad(f"unknown unit {unit!r} of a duration", text)
    return _checked(float(number) * SECONDS_PER[unit], text)


def _checked(seconds: float, text: object) -> float:
    if not math.isfinite(seconds):
        raise _bad("a duration must be finite", text)
    if seconds < 0:
        raise _bad("a duration must not be negative", text)
    return seconds


def _bad(what: str, value: object) -> InputError:
    return InputError(what, value=value, mend="write e.g. 500ms, 2s, 1.5m or a number of seconds")


def format_duration(seconds: float) -> str:
    """The duration in the unit that reads best, three significant digits: 6.49 ms, 2 s, 1.5 h."""
    if not math.isfinite(seconds):
        return str(seconds)
    size = abs(seconds)
    for unit, scale in (("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if size >= scale * (2 if unit in ("h", "min") else 1):
            return f"{_digits(seconds / scale)} {unit}"
    return "0 s" if seconds == 0 else f"{_digits(seconds / 1e-9)} ns"


def _digits(value: float) -> str:
    """Three significant digits; whole numbers of more digits keep them all."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def parse_rate(text: str | int | float) -> float:
    """Arrivals per second: a finite number above 0.

    Raises:
        InputError: not a number, NaN, infinite, zero or negative.
    """
    try:
        rate = float(text)
    except (TypeError, ValueError):
        rate = math.nan
    if isinstance(text, bool) or not math.isfinite(rate) or rate <= 0:
        raise InputError(
            "a rate must be a finite number above 0", value=text, mend="write e.g. 8 or 0.5"
        )
    return rate


def _duration_field(value: object) -> float:
    """For pydantic, which turns ValueError into its own error with the key's place."""
    if not isinstance(value, str | int | float):
        raise ValueError("a duration is text such as 500ms, or a number of seconds")
    try:
        return parse_duration(value)
    except InputError as error:
        raise ValueError(f"{error.what}; {error.mend}") from None


Seconds = Annotated[float, BeforeValidator(_duration_field)]
"""Field of a settings dataclass that takes "500ms" as well as 0.5."""
