"""The rules with shorter windows, for a demo or a test only; the files stay as they are."""

from __future__ import annotations

import re

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_RANGE = re.compile(r"\[(\d+)([smhd])\]")
_HOLD = re.compile(r"^(\s*)(for|keep_firing_for): (\d+)([smhd])$", re.MULTILINE)
_INTERVAL = re.compile(r"^(\s*)interval: \d+[smhd]$", re.MULTILINE)


def shorten(text: str, *, windows: float, holds: float, interval: str = "1s") -> str:
    """A rule file with each [range] divided by `windows`, `for` and `keep_firing_for` by `holds`.

    Ranges keep their order and never fall below 5 s, holds not below 1 s.
    """

    def ranged(match: re.Match[str]) -> str:
        return f"[{max(5, round(int(match[1]) * _UNITS[match[2]] / windows))}s]"

    def held(match: re.Match[str]) -> str:
        seconds = max(1, round(int(match[3]) * _UNITS[match[4]] / holds))
        return f"{match[1]}{match[2]}: {seconds}s"

    text = _RANGE.sub(ranged, text)
    text = _HOLD.sub(held, text)
    return _INTERVAL.sub(lambda match: f"{match[1]}interval: {interval}", text)
