"""The redacted arrival trace: what a replay needs of live traffic, and nothing a person wrote.

Here: the format (JSONL), its allow-list, exact validation, the writer.
Not here: the keyed ids themselves (keyed), public formats (loadgen), recording (proxy).

Line 1 is the header, every other line one arrival:
    {"breakeven_trace": 1, "block": {"unit": "bytes", "size": 2048}, "source": "…"}
    {"t": 0.25, "in": 812, "out": 120, "cohort": "chat-en", "task": "chat", "lang": "en",
     "sampling": "greedy", "stream": true, "prefix": ["9f…"], "session": "03…"}
No other field is allowed anywhere, and text fields take short labels only, so that a file that
`verify` accepts can carry no prompt.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn

import orjson

from .errors import TraceError
from .keyed import DEFAULT_BLOCK, ID_BYTES

VERSION = 1
"""The only version there is; another one is refused, not guessed at."""

MAX_TOKENS = 1_000_000_000
"""Longest prompt or completion: no engine's context comes near, a slip of the pen does."""

MAX_T_S = 1e15
"""Latest time: seconds still keep their milliseconds in a float there."""

LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/+-]{0,63}\Z")
"""Cohort, task and language are labels of a configuration, never sentences."""

_ID = re.compile(rf"[0-9a-f]{{{2 * ID_BYTES}}}\Z")
_NOTE = re.compile(r"[\w .,:;/()@+=%#'-]{0,200}\Z")

Sampling = Literal["greedy", "sampled"]


@dataclass(frozen=True, slots=True)
class Block:
    """What one prefix id stands for: `size` bytes of messages, or tokens of a public trace."""

    unit: Literal["bytes", "tokens"] = "bytes"
    size: int = DEFAULT_BLOCK


@dataclass(frozen=True, slots=True)
class Header:
    """First line of a trace.

    Attributes:
        block: unit and size of a prefix block.
        notes: provenance in short words; keys of HEADER_NOTES only.
    """

    block: Block = field(default_factory=Block)
    notes: Mapping[str, str] = field(default_factory=dict)

    @property
    def block_unit(self) -> Literal["bytes", "tokens"]:
        """Unit of a prefix block."""
        return self.block.unit

    @property
    def block_size(self) -> int:
        """Size of a prefix block in its unit."""
        return self.block.size


HEADER_NOTES = ("source", "licence", "created", "tool", "arm", "model", "engine", "content")
"""What a header may say beside version and block: where the trace came from, in a few words."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One arrival: when, how long, and its labels.

    Attributes:
        t: seconds since the trace began, >= 0, never decreasing from line to line.
        in_tokens, out_tokens: prompt and completion lengths, >= 1.
        cohort, task, lang: labels from a configuration.
        sampling: greedy (temperature 0) or sampled.
        stream: whether the client asked for a stream.
        prefix: keyed ids, one per full block of the prompt, each chained to those before it.
        session: keyed id of the conversation.
    """

    t: float
    in_tokens: int
    out_tokens: int
    cohort: str = "other"
    task: str = "unknown"
    lang: str = "unknown"
    sampling: Sampling = "sampled"
    stream: bool = True
    prefix: tuple[str, ...] | None = None
    session: str | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    """A header and its arrivals, in order of time."""

    header: Header
    arrivals: tuple[Arrival, ...]

    @classmethod
    def of(cls, arrivals: Sequence[Arrival], header: Header | None = None) -> Trace:
        """A trace of these arrivals, with the default header unless one is given."""
        return cls(header or Header(), tuple(arrivals))

    @property
    def duration_s(self) -> float:
        """Seconds from the first to the last arrival."""
        return self.arrivals[-1].t - self.arrivals[0].t if self.arrivals else 0.0


# --- reading ----------------------------------------------------------------------------------


