"""Faults on demand: what engines and networks do to a client, one named kind each.

A kind is written KIND or KIND:key=value,…  Keys: `share` of the requests hit (0..1, seeded),
`after` events of a stream, `at` seconds after the start, `for` seconds, `by` an amount.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b

from .errors import SimInputError
from .flags import seconds

# Defaults per kind; a kind takes exactly these keys.
KINDS: dict[str, dict[str, float]] = {
    # One stream.
    "drop": {"share": 1.0, "after": 3},
    "truncate": {"share": 1.0, "after": 3},
    "garble": {"share": 1.0, "after": 3},
    "slow-first-byte": {"share": 1.0, "for": 2.0},
    "wrong-usage": {"share": 1.0, "by": 7},
    "missing-usage": {"share": 1.0},
    "crlf": {"share": 1.0},
    "no-space": {"share": 1.0},
    "half-utf8": {"share": 1.0},
    # The engine.
    "stall": {"at": 5.0, "for": 2.0},
    "die": {"at": 5.0},
    "metrics-renamed": {"at": 0.0},
    "counters-reset": {"at": 5.0},
    "clock-step": {"at": 0.0, "by": 3600.0},
    "503-burst": {"at": 0.0, "for": 5.0},
}
SAYS: dict[str, str] = {
    "drop": "close the connection in the middle of a chunk",
    "truncate": "end the body without finish_reason, usage and [DONE]",
    "garble": "send an event that is no JSON",
    "slow-first-byte": "wait before the response head",
    "wrong-usage": "report more completion tokens than were sent",
    "missing-usage": "leave usage out although it was asked for",
    "crlf": "end SSE lines with CR LF",
    "no-space": "write data:{…} without the space",
    "half-utf8": "cut writes inside a multi-byte character",
    "stall": "one engine step takes that much longer",
    "die": "error frame and [DONE] on all streams, /health 503, then the port closes",
    "metrics-renamed": "names of an older vLLM on /metrics",
    "counters-reset": "all counters start at 0 again",
    "clock-step": "the engine's wall clock jumps",
    "503-burst": "answer generating requests 503",
}
# What older versions called them; neighbours' dashboards went "No data" on each.
RENAMED = (
    (b"vllm:kv_cache_usage_perc", b"vllm:gpu_cache_usage_perc"),
    (b"vllm:inter_token_latency_seconds", b"vllm:time_per_output_token_seconds"),
    (b"vllm:prefix_cache_", b"vllm:gpu_prefix_cache_"),
)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault with its parameters."""

    kind: str
    values: tuple[tuple[str, float], ...]

    def __getitem__(self, key: str) -> float:
        return dict(self.values)[key]

    def hits(self, seed: int, serial: int) -> bool:
        """Whether the request with this number is hit: seeded, independent of the load."""
        digest = blake2b(f"{seed}/{self.kind}/{serial}".encode(), digest_size=4).digest()
        return int.from_bytes(digest, "big") < self["share"] * 2**32


def parse_fault(text: str) -> Fault:
    """KIND[:key=value,…]; SimInputError names what is wrong and what there is."""
    kind, _, rest = text.partition(":")
    if kind not in KINDS:
        raise SimInputError(f"unknown fault {kind!r}: use one of {', '.join(KINDS)}")
    values = dict(KINDS[kind])
    for part in filter(None, rest.split(",")):
        key, _, number = part.partition("=")
        if key not in values:
            raise SimInputError(f"fault {kind}: unknown key {key!r}: use {', '.join(values)}")
        try:
            values[key] = seconds(number) if key in ("at", "for") else float(number)
        except (ValueError, SimInputError):
            raise SimInputError(f"fault {kind}: {key}={number!r}: give a number") from None
        if not math.isfinite(values[key]):
            raise SimInputError(f"fault {kind}: {key}={number}: give a finite number")
    if not 0 <= values.get("share", 1) <= 1:
        raise SimInputError(f"fault {kind}: share={values['share']:g}: give a number in 0..1")
    return Fault(kind, tuple(values.items()))


class Faults:
    """The faults of one server."""

    def __init__(self, faults: Iterable[Fault], seed: int) -> None:
        self._faults = {fault.kind: fault for fault in faults}
        self._seed = seed

    def __bool__(self) -> bool:
        return bool(self._faults)

    def get(self, kind: str) -> Fault | None:
        """The fault of that kind."""
        return self._faults.get(kind)

    def of_request(self, serial: int) -> dict[str, Fault]:
        """The stream faults that hit this request, by kind."""
        return {
            kind: fault
            for kind, fault in self._faults.items()
            if "share" in KINDS[kind] and fault.hits(self._seed, serial)
        }

    def active(self, kind: str, elapsed_s: float) -> bool:
        """Whether a timed fault is on, that many real seconds after the start."""
        fault = self._faults.get(kind)
        if fault is None or elapsed_s < fault["at"]:
            return False
        return "for" not in KINDS[kind] or elapsed_s < fault["at"] + fault["for"]

    def wall_offset_s(self, elapsed_s: float) -> float:
        """How far the engine's wall clock is off."""
        fault = self._faults.get("clock-step")
        return fault["by"] if fault is not None and elapsed_s >= fault["at"] else 0.0


# -- bytes ----------------------------------------------------------------------------------------

_USAGE = re.compile(rb',"usage":\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}')
_COUNT = re.compile(rb'"(completion_tokens|total_tokens|output_tokens)":(\d+)')


def without_usage(payload: bytes) -> bytes:
    """The payload with its usage taken out; b"" for an event that carried nothing else."""
    if b'"choices":[],' in payload:
        return b""
    return _USAGE.sub(b"", payload)


def with_wrong_usage(payload: bytes, by: int) -> bytes:
    """The payload with completion and total tokens off by `by`."""
    return _COUNT.sub(lambda m: b'"%b":%d' % (m[1], max(0, int(m[2]) + by)), payload)


def garbled(event: bytes) -> bytes:
    """The event with its JSON broken off."""
    return event[: len(event) * 2 // 3].rstrip(b"\n") + b"\n\n"


def reframed(event: bytes, *, crlf: bool, no_space: bool) -> bytes:
    """The event in another legal SSE form."""
    if no_space:
        event = re.sub(rb"^(data|event): ", rb"\1:", event, flags=re.MULTILINE)
    return event.replace(b"\n", b"\r\n") if crlf else event


def halves(event: bytes) -> tuple[bytes, bytes]:
    """The event cut after the first byte of its first multi-byte character."""
    for at, byte in enumerate(event):
        if byte >= 0xC0:
            return event[: at + 1], event[at + 1 :]
    return event, b""


def renamed(page: bytes) -> bytes:
    """A metrics page in an older vLLM's names."""
    for new, old in RENAMED:
        page = page.replace(new, old)
    return page
