"""Keyed ids: equal prefixes look equal, and nothing else can be learned."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.errors import InputError
from breakeven.keyed import MAX_PREFIX_BODY, message_bytes, prefix_ids, session_id

SALT = b"0123456789abcdef0123456789abcdef"
OTHER = b"another salt of at least 16 bytes"


def ids(data: bytes, salt: bytes = SALT, size: int = 4) -> tuple[str, ...]:
    found = prefix_ids(data, salt, size)
    assert found is not None
    return found


def test_one_id_per_full_block() -> None:
    """The rest of 10 bytes in blocks of 4 is left out."""
    assert len(ids(b"0123456789")) == 2
    assert ids(b"012") == ()
    assert all(len(one) == 16 for one in ids(b"01234567"))


def test_equal_prefixes_share_their_ids_and_a_change_ends_it() -> None:
    """Ids are chained: what follows a difference differs."""
    left, right = ids(b"aaaabbbbcccc"), ids(b"aaaaXbbbcccc")
    assert left[0] == right[0]
    assert left[1] != right[1]
    assert left[2] != right[2]


def test_equal_blocks_at_other_places_do_not_look_equal() -> None:
    """aaaa aaaa: the second block is chained to the first."""
    first, second = ids(b"aaaaaaaa")
    assert first != second


def test_another_salt_gives_other_ids() -> None:
    """Without the salt a guessed prompt cannot be confirmed."""
    assert set(ids(b"aaaabbbb")).isdisjoint(ids(b"aaaabbbb", OTHER))


@given(st.binary(max_size=200), st.binary(max_size=50))
def test_ids_of_a_prefix_are_a_prefix_of_the_ids(data: bytes, more: bytes) -> None:
    """A conversation that grows keeps the ids it had."""
    assert ids(data + more)[: len(ids(data))] == ids(data)


def test_a_grown_conversation_keeps_its_bytes() -> None:
    """The closing bracket of the list is left off."""
    turns = [{"role": "user", "content": "one"}]
    longer = [*turns, {"role": "assistant", "content": "two"}]
    first, second = message_bytes({"messages": turns}), message_bytes({"messages": longer})
    assert first is not None
    assert second is not None
    assert second.startswith(first)


@pytest.mark.parametrize("body", [{"prompt": "x"}, {"prompt": ["x"]}, {"input": "x"}])
def test_completions_and_responses_have_bytes_too(body: dict[str, object]) -> None:
    """Each endpoint's content field."""
    assert message_bytes(body)
    assert message_bytes({"model": "m"}) is None


def test_large_bodies_record_no_prefix() -> None:
    """Hashing them would delay the relay."""
    assert prefix_ids(b"x" * (MAX_PREFIX_BODY + 1), SALT) is None


def test_a_session_id_is_keyed_and_apart_from_prefixes() -> None:
    """The same bytes as a prefix block give another id."""
    assert session_id(b"aaaa", SALT) != ids(b"aaaa")[0]
    assert session_id(b"aaaa", SALT) != session_id(b"aaaa", OTHER)
    assert session_id(b"aaaa", SALT) == session_id(b"aaaa", SALT)


@pytest.mark.parametrize("salt", [b"", b"short", b"x" * 65])
def test_a_weak_salt_is_refused_and_not_shown(salt: bytes) -> None:
    """Its length is told, never its bytes."""
    for call in (lambda: prefix_ids(b"x", salt), lambda: session_id(b"x", salt)):
        with pytest.raises(InputError, match=f"{len(salt)} bytes"):
            call()
