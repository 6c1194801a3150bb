"""The journal of the steering: what changed, why and when; the last of it for `/status`.

Here: transitions as log lines and as rows, and which arms were tripped, kept over a restart. Not
here: counters (`steer`), who decides (core).
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import orjson

from breakeven.routing import Reason
from breakeven.steering import Transition
from breakeven_proxy.observe.log import Log

KEPT = 50
"""Transitions that /status shows."""

MAX_DETAIL = 200
"""Longest detail kept: a reason that somebody posts is cut there."""

GOOD = frozenset({"serving", "standby"})


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
            "at": self.time,
            "arm": self.arm,
            "from": self.before,
            "to": self.after,
            "reason": self.reason,
            "detail": self.detail,
        }


class Journal:
    """Keeps the last `KEPT` transitions and logs each."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._entries: deque[Entry] = deque(maxlen=KEPT)

    def note(self, move: Transition, epoch_s: float) -> None:
        """One transition at `epoch_s` (Unix time): kept, and logged, as a warning if it is bad."""
        at = datetime.fromtimestamp(epoch_s, UTC).isoformat(timespec="milliseconds")
        detail = printable(move.detail)
        entry = Entry(at, move.arm, move.before, move.after, move.reason, detail)
        self._entries.append(entry)
        say = self._log.info if entry.after in GOOD else self._log.warning
        say("route transition", **entry.as_dict())

    def entries(self) -> list[dict[str, str]]:
        """Oldest first."""
        return [entry.as_dict() for entry in self._entries]


def printable(text: str) -> str:
    """One line of at most `MAX_DETAIL` printable characters: it goes to logs and terminals."""
    line = "".join(ch if ch.isprintable() else " " for ch in text).strip()
    return line if len(line) <= MAX_DETAIL else line[: MAX_DETAIL - 1] + "…"


class TripFile:
    """Tripped arms on disk, so that a restart is no re-arm. Without a path it remembers nothing.

    A file that cannot be read trips every candidate: what it said is unknown.
    """

    def __init__(self, path: str | None, log: Log) -> None:
        self._path = None if path is None else Path(path)
        self._log = log

    def load(self, candidates: Mapping[str, object]) -> dict[str, tuple[Reason, str]]:
        """Arm -> reason and detail of those that were tripped."""
        if self._path is None or not self._path.exists():
            return {}
        try:
            rows = orjson.loads(self._path.read_bytes())["tripped"]
            return {
                str(arm): (Reason(row["reason"]), printable(str(row["detail"])))
                for arm, row in rows.items()
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            self._log.error("trip file cannot be read: every candidate is tripped", error)
            why = (Reason.CONTROL_ERROR, "the trip file cannot be read")
            return dict.fromkeys(candidates, why)

    def save(self, tripped: Mapping[str, tuple[Reason, str]]) -> None:
        """Writes the file anew, in one step; a fault is logged and changes nothing else."""
        if self._path is None:
            return
        rows = {arm: {"reason": why, "detail": printable(said)}
                for arm, (why, said) in tripped.items()}  # fmt: skip
        beside = self._path.with_name(self._path.name + ".new")
        try:
            beside.write_bytes(orjson.dumps({"tripped": rows}, option=orjson.OPT_INDENT_2))
            os.replace(beside, self._path)
        except OSError as error:
            self._log.error("trip file cannot be written", error)
