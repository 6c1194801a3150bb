"""What a routing policy wants, before anything forbids it.

Here: the load-aware preference (band, observation window, dwell) and the weighted, sticky
split. Not here: whether an arm may serve at all (`routing`), and what the load is (`load`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

# Half-width of the band around break-even. Of a simulated week (10-110 concurrency, noise sd 12,
# correlated over two minutes, break-even 64; tests/core/test_policy.py) ±15 % with the window
# and dwell below left 15-27 switches, of which 14 are the days' own; ±10 % and 300 s left 50.
DEFAULT_BAND = 0.15
# The load is averaged over this long before it is compared: five correlation times of the noise.
DEFAULT_WINDOW_S = 600.0
# Least time between two switches for load; safety never waits for it.
DEFAULT_DWELL_S = 600.0
_SLOTS = 60
# Samples come once a second; a late one on a busy machine is no silence. Longer than the window
# only where that is a few seconds.
_SILENCE_S = 5.0


class _Slot(NamedTuple):
    number: int
    load: float
    samples: int


class LoadWindow:
    """Mean of load samples over the last `window_s` seconds; a window of 0 keeps the last sample.

    Samples fall into 60 slots, so memory is bounded whatever the rate of samples, and the
    window's edge is one slot coarse.
    """

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._slot_s = window_s / _SLOTS
        self._slots: deque[_Slot] = deque()
        self._first_s: float | None = None
        self._last = (-math.inf, 0.0)

    def record(self, now: float, load: float) -> None:
        """Add one sample. A silence longer than the window (5 s at least) starts it again."""
        if self._first_s is None or now - self._last[0] > max(self._window_s, _SILENCE_S):
            self._slots.clear()
            self._first_s = now
        self._last = (now, load)
        if self._slot_s == 0:
            return
        number = int(now // self._slot_s)
        if self._slots and self._slots[-1].number == number:
            slot = self._slots.pop()
            self._slots.append(_Slot(number, slot.load + load, slot.samples + 1))
        else:
            self._slots.append(_Slot(number, load, 1))
        while self._slots[0].number <= number - _SLOTS:
            self._slots.popleft()

    def mean(self, now: float) -> float | None:
        """Mean load, or None while less than one window has been observed."""
        if self._first_s is None or now - self._first_s < self._window_s:
            return None
        if self._slot_s == 0:
            return self._last[1]
        return sum(s.load for s in self._slots) / sum(s.samples for s in self._slots)


@dataclass(frozen=True, slots=True)
class LoadAwareRules:
    """Speculate below `enter_below`, stop above `leave_above` (same unit as the samples)."""

    enter_below: float
    leave_above: float
    window_s: float = DEFAULT_WINDOW_S
    dwell_s: float = DEFAULT_DWELL_S

    @classmethod
    def around(cls, break_even: float, band: float = DEFAULT_BAND) -> LoadAwareRules:
        """Thresholds at break_even × (1 ∓ band)."""
        return cls(enter_below=break_even * (1 - band), leave_above=break_even * (1 + band))


@dataclass(frozen=True, slots=True)
class LoadPreference:
    """Whether the load speaks for the candidate, and since when (seconds)."""

    candidate: bool = False
    since_s: float = -math.inf


@dataclass(frozen=True, slots=True)
class _Row:
    candidate: bool
    when: Callable[[float, LoadAwareRules], bool]
    then: bool


# Preferred now, and mean load -> preferred then. Between the thresholds nothing changes.
LOAD_TABLE = (
    _Row(False, lambda load, rules: load < rules.enter_below, True),
    _Row(True, lambda load, rules: load > rules.leave_above, False),
)


def prefer(
    state: LoadPreference, load: float | None, now: float, rules: LoadAwareRules
) -> LoadPreference:
    """The preference after one look at the mean load (None: not yet observed for a window)."""
    if load is None or now - state.since_s < rules.dwell_s:
        return state
    for row in LOAD_TABLE:
        if row.candidate is state.candidate and row.when(load, rules):
            return LoadPreference(row.then, since_s=now)
    return state


def split_arm(key: bytes, weights: Mapping[str, float], salt: bytes) -> str:
    """The arm of `key` under `weights`: the same one each time, in every process.

    Weighted rendezvous hashing: the arm with the least −ln(u)/w, u a keyed BLAKE2b hash of key
    and arm, scaled to (0, 1) (Thaler & Ravishankar 1998, logarithmic weights as in Schindelhauer
    & Schomaker 2005). A change of one weight moves only keys to or from that arm, so a growing
    canary keeps those it has. Raises ValueError when no weight is above 0.
    """
    best: str | None = None
    least = math.inf
    for arm, weight in weights.items():
        if weight <= 0:
            continue
        digest = blake2b(arm.encode() + b"\0" + key, digest_size=8, key=salt).digest()
        score = -math.log((int.from_bytes(digest) + 0.5) / 2.0**64) / weight
        if score < least:
            best, least = arm, score
    if best is None:
        raise ValueError("no arm has a weight above 0")
    return best
