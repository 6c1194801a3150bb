"""Progress of a run on stderr, only where that is a terminal."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from .live import LiveProgress


class NoProgress:
    """Not a terminal: silence."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


def progress_for(stream: IO[str], title: str = "") -> LiveProgress | NoProgress:
    """Progress that draws on a terminal, and nothing elsewhere."""
    if not stream.isatty():
        return NoProgress()
    from rich.console import Console  # here: without a terminal the run starts sooner

    from .live import LiveProgress

    return LiveProgress(Console(file=stream, stderr=False), title)
