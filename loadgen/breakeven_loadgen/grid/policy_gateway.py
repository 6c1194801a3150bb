"""The gateway as the policy cell sees it: its /status, before, during and after a run.

Here: one look, the wait until it is settled, the watcher of its switches. Not here: what they mean
(policy_figures).
"""

from __future__ import annotations

import contextlib
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import orjson

from breakeven.errors import NotReadyError
from breakeven.load import WINDOW_S
from breakeven_wire import Origin

from .policy_figures import Switch
from .policy_profile import Rules

LOOK_EVERY_S = 0.5
"""Between two looks at /status; a transition's own time is exact, it stands in the row."""
SETTLE_SLACK_S = 75.0
"""Over window, dwell and the 30 s of a load: an engine's start, and the minute that an arm waits
after it was out of its proven range."""
FINAL = ("tripped", "refused")
"""States that no waiting ends."""


def quiet(_line: str) -> None:
    """Progress for nobody."""


def look(admin: str) -> dict[str, Any]:
    """`routing` of the gateway's /status.

    Raises:
        InputError: no address. NotReadyError: it cannot be reached, or is no gateway.
    """
    Origin.parse(admin)
    try:
        with urllib.request.urlopen(f"{admin.rstrip('/')}/status", timeout=5) as response:
            status = orjson.loads(response.read())
        routing: dict[str, Any] = status["routing"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NotReadyError(f"no gateway answers at {admin}/status: {error}") from None
    return routing


def unsettled(routing: Mapping[str, Any], rules: Rules) -> str | None:
    """Why a run may not begin yet, or None.

    A gateway that was just started has not observed one window of load; one that had traffic a
    moment ago is about to switch. Either would add a switch of its own to those of the profile,
    or not, by the second in which the run happens to begin. Settled is: it has seen for a whole
    window that it is idle, and the candidate serves.
    """
    row = routing["candidates"][rules.arm]
    mean, state = routing.get("mean_load_rps"), str(row["state"])
    if state in FINAL:
        return f"{rules.arm} is {state} ({row.get('reason')})"
    if mean is None:
        return f"it has not observed its load for {rules.window_s:g} s yet"
    mean_rps = float(mean) * int(row["replicas"])
    if mean_rps >= rules.enter_rps:
        return f"it has other traffic: {mean_rps:.3g} req/s"
    if state != "serving":
        return f"{rules.arm} is {state} ({row.get('reason')}) without load"
    return None


def settle(admin: str, rules: Rules, *, say: Callable[[str], None] = quiet) -> None:
    """Wait until the gateway is settled, for as long as its own rules can take.

    Raises:
        NotReadyError: it is not by then, or cannot be; with the reason.
    """
    least_s = WINDOW_S + rules.window_s + rules.dwell_s + SETTLE_SLACK_S
    deadline = time.monotonic() + least_s
    said = ""
    while True:
        routing = look(admin)
        why = unsettled(routing, rules)
        if why is None:
            return
        if routing["candidates"][rules.arm]["state"] in FINAL:
            raise NotReadyError(f"the gateway at {admin} cannot be checked: {why}")
        if time.monotonic() > deadline:
            raise NotReadyError(f"the gateway at {admin} did not settle in {least_s:.0f} s: {why}")
        if why != said:
            said = why
            say(f"waiting for the gateway: {why}")
        time.sleep(LOOK_EVERY_S)


class Watcher:
    """Collects the candidate's transitions while the run goes on."""

    def __init__(self, admin: str, arm: str) -> None:
        self._admin = admin
        self._arm = arm
        self._rows: dict[tuple[str, ...], dict[str, str]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.missed = 0

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """From before the first arrival until after the last answer."""
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join()
            self._look()

    def _run(self) -> None:
        while not self._stop.wait(LOOK_EVERY_S):
            self._look()

    def _look(self) -> None:
        try:
            rows = look(self._admin)["transitions"]
        except NotReadyError:
            self.missed += 1
            return
        self._take(rows)

    def _take(self, rows: Sequence[dict[str, str]]) -> None:
        for row in rows:
            if row["arm"] == self._arm:
                self._rows[row["at"], row["from"], row["to"], row["reason"]] = row

    def switches(self, start: float) -> list[Switch]:
        """Changes to or from serving after `start` (Unix seconds), in order."""
        return [switch for switch in self._all(start) if switch.at_s >= 0]

    def serving_at(self, start: float) -> bool | None:
        """Whether the candidate served at `start`; None where no transition before it is known."""
        before = [switch.serving for switch in self._all(start) if switch.at_s < 0]
        return before[-1] if before else None

    def _all(self, start: float) -> list[Switch]:
        found = []
        for row in sorted(self._rows.values(), key=lambda row: row["at"]):
            was, now = row["from"] == "serving", row["to"] == "serving"
            at_s = datetime.fromisoformat(row["at"]).timestamp() - start
            if was is not now:
                found.append(Switch(at_s, now, row["reason"]))
        return found
