"""Values: dataclasses that the type checker holds frozen and that cost little to make.

`dataclass(frozen=True)` makes an instance with one call of object.__setattr__ a field; a report of
45 fields, one a request, then costs more than the relaying of a token. mypy refuses an assignment
to a field of a value all the same, and every module here is checked.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(cls: type[T]) -> type[T]:
    """Decorator: a slotted dataclass that is compared and hashed by its fields."""
    return dataclass(slots=True, unsafe_hash=True)(cls)
