"""Validity gates of one run: is it evidence? Pure functions of rows and counters.

Here: schedule, accounting, client, stability, tokens (docs/definitions.md). Not here: gates across
arms (judge). A gate that cannot be evaluated says so (`passed` None) and does not fail the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MAX_LAG_P99_S = 0.005
"""Sends deviate from the schedule by at most this (p99)."""
MAX_LAG_P99_FAST_S = 0.010
"""The same above FAST_RATE."""
FAST_RATE = 500.0
MAX_ACCOUNTING_ERROR = 0.01
"""Relative difference of the in-flight integral and the sum of row latencies."""
ACCOUNTING_FLOOR_S = 0.010
"""Absolute difference always allowed: clock reads of a few requests, not a lost row."""
MAX_CPU_SHARE = 0.80
"""CPU of a worker, share of one core."""
MAX_LOOP_LAG_P99_S = 0.005
MIN_STABILITY_ROWS = 40
"""Fewer measured rows cannot show a trend: the gate is not evaluated."""
STABILITY_SEGMENTS = 12
"""Window parts whose means are fitted: single in-flight samples are too alike to be points."""
STABILITY_CONFIDENCE = 0.99
"""Confidence of each slope interval; both are required, so a sound run hardly ever fails."""
MIN_PARTS = 4
"""Parts with values that show a slope at least."""
MIN_GROWTH = 0.5
"""Growth over the window, relative to its mean, below which a slope is no building queue."""


@dataclass(frozen=True, slots=True)
class GateResult:
    """One gate's verdict. `passed` is None when it could not be evaluated; `reason` says why,
    or quotes the figure that chose the verdict."""

    name: str
    passed: bool | None
    reason: str
    figures: Mapping[str, float] = field(default_factory=dict)


def failed(gates: Iterable[GateResult]) -> list[str]:
    """Names of the gates that failed."""
    return [gate.name for gate in gates if gate.passed is False]


def schedule(
    *, scheduled: int, sent: int, dropped: int, interrupted: int, lags_s: Floats, rate: float
) -> GateResult:
    """Every scheduled arrival was sent or recorded as dropped, and sends kept to their times.

    `sent` counts arrivals whose request was handed to the client; `interrupted` those that never
    fell due because the run was stopped. Lags are absolute, seconds after the intended time.
    """
    missing = scheduled - sent - dropped - interrupted
    limit = MAX_LAG_P99_FAST_S if rate > FAST_RATE else MAX_LAG_P99_S
    p99 = float(np.quantile(lags_s, 0.99)) if len(lags_s) else 0.0
    figures = {"scheduled": scheduled, "sent": sent, "dropped": dropped, "lag_p99_s": p99}
    if missing:
        return GateResult("schedule", False, f"{missing} arrivals have no row", figures)
    early = float(np.min(lags_s)) if len(lags_s) else 0.0
    if early < 0:
        return GateResult("schedule", False, f"a send was {-early * 1e3:.2f} ms early", figures)
    word = "within" if p99 <= limit else "above"
    reason = f"lag p99 {p99 * 1e3:.2f} ms, {word} {limit * 1e3:g} ms"
    return GateResult("schedule", p99 <= limit, reason, figures)


def accounting(
    *, inflight_integral_s: float, row_latency_sum_s: float, rows: int, offered: int,
    verdicts: Mapping[str, int],
) -> GateResult:  # fmt: skip
    """Little's law on the generator itself: ∫ in-flight dt = Σ row latencies (sent to end), over
    the whole run with its drain; and one row and one verdict per offered arrival."""
    figures = {
        "inflight_integral_s": inflight_integral_s,
        "row_latency_sum_s": row_latency_sum_s,
        "rows": rows,
        "offered": offered,
    }
    if rows != offered:
        return GateResult("accounting", False, f"{offered} offered but {rows} rows", figures)
    if sum(verdicts.values()) != rows:
        total = sum(verdicts.values())
        return GateResult("accounting", False, f"{rows} rows but {total} verdicts", figures)
    gap = abs(inflight_integral_s - row_latency_sum_s)
    error = gap / max(inflight_integral_s, row_latency_sum_s, 1e-9)
    passed = error <= MAX_ACCOUNTING_ERROR or gap <= ACCOUNTING_FLOOR_S
    return GateResult(
        "accounting", passed, f"in-flight integral and row latencies differ by {error:.2%}", figures
    )


def client(*, cpu_shares: Iterable[float], loop_lag_p99_s: float, clock_steps: int) -> GateResult:
    """The generator itself was no bottleneck and its clock did not step."""
    worst = max(cpu_shares, default=0.0)
    figures = {"cpu_share": worst, "loop_lag_p99_s": loop_lag_p99_s, "clock_steps": clock_steps}
    faults = []
    if worst >= MAX_CPU_SHARE:
        faults.append(f"CPU {worst:.0%} of a core")
    if loop_lag_p99_s > MAX_LOOP_LAG_P99_S:
        faults.append(f"event-loop lag p99 {loop_lag_p99_s * 1e3:.1f} ms")
    if clock_steps:
        faults.append(f"the clock stepped {clock_steps} times")
    reason = ", ".join(faults) or (
        f"CPU {worst:.0%} of a core, event-loop lag p99 {loop_lag_p99_s * 1e3:.1f} ms"
    )
    return GateResult("client", not faults, reason, figures)


def stability(
    *, intended_s: Floats, ttft_s: Floats, sample_s: Floats, inflight: Floats, residence_s: float
) -> GateResult:
    """No queue that builds up: the slopes of in-flight and of TTFT are not both above 0.

    Theil–Sen slopes (scipy.stats.theilslopes) of the means of equal parts of the window, whose
    filling-up phase of one median residence time is left out. Unstable: a growth over the window
    that matters, and an interval above 0, for both. The intervals are asked for only where both
    growths matter: a sound run ends two seconds earlier without scipy.stats.

    Args:
        intended_s, ttft_s: measured rows with a first event; shape (n,), seconds.
        sample_s, inflight: samples of the in-flight counter while arrivals were offered.
        residence_s: median end-to-end latency.
    """
    start = float(intended_s[0]) + residence_s if len(intended_s) else 0.0
    keep = intended_s >= start
    if (
        int(np.sum(keep)) < MIN_STABILITY_ROWS
        or int(np.sum(sample_s >= start)) < STABILITY_SEGMENTS
    ):
        reason = "the window is too short to show a trend"
        return GateResult("stability", None, reason, {"rows": int(np.sum(keep))})
    end = float(intended_s[-1])
    inside = (sample_s >= start) & (sample_s <= end)
    both = (
        _parts(intended_s[keep], ttft_s[keep], start, end),
        _parts(sample_s[inside], inflight[inside], start, end),
    )
    growths = [_growth(*parts, end - start) for parts in both]
    figures = dict(zip(("ttft_growth", "inflight_growth"), growths, strict=True))
    rising = min(growths) > MIN_GROWTH
    if rising:
        lows = [_slope_low(*parts) for parts in both]
        figures |= dict(zip(("ttft_slope_low", "inflight_slope_low"), lows, strict=True))
        rising = min(lows) > 0
    reason = (
        f"unstable: over the window TTFT grew by {growths[0]:.0%} and in-flight by "
        f"{growths[1]:.0%} of their means; compare completion rates only"
        if rising
        else "no queue builds up over the window"
    )
    return GateResult("stability", not rising, reason, figures)


def _parts(times: Floats, values: Floats, start: float, end: float) -> tuple[Floats, Floats]:
    """(middle, mean) of each equal part of the window that holds values."""
    edges = np.linspace(start, end, STABILITY_SEGMENTS + 1)
    part = np.clip(np.digitize(times, edges) - 1, 0, STABILITY_SEGMENTS - 1)
    present = [i for i in range(STABILITY_SEGMENTS) if np.any(part == i)]
    means = np.array([float(np.mean(values[part == i])) for i in present])
    mids = np.array([(edges[i] + edges[i + 1]) / 2 for i in present])
    return mids, means


def _growth(mids: Floats, means: Floats, window_s: float) -> float:
    """Theil–Sen slope (the median slope of all pairs) times the window, relative to the mean."""
    mean = float(np.mean(means)) if len(means) else 0.0
    if len(means) < MIN_PARTS or np.ptp(means) == 0 or mean <= 0:
        return 0.0
    first, second = np.triu_indices(len(means), 1)
    slopes = (means[second] - means[first]) / (mids[second] - mids[first])
    return float(np.median(slopes)) * window_s / mean


def _slope_low(mids: Floats, means: Floats) -> float:
    """Lower bound of the Theil–Sen slope."""
    from scipy import stats  # here: it takes a second or two to import

    return float(stats.theilslopes(means, mids, alpha=STABILITY_CONFIDENCE).low_slope)


def tokens(
    *,
    client_tokens: int | None,
    engine_tokens: int | None,
    proxy_tokens: int | None = None,
    unfinished: int = 0,
    counters_reset: bool = False,
    acceptance: float | None = None,
    m: float | None = None,
    k: int | None = None,
) -> GateResult:
    """Client, proxy and engine agree on the number of output tokens; speculation figures can be.

    With `unfinished` rows (cancelled, timed out, broken) the engine may have made tokens that
    never arrived: then 0 ≤ engine − client, else the difference must be 0. `k` None: unknown.
    """
    if counters_reset:
        return GateResult("tokens", False, "the engine's counters were reset during the run")
    if acceptance is not None and not 0 <= acceptance <= 1:
        return GateResult("tokens", False, f"acceptance {acceptance:.3f} is outside 0..1")
    if m is not None and (m < 1 - 1e-9 or (k is not None and m > k + 1 + 1e-9)):
        bound = f"1..{k + 1}" if k is not None else "1 and above"
        return GateResult("tokens", False, f"M {m:.3f} is outside {bound}")
    if client_tokens is None:
        return GateResult("tokens", None, "the target reports no usage: no token counts")
    others = {"engine": engine_tokens, "proxy": proxy_tokens}
    known = {name: value for name, value in others.items() if value is not None}
    figures = {"client": float(client_tokens)} | {n: float(v) for n, v in known.items()}
    if not known:
        why = "no --metrics-url page, read before and after the run, to compare with"
        return GateResult("tokens", None, why, figures)
    for name, value in known.items():
        extra = value - client_tokens
        if extra < 0 or (extra > 0 and not unfinished):
            reason = f"{name} counts {value} tokens, the client {client_tokens}"
            return GateResult("tokens", False, reason, figures)
    most = max(value - client_tokens for value in known.values())
    reason = f"{client_tokens} tokens on every side"
    if most:
        reason = f"{most} tokens of {unfinished} unfinished requests never reached the client"
    return GateResult("tokens", True, reason, figures)
