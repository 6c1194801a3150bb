"""The gates of one finished run: which columns and counters feed which gate.

Here: the inputs. Not here: the rules (gates), other figures (summary).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from . import gates
from .columns import Columns


def evaluate_gates(
    every: Columns, measured: Columns, record: Mapping[str, Any]
) -> list[gates.GateResult]:
    """All gates of one run, from its rows and its record."""
    return [
        _schedule(every, record),
        _accounting(every, record),
        _client(record),
        _stability(measured),
        _tokens_gate(every, record),
    ]


def as_json(gate: gates.GateResult) -> dict[str, Any]:
    """A gate for summary.json."""
    return {
        "name": gate.name,
        "passed": gate.passed,
        "reason": gate.reason,
        "figures": dict(gate.figures),
    }


def _schedule(every: Columns, record: Mapping[str, Any]) -> gates.GateResult:
    lags = every.numbers("lag_s")
    words = every.words("verdict")
    unsent = ~every.known("sent_s")
    scheduled = int(record["schedule"]["arrivals"])
    stopped = record["state"] != "finished" or bool(record.get("aborted"))
    interrupted = sum(w == "interrupted" and bool(u) for w, u in zip(words, unsent, strict=True))
    if stopped:
        interrupted += scheduled - len(every)
    last_s = float(record["schedule"]["last_offset_s"])
    return gates.schedule(
        scheduled=scheduled,
        sent=int(np.sum(~unsent)),
        dropped=sum(w == "dropped" for w in words),
        interrupted=interrupted,
        lags_s=lags[~np.isnan(lags)],
        rate=scheduled / last_s if last_s > 0 else 0.0,
    )


def _accounting(every: Columns, record: Mapping[str, Any]) -> gates.GateResult:
    clients = record.get("clients")
    if not clients:
        return gates.GateResult("accounting", None, "the run was killed: its counters are lost")
    sent = every.known("sent_s")
    spans = every.numbers("end_s")[sent] - every.numbers("sent_s")[sent]
    offered = record.get("offered", len(every))
    return gates.accounting(
        inflight_integral_s=sum(client["inflight_integral_s"] for client in clients),
        row_latency_sum_s=float(np.nansum(spans)),
        rows=len(every),
        offered=int(offered),
        verdicts=Counter(every.words("verdict")),
    )


def _client(record: Mapping[str, Any]) -> gates.GateResult:
    clients = record.get("clients")
    if not clients:
        return gates.GateResult("client", None, "the run was killed: its counters are lost")
    return gates.client(
        cpu_shares=[client["cpu_share"] for client in clients],
        loop_lag_p99_s=max(client["loop_lag_p99_s"] for client in clients),
        clock_steps=sum(client["clock_steps"] for client in clients),
    )


def _stability(measured: Columns) -> gates.GateResult:
    answered = measured.where(measured.known("ttft_s"))
    order = np.argsort(answered.numbers("intended_s"), kind="stable")
    intended = answered.numbers("intended_s")[order]
    ttft = answered.numbers("ttft_s")[order]
    times, inflight = measured.inflight()
    e2e = answered.numbers("e2e_sent_s")
    known = e2e[~np.isnan(e2e)]
    return gates.stability(
        intended_s=intended,
        ttft_s=ttft,
        sample_s=times,
        inflight=inflight,
        residence_s=float(np.median(known)) if len(known) else 0.0,
    )


def _tokens_gate(every: Columns, record: Mapping[str, Any]) -> gates.GateResult:
    pages = record.get("engine") or []
    usable = [page for page in pages if "missing" not in page]
    engine = None
    if usable and len(usable) == len(pages) and all(page["g"] is not None for page in usable):
        engine = round(sum(page["g"] for page in usable))
    counted = every.known("output_tokens")
    sent = every.known("sent_s")
    words = every.words("verdict")
    whole = np.array([v not in _UNFINISHED for v in words], bool)
    one = usable[0] if len(usable) == 1 else {}
    return gates.tokens(
        client_tokens=int(np.nansum(every.numbers("output_tokens"))) if np.any(counted) else None,
        engine_tokens=engine,
        proxy_tokens=record.get("proxy_tokens"),
        unfinished=int(np.sum(sent & ~(whole & counted))),
        counters_reset=any(page["resets"] for page in usable),
        acceptance=one.get("acceptance"),
        m=one.get("m"),
        k=one.get("k") if one.get("drafts") else None,
    )


_UNFINISHED = frozenset(
    {"cancelled", "timeout", "error", "truncated", "interrupted", "rejected", "malformed"}
)
"""Verdicts after which the engine may have made tokens that never reached the client."""
