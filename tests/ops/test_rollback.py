"""The guard's act from end to end: a breaking candidate, the trip, RollbackFired, the webhook.

A real Prometheus and Alertmanager, the real proxy, simulated arms (`deploy/demo`, shortened as
there). Nothing is timed: each step waits for what is seen. Every answer of the candidate ends
early, which its health cannot show; only the guard's error share can.
"""

from __future__ import annotations

import http.client
import json
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.ops, pytest.mark.timeout(300)]
CLIENTS = 4
STEP_S = 60.0
BODY = {"model": "simulated-model", "prompt": "one two three", "max_tokens": 4, "stream": True}


@contextmanager
def asking(url: str) -> Iterator[list[bool]]:
    """Clients that ask until the end of the block; of each answer, whether it was whole."""
    whole: list[bool] = []
    end = threading.Event()

    def ask() -> None:
        while not end.is_set():
            request = urllib.request.Request(
                f"{url}/v1/completions", json.dumps(BODY).encode(),
                {"content-type": "application/json"},
            )  # fmt: skip
            try:
                with urllib.request.urlopen(request, timeout=30) as answer:
                    whole.append(answer.read().endswith(b"data: [DONE]\n\n"))
            except (OSError, http.client.HTTPException):
                whole.append(False)

    threads = [threading.Thread(target=ask) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        yield whole
    finally:
        end.set()
        for thread in threads:
            thread.join()


def test_rollback_fired_reaches_the_webhook_and_stays_until_a_person_arms_the_arm(
    tmp_path: Path,
) -> None:
    """Broken answers: tripped, firing, delivered, users on the baseline. Re-armed: resolved."""
    from deploy.demo.stack import BIN, DRAFT, ENGINE, Stack, wait_for

    class Guarded(Stack):
        """All traffic on a candidate that breaks its answers off, and the guard awake."""

        def draft(self, kind: str) -> None:
            self.end("draft")
            broken = () if kind == "mended" else ("--fault", "truncate")
            listen = f"127.0.0.1:{self._draft_port}"
            self.spawn("draft", BIN / "breakeven-sim", *ENGINE, "--listen", listen, *broken)

        def _proxy_config(self, baseline_url: str) -> dict[str, object]:
            guard = {"window_s": 10, "min_requests": 10}
            routing = {"policy": "single", "arm": DRAFT, "guard": guard}
            return super()._proxy_config(baseline_url) | {"routing": routing}

        def candidate(self) -> dict[str, Any]:
            with urllib.request.urlopen(f"{self.admin_url}/status", timeout=10) as answer:
                found: dict[str, Any] = json.load(answer)["routing"]["candidates"][DRAFT]
                return found

    firing = f'ALERTS{{alertname="RollbackFired", alertstate="firing", arm="{DRAFT}"}}'
    with Guarded(tmp_path / "rollback") as stack:

        def heard(status: str) -> bool:
            return stack.webhook.got("RollbackFired", status)

        wait_for("the candidate serves", lambda: stack.candidate()["state"] == "serving", STEP_S)
        assert not stack.prometheus.now(firing)
        with asking(stack.proxy_url) as whole:
            wait_for("the guard trips", lambda: stack.candidate()["state"] == "tripped", STEP_S)
            wait_for("RollbackFired fires", lambda: bool(stack.prometheus.now(firing)), STEP_S)
            wait_for(
                "the webhook is called",
                lambda: stack.webhook.got("RollbackFired", "firing"),
                STEP_S,
            )
            before = len(whole)
            wait_for("the baseline serves", lambda: len(whole) > before + 2 * CLIENTS, STEP_S)
            assert all(whole[before + CLIENTS :])  # those in flight at the trip may have broken
        found = stack.candidate()
        assert found["reason"] == "guard_error_share"
        assert "above 0.05 (budget)" in found["tripped_because"]
        (labels,) = [
            labels for state, labels in stack.webhook.alerts
            if (labels["alertname"], state) == ("RollbackFired", "firing")
        ][:1]  # fmt: skip
        assert (labels["arm"], labels["severity"]) == (DRAFT, "ticket")
        why = f'breakeven_route_transitions_total{{arm="{DRAFT}", reason="guard_error_share"}}'
        assert [value for _, value in stack.prometheus.now(why)] == [1.0]

        # Mended: nothing clears it by itself; a person does.
        stack.draft("mended")
        wait_for("the engine is up", lambda: stack.candidate()["health"] == "up", STEP_S)
        assert stack.candidate()["state"] == "tripped"
        assert stack.prometheus.now(firing)
        order = urllib.request.Request(f"{stack.admin_url}/arms/{DRAFT}/rearm", b"", method="POST")
        with urllib.request.urlopen(order, timeout=10) as answer:
            assert answer.status == 200
        wait_for("the candidate serves", lambda: stack.candidate()["state"] == "serving", STEP_S)
        wait_for(
            "the webhook hears of it",
            lambda: stack.webhook.got("RollbackFired", "resolved"),
            STEP_S,
        )
