"""Orders inside blocks: every arm once, every position and every predecessor equally often."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven_loadgen.grid.blocks import orders, williams


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6])
def test_a_williams_square_is_balanced(n: int) -> None:
    """Each treatment in each place, and after each other, equally often."""
    rows = williams(n)
    places = Counter((i, x) for row in rows for i, x in enumerate(row))
    followers = Counter(pair for row in rows for pair in itertools.pairwise(row))
    assert len(set(places.values())) == 1
    assert len(followers) == n * (n - 1)
    assert len(set(followers.values())) == 1


def test_two_arms_go_abba() -> None:
    """AB and BA equally often in every pair of blocks."""
    found = orders(["a", "b"], 8, seed=3)
    assert Counter(map(tuple, found)) == {("a", "b"): 4, ("b", "a"): 4}
    for i in range(0, 8, 2):
        assert found[i] == found[i + 1][::-1]


@given(st.integers(1, 6), st.integers(1, 20), st.integers(0, 99))
def test_every_block_runs_every_arm_once(arms: int, blocks: int, seed: int) -> None:
    """Whatever the numbers."""
    names = [f"arm{i}" for i in range(arms)]
    found = orders(names, blocks, seed)
    assert len(found) == blocks
    assert all(sorted(order) == names for order in found)


def test_the_seed_fixes_the_order() -> None:
    """The plan can be printed before it is run, and resumed after."""
    names = ["a", "b", "c"]
    assert orders(names, 8, 1) == orders(names, 8, 1)
    assert orders(names, 8, 1) != orders(names, 8, 2)
