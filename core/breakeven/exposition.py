"""Prometheus exposition text -> samples: strict, because a page half read is a wrong number.

Here: the text format (classic, and what OpenMetrics adds: exemplars, `# EOF`, quoted names), and
the head of a recorded HTTP response, which is skipped. Not here: what any series means.
Messages name the line but never quote it: what is no exposition text may be an error body.
Source: Prometheus "Exposition formats", OpenMetrics 1.0; recorded pages in tests/data/vllm.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from .errors import ProtocolError

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
# Possessive quantifiers: no backtracking, so a hostile line costs no more than its length.
_QUOTED = r'"(?:[^"\\]++|\\.)*+"'
_LABELS = rf'\{{((?:[^"}}]++|{_QUOTED})*+)\}}'
_VALUE = r"[+-]?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|[Ii]nf|[Nn]a[Nn])"
_SAMPLE = re.compile(
    rf"({_NAME})?[ \t]*(?:{_LABELS})?[ \t]*(?<=[ \t}}])({_VALUE})"
    rf"(?:[ \t]+[+-]?[\d.eE+-]+)?(?:[ \t]+#[ \t].*)?[ \t]*"
)
_LABEL = re.compile(rf"[ \t]*(?:({_NAME})[ \t]*=[ \t]*)?({_QUOTED})[ \t]*(?:,|\Z)")
_ESCAPE = re.compile(r"\\(.)")
_META = re.compile(rf"#[ \t]+(HELP|TYPE|UNIT)[ \t]+({_NAME}|{_QUOTED})(?:[ \t]+(.*))?")
_TYPES = {
    "counter", "gauge", "histogram", "summary", "untyped", "unknown", "info", "stateset",
    "gaugehistogram",
}  # fmt: skip


class Sample(NamedTuple):
    """One line of a page."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Page:
    """All samples of one scrape, in order, and the declared type of each family."""

    samples: tuple[Sample, ...]
    types: Mapping[str, str]

    def named(self, name: str) -> list[Sample]:
        """The samples of one exact name."""
        return [sample for sample in self.samples if sample.name == name]

    @property
    def names(self) -> frozenset[str]:
        """Every sample name on the page."""
        return frozenset(sample.name for sample in self.samples)


def parse_page(data: bytes | str) -> Page:
    """Read exposition text, or a recorded HTTP response that carries it.

    Raises:
        ProtocolError: no legal exposition text, a repeated series, a truncated or non-200
            response. The message has the line number.
    """
    text = data if isinstance(data, str) and not data.startswith("HTTP/") else _text(data)
    samples: list[Sample] = []
    types: dict[str, str] = {}
    seen: set[tuple[str | None, str | None]] = set()
    for number, line in enumerate(text.split("\n"), 1):
        line = line.rstrip("\r")
        if not line or line.isspace():
            continue
        if line.startswith("#"):
            _read_meta(line, number, types)
            continue
        match = _SAMPLE.fullmatch(line)
        if match is None:
            raise ProtocolError(f"metrics page, line {number}: no sample (name{{labels}} value)")
        name, inner, value = match.groups()
        if (name, inner) in seen:  # writers keep one label order, so the text is the identity
            raise ProtocolError(f"metrics page, line {number}: a series that was there already")
        seen.add((name, inner))
        labels = _read_labels(inner, number) if inner else {}
        if name is None:  # Prometheus 3: a quoted name stands first between the braces
            name = labels.pop("", None)
        if not name or "" in labels:
            raise ProtocolError(f"metrics page, line {number}: a sample without a name")
        samples.append(Sample(name, labels, float(value)))
    return Page(tuple(samples), types)


def _read_meta(line: str, number: int, types: dict[str, str]) -> None:
    match = _META.match(line)
    if match is None or match[1] != "TYPE":
        return
    kind = (match[3] or "").strip()
    if kind not in _TYPES:
        raise ProtocolError(f"metrics page, line {number}: unknown type of a family")
    types[match[2].strip('"')] = kind


