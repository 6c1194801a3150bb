"""The plan of one run: every arrival with its intended offset, computed before the run starts.

Here: which arrivals, when, which are warm-up, which the run itself cancels, and how shards and
sessions divide them. Not here: content, sending.
The plan depends only on (trace, settings, seed, block): every arm, worker and shard computes the
same one and takes its part.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from breakeven.errors import InputError
from breakeven.trace import Arrival as TraceArrival

from .arrivals import Arrival, Offsets, Purpose, cap_gaps, draw, generator, rescale

MAX_ARRIVALS = 10_000_000
"""A plan above this would not fit in memory; it is a slip in --rate or --duration."""

MAX_RUN_S = 366 * 86400.0
"""A longer run is a slip in --rate or in the trace's times, and past what a timer takes."""


@dataclass(frozen=True, slots=True)
class Planned:
    """One arrival to offer.

    Attributes:
        index: position in the whole run's plan (not in the shard's).
        offset_s: intended time, seconds after the run's start.
        arrival: lengths and labels from the trace.
        warmup: excluded from statistics, kept in cost.
        cancel_after: the run itself cancels the stream after this many output tokens.
        after: index of the session's previous turn, which must end before this one is sent.
    """

    index: int
    offset_s: float
    arrival: TraceArrival
    warmup: bool = False
    cancel_after: int | None = None
    after: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSettings:
    """What of the trace is replayed, and when.

    Attributes:
        rate: target mean arrival rate per second; None keeps the trace's own times.
        duration_s: measured window, seconds; the warm-up comes before it.
        requests: number of arrivals, warm-up included.
        window_s: part of the trace (its own seconds after its first arrival) to take.
        skip: arrivals of the window to pass over (distinct slices for distinct blocks).
        gap_cap_s: longest gap kept, in the trace's own time, before any rescaling.
        cancel_share: share of arrivals (0..1) that the run cancels.
    """

    arrival: Arrival
    rate: float | None
    duration_s: float | None = None
    requests: int | None = None
    warmup_s: float = 0.0
    window_s: tuple[float, float] | None = None
    skip: int = 0
    gap_cap_s: float | None = None
    cancel_share: float = 0.0
    seed: int = 0
    block: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """All arrivals of a run (or of one shard of it), in order of their intended offsets."""

    arrivals: tuple[Planned, ...]
    notes: tuple[str, ...] = ()

    @property
    def offsets(self) -> list[float]:
        return [planned.offset_s for planned in self.arrivals]

    def digest(self) -> str:
        """Hash of indexes, intended offsets and lengths: equal plans, equal digests."""
        state = hashlib.blake2b(digest_size=16)
        for p in self.arrivals:
            lengths = f"{p.arrival.in_tokens} {p.arrival.out_tokens} {p.cancel_after}"
            state.update(f"{p.index} {p.offset_s:.9f} {lengths}\n".encode())
        return state.hexdigest()


def make_plan(arrivals: Sequence[TraceArrival], settings: PlanSettings) -> Plan:
    """The whole run's plan.

    Raises:
        InputError: nothing left to replay or to measure, more than a year of it, or neither a
            duration nor a count ends the run.
    """
    notes: list[str] = []
    chosen = _window(arrivals, settings)
    if settings.arrival.kind == "trace":
        times, chosen = _trace_times(chosen, settings, notes)
    else:
        times = _drawn_times(settings)
        chosen = _cycled(chosen, len(times), notes)
    if len(times) == 0:
        raise InputError(
            "no arrival falls into the run",
            key="--duration",
            value=settings.duration_s,
            mend="use a longer --duration, a higher --rate, or --requests",
        )
    if float(times[-1]) > MAX_RUN_S:
        raise InputError(
            f"the last arrival would come after {float(times[-1]):.3g} s",
            key="--rate",
            value=settings.rate,
            mend="use a higher --rate, fewer --requests, or --gap-cap; a run lasts a year at most",
        )
    if float(times[-1]) < settings.warmup_s:
        raise InputError(
            f"all {len(times)} arrivals fall into the warm-up: none would be measured",
            key="--warmup",
            value=settings.warmup_s,
            mend="use a shorter --warmup, or more --requests",
        )
    cancels = _cancellations(chosen, settings)
    planned = [
        Planned(i, float(t), a, warmup=float(t) < settings.warmup_s, cancel_after=cancels.get(i))
        for i, (t, a) in enumerate(zip(times, chosen, strict=True))
    ]
    return Plan(tuple(_chained(planned)), tuple(notes))


def _window(arrivals: Sequence[TraceArrival], settings: PlanSettings) -> Sequence[TraceArrival]:
    if settings.window_s is not None and arrivals:
        low, high = settings.window_s
        first = arrivals[0].t
        arrivals = [a for a in arrivals if low <= a.t - first < high]
    if settings.skip:
        arrivals = arrivals[settings.skip :]
    if not arrivals:
        raise InputError(
            "the chosen part of the trace holds no arrival",
            key="--window" if settings.window_s else "--skip",
            value=settings.window_s or settings.skip,
            mend="choose a part inside the trace: loadgen trace inspect shows its length",
        )
    return arrivals


def _total_s(settings: PlanSettings) -> float | None:
    return None if settings.duration_s is None else settings.duration_s + settings.warmup_s


