"""Figures of one run: rows and record in, the content of summary.json out.

Here: pure arithmetic over the table, the gates' inputs, the exit code. Not here: files (results),
printing (report). Reproducible: `loadgen report` computes the same from the same folder.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from breakeven.exitcodes import ExitCode, first_of
from breakeven.slo import OUTSIDE_GOODPUT, Verdict, goodput

from .columns import Columns
from .quantiles import latency, plain
from .validity import as_json, evaluate_gates

MAX_EPSILON_S = 0.002
EPSILON_SHARE = 0.3
"""ε = min(2 ms, 0.3 × median event gap) (docs/definitions.md, "burst")."""
NEAR_EPSILON = 0.05
"""Share of gaps near ε above which bursts are not clearly apart."""

FAILED = (
    Verdict.DROPPED,
    Verdict.REJECTED,
    Verdict.TIMEOUT,
    Verdict.ERROR,
    Verdict.TRUNCATED,
    Verdict.MALFORMED,
)
"""Verdicts of arrivals that got no whole, well-formed answer."""


def evaluate(rows: pa.Table, record: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that summary.json holds.

    Latencies are those of measured (not warm-up) arrivals; tokens, gates on tokens and cost are
    of all of them, because the engine's counters and the fleet's hours know no warm-up.
    """
    every = Columns(rows)
    measured = every.where(~every.flags("warmup"))
    window_s = _window_s(measured, record)
    counts = Counter(measured.words("verdict"))
    verdicts = {verdict.value: counts.get(verdict.value, 0) for verdict in Verdict}
    share = goodput({Verdict(name): n for name, n in counts.items()})
    summary: dict[str, Any] = {
        "breakeven_summary": 1,
        "state": record["state"],
        "labels": record["labels"],
        "evidence": record["evidence"],
        "arm": _one(every.words("arm")),
        "block": _one(every.numbers("block").astype(int).tolist()),
        "arrivals": _arrivals(every, record),
        "window_s": window_s,
        "drained_s": record.get("drained_s"),
        "rate": _rates(measured, window_s, record),
        "verdicts": verdicts,
        "error_classes": dict(Counter(w for w in measured.words("error_class") if w)),
        "goodput": {
            "share": share,
            "per_s": counts.get(Verdict.GOOD.value, 0) / window_s if window_s else None,
            "slo": record["slo"],
        },
        "latency": _latencies(measured, every),
        "decode": _decode(measured),
        "tokens": _tokens(every, measured, window_s, depth(record)),
        "epsilon": _epsilon(measured, record["epsilon_s"]),
        "speculation": _speculation(measured, record),
        "cost": _cost(counts.get(Verdict.GOOD.value, 0), record),
        "notes": record["notes"],
    }
    summary["gates"] = [as_json(gate) for gate in evaluate_gates(every, measured, record)]
    summary["thresholds"] = _thresholds(summary, record)
    return summary


def exit_code(summary: Mapping[str, Any]) -> ExitCode:
    """The code that a finished run deserves."""
    codes = [ExitCode.OK]
    if summary["state"] != "finished":
        codes.append(ExitCode.INTERRUPTED)
    verdicts = summary["verdicts"]
    judged = sum(n for name, n in verdicts.items() if Verdict(name) not in OUTSIDE_GOODPUT)
    if judged and sum(verdicts[verdict.value] for verdict in FAILED) == judged:
        codes.append(ExitCode.ALL_FAILED)
    if any(gate["passed"] is False for gate in summary["gates"]):
        codes.append(ExitCode.NOT_EVIDENCE)
    if summary["thresholds"]:
        codes.append(ExitCode.THRESHOLD_MISSED)
    return first_of(codes)


# --- parts ---


def _one(values: list[Any]) -> Any:
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else None


def _window_s(measured: Columns, record: Mapping[str, Any]) -> float:
    """Length of the measured window: as asked, or first to last arrival and one mean gap more."""
    asked = record["options"].get("duration")
    intended = measured.numbers("intended_s")
    if asked and record["state"] == "finished":
        return float(asked)
    if len(intended) < 2:
        return float(asked or 0.0)
    return float(np.ptp(intended)) * len(intended) / (len(intended) - 1)


