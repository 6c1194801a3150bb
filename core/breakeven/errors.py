"""The exception tree of the whole product; the type says whose fault it was.

    BreakevenError
    ├── InputError            the user's: file, flag or value       -> exit 2
    │   ├── ConfigError       a YAML configuration
    │   ├── TraceError        an arrival trace
    │   └── CertificateError  a certificate
    └── EngineError           the engine's
        ├── ProtocolError     bytes that are no legal HTTP, SSE or exposition text
        ├── SchemaError       /metrics without the series we need
        └── NotReadyError     unreachable or not ready              -> exit 3

Foreign exceptions are mapped to these at the edge and never leak. Messages quote the offending
value and say the mend; they never quote a prompt, a completion or an engine's error body.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

MAX_SHOWN = 120
"""Longest value a message quotes: enough to recognise it, too short to leak a document."""

_SECRET_KEY = re.compile(r"(?i)(secret|password|passwd|token$|api_?key|authorization|salt)")
_CREDENTIALS = re.compile(r"//[^/@\s]+@")


class BreakevenError(Exception):
    """Base of every error that this product raises on purpose."""


class InputError(BreakevenError):
    """Something the user gave cannot be used; nothing was sent.

    Args:
        what: the fault in one clause, e.g. "unknown key".
        file: name of the file (or flag) that holds it.
        line: 1-based line in that file.
        key: dotted key or column.
        value: the offending value; quoted shortened, credentials masked.
        mend: what to do about it.
        also: further errors found in the same input; printed one per line after this one.
    """

    def __init__(
        self,
        what: str,
        *,
        file: str | None = None,
        line: int | None = None,
        key: str | None = None,
        value: object = None,
        mend: str | None = None,
        also: Sequence[InputError] = (),
    ) -> None:
        super().__init__(what)
        self.what = what
        self.file = file
        self.line = line
        self.key = key
        self.value = value
        self.mend = mend
        self.also = tuple(also)

    def __str__(self) -> str:
        return "\n".join([self._one_line(), *(str(error) for error in self.also)])

    def _one_line(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line) if part is not None)
        text = f"{place}: " if place else ""
        text += f"{self.key}: " if self.key else ""
        text += self.what
        if self.value is not None:
            text += f" (got {shown(self.value, self.key)})"
        return f"{text}; {self.mend}" if self.mend else text


class ConfigError(InputError):
    """A YAML configuration holds an unknown key or a value that cannot be."""


class TraceError(InputError):
    """An arrival trace holds a line that is no arrival, or a field that is not allowed."""


class CertificateError(InputError):
    """A certificate is damaged, expired, or proven under other settings than these."""


class EngineError(BreakevenError):
    """The engine answered in a way that cannot be used."""


class ProtocolError(EngineError):
    """Bytes that are no legal HTTP, SSE or exposition text."""


class SchemaError(EngineError):
    """A metrics page without the series that a number needs."""


class NotReadyError(EngineError):
    """The engine could not be reached, or says that it is not ready."""


def shown(value: object, key: str | None = None) -> str:
    """The value as a message may print it: shortened, one line, credentials masked."""
    if key and _SECRET_KEY.search(key.rsplit(".", 1)[-1]):
        return "a value that is not shown"
    text = _CREDENTIALS.sub("//***@", repr(value))
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…"
