"""The generator's watch over itself: what it tells a scrape."""

from __future__ import annotations

import asyncio
import time

import pytest

from breakeven_loadgen.replay import clientload
from breakeven_loadgen.replay.clientload import COARSE_S, RECENT_S, SelfWatch


class Clock:
    """Stands for `time` in the module: monotonic seconds as the test says."""

    now_s = 1000.0
    monotonic = staticmethod(lambda: Clock.now_s)


def sample_at(watch: SelfWatch, now_s: float, late_s: float) -> None:
    """One sample whose timer was due `late_s` (and what uvloop may be late) before."""
    watch._due_s = now_s - late_s - COARSE_S
    Clock.now_s = now_s
    watch._sample()


def test_a_stall_is_told_at_the_next_scrapes_whenever_they_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A gauge of the latest sample showed 0 to every scrape that did not hit the stall itself."""

    async def told() -> list[float]:
        watch = SelfWatch()
        monkeypatch.setattr(clientload, "time", Clock)
        seen = []
        sample_at(watch, 1000.0, 0.0)
        sample_at(watch, 1001.0, 0.25)
        for second in range(2, 40):
            sample_at(watch, 1000.0 + second, 0.0)
            seen.append(watch.recent_lag_s())
        watch.stop()
        monkeypatch.setattr(clientload, "time", time)
        return seen

    seen = asyncio.run(told())
    for_s = int(RECENT_S)
    assert seen[:for_s] == pytest.approx([0.25] * for_s)
    assert seen[2 * for_s :] == [0.0] * len(seen[2 * for_s :])


def test_the_lag_is_zero_before_the_first_sample() -> None:
    async def told() -> float:
        return SelfWatch().recent_lag_s()

    assert asyncio.run(told()) == 0.0
