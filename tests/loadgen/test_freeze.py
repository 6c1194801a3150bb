"""Freezing: what could single somebody out is gone, what a replay needs is kept."""

from __future__ import annotations

import pytest

from breakeven.errors import InputError
from breakeven.trace import Arrival, Block, Header, Trace, read_trace, write_trace
from breakeven_loadgen.traffic.freeze import freeze

SALT = b"0123456789abcdef"


def trace(*arrivals: Arrival) -> Trace:
    return Trace(Header(Block("tokens", 512)), arrivals)


def test_time_offset_is_removed_and_times_are_quantised() -> None:
    """The first arrival is at 0; times are multiples of the step, order kept."""
    frozen = freeze(trace(*(Arrival(t, 1, 1) for t in (1000.014, 1000.033, 1000.3))), step_s=0.01)
    assert [a.t for a in frozen.trace.arrivals] == [0.0, 0.02, 0.29]


def test_rare_labels_become_other() -> None:
    """Labels below k occurrences are merged, common ones stay."""
    arrivals = [Arrival(i, 1, 1, cohort="big" if i else "customer-17") for i in range(10)]
    frozen = freeze(trace(*arrivals), min_count=5)
    assert [a.cohort for a in frozen.trace.arrivals] == ["other"] + ["big"] * 9
    assert frozen.merged_labels == 1


def test_ids_are_keyed_and_stay_equal() -> None:
    """Equal sessions and prefixes stay equal; names are gone; another salt gives other ids."""
    arrivals = [Arrival(i, 9, 1, session="alice", prefix=("p", f"q{i}")) for i in range(2)]
    a, b = freeze(trace(*arrivals), salt=SALT).trace.arrivals
    assert a.session == b.session != "alice"
    assert a.prefix is not None
    assert b.prefix is not None
    assert a.prefix[0] == b.prefix[0]
    assert a.prefix[1] != b.prefix[1]
    assert a == freeze(trace(*arrivals), salt=SALT).trace.arrivals[0]
    assert a.session != freeze(trace(*arrivals), salt=SALT[::-1]).trace.arrivals[0].session
    assert a.session != freeze(trace(*arrivals)).trace.arrivals[0].session, "a fresh secret salt"


def test_a_frozen_trace_passes_the_allow_list() -> None:
    """What is written is read back by the strict reader."""
    frozen = freeze(trace(*(Arrival(i, 1, 1, session=f"user {i}") for i in range(3)))).trace
    assert read_trace(list(write_trace(frozen))).arrivals == frozen.arrivals


def test_a_coarse_step_is_warned_about() -> None:
    """More than 10 % of the median gap."""
    arrivals = trace(*(Arrival(float(i), 1, 1) for i in range(5)))
    assert freeze(arrivals, step_s=0.2).warnings
    assert not freeze(arrivals, step_s=0.1).warnings


@pytest.mark.parametrize(
    ("options", "words"),
    [({"step_s": 0.0}, "--step"), ({"min_count": 0}, "--min-count"), ({"salt": b"x"}, "--salt")],
)
def test_bad_options(options: dict[str, object], words: str) -> None:
    """Refused with their flag."""
    with pytest.raises(InputError, match=words):
        freeze(trace(Arrival(0.0, 1, 1)), **options)  # type: ignore[arg-type]  # the point
