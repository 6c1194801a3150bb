"""The event that an engine repeats: all bytes the same but the text, so nothing is to be parsed.

A stream's chunks share one frame: `data: {"id":…,"choices":[{"index":0,"delta":{"content":"`, the
text, `"},"logprobs":null,"finish_reason":null}]}`. A read with that frame and a JSON string between
says exactly what the chunk before said: one event, one choice, no count. That is proved when the
frame is taken (the parsed chunk changes with the text in one place) and by the string's grammar
(RFC 8259 section 7, RFC 3629 section 4), not guessed.
"""

from __future__ import annotations

import re
from typing import Any

from orjson import loads

from .chunks import DELTA_FIELDS

_STRING = re.compile(
    rb"""(?:
        [ !\#-\[\]-\x7f]++
        | \\ (?: ["\\/bfnrt] | u (?: [0-9a-cA-CefEF][0-9a-fA-F]{3} | [dD][0-7][0-9a-fA-F]{2} ) )
        | [\xc2-\xdf][\x80-\xbf]
        | \xe0[\xa0-\xbf][\x80-\xbf] | [\xe1-\xec\xee\xef][\x80-\xbf]{2}
        | \xed[\x80-\x9f][\x80-\xbf]
        | \xf0[\x90-\xbf][\x80-\xbf]{2} | [\xf1-\xf3][\x80-\xbf]{3} | \xf4[\x80-\x8f][\x80-\xbf]{2}
    )++""",
    re.VERBOSE,
)
is_string = _STRING.fullmatch
"""`is_string(data, start, end)`: whether data[start:end] is a JSON string's inside, not empty."""


class Frame:
    """What surrounds the text of one choice's chunks.

    A whole read is of this frame where `data.startswith(head) and data.endswith(tail) and
    is_string(data, len(head), len(data) - len(tail))`, between two events.
    """

    __slots__ = ("head", "index", "tail")

    def __init__(self, head: bytes, tail: bytes, index: int) -> None:
        self.head = head
        self.tail = tail
        self.index = index

    def __repr__(self) -> str:
        return f"Frame(<{len(self.head)} + {len(self.tail)} bytes>)"


def frame_of(payload: bytes, obj: dict[str, Any]) -> Frame | None:
    """The frame of a chunk that holds text and nothing else that counts; None where unsure.

    Args:
        payload: the data of one event, that came as one `data: ` line ended by LF LF.
        obj: the same, parsed; one choice, without usage, counts and finish reason.
    """
    choice = obj["choices"][0]
    holder, names = choice, ["text"]
    if choice.get("delta") is not None:
        holder = choice["delta"]
        names = [name for name, value in holder.items() if value and name in DELTA_FIELDS]
    text = holder.get(names[0]) if len(names) == 1 else None
    if not isinstance(text, str) or not text:
        return None
    head, found, rest = payload.partition(b'"%b":"' % names[0].encode())
    inside = text.encode()
    if not found or not rest.startswith(inside + b'"') or is_string(inside) is None:
        return None
    head, tail = head + found, rest[len(inside) :]
    other = loads(head + b"~" + tail)
    kept = other["choices"][0] if holder is choice else other["choices"][0]["delta"]
    if kept.get(names[0]) != "~":
        return None
    kept[names[0]] = text
    return Frame(b"data: " + head, tail + b"\n\n", choice.get("index", 0)) if other == obj else None
