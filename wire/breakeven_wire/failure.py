"""Why an exchange ended without a whole response: whose fault, and in which phase."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from enum import StrEnum


class FailureKind(StrEnum):
    """What happened, as the operating system or the parser saw it."""

    REFUSED = "refused"
    """The connection was refused: nothing listens there."""
    UNREACHABLE = "unreachable"
    """No such host, no route, no file descriptor left."""
    TLS = "tls"
    """The TLS handshake failed, or the certificate does not verify."""
    RESET = "reset"
    """The connection broke (RST, broken pipe) after it had been made."""
    CLOSED_EARLY = "closed_early"
    """The engine closed the connection before the response was whole."""
    PROTOCOL = "protocol"
    """The engine sent bytes that are no legal HTTP/1.1 response."""
    TIMEOUT = "timeout"
    """A deadline passed; the phase says which."""


class Phase(StrEnum):
    """How far the exchange had come."""

    CONNECT = "connect"
    SEND = "send"
    HEAD = "head"
    BODY = "body"


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed exchange.

    `detail` is our own wording: an errno name or a parser's complaint, never bytes of a body.
    `reused` says whether the connection had served an earlier request; `response_started`
    whether any byte of a response had come.
    """

    kind: FailureKind
    phase: Phase
    detail: str
    reused: bool = False
    response_started: bool = False

    def __str__(self) -> str:
        return f"{self.kind.value} in phase {self.phase.value}: {self.detail}"


def failure_kind(error: BaseException | None, *, connecting: bool) -> FailureKind:
    """The kind of an exception that a socket or a TLS layer raised."""
    if error is None:
        return FailureKind.CLOSED_EARLY
    if isinstance(error, ssl.SSLError):
        return FailureKind.TLS
    if isinstance(error, ConnectionRefusedError):
        return FailureKind.REFUSED
    if isinstance(error, TimeoutError):
        return FailureKind.TIMEOUT
    return FailureKind.UNREACHABLE if connecting else FailureKind.RESET


def describe(error: BaseException | None) -> str:
    """An exception in words that hold no payload: its class and the system's text."""
    if error is None:
        return "connection closed"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return type(error).__name__
