"""Validity gates: each is broken by its fault, and sound runs pass all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from breakeven_loadgen.replay import gates


def schedule(**options: Any) -> gates.GateResult:
    values: dict[str, Any] = {"scheduled": 100, "sent": 90, "dropped": 10, "interrupted": 0,
                              "lags_s": np.full(90, 0.001), "rate": 20.0}  # fmt: skip
    return gates.schedule(**(values | options))


def test_schedule_passes_with_drops() -> None:
    """Dropped arrivals do not invalidate: they count against goodput."""
    assert schedule().passed is True


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sent": 89}, "1 arrivals have no row"),
        ({"lags_s": np.r_[np.full(88, 0.001), [0.006, 0.006]]}, "above 5 ms"),
        ({"lags_s": np.r_[np.full(89, 0.001), [-0.002]]}, "2.00 ms early"),
    ],
)
def test_schedule_fails(options: dict[str, Any], words: str) -> None:
    """A lost arrival, a late p99, an early send."""
    gate = schedule(**options)
    assert gate.passed is False
    assert words in gate.reason


def test_schedule_allows_more_lag_at_high_rates() -> None:
    """8 ms p99 is within the bound above 500/s only."""
    lags = np.full(90, 0.008)
    assert schedule(lags_s=lags, rate=400.0).passed is False
    assert schedule(lags_s=lags, rate=800.0).passed is True


def accounting(**options: Any) -> gates.GateResult:
    values: dict[str, Any] = {"inflight_integral_s": 100.0, "row_latency_sum_s": 100.2, "rows": 50,
                              "offered": 50, "verdicts": {"good": 40, "error": 10}}  # fmt: skip
    return gates.accounting(**(values | options))


@pytest.mark.parametrize(
    ("options", "passed"),
    [
        ({}, True),
        ({"row_latency_sum_s": 98.0}, False),
        ({"offered": 51}, False),
        ({"verdicts": {"good": 40}}, False),
        ({"inflight_integral_s": 0.010, "row_latency_sum_s": 0.012}, True),
    ],
)
def test_accounting(options: dict[str, Any], passed: bool) -> None:
    """A lost row of 2 % of the time, a missing row, a missing verdict; tiny runs have a floor."""
    assert accounting(**options).passed is passed


@pytest.mark.parametrize(
    ("cpu", "lag_s", "steps", "passed"),
    [([0.5, 0.79], 0.004, 0, True), ([0.5, 0.81], 0.004, 0, False),
     ([0.5], 0.0051, 0, False), ([0.5], 0.001, 1, False)],
)  # fmt: skip
def test_client(cpu: list[float], lag_s: float, steps: int, passed: bool) -> None:
    """One busy worker, a lagging loop or a clock step is enough."""
    gate = gates.client(cpu_shares=cpu, loop_lag_p99_s=lag_s, clock_steps=steps)
    assert gate.passed is passed


def tokens(**options: Any) -> gates.GateResult:
    values: dict[str, Any] = {"client_tokens": 1000, "engine_tokens": 1000}
    return gates.tokens(**(values | options))


@pytest.mark.parametrize(
    ("options", "passed"),
    [
        ({}, True),
        ({"engine_tokens": 1001}, False),
        ({"engine_tokens": 999}, False),
        ({"proxy_tokens": 1001}, False),
        ({"proxy_tokens": 1000}, True),
        ({"engine_tokens": 1040, "unfinished": 3}, True),
        ({"engine_tokens": 999, "unfinished": 3}, False),
        ({"counters_reset": True}, False),
        ({"acceptance": 1.01}, False),
        ({"m": 0.9}, False),
        ({"m": 5.1, "k": 4}, False),
        ({"m": 5.0, "k": 4}, True),
        ({"m": 7.0}, True),
        ({"client_tokens": None}, None),
        ({"engine_tokens": None}, None),
    ],
)
def test_tokens(options: dict[str, Any], passed: bool | None) -> None:
    """Exact without unfinished requests; with them the engine may only have more."""
    assert tokens(**options).passed is passed


def sound_run(rng: np.random.Generator, rate: float, window_s: float) -> dict[str, Any]:
    """Rows of a stable server: Poisson arrivals, log-normal answers, TTFT that grows with load.

    In-flight is what those answers make of it, ramp and autocorrelation included.
    """
    intended = np.sort(rng.uniform(0, window_s, rng.poisson(rate * window_s)))
    service = rng.lognormal(0.3, 0.6, len(intended))
    ends = intended + service
    samples = np.linspace(0, window_s, 240)
    inflight = np.array([np.sum((intended <= t) & (ends > t)) for t in samples], float)
    load = np.array([np.sum((intended < t) & (ends > t)) for t in intended], float)
    ttft = 0.02 + 0.002 * load + rng.exponential(0.01, len(intended))
    return {"intended_s": intended, "ttft_s": ttft, "sample_s": samples, "inflight": inflight,
            "residence_s": float(np.median(service)), "service": service}  # fmt: skip


def test_sound_runs_pass_all_gates() -> None:
    """At least 99 % of 300 simulated sound runs, at three rates, pass every gate."""
    rng = np.random.default_rng(7)
    failures = 0
    runs = 300
    for i in range(runs):
        rate = (5.0, 20.0, 60.0)[i % 3]
        rows = sound_run(rng, rate, 30.0)
        n, service = len(rows["intended_s"]), rows.pop("service")
        lags = rng.exponential(0.0007, n)
        results = [
            gates.schedule(scheduled=n, sent=n, dropped=0, interrupted=0, lags_s=lags, rate=rate),
            gates.accounting(
                inflight_integral_s=float(np.sum(service) + rng.normal(0, 1e-4) * n),
                row_latency_sum_s=float(np.sum(service)),
                rows=n,
                offered=n,
                verdicts={"good": n},
            ),
            gates.client(cpu_shares=[0.3], loop_lag_p99_s=0.001, clock_steps=0),
            gates.stability(**rows),
            gates.tokens(client_tokens=n, engine_tokens=n, proxy_tokens=n),
        ]
        failures += bool(gates.failed(results))
    assert failures <= runs // 100


def test_a_queue_that_builds_up_is_unstable() -> None:
    """Overload: TTFT and in-flight grow through the window; the gate names it every time."""
    rng = np.random.default_rng(8)
    for _ in range(20):
        rows = sound_run(rng, 20.0, 30.0)
        rows.pop("service")
        rows["ttft_s"] = rows["ttft_s"] + 0.1 * rows["intended_s"]
        rows["inflight"] = rows["inflight"] + 2.0 * rows["sample_s"]
        gate = gates.stability(**rows)
        assert gate.passed is False
        assert "completion rate" in gate.reason


def test_growth_is_the_theil_sen_slope() -> None:
    """The growth that is looked at first has the slope that scipy gives with its interval."""
    rng = np.random.default_rng(10)
    for n in (4, 11, 12):
        mids, means = np.sort(rng.uniform(0, 30, n)), rng.uniform(1, 9, n)
        slope = stats.theilslopes(means, mids).slope
        assert gates._growth(mids, means, 30.0) == pytest.approx(slope * 30.0 / np.mean(means))
    assert gates._growth(mids[:3], means[:3], 30.0) == 0.0, "three parts show no slope"
    assert gates._growth(mids, np.zeros(12), 30.0) == 0.0


def test_short_windows_are_not_judged() -> None:
    """Ten rows show no trend: not evaluated, with the reason."""
    rows = sound_run(np.random.default_rng(9), 5.0, 2.0)
    rows.pop("service")
    gate = gates.stability(**rows)
    assert gate.passed is None
    assert "too short" in gate.reason


def test_failed_names_only_failures() -> None:
    """Gates that could not be evaluated are no failures."""
    found = [gates.GateResult("a", True, ""), gates.GateResult("b", False, ""),
             gates.GateResult("c", None, "")]  # fmt: skip
    assert gates.failed(found) == ["b"]


def test_a_page_that_was_lost_during_the_run_is_not_called_missing() -> None:
    """The engine died: --metrics-url was given, and the words hold then, too."""
    found = gates.tokens(client_tokens=5, engine_tokens=None, proxy_tokens=None, unfinished=1)
    assert found.passed is None
    assert "read before and after the run" in found.reason
