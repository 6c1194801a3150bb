"""A gateway without a proxy: a scripted target for the traffic, pure steering behind its /status.

Its load is defined over `LOAD_S` instead of 30 s, so that a policy cell takes seconds: tests that
use it set the generator's `policy_profile.WINDOW_S` and `LOOKS_S` to the same scale.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from breakeven.health import Signal
from breakeven.load import ArrivalWindow
from breakeven.policy import LoadAwareRules
from breakeven.steering import Candidate, Plan, Steering, Traffic

from .target import Target, scripted

LOAD_S = 1.0
LOOK_S = 0.05
RULES = LoadAwareRules(enter_below=12.0, leave_above=20.0, window_s=0.2, dwell_s=0.1)
PROFILE = (
    "low: 2, high: 60, hold: 2500ms, high_hold: 2s, cycles: 1, in_tokens: 4, out_tokens: 2, "
    "model: scripted"
)
"""For `gateway:` of a GRID.yaml, beside url and admin."""


@dataclass
class ScriptedGateway:
    """Where it is, and what it did."""

    url: str
    admin: str = ""
    transitions: list[dict[str, str]] = field(default_factory=list)


class _Steered:
    def __init__(self, target: Target, shown: ScriptedGateway) -> None:
        now = time.monotonic()
        plan = Plan(
            "base", policy="load_aware", arm="draft", candidates={"draft": Candidate()},
            load_aware=RULES,
        )  # fmt: skip
        self._steering = Steering(plan, now)
        self._steering.saw("draft", Signal.READY, now)
        self._window = ArrivalWindow(now, window_s=LOAD_S)
        self._target, self._shown, self._read = target, shown, 0
        self._lock = threading.Lock()

    def tick(self) -> None:
        with self._lock:
            calls = self._target.calls[self._read :]
            self._read += len(calls)
            for call in calls:
                self._window.record(call.at_s)
            now = time.monotonic()
            rate = self._window.rate(now)
            for moved in self._steering.tick(now, 0.0, Traffic(rate), {}):
                self._shown.transitions.append({
                    "at": datetime.now(UTC).isoformat(), "arm": moved.arm, "from": moved.before,
                    "to": moved.after, "reason": moved.reason, "detail": moved.detail,
                })  # fmt: skip

    def status(self) -> dict[str, Any]:
        with self._lock:
            state = self._steering.state("draft")
            row = {"state": state.state, "reason": state.reason, "replicas": 1}
            return {
                "policy": "load_aware",
                "load_aware": asdict(RULES),
                "load_aware_arm": "draft",
                "mean_load_rps": self._steering.mean_load,
                "candidates": {"draft": row},
                "transitions": list(self._shown.transitions),
            }


@contextmanager
def scripted_gateway() -> Iterator[ScriptedGateway]:
    """A gateway that steers as RULES say and answers every request."""
    with scripted() as target:
        shown = ScriptedGateway(target.url)
        steered = _Steered(target, shown)
        end = threading.Event()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = json.dumps({"routing": steered.status()}).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                """Quiet."""

        def ticks() -> None:
            while not end.wait(LOOK_S):
                steered.tick()

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threads = [threading.Thread(target=server.serve_forever), threading.Thread(target=ticks)]
        for thread in threads:
            thread.start()
        shown.admin = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield shown
        finally:
            end.set()
            server.shutdown()
            for thread in threads:
                thread.join()
            server.server_close()
