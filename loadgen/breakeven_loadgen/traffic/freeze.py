"""A trace made safe to keep and to share: the allow-list, and what could single somebody out.

Here: removing the time offset, quantising, merging rare labels, keying ids. Not here: the format
(core trace), recording (proxy).
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from breakeven.errors import InputError
from breakeven.keyed import MIN_SALT, session_id
from breakeven.trace import LABEL, Arrival, Header, Trace

OTHER = "other"
LABELS = ("cohort", "task", "lang")
DEFAULT_MIN_COUNT = 5
"""Labels of fewer arrivals are merged into `other`: a rare one can single out a customer."""
WARN_STEP_SHARE = 0.10
"""A time step above this share of the median gap changes the trace's shape."""
SALT_BYTES = 32


@dataclass(frozen=True, slots=True)
class Frozen:
    """A frozen trace, and what somebody should know about it."""

    trace: Trace
    warnings: tuple[str, ...]
    merged_labels: int


def freeze(
    trace: Trace,
    *,
    salt: bytes | None = None,
    step_s: float | None = None,
    min_count: int = DEFAULT_MIN_COUNT,
    notes: dict[str, str] | None = None,
) -> Frozen:
    """Remove what a replay does not need.

    Times start at 0 and are quantised to `step_s`; labels of fewer than `min_count` arrivals
    become `other`; session and prefix ids become BLAKE2b ids under `salt` (a fresh secret one
    that nobody keeps, when none is given), so that equal ids stay equal and tell nothing.

    Raises:
        InputError: a step, count or salt that cannot be used.
    """
    if step_s is not None and not 0 < step_s < 3600:
        raise InputError("no time step", key="--step", value=step_s, mend="e.g. 10ms")
    if min_count < 1:
        raise InputError("must be at least 1", key="--min-count", value=min_count, mend="e.g. 5")
    salt = salt if salt is not None else secrets.token_bytes(SALT_BYTES)
    if not MIN_SALT <= len(salt) <= 64:
        raise InputError(
            f"the salt has {len(salt)} bytes", key="--salt-file", mend=f"{MIN_SALT} to 64 bytes"
        )
    arrivals = _quantised(trace.arrivals, step_s)
    arrivals, merged = _merged(arrivals, min_count)
    keyed = _keyer(salt)
    arrivals = tuple(
        replace(
            a,
            session=keyed("s", a.session) if a.session is not None else None,
            prefix=tuple(keyed("p", item) for item in a.prefix) if a.prefix is not None else None,
        )
        for a in arrivals
    )
    header = Header(trace.header.block, dict(trace.header.notes) | (notes or {}))
    warnings = _warnings(trace.arrivals, step_s)
    return Frozen(Trace(header, arrivals), warnings, merged)


def _quantised(arrivals: Sequence[Arrival], step_s: float | None) -> tuple[Arrival, ...]:
    first = arrivals[0].t
    if step_s is None:
        return tuple(replace(a, t=round(a.t - first, 9)) for a in arrivals)
    return tuple(replace(a, t=round(round((a.t - first) / step_s) * step_s, 9)) for a in arrivals)


def _merged(arrivals: Sequence[Arrival], min_count: int) -> tuple[tuple[Arrival, ...], int]:
    """Rare and unusable labels become `other`, in all three label fields."""
    keep = {
        name: {
            label
            for label, n in Counter(getattr(a, name) for a in arrivals).items()
            if n >= min_count and LABEL.match(label)
        }
        for name in LABELS
    }
    merged = 0
    out = []
    for a in arrivals:
        rare = {n: OTHER for n in LABELS if getattr(a, n) not in keep[n] and getattr(a, n) != OTHER}
        merged += len(rare)
        out.append(replace(a, **rare) if rare else a)  # type: ignore[arg-type]  # label fields
    return tuple(out), merged


def _keyer(salt: bytes) -> Callable[[str, str], str]:
    known: dict[tuple[str, str], str] = {}

    def keyed(kind: str, name: str) -> str:
        found = known.get((kind, name))
        if found is None:
            found = known[(kind, name)] = session_id(f"{kind}:{name}".encode(), salt)
        return found

    return keyed


def _warnings(arrivals: Sequence[Arrival], step_s: float | None) -> tuple[str, ...]:
    if step_s is None or len(arrivals) < 2:
        return ()
    median = float(np.median(np.diff([a.t for a in arrivals])))
    if step_s <= WARN_STEP_SHARE * median:
        return ()
    return (
        f"the step of {step_s:g} s is more than 10 % of the median gap ({median:.4g} s): bursts "
        "are blunted; use a smaller --step",
    )
