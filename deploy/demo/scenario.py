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
LOW_RATE, HIGH_RATE = 1.5, 3.0
LOW_S = 15.0
STORY_S = 480.0
"""Longest time that the story's load may run."""

Say = Callable[[str], None]


@dataclass(slots=True)
class Story:
    """What happened, Unix seconds; `outs`: result folders of the main load, one per arm."""

    began: float = 0.0
    measured_at: float = 0.0
    slow_at: float = 0.0
    fired_at: float = 0.0
    recovered_at: float = 0.0
    cleared_at: float = 0.0
    ended: float = 0.0
    worst_margin: float = 0.0
    outs: list[Path] = field(default_factory=list)


def flowing(stack: Stack, rate: float) -> bool:
    """Whether both arms answered at half the offered rate or more within the last seconds."""
    rates = stack.prometheus.now("sum by (arm) (rate(breakeven_requests_total[12s]))")
    return sum(found > 0.5 * rate for _, found in rates) == len(ARMS)


def warm(stack: Stack, say: Say) -> None:
    """A low rate first, so that there is a change to see."""
    with loads(stack, LOW_RATE, LOW_S + 60, stack.folder, "low"):
        wait_for("load flows to both arms", lambda: flowing(stack, LOW_RATE), 90)
        say(f"both arms at {LOW_RATE:g}/s")
        time.sleep(LOW_S)


def measure(stack: Stack, story: Story, say: Say) -> None:
    """A rule window of steady load, whose figures are compared with the generator's own."""
    wait_for("load flows to both arms", lambda: flowing(stack, HIGH_RATE), 90)
    say(f"both arms at {HIGH_RATE:g}/s for one rule window ({stack.window_s:g} s)")
    time.sleep(stack.window_s + 10)
    story.measured_at = time.time()
    say(f"margin of {DRAFT}: {stack.prometheus.value(MARGIN)}")


def make_slow(stack: Stack, story: Story, say: Say) -> None:
    """A bad deployment of the draft, until the alert is delivered."""
    stack.draft("slow")
    story.slow_at = time.time()
    say("the draft is slow now")
    took = wait_for("BreakEvenLost fires", lambda: bool(stack.prometheus.now(FIRING)), 180)
    story.fired_at = time.time()
    story.worst_margin = stack.prometheus.value(MARGIN) or 0.0
    say(f"BreakEvenLost fires after {took:.0f} s, margin {story.worst_margin:.3f}")
    wait_for("the webhook is called", lambda: stack.webhook.got("BreakEvenLost", "firing"), 60)
    say("Alertmanager delivered it to the webhook")


def mend(stack: Stack, story: Story, say: Say) -> None:
    """The good draft again, until the alert has cleared and the webhook has heard of it."""
    stack.draft("good")
    story.recovered_at = time.time()
    say("the draft is mended")

    def cleared() -> bool:
        # Neither the alert nor the margin: a scrape was missed, not an end.
        margin = stack.prometheus.value(MARGIN)
        return margin is not None and not stack.prometheus.now(FIRING)

    took = wait_for("BreakEvenLost clears", cleared, 240)
    story.cleared_at = time.time()
    say(f"BreakEvenLost cleared after {took:.0f} s, margin {stack.prometheus.value(MARGIN):.3f}")
    wait_for("the webhook hears of it", lambda: stack.webhook.got("BreakEvenLost", "resolved"), 60)
    say("and the webhook heard of it")
    time.sleep(6)  # a few evaluations that show it gone


def tell(stack: Stack, say: Say) -> Story:
    """The whole story."""
    story = Story(began=time.time())
    warm(stack, say)
    with loads(stack, HIGH_RATE, STORY_S, stack.folder, "story") as outs:
        story.outs = outs
        measure(stack, story, say)
        make_slow(stack, story, say)
        mend(stack, story, say)
        story.ended = time.time()
    return story
