"""The progress line of a run on a terminal, drawn with rich."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from ..replay.glance import Glance


class LiveProgress:
    """One line: bar, time, offered, in flight, dropped, good, lag."""

    def __init__(self, console: Console, title: str = "") -> None:
        self._title = title
        # Not redrawn by a thread of its own: that would take the GIL in the middle of an arrival.
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> LiveProgress:
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()

    def update(self, glance: Glance) -> None:
        """Redraw; called about once a second."""
        self._live.update(progress_line(glance, self._title), refresh=True)


def progress_line(glance: Glance, title: str = "") -> Table:
    """The line itself."""
    total_s = max(glance.last_offset_s, 1e-9)
    elapsed_s = max(0.0, glance.elapsed_s)
    grid = Table.grid(padding=(0, 2))
    cells: list[Any] = [
        Text(title or glance.phase, style="bold"),
        ProgressBar(total=total_s, completed=min(total_s, elapsed_s), width=24),
        f"{elapsed_s:5.1f} s",
        f"offered {glance.offered:,}/{glance.scheduled:,}",
        f"in flight {glance.inflight:,}",
        Text(f"dropped {glance.dropped:,}", style="red" if glance.dropped else "dim"),
        f"good {glance.good / max(1, glance.ended):.0%}",
        Text(f"lag {glance.lag_s * 1e3:.1f} ms", style="dim"),
    ]
    grid.add_row(*cells)
    return grid
