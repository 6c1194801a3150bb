"""`python -m deploy.demo [FOLDER]`: tells the story and leaves the pictures in FOLDER."""

from __future__ import annotations

import shutil
import signal
import sys
import time
from pathlib import Path

from .pictures import draw
from .scenario import tell
from .stack import ROOT, MissingProgramError, Stack


def say(words: str) -> None:
    """One line with the time."""
    sys.stdout.write(f"{time.strftime('%H:%M:%S')}  {words}\n")
    sys.stdout.flush()


def main(argv: list[str]) -> int:
    """Exit 1 where something is missing or did not happen."""
    # SIGTERM ends the demo as Ctrl-C does, so that what it started is ended, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = Path(argv[0] if argv else "out/ops-demo").resolve()
    shutil.rmtree(folder, ignore_errors=True)
    say("ops-demo: engines simulated; rule windows and holds shortened for the demo")
    try:
        with Stack(folder) as stack:
            say(f"proxy {stack.proxy_url}, Prometheus {stack.prometheus.url} (while this runs)")
            story = tell(stack, say)
            for path in sorted((ROOT / "dashboards/json").glob("*.json")):
                picture = folder / f"{path.stem}.png"
                draw(path, stack.prometheus, story.began, story.ended, picture, rate_interval="16s")
                say(f"picture {picture}")
    except (MissingProgramError, TimeoutError, RuntimeError) as error:
        say(f"failed: {error}; logs in {folder}")
        return 1
    delivered = ", ".join(
        f"{state} {labels['alertname']}" for state, labels in stack.webhook.alerts
    )
    say(f"the webhook got: {delivered}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
