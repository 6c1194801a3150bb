"""The user's own prompts: a JSONL pool matched to arrivals by cohort and length class.

Here: reading and choosing. Not here: the JSON around the prompt (content).
The text stays in this process: results hold only a keyed hash, errors name a line and never its
content.
"""

from __future__ import annotations

import bisect
import codecs
import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import orjson

from breakeven.errors import InputError
from breakeven.trace import LABEL

from .arrivals import Purpose, generator
from .content import BYTES_PER_TOKEN, Endpoint, prompt_fields
from .plan import Planned

Label = Literal["real", "public-proxy"]
KEYS = ("prompt", "messages", "cohort", "task", "lang", "contract")
CONTRACT_KEYS = ("json_schema", "tools", "stop", "max_tokens", "n", "logprobs")
ANY = ""
"""Cohort of entries that name none: they serve every cohort."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the pool. `size` is the prompt's length in bytes."""

    line: int
    prompt: str | None
    messages: tuple[dict[str, Any], ...] | None
    cohort: str
    contract: dict[str, Any]
    size: int


@dataclass(frozen=True, slots=True)
class Pool:
    """All entries of a pool file, and the key under which its bodies are hashed.

    The key comes from the file's own bytes: only who has the pool can test a guess against the
    hashes of a result, and equal pools give equal hashes in every process.
    """

    entries: tuple[Entry, ...]
    key: bytes


