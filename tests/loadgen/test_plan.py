"""The plan: slices, warm-up, cancellations, sessions, shards."""

from __future__ import annotations

from typing import Any

import pytest

from breakeven.errors import InputError
from breakeven.trace import Arrival as TraceArrival
from breakeven_loadgen.traffic.arrivals import Arrival
from breakeven_loadgen.traffic.plan import (
    Plan,
    PlanSettings,
    make_plan,
    split_inflight,
    take_shard,
)

TRACE = [TraceArrival(float(i * i), 10 + i, 20 + i) for i in range(30)]


def plan(arrivals: list[TraceArrival] | None = None, **options: Any) -> Plan:
    """A plan of the test trace."""
    values: dict[str, Any] = {"arrival": Arrival("trace"), "rate": 2.0}
    return make_plan(TRACE if arrivals is None else arrivals, PlanSettings(**(values | options)))


def test_trace_slice_has_the_asked_mean_rate() -> None:
    """rate × duration arrivals, rescaled as a slice, all inside the window."""
    p = plan(rate=2.0, duration_s=5.0)
    assert len(p.arrivals) == 10
    assert p.offsets[0] == 0.0
    assert p.offsets[-1] == pytest.approx(9 / 2.0)
    assert [a.arrival.in_tokens for a in p.arrivals] == list(range(10, 20))


def test_without_a_rate_the_trace_keeps_its_times() -> None:
    """Own times, cut by duration."""
    assert plan(rate=None, duration_s=17.0).offsets == [0.0, 1.0, 4.0, 9.0, 16.0]


def test_warmup_comes_before_the_window() -> None:
    """Warm-up adds arrivals before the measured window; they are flagged."""
    p = plan(arrival=Arrival("constant"), rate=2.0, duration_s=5.0, warmup_s=2.0)
    assert len(p.arrivals) == 14
    assert [a.warmup for a in p.arrivals] == [True] * 4 + [False] * 10


def test_window_and_skip_choose_distinct_slices() -> None:
    """Parts of the trace by its own seconds, then by arrivals."""
    p = plan(rate=None, window_s=(4.0, 100.0), skip=1)
    assert [a.arrival.in_tokens for a in p.arrivals] == list(range(13, 20))
    assert p.offsets[0] == 0.0


def test_more_requests_than_the_trace_has_is_refused() -> None:
    """A trace is not repeated silently."""
    with pytest.raises(InputError, match="holds 30 arrivals"):
        plan(requests=31)


def test_longer_duration_than_the_trace_is_said() -> None:
    """All there is, and a note."""
    p = plan(rate=2.0, duration_s=100.0)
    assert len(p.arrivals) == 30
    assert "the trace holds 30 arrivals, 200 were asked for" in p.notes


def test_drawn_arrivals_cycle_through_the_lengths() -> None:
    """Poisson times with the trace's lengths, repeated with a note."""
    p = plan(arrival=Arrival("poisson"), rate=10.0, requests=70)
    assert [a.arrival.in_tokens for a in p.arrivals[:31]] == [*range(10, 40), 10]
    assert p.notes


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"arrival": Arrival("poisson"), "rate": 2.0}, "nothing ends the run"),
        ({"arrival": Arrival("poisson"), "rate": None, "requests": 3}, "need a rate"),
        ({"arrival": Arrival("constant"), "rate": 1e9, "duration_s": 60.0}, "would offer"),
        ({"arrival": Arrival("poisson"), "rate": 1e12, "duration_s": 1e300}, "would offer"),
        ({"arrival": Arrival("constant"), "rate": 0.01, "duration_s": 5.0}, "no arrival"),
        ({"skip": 30}, "holds no arrival"),
        ({"window_s": (1e6, 2e6)}, "holds no arrival"),
    ],
)
def test_plans_that_cannot_be(options: dict[str, Any], words: str) -> None:
    """Each is refused with its reason."""
    with pytest.raises(InputError, match=words):
        plan(**options)


def test_cancellations_are_seeded_and_have_the_share() -> None:
    """About the asked share, the same for the same seed, within the answer's tokens."""
    options: dict[str, Any] = {"arrival": Arrival("constant"), "rate": 100.0, "requests": 4000,
                               "cancel_share": 0.05}  # fmt: skip
    p = plan(**options)
    cancelled = [a for a in p.arrivals if a.cancel_after is not None]
    assert len(cancelled) == pytest.approx(200, abs=4 * 14)
    assert all(1 <= (a.cancel_after or 0) <= a.arrival.out_tokens for a in cancelled)
    assert p == plan(**options)
    assert {a.index for a in cancelled} != {
        a.index for a in plan(**options, seed=1).arrivals if a.cancel_after is not None
    }


def sessions() -> list[TraceArrival]:
    """Ten sessions of three turns, interleaved."""
    return [TraceArrival(float(i), 5, 5, session=f"{i % 10:016x}") for i in range(30)]


def test_sessions_chain_their_turns() -> None:
    """Each turn but the first names the turn before it."""
    p = plan(sessions())
    assert [a.after for a in p.arrivals[:10]] == [None] * 10
    assert [a.after for a in p.arrivals[10:]] == list(range(20))


@pytest.mark.parametrize("shards", [2, 3, 7])
@pytest.mark.parametrize("with_sessions", [True, False])
def test_shards_are_a_partition(shards: int, with_sessions: bool) -> None:
    """Every arrival in exactly one shard, as it is in the whole plan; sessions never split."""
    whole = plan(sessions() if with_sessions else None, cancel_share=0.3)
    parts = [take_shard(whole, i, shards) for i in range(shards)]
    joined = sorted((a for part in parts for a in part.arrivals), key=lambda a: a.index)
    assert tuple(joined) == whole.arrivals
    if with_sessions:
        homes = [{a.arrival.session for a in part.arrivals} for part in parts]
        assert sum(len(home) for home in homes) == 10


@pytest.mark.parametrize(("bound", "shards"), [(10, 3), (3, 3), (1, 1), (1000, 7)])
def test_inflight_is_split_without_loss(bound: int, shards: int) -> None:
    """⌊M/n⌋ each, +1 for the first M mod n: together exactly M."""
    shares = [split_inflight(bound, i, shards) for i in range(shards)]
    assert sum(shares) == bound
    assert max(shares) - min(shares) <= 1
    assert shares == sorted(shares, reverse=True)


def test_a_bound_below_the_shards_is_refused() -> None:
    """A shard without a slot would offer nothing."""
    with pytest.raises(InputError, match="--max-inflight"):
        split_inflight(2, 2, 3)


def test_digest_tells_plans_apart() -> None:
    """Equal plans have equal digests; another seed, another digest."""
    options: dict[str, Any] = {"arrival": Arrival("poisson"), "rate": 5.0, "requests": 10}
    assert plan(**options).digest() == plan(**options).digest()
    assert plan(**options).digest() != plan(**options, seed=1).digest()
