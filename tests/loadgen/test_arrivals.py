"""Arrival processes: their statistics, seeds and rescaling."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest

from breakeven.errors import InputError
from breakeven_loadgen.traffic.arrivals import (
    Arrival,
    Purpose,
    cap_gaps,
    draw,
    generator,
    mean_rate,
    parse_arrival,
    rescale,
)


@pytest.mark.parametrize("cv", [0.5, 1.0, 2.5])
def test_gamma_has_the_asked_cv(cv: float) -> None:
    """Gaps of mean 1/rate with the coefficient of variation that was asked for."""
    rng = generator(3, 0, Purpose.ARRIVALS)
    times = draw(Arrival("gamma", cv), 10.0, rng, duration_s=None, count=50_000)
    gaps = np.diff(times)
    assert np.mean(gaps) == pytest.approx(0.1, rel=0.04)
    assert np.std(gaps) / np.mean(gaps) == pytest.approx(cv, rel=0.04)
    assert abs(np.corrcoef(gaps[:-1], gaps[1:])[0, 1]) < 0.03


@pytest.mark.parametrize("cv", [0.5, 2.0])
def test_gamma_dispersion(cv: float) -> None:
    """Counts over long windows have the index of dispersion CV² (renewal theory)."""
    rng = generator(5, 0, Purpose.ARRIVALS)
    times = draw(Arrival("gamma", cv), 50.0, rng, duration_s=4000.0, count=None)
    counts = np.bincount((times / 4.0).astype(int))
    assert np.var(counts) / np.mean(counts) == pytest.approx(cv**2, rel=0.25)


def test_seed_and_block_choose_the_draw() -> None:
    """The same (seed, block) gives the same times; another block gives others."""

    def times(seed: int, block: int) -> list[float]:
        rng = generator(seed, block, Purpose.ARRIVALS)
        return draw(Arrival("poisson"), 5.0, rng, duration_s=None, count=20).tolist()

    assert times(1, 0) == times(1, 0)
    assert times(1, 0) != times(1, 1)
    assert times(1, 0) != times(2, 0)


def test_purposes_have_independent_streams() -> None:
    """Cancellations do not use the numbers of the arrivals."""
    a = generator(1, 0, Purpose.ARRIVALS).random(8)
    b = generator(1, 0, Purpose.CANCEL).random(8)
    assert not np.any(a == b)


def test_duration_and_count_together_take_the_shorter() -> None:
    """Both limits hold."""
    rng = generator(0, 0, Purpose.ARRIVALS)
    assert len(draw(Arrival("constant"), 10.0, rng, duration_s=3.0, count=5)) == 5
    assert len(draw(Arrival("constant"), 10.0, rng, duration_s=0.3, count=50)) == 3
    poisson = draw(Arrival("poisson"), 10.0, rng, duration_s=1000.0, count=7)
    assert len(poisson) == 7


@pytest.mark.parametrize("kind", ["constant", "poisson", "gamma"])
def test_a_count_bounds_the_draw_of_a_huge_window(
    kind: Literal["constant", "poisson", "gamma"],
) -> None:
    """The same first arrivals as by count alone: the window behind them is not drawn."""
    arrival = Arrival(kind, 2.0) if kind == "gamma" else Arrival(kind)
    long, short = (
        draw(arrival, 50.0, np.random.default_rng(7), duration_s=duration_s, count=20)
        for duration_s in (1e300, None)
    )
    assert long.tolist() == short.tolist()
    assert len(long) == 20


def test_poisson_fills_its_window() -> None:
    """All arrivals below the duration, and the process does not stop early."""
    rng = generator(0, 0, Purpose.ARRIVALS)
    times = draw(Arrival("poisson"), 0.5, rng, duration_s=1000.0, count=None)
    assert times[-1] < 1000.0
    assert times[-1] > 950.0
    assert np.all(np.diff(times) > 0)


def test_rescale_keeps_the_shape() -> None:
    """Ratios of gaps stay, the mean rate is the asked one, the first arrival is at 0."""
    times = np.array([5.0, 6.0, 9.0, 9.0, 25.0])
    scaled = rescale(times, 2.0)
    assert scaled[0] == 0.0
    assert mean_rate(scaled) == pytest.approx(2.0)
    assert (np.diff(scaled) / np.diff(times)[0]).tolist() == pytest.approx(
        [x * scaled[1] for x in (1.0, 3.0, 0.0, 16.0)]
    )


def test_rescale_of_simultaneous_arrivals_is_refused() -> None:
    """No shape to rescale: the error says the mend."""
    with pytest.raises(InputError, match="same time"):
        rescale(np.array([1.0, 1.0, 1.0]), 2.0)
    assert rescale(np.array([7.0]), 2.0).tolist() == [0.0]


def test_cap_of_nothing() -> None:
    """An empty trace stays empty."""
    assert len(cap_gaps(np.array([]), 1.0)) == 0


@pytest.mark.parametrize("text", ["", "uniform", "gamma", "gamma:0", "gamma:nan", "gamma:x",
                                  "gamma:inf", "gamma:-1", "poisson:2"])  # fmt: skip
def test_bad_arrival(text: str) -> None:
    """Unknown kinds and impossible CVs are refused with the known forms."""
    with pytest.raises(InputError, match="--arrival"):
        parse_arrival(text)


def test_good_arrivals() -> None:
    """All four kinds."""
    assert parse_arrival("gamma:2.5") == Arrival("gamma", 2.5)
    assert [parse_arrival(k).kind for k in ("trace", "constant", "poisson")] == [
        "trace", "constant", "poisson",
    ]  # fmt: skip