def _arrivals(every: Columns, record: Mapping[str, Any]) -> dict[str, int]:
    scheduled = int(record["schedule"]["arrivals"])
    sent = every.known("sent_s")
    return {
        "scheduled": scheduled,
        "offered": len(every),
        "never_started": scheduled - len(every),
        "sent": int(np.sum(sent)),
        "warmup": int(np.sum(every.flags("warmup"))),
        "cancelled_by_run": sum(w == "cancelled_by_run" for w in every.words("error_class")),
        "retried_sends": int(np.sum(every.flags("retried"))),
    }


def _rates(measured: Columns, window_s: float, record: Mapping[str, Any]) -> dict[str, Any]:
    """Target, offered (due), sent and served per second of the window."""
    answered = sum(Verdict(v) not in FAILED and Verdict(v) not in OUTSIDE_GOODPUT
                   for v in measured.words("verdict"))  # fmt: skip

    def per_s(n: float) -> float | None:
        return n / window_s if window_s else None

    return {
        "target": record["options"].get("rate"),
        "offered": per_s(len(measured)),
        "sent": per_s(float(np.sum(measured.known("sent_s")))),
        "answered": per_s(answered),
    }


def _latencies(measured: Columns, every: Columns) -> dict[str, Any]:
    """Quantiles in seconds. Those of TTFT and e2e are over all offered arrivals that count for
    goodput: one that was never answered counts as still waiting at the end of the run."""
    judged = measured.where(
        np.array([Verdict(v) not in OUTSIDE_GOODPUT for v in measured.words("verdict")], bool)
    )
    failed = np.array([Verdict(v) in FAILED for v in judged.words("verdict")], bool)
    ends = every.numbers("end_s")
    end_s = float(np.nanmax(ends)) if np.any(~np.isnan(ends)) else 0.0
    waited = np.maximum(0.0, end_s - judged.numbers("intended_s"))
    streams = judged.flags("stream")
    return {
        "ttft_s": latency(judged.numbers("ttft_s"), failed, waited, streams),
        "ttft_sent_s": latency(judged.numbers("ttft_sent_s"), failed, waited, streams),
        "e2e_s": latency(judged.numbers("e2e_s"), failed, waited),
        "e2e_sent_s": latency(judged.numbers("e2e_sent_s"), failed, waited),
        "tpot_s": plain(measured.numbers("tpot_s")),
        "gap_s": plain(measured.burst_gaps_s()),
        "request_gap_p99_s": plain(measured.numbers("gap_p99_s")),
        "request_gap_max_s": plain(measured.numbers("gap_max_s")),
        "lag_s": plain(every.numbers("lag_s")),
        "connect_s": plain(every.numbers("connect_s")),
    }


def _decode(measured: Columns) -> dict[str, Any]:
    """T or C/M of this run: decode seconds per token, a ratio of sums over whole answers."""
    seconds, tokens = measured.numbers("decode_s"), measured.numbers("decode_tokens")
    both = ~np.isnan(seconds) & ~np.isnan(tokens) & (tokens > 0)
    total_s, total = float(np.sum(seconds[both])), float(np.sum(tokens[both]))
    return {
        "seconds": total_s,
        "tokens": int(total),
        "s_per_token": total_s / total if total else None,
        "requests": int(np.sum(both)),
    }


def depth(record: Mapping[str, Any]) -> int | None:
    """k as the engine's page shows it; 0 where it shows no speculation, None without a page."""
    pages = [page for page in record.get("engine") or () if "missing" not in page]
    if len(pages) != 1:
        return None
    return int(pages[0]["k"] or 0) if pages[0].get("drafts") else 0