def read_trace(lines: Iterable[bytes | str], *, file: str = "trace") -> Trace:
    """Read and check a whole trace.

    Raises:
        TraceError: names file, line, field, value and the mend. A trace without arrivals, an
            unknown version or field, a repeated key, decreasing times, NaN, a length below 1.
    """
    header: Header | None = None
    arrivals: list[Arrival] = []
    for number, raw in enumerate(lines, 1):
        text = _decoded(raw, number, file)
        if not text.strip():
            continue
        refuse = _refuser(file, number)
        record = _object(text, refuse)
        if header is None:
            header = _header(record, refuse)
            continue
        arrival = _arrival(record, refuse)
        if arrivals and arrival.t < arrivals[-1].t:
            refuse("times must not decrease", "t", arrival.t, "sort the trace by t")
        arrivals.append(arrival)
    if header is None:
        raise TraceError("the trace is empty", file=file, mend="its first line is the header")
    if not arrivals:
        raise TraceError("the trace has no arrivals", file=file, mend="record or convert some")
    return Trace(header, tuple(arrivals))


Refuse = Callable[[str, str | None, object, str], NoReturn]


def _refuser(file: str, line: int) -> Refuse:
    def refuse(what: str, key: str | None, value: object, mend: str) -> NoReturn:
        raise TraceError(what, file=file, line=line, key=key, value=value, mend=mend)

    return refuse


def _decoded(raw: bytes | str, number: int, file: str) -> str:
    if isinstance(raw, str):
        return raw
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise TraceError(
            "invalid UTF-8", file=file, line=number, mend="write the trace as UTF-8 JSON lines"
        ) from None


def _object(text: str, refuse: Refuse) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        seen = dict(pairs)
        if len(seen) != len(pairs):
            refuse("a key is given twice", None, None, "give each key once")
        return seen

    def constant(name: str) -> NoReturn:
        refuse("a number must be finite", None, name, "write a finite number")

    try:
        record = json.loads(text, object_pairs_hook=unique, parse_constant=constant)
    except (ValueError, RecursionError):  # also an integer of thousands of digits
        refuse("no JSON object", None, None, "write one JSON object per line")
    if not isinstance(record, dict):
        refuse("no JSON object", None, None, "write one JSON object per line")
    return record


def _header(record: dict[str, Any], refuse: Refuse) -> Header:
    if "breakeven_trace" not in record:
        mend = f'start with {{"breakeven_trace": {VERSION}, …}}, or convert a public format'
        refuse("the first line is no header", None, None, mend)
    version = record.pop("breakeven_trace")
    if version != VERSION or isinstance(version, bool):
        mend = f"this release reads version {VERSION}"
        refuse("unknown trace version", "breakeven_trace", version, mend)
    block = _block(record.pop("block", None), refuse)
    for key, value in record.items():
        if key not in HEADER_NOTES:
            refuse("field not allowed in the header", _name(key), None, _allowed(HEADER_NOTES))
        if not isinstance(value, str) or not _NOTE.match(value):
            refuse("a note is one short line of text", key, None, "at most 200 plain characters")
    return Header(block, record)


def _block(value: Any, refuse: Refuse) -> Block:
    if value is None:
        return Block()
    if not isinstance(value, dict) or set(value) != {"unit", "size"}:
        refuse("block has unit and size", "block", None, 'e.g. {"unit": "bytes", "size": 2048}')
    unit, size = value["unit"], value["size"]
    if unit not in ("bytes", "tokens"):
        refuse("unknown unit of a block", "block.unit", unit, "write bytes or tokens")
    if not _is_int(size) or size < 1:
        refuse("a block's size is a whole number of at least 1", "block.size", size, "e.g. 2048")
    return Block(unit, size)


_FIELDS = ("t", "in", "out", "cohort", "task", "lang", "sampling", "stream", "prefix", "session")