def _trace_times(
    arrivals: Sequence[TraceArrival], settings: PlanSettings, notes: list[str]
) -> tuple[Offsets, Sequence[TraceArrival]]:
    """The first arrivals that rate × duration (or the count) asks for, in the trace's shape.

    The slice is rescaled as a whole, so its mean rate is the asked one: rescaling the whole trace
    and cutting would give whatever the first minutes of the trace happen to hold.
    """
    times = np.array([a.t for a in arrivals])
    times = times - times[0]
    if settings.gap_cap_s is not None:
        times = cap_gaps(times, settings.gap_cap_s)
    total_s = _total_s(settings)
    count = len(arrivals)
    if settings.requests is not None:
        count = min(count, settings.requests)
    if total_s is not None and settings.rate is not None:
        asked = max(1, int(settings.rate * total_s + 1e-9))
        if asked > len(arrivals):
            notes.append(f"the trace holds {len(arrivals)} arrivals, {asked} were asked for")
        count = min(count, asked)
    elif total_s is not None:
        count = min(count, int(np.searchsorted(times, total_s)))
    if settings.requests is not None and settings.requests > len(arrivals):
        raise InputError(
            f"the chosen part of the trace holds {len(arrivals)} arrivals",
            key="--requests",
            value=settings.requests,
            mend="ask for fewer, or choose a longer part of the trace",
        )
    times, arrivals = times[:count], arrivals[:count]
    if settings.rate is not None and count:
        times = rescale(times, settings.rate)
    return times, arrivals


def _drawn_times(settings: PlanSettings) -> Offsets:
    total_s = _total_s(settings)
    if settings.rate is None:
        raise InputError(
            "these arrivals need a rate",
            key="--rate",
            mend="give --rate, the mean arrivals per second",
        )
    if total_s is None and settings.requests is None:
        raise InputError(
            "nothing ends the run",
            key="--duration",
            mend="give --duration or --requests",
        )
    expected = settings.requests or settings.rate * (total_s or 0.0)
    if expected > MAX_ARRIVALS:
        raise InputError(
            f"the run would offer {expected:.4g} arrivals",
            key="--rate",
            value=settings.rate,
            mend=f"stay below {MAX_ARRIVALS}",
        )
    rng = generator(settings.seed, settings.block, Purpose.ARRIVALS)
    return draw(settings.arrival, settings.rate, rng, duration_s=total_s, count=settings.requests)


def _cycled(
    arrivals: Sequence[TraceArrival], count: int, notes: list[str]
) -> Sequence[TraceArrival]:
    """Lengths in trace order, from the start again when the trace is shorter than the run."""
    if count <= len(arrivals):
        return arrivals[:count]
    if len(arrivals) > 1:
        notes.append(f"lengths of {len(arrivals)} trace rows were used again for {count} arrivals")
    # A second pass over a session's turns would be another session: it gets none.
    again = [replace(a, session=None) if a.session is not None else a for a in arrivals]
    return [(arrivals if i < len(arrivals) else again)[i % len(arrivals)] for i in range(count)]


def _cancellations(arrivals: Sequence[TraceArrival], settings: PlanSettings) -> dict[int, int]:
    """Index -> output tokens after which it is cancelled: a seeded share of the arrivals, each
    after a uniformly drawn share of its tokens (at least one, so that a token was seen)."""
    if settings.cancel_share <= 0:
        return {}
    rng = generator(settings.seed, settings.block, Purpose.CANCEL)
    chosen: NDArray[np.bool_] = rng.random(len(arrivals)) < settings.cancel_share
    shares = rng.random(len(arrivals))
    return {
        i: max(1, int(shares[i] * arrivals[i].out_tokens))
        for i in np.flatnonzero(chosen).tolist()
        if arrivals[i].stream
    }


def _chained(planned: list[Planned]) -> list[Planned]:
    last: dict[str, int] = {}
    chained: list[Planned] = []
    for p in planned:
        session = p.arrival.session
        if session is not None:
            previous = last.get(str(session))
            last[str(session)] = p.index
            if previous is not None:
                p = replace(p, after=previous)
        chained.append(p)
    return chained


# --- shards ------------------------------------------------------------------------------------


def shard_of(planned: Planned, shards: int) -> int:
    """Which of `shards` offers this arrival: round robin by index; a session by its keyed hash,
    so that all its turns stay together."""
    session = planned.arrival.session
    if session is None:
        return planned.index % shards
    digest = hashlib.blake2b(str(session).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % shards


def take_shard(plan: Plan, shard: int, shards: int) -> Plan:
    """The arrivals of one shard, with the indexes and offsets of the whole plan."""
    if shards == 1:
        return plan
    return Plan(tuple(p for p in plan.arrivals if shard_of(p, shards) == shard), plan.notes)


def split_inflight(max_inflight: int, shard: int, shards: int) -> int:
    """This shard's part of the global bound: ⌊M/n⌋, +1 for the first M mod n.

    Raises:
        InputError: the bound leaves a shard without a slot.
    """
    share = max_inflight // shards + (1 if shard < max_inflight % shards else 0)
    if share < 1:
        raise InputError(
            f"{shards} shards cannot share this bound: each needs at least 1",
            key="--max-inflight",
            value=max_inflight,
            mend=f"use at least {shards}, or fewer shards",
        )
    return share