def _epsilon(measured: Columns, epsilon_s: float) -> dict[str, Any]:
    """ε used, the one that this run's gaps suggest, and the share of gaps too near to it.

    Suggested: min(2 ms, 0.3 × median event gap); meant for a baseline at low load. Many gaps
    within a factor of two of ε mean that bursts are cut in two or glued together.
    """
    gaps = measured.event_gaps_s()
    if len(gaps) == 0:
        return {"used_s": epsilon_s, "suggested_s": None, "near_share": None}
    near = float(np.mean((gaps > epsilon_s / 2) & (gaps < epsilon_s * 2)))
    median = float(np.median(gaps[gaps > 0])) if np.any(gaps > 0) else 0.0
    return {
        "used_s": epsilon_s,
        "suggested_s": min(MAX_EPSILON_S, EPSILON_SHARE * median) if median else None,
        "near_share": near,
    }


def _tokens(every: Columns, measured: Columns, window_s: float, k: int | None) -> dict[str, Any]:
    output = every.numbers("output_tokens")
    complete = measured.numbers("output_tokens")
    bursts = measured.burst_tokens()
    return {
        "prompt": int(np.nansum(every.numbers("prompt_tokens"))),
        "output": int(np.nansum(output)),
        "output_per_s": float(np.nansum(complete)) / window_s if window_s else None,
        "rows_with_count": int(np.sum(~np.isnan(output))),
        "length_misses": sum(w in _LENGTH_MISSES for w in every.words("error_class")),
        "merged_reads": int(np.nansum(every.numbers("merged_reads"))),
        "burst": plain(bursts) if len(bursts) else None,
        # More than k + 1 tokens at once is no acceptance: something on the way merged events.
        "coalesced_bursts": int(np.sum(bursts > k + 1)) if k is not None else None,
    }


_LENGTH_MISSES = ("short_output", "long_output")


def _speculation(measured: Columns, record: Mapping[str, Any]) -> dict[str, Any]:
    """M by three ways, each named; acceptance never stands alone."""
    pages = [page for page in record.get("engine", ()) if "missing" not in page]
    accepted, drafted = measured.total("spec_accepted"), measured.total("spec_drafted")
    return {
        "m_counters": pages[0].get("m") if len(pages) == 1 else None,
        "cycle_s": pages[0].get("cycle_s") if len(pages) == 1 else None,
        "k": pages[0].get("k") if len(pages) == 1 else None,
        "acceptance": pages[0].get("acceptance") if len(pages) == 1 else None,
        "per_drafted_step": pages[0].get("per_drafted_step") if len(pages) == 1 else None,
        "m_block": _m(measured, "block_cycles"),
        "block_cycles": measured.total("block_cycles"),
        "drafted_cycles": measured.total("spec_cycles"),
        "block_acceptance": accepted / drafted if accepted is not None and drafted else None,
        "m_stream_estimate": _m(measured, "stream_cycles"),
    }


def _m(measured: Columns, cycles: str) -> float | None:
    """Decode tokens / cycles, a ratio of sums over the answers in which both are known.

    The core counts the cycles (report.block_cycles, report.stream_cycles): like decode_tokens
    they leave out what a merged first read hides.
    """
    both = measured.known("decode_tokens") & measured.known(cycles)
    total = float(np.sum(measured.numbers(cycles)[both]))
    return float(np.sum(measured.numbers("decode_tokens")[both])) / total if total else None


def _cost(good: int, record: Mapping[str, Any]) -> dict[str, Any] | None:
    """USD per good response: fleet hours of the whole run (warm-up and drain are in it)."""
    price, drained_s = record["options"].get("usd_per_hour"), record.get("drained_s")
    if price is None or drained_s is None:
        return None
    total = price * drained_s / 3600.0
    return {
        "usd": total,
        "fleet_s": drained_s,
        "usd_per_hour": price,
        "usd_per_good": total / good if good else None,
        "good": good,
    }


def _thresholds(summary: Mapping[str, Any], record: Mapping[str, Any]) -> list[str]:
    """Thresholds that were asked for and missed, in words."""
    missed = []
    options = record["options"]
    if record.get("aborted"):
        missed.append(str(record["aborted"]))
    least = options.get("min_goodput")
    share = summary["goodput"]["share"]
    if least is not None and (share is None or share * 100 < least):
        shown = "undefined" if share is None else f"{share:.2%}"
        missed.append(f"goodput {shown} is below --min-goodput {least:g} %")
    return missed