def _arrival(record: dict[str, Any], refuse: Refuse) -> Arrival:
    for key in record:
        if key not in _FIELDS:  # the value is not quoted: it may be the text that must not leak
            refuse("field not allowed", _name(key), None, _allowed(_FIELDS))
    for key in ("t", "in", "out"):
        if key not in record:
            refuse("required field is missing", key, None, "each arrival has t, in and out")
    return Arrival(
        t=_time(record["t"], refuse),
        in_tokens=_length(record["in"], "in", refuse),
        out_tokens=_length(record["out"], "out", refuse),
        cohort=_label(record, "cohort", "other", refuse),
        task=_label(record, "task", "unknown", refuse),
        lang=_label(record, "lang", "unknown", refuse),
        sampling=_sampling(record.get("sampling", "sampled"), refuse),
        stream=_flag(record.get("stream", True), refuse),
        prefix=_prefix(record.get("prefix"), refuse),
        session=_session(record.get("session"), refuse),
    )


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _time(value: Any, refuse: Refuse) -> float:
    # Compared first: an integer above 1e308 has no float.
    if not (_is_int(value) or isinstance(value, float)) or not 0 <= value <= MAX_T_S:
        refuse("t must be seconds since the start, >= 0 and finite", "t", value, "mend the time")
    return float(value)


def _length(value: Any, key: str, refuse: Refuse) -> int:
    if not _is_int(value) or not 1 <= value <= MAX_TOKENS:
        what = f"{key} must be a whole number of tokens, at least 1 and at most {MAX_TOKENS}"
        refuse(what, key, value, "drop the arrival, or mend its length")
    return int(value)


def _label(record: Mapping[str, Any], key: str, default: str, refuse: Refuse) -> str:
    value = record.get(key, default)
    if not isinstance(value, str) or not LABEL.match(value):
        mend = "use a label such as chat-en: letters, digits and _.:/+- , at most 64"
        refuse(f"{key} must be a short label", key, None, mend)
    return value


def _sampling(value: Any, refuse: Refuse) -> Sampling:
    if value not in ("greedy", "sampled"):
        refuse("unknown sampling", "sampling", value, "write greedy or sampled")
    return "greedy" if value == "greedy" else "sampled"


def _flag(value: Any, refuse: Refuse) -> bool:
    if not isinstance(value, bool):
        refuse("stream must be true or false", "stream", value, "write true or false")
    return value


def _prefix(value: Any, refuse: Refuse) -> tuple[str, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(v, str) and _ID.match(v) for v in value):
        mend = f"a list of keyed ids of {2 * ID_BYTES} hex digits"
        refuse("prefix holds something else than keyed ids", "prefix", None, mend)
    return tuple(value)


def _session(value: Any, refuse: Refuse) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not _ID.match(value):
        refuse("session is no keyed id", "session", None, f"{2 * ID_BYTES} hex digits, or leave it")
    return value


def _name(key: str) -> str:
    """A field's name as a message may show it: a label; anything else could be text."""
    return key if LABEL.match(key) else "(a name that is no label)"


def _allowed(names: Sequence[str]) -> str:
    return f"allowed: {', '.join(names)}"


# --- writing ----------------------------------------------------------------------------------


def header_line(header: Header) -> bytes:
    """The header as one line of JSON, newline included."""
    block = {"unit": header.block.unit, "size": header.block.size}
    return orjson.dumps({"breakeven_trace": VERSION, "block": block, **header.notes}) + b"\n"


def arrival_line(arrival: Arrival) -> bytes:
    """One arrival as one line of JSON, newline included."""
    record: dict[str, Any] = {
        "t": arrival.t,
        "in": arrival.in_tokens,
        "out": arrival.out_tokens,
        "cohort": arrival.cohort,
        "task": arrival.task,
        "lang": arrival.lang,
        "sampling": arrival.sampling,
        "stream": arrival.stream,
    }
    if arrival.prefix is not None:
        record["prefix"] = arrival.prefix
    if arrival.session is not None:
        record["session"] = arrival.session
    return orjson.dumps(record) + b"\n"


def write_trace(trace: Trace) -> Iterator[bytes]:
    """The trace, line by line; `read_trace` gives back the same."""
    yield header_line(trace.header)
    yield from map(arrival_line, trace.arrivals)
