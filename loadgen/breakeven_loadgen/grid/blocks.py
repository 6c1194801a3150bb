"""Blocks: the order in which the arms of one trace window run.

Here: balanced orders (ABBA for two, a Williams square for more), randomised by the grid's seed.
Not here: which arms (cells), when (runner). Source: Williams (1949), designs balanced for
first-order carry-over: every arm follows every other equally often.
"""

from __future__ import annotations

import random
from collections.abc import Sequence


def williams(n: int) -> list[list[int]]:
    """Rows of a Williams square for n treatments: n rows if n is even, 2n if it is odd."""
    first = [0, *((i + 1) // 2 if i % 2 else n - i // 2 for i in range(1, n))]
    rows = [[(x + shift) % n for x in first] for shift in range(n)]
    if n % 2:
        rows += [row[::-1] for row in rows]
    return rows


def orders(items: Sequence[str], blocks: int, seed: int) -> list[list[str]]:
    """One order of the items per block.

    Rows of the square are used in turn, in a random order drawn anew each time round, and the
    items are dealt to its symbols at random: over whole rounds the design stays balanced.
    """
    if len(items) < 2:
        return [list(items)] * blocks
    rng = random.Random(seed)
    out: list[list[str]] = []
    while len(out) < blocks:
        dealt = list(items)
        rng.shuffle(dealt)
        rows = williams(len(items))
        rng.shuffle(rows)
        out += [[dealt[i] for i in row] for row in rows]
    return out[:blocks]
