"""The table of a candidate's states: what forbids comes before what permits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.routing import TABLE, ArmState, Observation, Reason, State, step

S, R = State, Reason
FINE = Observation(wanted_why=R.LOAD_BELOW, unwanted_why=R.LOAD_ABOVE)


def obs(**kw: object) -> Observation:
    fields = {name: getattr(FINE, name) for name in Observation.__dataclass_fields__}
    return Observation(**{**fields, **kw})  # type: ignore[arg-type]


TRIP = obs(trip=R.GUARD_GAP_P99)


@pytest.mark.parametrize(
    ("before", "seen", "after", "reason"),
    [
        # what the policy wants
        (S.STANDBY, FINE, S.SERVING, R.LOAD_BELOW),
        (S.SERVING, obs(wanted=False), S.STANDBY, R.LOAD_ABOVE),
        (S.STANDBY, obs(wanted=False), S.STANDBY, None),
        (S.SERVING, FINE, S.SERVING, None),
        (S.STANDBY, obs(wanted=False, baseline_up=False), S.SERVING, R.BASELINE_DOWN),
        # bans, each out of SERVING
        (S.SERVING, TRIP, S.TRIPPED, R.GUARD_GAP_P99),
        (S.SERVING, obs(refused=R.CERTIFICATE_EXPIRED), S.REFUSED, R.CERTIFICATE_EXPIRED),
        (S.SERVING, obs(healthy=False), S.UNHEALTHY, R.HEALTH_DOWN),
        (S.SERVING, obs(limit=R.ABOVE_RANGE), S.OUT_OF_RANGE, R.ABOVE_RANGE),
        (S.SERVING, obs(limit=R.ABOVE_HEADROOM), S.OUT_OF_RANGE, R.ABOVE_HEADROOM),
        # a ban is stronger than a baseline that is down
        (S.STANDBY, obs(limit=R.ABOVE_RANGE, baseline_up=False), S.OUT_OF_RANGE, R.ABOVE_RANGE),
        (S.TRIPPED, obs(baseline_up=False), S.TRIPPED, None),
        # and out of each ban
        (S.REFUSED, FINE, S.SERVING, R.CERTIFICATE_VALID),
        (S.UNHEALTHY, FINE, S.SERVING, R.HEALTH_UP),
        (S.UNHEALTHY, obs(wanted=False), S.STANDBY, R.HEALTH_UP),
        (S.OUT_OF_RANGE, FINE, S.SERVING, R.IN_RANGE),
        # only a re-arm leads out of TRIPPED, and it does not lift the other bans
        (S.TRIPPED, FINE, S.TRIPPED, None),
        (S.TRIPPED, obs(rearm=True), S.SERVING, R.REARMED),
        (S.TRIPPED, obs(rearm=True, healthy=False), S.UNHEALTHY, R.HEALTH_DOWN),
        (S.TRIPPED, obs(rearm=True, trip=R.TRIPPED_BY_HAND), S.TRIPPED, None),
        # order among the bans
        (S.UNHEALTHY, TRIP, S.TRIPPED, R.GUARD_GAP_P99),
        (S.OUT_OF_RANGE, obs(healthy=False, limit=R.ABOVE_RANGE), S.UNHEALTHY, R.HEALTH_DOWN),
    ],
)
def test_table(before: State, seen: Observation, after: State, reason: Reason | None) -> None:
    """State and observation lead to the row's state and reason; None: no transition."""
    arm = ArmState(before, R.START, since_s=1.0)
    got = step(arm, seen, 9.0)
    if reason is None:
        assert got is arm
    else:
        assert got == ArmState(after, reason, since_s=9.0)
    assert got.state is after


reasons = st.sampled_from(Reason)
observations = st.builds(
    Observation,
    trip=st.none() | reasons,
    rearm=st.booleans(),
    refused=st.none() | reasons,
    healthy=st.booleans(),
    limit=st.none() | reasons,
    wanted=st.booleans(),
    baseline_up=st.booleans(),
)


@given(st.lists(observations, max_size=30))
def test_random_observations_never_find_it_serving_under_a_ban(seen: list[Observation]) -> None:
    """Not while tripped, refused (expired), out of range or unhealthy, in any order."""
    arm, tripped = ArmState(), False
    for now, o in enumerate(seen):
        tripped = o.trip is not None or (tripped and not o.rearm)
        arm = step(arm, o, now)
        banned = tripped or o.refused is not None or not o.healthy or o.limit is not None
        assert (arm.state is S.SERVING) == (not banned and (o.wanted or not o.baseline_up))
        assert (arm.state is S.TRIPPED) == tripped


def test_the_table_ends_in_a_row_that_always_applies() -> None:
    """The last row asks for nothing, so every observation has a next state."""
    assert TABLE[-1].only_in is None
    assert TABLE[-1].why(Observation(wanted=False)) is not None
