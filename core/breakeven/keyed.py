"""Keyed ids of prompt prefixes and sessions: equal prefixes are seen to be equal, nothing more.

Here: BLAKE2b with a secret salt (RFC 7693), a chain per block of message bytes, so that no
tokenizer is needed. Not here: where the salt is kept, when a trace is recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import orjson

from .errors import InputError

DEFAULT_BLOCK = 2048
"""Bytes per prefix block: about 512 tokens of English, the block of public KV-cache traces."""

MAX_PREFIX_BODY = 1 << 20
"""Bodies over 1 MiB record no prefix: hashing them would delay the relay."""

MIN_SALT = 16
"""Shortest secret salt in bytes: shorter ones could be tried out to confirm a guessed prompt."""

ID_BYTES = 8
"""Bytes of a keyed id (16 hex digits): collisions are rare up to millions of blocks."""


def message_bytes(body: Mapping[str, Any]) -> bytes | None:
    """The bytes that a request's prefix is hashed from: its messages, prompt or input as JSON.

    The closing bracket of a list is left off, so that a conversation that grew by a turn keeps
    the bytes it had. Never stored: only `prefix_ids` of it leave this module.
    """
    content = body.get("messages", body.get("prompt", body.get("input")))
    if content is None:
        return None
    data = orjson.dumps(content)
    return data[:-1] if isinstance(content, list) else data


def prefix_ids(data: bytes, salt: bytes, size: int = DEFAULT_BLOCK) -> tuple[str, ...] | None:
    """Keyed ids of the full blocks of `data`, each over its block and the id before it.

    BLAKE2b with the secret salt as key (RFC 7693): equal ids mean equal prefixes under one salt,
    and without the salt nobody can try out a guessed prompt.

    Returns:
        one id of 16 hex digits per full block; None for bodies above MAX_PREFIX_BODY.

    Raises:
        InputError: the salt is shorter than 16 or longer than 64 bytes.
    """
    _check_salt(salt)
    if len(data) > MAX_PREFIX_BODY:
        return None
    ids: list[str] = []
    before = b""
    for start in range(0, len(data) - size + 1, size):
        digest = blake2b(
            before + data[start : start + size],
            digest_size=ID_BYTES,
            key=salt,
            person=b"bkv-prefix",
        )
        before = digest.digest()
        ids.append(digest.hexdigest())
    return tuple(ids)


def session_id(name: bytes, salt: bytes) -> str:
    """Keyed id of a session's name (a header, say); the name itself is not kept.

    Raises:
        InputError: the salt is shorter than 16 or longer than 64 bytes.
    """
    _check_salt(salt)
    return blake2b(name, digest_size=ID_BYTES, key=salt, person=b"bkv-session").hexdigest()


def _check_salt(salt: bytes) -> None:
    if not MIN_SALT <= len(salt) <= 64:
        raise InputError(
            f"the salt must have {MIN_SALT} to 64 bytes",
            value=f"{len(salt)} bytes",
            mend="take 32 random bytes and keep them secret",
        )
