"""The story of the demo: pays, is made slow, is reported, recovers, clears.

Returns times and what was seen, for the command to print and for the test to check.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from .stack import ARMS, DRAFT, Stack, loads, wait_for

MARGIN = f'arm:breakeven_margin:ratio_rate5m{{arm="{DRAFT}"}}'
FIRING = f'ALERTS{{alertname="BreakEvenLost", alertstate="firing", arm="{DRAFT}"}}'
LOW_RATE, HIGH_RATE = 3.0, 5.0
MEASURED_S = 25.0
STORY_S = 420.0
"""Longest time that the story's load may run."""

Say = Callable[[str], None]


@dataclass(slots=True)
class Story:
    """What happened, Unix seconds."""

    began: float = 0.0
    measured_from: float = 0.0
    measured_at: float = 0.0
    measured: list[Path] = field(default_factory=list)
    slow_at: float = 0.0
    fired_at: float = 0.0
    recovered_at: float = 0.0
    cleared_at: float = 0.0
    ended: float = 0.0
    worst_margin: float = 0.0


def flowing(stack: Stack) -> bool:
    """Whether both arms answered a few requests of the running replays within the last seconds."""
    rates = stack.prometheus.now("sum by (arm) (rate(breakeven_requests_total[12s]))")
    return sum(rate > 0.5 * HIGH_RATE for _, rate in rates) == len(ARMS)


def measure(stack: Stack, story: Story, say: Say) -> None:
    """Both arms at one low rate, whole inside one rule window, then silence until scraped."""
    story.measured_from = time.time()
    with loads(stack, LOW_RATE, MEASURED_S, stack.folder, "measured") as outs:
        say(f"both arms at {LOW_RATE:g}/s for {MEASURED_S:g} s")
        story.measured = outs
        deadline = MEASURED_S + 60
        wait_for(
            "the measured replays end",
            lambda: all((out / "summary.json").exists() for out in outs),
            deadline,
        )
    time.sleep(10)  # two scrapes, two evaluations: the last request is in every rule
    story.measured_at = time.time()
    say(f"margin of {DRAFT}: {stack.prometheus.value(MARGIN)}")


def break_and_mend(stack: Stack, story: Story, say: Say) -> None:
    """Made slow under load until the alert is delivered, then mended until it clears."""
    prometheus = stack.prometheus
    with loads(stack, HIGH_RATE, STORY_S, stack.folder, "story"):
        wait_for("load flows to both arms", lambda: flowing(stack), 90)
        stack.draft("slow")
        story.slow_at = time.time()
        say("the draft is slow now")
        took = wait_for("BreakEvenLost fires", lambda: bool(prometheus.now(FIRING)), 180)
        story.fired_at = time.time()
        story.worst_margin = prometheus.value(MARGIN) or 0.0
        say(f"BreakEvenLost fires after {took:.0f} s, margin {story.worst_margin:.3f}")
        took = wait_for(
            "the webhook is called", lambda: stack.webhook.got("BreakEvenLost", "firing"), 60
        )
        say("Alertmanager delivered it to the webhook")
        stack.draft("good")
        story.recovered_at = time.time()
        say("the draft is mended")

        def cleared() -> bool:
            margin, firing = prometheus.value(MARGIN), bool(prometheus.now(FIRING))
            # Neither the alert nor the margin: a scrape was missed, not an end.
            return margin is not None and not firing

        took = wait_for("BreakEvenLost clears", cleared, 180)
        story.cleared_at = time.time()
        say(f"BreakEvenLost cleared after {took:.0f} s, margin {prometheus.value(MARGIN)}")
        wait_for(
            "the webhook hears of it", lambda: stack.webhook.got("BreakEvenLost", "resolved"), 60
        )
        say("and the webhook heard of it")
    story.ended = time.time()


def tell(stack: Stack, say: Say) -> Story:
    """The whole story."""
    story = Story(began=time.time())
    measure(stack, story, say)
    break_and_mend(stack, story, say)
    return story
