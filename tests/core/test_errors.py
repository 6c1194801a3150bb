"""Errors say whose fault it was, where, and what to do; secrets and documents stay out."""

from __future__ import annotations

import pytest

from breakeven.errors import (
    BreakevenError,
    CertificateError,
    ConfigError,
    EngineError,
    InputError,
    NotReadyError,
    ProtocolError,
    SchemaError,
    TraceError,
    shown,
)


def test_input_error_prints_every_part_it_was_given() -> None:
    """File, line, key, fault, value and mend stand in one line."""
    error = ConfigError(
        "unknown key", file="grid.yaml", line=4, key="arms.lo", value=3, mend="did you mean low?"
    )
    assert str(error) == "grid.yaml:4: arms.lo: unknown key (got 3); did you mean low?"


def test_input_error_without_place_is_the_bare_sentence() -> None:
    """Parts that were not given leave no gap."""
    assert str(InputError("no rate")) == "no rate"


def test_further_errors_follow_one_per_line() -> None:
    """Several faults of one file are told at once."""
    error = InputError("first", also=[InputError("second", line=2), InputError("third")])
    assert str(error).splitlines() == ["first", "2: second", "third"]


@pytest.mark.parametrize("kind", [ConfigError, TraceError, CertificateError])
def test_the_users_faults_are_input_errors(kind: type[Exception]) -> None:
    """One except clause maps them all to exit code 2."""
    assert issubclass(kind, InputError)
    assert issubclass(kind, BreakevenError)


@pytest.mark.parametrize("kind", [ProtocolError, SchemaError, NotReadyError])
def test_the_engines_faults_are_engine_errors(kind: type[Exception]) -> None:
    """The type says whose fault it was."""
    assert issubclass(kind, EngineError)
    assert not issubclass(kind, InputError)


@pytest.mark.parametrize(
    ("value", "key", "text"),
    [
        ("http://user:secret@host/v1", "url", "'http://***@host/v1'"),
        ("hunter2", "arms.a.api_key", "a value that is not shown"),
        ("hunter2", "salt", "a value that is not shown"),
        ("12", "max_tokens", "'12'"),
        ("two\nlines", None, "'two\\nlines'"),
    ],
)
def test_secrets_are_masked(value: str, key: str | None, text: str) -> None:
    """Credentials in URLs and values of secret keys never reach a message."""
    assert shown(value, key) == text


def test_long_values_are_cut() -> None:
    """A document pasted into a value does not end up in a log."""
    assert len(shown("x" * 10_000)) == 120
