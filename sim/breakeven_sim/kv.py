"""KV-cache blocks: allocation, prefix sharing, eviction of idle cached blocks. Counts only."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

BLOCK_TOKENS = 16


@dataclass(slots=True)
class Holding:
    """The blocks of one request: shared ones by key, and a number of private ones."""

    shared: list[int] = field(default_factory=list)
    private: int = 0

    @property
    def blocks(self) -> int:
        """Blocks held, shared ones included."""
        return len(self.shared) + self.private


class BlockPool:
    """`total` blocks. A full prompt block has a key (a hash chain over the tokens before it).

    Blocks whose last user left stay cached until the space is needed; they count as free, as in
    vLLM's own usage gauge.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self._unused = total
        self._users: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()

    @property
    def available(self) -> int:
        """Blocks that can be handed out now."""
        return self._unused + len(self._idle)

    @property
    def usage(self) -> float:
        """Share of the blocks in use by requests, 0..1."""
        return 1.0 - self.available / self.total if self.total else 0.0

    def grow(self, holding: Holding, blocks: int) -> bool:
        """Give `holding` that many more private blocks, or nothing and False."""
        if blocks > self.available:
            return False
        while self._unused < blocks:
            key, _ = self._idle.popitem(last=False)
            del self._users[key]
            self._unused += 1
        self._unused -= blocks
        holding.private += blocks
        return True

    def cached_prefix(self, keys: Sequence[int]) -> int:
        """How many leading keys are cached."""
        for count, key in enumerate(keys):
            if key not in self._users:
                return count
        return len(keys)

    def share(self, holding: Holding, keys: Sequence[int]) -> None:
        """Let `holding` use these cached blocks (the caller asked `cached_prefix`)."""
        for key in keys:
            self._users[key] += 1
            self._idle.pop(key, None)
            holding.shared.append(key)

    def publish(self, holding: Holding, keys: Sequence[int]) -> None:
        """The request's private blocks now hold these full prompt blocks: others may share them."""
        for key in keys:
            if holding.private and key not in self._users:
                self._users[key] = 1
                holding.private -= 1
                holding.shared.append(key)

    def release(self, holding: Holding) -> None:
        """Take all blocks back; the shared ones stay cached while nobody needs the space."""
        self._unused += holding.private
        holding.private = 0
        # Last block first: of one prompt the tail is evicted before the head.
        for key in reversed(holding.shared):
            self._users[key] -= 1
            if not self._users[key]:
                self._idle[key] = None
        holding.shared.clear()

    def forget(self) -> None:
        """Drop every cached block that nobody uses (POST /reset_prefix_cache)."""
        for key in self._idle:
            del self._users[key]
        self._unused += len(self._idle)
        self._idle.clear()
