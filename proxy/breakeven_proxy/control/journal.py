"""The journal of the steering: what changed, why and when; the last of it for `/status`.

Here: transitions as log lines and as rows. Not here: counters (`observe`), who decides (core).
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime

from breakeven.steering import Transition

KEPT = 50
"""Transitions that /status shows."""

MAX_DETAIL = 200
"""Longest detail kept: a reason that somebody posts is cut there."""

log = logging.getLogger("breakeven_proxy.control")


@dataclass(frozen=True, slots=True)
class Entry:
    """One transition as people read it; `time` is UTC, ISO 8601."""

    time: str
    arm: str
    before: str
    after: str
    reason: str
    detail: str

    def as_dict(self) -> dict[str, str]:
        """For JSON."""
        return {
            "time": self.time,
            "arm": self.arm,
            "from": self.before,
            "to": self.after,
            "reason": self.reason,
            "detail": self.detail,
        }


class Journal:
    """Keeps the last `KEPT` transitions and logs each."""

    def __init__(self) -> None:
        self._entries: deque[Entry] = deque(maxlen=KEPT)

    def note(self, move: Transition, epoch_s: float) -> Entry:
        """One transition at `epoch_s` (Unix time): kept, and logged as a warning if it is bad."""
        when = datetime.fromtimestamp(epoch_s, UTC).isoformat(timespec="milliseconds")
        entry = Entry(
            when, move.arm, move.before, move.after, move.reason, printable(move.detail)
        )  # fmt: skip
        self._entries.append(entry)
        level = logging.INFO if entry.after in ("serving", "standby") else logging.WARNING
        log.log(level, "route_transition", extra=entry.as_dict())
        return entry

    def entries(self) -> list[dict[str, str]]:
        """Oldest first."""
        return [entry.as_dict() for entry in self._entries]


def printable(text: str) -> str:
    """One line of at most `MAX_DETAIL` printable characters: it goes to logs and terminals."""
    line = "".join(ch if ch.isprintable() else " " for ch in text).strip()
    return line if len(line) <= MAX_DETAIL else line[: MAX_DETAIL - 1] + "…"