def read_pool(path: str) -> Pool:
    """Read a content pool.

    Raises:
        InputError: unreadable, no UTF-8, no JSON, unknown keys; the line is named, its text never.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise InputError(
            f"the pool cannot be read: {error.strerror}", file=path, mend="check --content"
        ) from None
    entries: list[Entry] = []
    for number, line in enumerate(data.removeprefix(codecs.BOM_UTF8).split(b"\n"), 1):
        if line.strip():
            entries.append(_entry(line, number, path))
    if not entries:
        raise InputError("the pool is empty", file=path, mend="give one JSON object a line")
    key = hashlib.blake2b(data, digest_size=32, person=b"breakeven pool").digest()
    return Pool(tuple(entries), key)


def _entry(line: bytes, number: int, path: str) -> Entry:
    def bad(what: str, mend: str, key: str | None = None) -> InputError:
        return InputError(what, file=path, line=number, key=key, mend=mend)

    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError:
        raise bad("no JSON in UTF-8", "write one JSON object a line") from None
    if not isinstance(row, dict):
        raise bad("no JSON object", "write one JSON object a line")
    for key in row:
        if key not in KEYS:
            name = key if LABEL.match(key) else "(a name that is no label)"
            raise bad("unknown key", f"known keys: {', '.join(KEYS)}", name)
    for key in ("cohort", "task", "lang"):
        label = row.get(key)
        if label is not None and not (isinstance(label, str) and LABEL.match(label)):
            raise bad(f"{key} must be a short label", "use a label such as chat-en", key)
    prompt, messages = row.get("prompt"), row.get("messages")
    if (prompt is None) == (messages is None):
        raise bad("an entry holds either prompt or messages", "give one of the two")
    if prompt is not None and not (isinstance(prompt, str) and prompt):
        raise bad("prompt must be text", "write a non-empty string", "prompt")
    if messages is not None and not _are_messages(messages):
        raise bad("messages must be a list of role and content", "as the chat API", "messages")
    contract = row.get("contract") or {}
    if not isinstance(contract, dict) or not set(contract) <= set(CONTRACT_KEYS):
        raise bad("unknown contract", f"known keys: {', '.join(CONTRACT_KEYS)}", "contract")
    most = contract.get("max_tokens", 1)
    if not isinstance(most, int) or isinstance(most, bool) or most < 1:
        raise bad("max_tokens must be a whole number of at least 1", "e.g. 256", "contract")
    return Entry(
        number,
        prompt,
        tuple(messages) if messages is not None else None,
        str(row.get("cohort") or ANY),
        contract,
        len(orjson.dumps(prompt if prompt is not None else messages)),
    )


def _are_messages(messages: object) -> bool:
    return (
        isinstance(messages, list)
        and bool(messages)
        and all(isinstance(m, dict) and "role" in m for m in messages)
    )


class PoolPrompts:
    """Gives each arrival an entry of its cohort with about its length; deterministic.

    Each entry is used once per run unless `reuse` is set: a repeated prompt would be answered
    from the prefix cache, and the run would measure the cache.
    """

    def __init__(
        self,
        pool: Pool,
        arrivals: Sequence[Planned],
        *,
        seed: int,
        block: int,
        endpoint: Endpoint,
        reuse: bool = False,
        label: Label = "real",
    ) -> None:
        """`arrivals` is the whole run's plan, not a shard's: every shard assigns alike.

        Raises:
            InputError: the pool is smaller than the plan needs.
        """
        self.label: str = label
        self._endpoint = endpoint
        self._entries = pool.entries
        self._chosen = _assign(pool.entries, arrivals, seed, block, reuse)

    def fields(self, planned: Planned) -> dict[str, Any]:
        entry = self._entries[self._chosen[planned.index]]
        return _fields(entry, self._endpoint)


def _fields(entry: Entry, endpoint: Endpoint) -> dict[str, Any]:
    if entry.messages is not None:
        if endpoint == "completions":
            raise InputError(
                "an entry with messages needs the chat endpoint",
                file="the pool", line=entry.line, key="--endpoint", value=endpoint,
                mend="use --endpoint chat",
            )  # fmt: skip
        fields: dict[str, Any] = {"messages": list(entry.messages)}
    else:
        fields = prompt_fields(entry.prompt or "", endpoint)
    contract = dict(entry.contract)
    schema = contract.pop("json_schema", None)
    if schema is not None:
        fields["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "contract", "schema": schema},
        }
    return fields | contract


def _assign(
    entries: Sequence[Entry], arrivals: Sequence[Planned], seed: int, block: int, reuse: bool
) -> dict[int, int]:
    """Arrival index -> entry: the free entry of its cohort (or of none) nearest in length."""
    by_cohort: dict[str, list[int]] = defaultdict(list)
    for i, entry in enumerate(entries):
        by_cohort[entry.cohort].append(i)
    rng = generator(seed, block, Purpose.CONTENT)
    shelves = {name: _Shelf(entries, numbers, rng) for name, numbers in by_cohort.items()}
    chosen: dict[int, int] = {}
    for planned in arrivals:
        wanted = planned.arrival.in_tokens * BYTES_PER_TOKEN
        for name in (planned.arrival.cohort, ANY):
            shelf = shelves.get(name)
            found = shelf.take(wanted, reuse) if shelf is not None else None
            if found is not None:
                chosen[planned.index] = found
                break
        else:
            raise InputError(
                f"the pool holds {len(entries)} entries, too few for {len(arrivals)} arrivals",
                key="--content",
                value=f"cohort {planned.arrival.cohort}",
                mend="add entries of that cohort (or without one), or pass --reuse-content",
            )
    return chosen


class _Shelf:
    """Entries of one cohort by length class (powers of two of bytes), shuffled inside a class."""

    def __init__(self, entries: Sequence[Entry], numbers: list[int], rng: Any) -> None:
        shuffled = [numbers[i] for i in rng.permutation(len(numbers))]
        self._classes: dict[int, list[int]] = defaultdict(list)
        for number in shuffled:
            self._classes[entries[number].size.bit_length()].append(number)
        self._lengths = sorted(self._classes)
        self._turn: dict[int, int] = defaultdict(int)

    def take(self, wanted_bytes: int, reuse: bool) -> int | None:
        if not self._lengths:
            return None
        length = self._nearest(wanted_bytes.bit_length())
        members = self._classes[length]
        if reuse:
            self._turn[length] += 1
            return members[(self._turn[length] - 1) % len(members)]
        number = members.pop()
        if not members:
            self._lengths.remove(length)
        return number

    def _nearest(self, wanted: int) -> int:
        at = bisect.bisect_left(self._lengths, wanted)
        around = self._lengths[max(0, at - 1) : at + 1]
        return min(around, key=lambda length: (abs(length - wanted), length))