def _read_labels(inner: str, number: int) -> dict[str, str]:
    labels: dict[str, str] = {}
    at = 0
    for match in _LABEL.finditer(inner):
        if match.start() != at:
            break
        key = match[1] or ""
        if key in labels:
            raise ProtocolError(f"metrics page, line {number}: a label given twice")
        text = match[2][1:-1]
        labels[key] = _ESCAPE.sub(_unescaped, text) if "\\" in text else text
        at = match.end()
    if at < len(inner) and not inner[at:].isspace():
        raise ProtocolError(f"metrics page, line {number}: labels that cannot be read")
    return labels


def _unescaped(match: re.Match[str]) -> str:
    """Only \\n, \\" and \\\\ are escapes; an unknown one stands for itself, backslash included."""
    return {"n": "\n", '"': '"', "\\": "\\"}.get(match[1], match[0])


# --- a recorded HTTP response ----------------------------------------------------------------


def _text(data: bytes | str) -> str:
    raw = data.encode("utf-8") if isinstance(data, str) else data
    if raw.startswith(b"HTTP/"):
        raw = response_body(raw)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise ProtocolError(f"metrics page, line {line}: no valid UTF-8") from None


def response_body(raw: bytes) -> bytes:
    """Body of one recorded HTTP/1.1 response: head skipped, chunks joined, gzip undone.

    Raises:
        ProtocolError: no end of head, a status other than 200, or fewer bytes than announced.
    """
    head, found, body = raw.partition(b"\r\n\r\n")
    if not found:
        head, found, body = raw.partition(b"\n\n")  # a recording that a tool re-saved
    if not found:
        raise ProtocolError("recorded response: the head has no end")
    lines = head.decode("latin-1").splitlines()
    status = lines[0].split(" ")[1] if " " in lines[0] else "?"
    if status != "200":
        raise ProtocolError(f"recorded response: status {status[:3]}, not 200")
    headers = {}
    for line in lines[1:]:
        key, _, value = line.partition(":")
        headers[key.strip().lower()] = value.strip()
    if "chunked" in headers.get("transfer-encoding", "").lower():
        body = dechunked(body)
    elif "content-length" in headers:
        body = _exactly(body, headers["content-length"])
    if headers.get("content-encoding", "").lower() == "gzip":
        try:
            body = zlib.decompress(body, wbits=31)
        except zlib.error:
            raise ProtocolError("recorded response: damaged gzip") from None
    return body


def _exactly(body: bytes, announced: str) -> bytes:
    if not announced.isascii() or not announced.isdigit():
        raise ProtocolError("recorded response: Content-Length is no number")
    if len(body) < int(announced):
        raise ProtocolError(f"recorded response: cut off at {len(body)} of {announced} bytes")
    return body[: int(announced)]


def dechunked(body: bytes) -> bytes:
    """Join the chunks of a chunked body (RFC 9112 §7.1); it must be complete.

    Raises:
        ProtocolError: a size that is no hexadecimal number, or the end is missing.
    """
    parts: list[bytes] = []
    at = 0
    while True:
        end = body.find(b"\r\n", at)
        if end < 0:
            raise ProtocolError("recorded response: chunked body without its end")
        size_text = body[at:end].split(b";")[0].strip()
        try:
            size = int(size_text, 16)
        except ValueError:
            raise ProtocolError("recorded response: a chunk size is no number") from None
        if size == 0:
            return b"".join(parts)
        at = end + 2
        if len(body) < at + size + 2:
            raise ProtocolError("recorded response: chunked body without its end")
        parts.append(body[at : at + size])
        at += size + 2


def label_values(samples: Iterable[Sample], label: str) -> tuple[str, ...]:
    """Distinct values of one label, sorted."""
    return tuple(sorted({s.labels[label] for s in samples if label in s.labels}))
