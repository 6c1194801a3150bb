"""`token_counts: request`: asks the engine for token counts and takes the answer out again.

A streamed chat or completions request gets `stream_options` {include_usage,
continuous_usage_stats}; from the stream the client then gets, what it did not ask for is cut out
byte for byte (vLLM appends `"usage"` to a chunk that is otherwise the same), so that it sees what a
direct call would have shown. An engine that counts on its own (vLLM's
--enable-force-include-usage) is recognised by its first stream and left alone.

Here: bytes in, bytes out. Not here: metering (it reads the engine's bytes, before the cut).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

import orjson

from breakeven_proxy.relay.heads import is_event_stream
from breakeven_wire import ResponseHead

MAX_BYTES = 1 << 20
"""Larger request bodies are not parsed and pass untouched."""

MAX_EVENT_BYTES = 1 << 20
"""A longer event is passed on as it is, and the rest of the stream with it."""

ASKED = {"include_usage": True, "continuous_usage_stats": True}

_USAGE = re.compile(rb',\s*"usage"\s*:\s*\{')
"""Quotes inside a JSON string are escaped, so this can only be a key."""

_FINGERPRINT = re.compile(rb',\s*"system_fingerprint"\s*:\s*"[^"\\]*"')
_NO_CHOICES = re.compile(rb'"choices"\s*:\s*\[\s*\]')
_FINISH = re.compile(rb'"finish_reason"\s*:\s*"')
_STREAM_OPTIONS = re.compile(r'"stream_options"\s*:\s*')
_OPEN = re.compile(rb"\s*\{")


@dataclass(slots=True)
class CountingArm:
    """What is known of one arm's engine.

    `counts_itself`: whether its streams carry usage unasked; None until a first stream shows it.
    `fingerprint`: of the engine that this was learned from; another one is learned anew.
    """

    counts_itself: bool | None = None
    fingerprint: bytes | None = None
    rewritten: int = field(default=0)

    def saw(self, *, usage: bool, fingerprint: bytes | None) -> None:
        """A stream that nobody had asked to count."""
        self.counts_itself = usage
        if fingerprint is not None:
            self.fingerprint = fingerprint

    def saw_fingerprint(self, fingerprint: bytes) -> None:
        """Another engine than the one that was learned from: learn again."""
        if self.fingerprint is not None and fingerprint != self.fingerprint:
            self.counts_itself = None
        self.fingerprint = fingerprint


@dataclass(frozen=True, slots=True)
class Wish:
    """What a client asked for itself: usage at the end, usage in each chunk, how many choices."""

    usage: bool
    continuous: bool
    choices: int


class CountingTransform:
    """The relay's `Transform` of one request: watches the first stream of an arm, then rewrites."""

    max_bytes = MAX_BYTES

    def __init__(self, arm: CountingArm) -> None:
        self._arm = arm
        self._watching = False
        self._wish = Wish(False, False, 1)
        self._buffer = bytearray()
        self._held: bytes | None = None
        self._raw = False
        self._finished = 0

    # -- the request
    def request(self, body: bytes) -> bytes | None:
        """The body with the counts asked for; None when it is not a stream we may change."""
        wish = _wish(body)
        if wish is None or wish.continuous or self._arm.counts_itself:
            return None
        self._wish = wish
        if self._arm.counts_itself is None:
            self._watching = True
            return body
        asking = _asking(body)
        self._arm.rewritten += asking is not None
        return asking

    # -- the response
    def response_head(self, head: ResponseHead) -> bool:
        """Only an event stream is changed."""
        encoding = head.get(b"content-encoding")
        return is_event_stream(head) and head.status == 200 and encoding in (None, b"identity")

    def response(self, data: bytes) -> bytes:
        """The client's bytes for one read: whole events only, less what it did not ask for."""
        if self._watching:
            self._watch(data)
            return data
        if self._raw:
            return data
        self._buffer += data
        out = bytearray()
        while (end := _event_end(self._buffer)) is not None:
            event = bytes(self._buffer[:end])
            del self._buffer[:end]
            out += self._event(event)
        if len(self._buffer) > MAX_EVENT_BYTES:
            self._raw = True
            out += self._release() + bytes(self._buffer)
            self._buffer.clear()
        return bytes(out)

    def response_end(self) -> bytes:
        """What was held back: the rest of a broken event, a last chunk without its usage."""
        rest = self._release() + bytes(self._buffer)
        self._buffer.clear()
        return rest

    def _event(self, event: bytes) -> bytes:
        fingerprint = _FINGERPRINT.search(event)
        if fingerprint is not None:
            self._arm.saw_fingerprint(fingerprint.group())
        usage = _USAGE.search(event)
        if usage is None:
            return self._release() + event
        if _NO_CHOICES.search(event) is not None:
            if self._wish.usage:
                return self._release() + event
            # The usage-only chunk that ends the stream: the fingerprint on it belongs, in a
            # stream without usage, to the last chunk with a choice.
            return self._release(b"" if fingerprint is None else fingerprint.group())
        cut = _cut(event, usage)
        if self._wish.usage or _FINISH.search(cut) is None:
            return self._release() + cut
        self._finished += 1
        if self._finished >= self._wish.choices:
            out, self._held = self._release(), cut
            return out
        return self._release() + _with_fingerprint(cut, self._arm.fingerprint or b"")

    def _release(self, fingerprint: bytes = b"") -> bytes:
        held, self._held = self._held, None
        if held is None:
            return b""
        return _with_fingerprint(held, fingerprint)

    def _watch(self, data: bytes) -> None:
        """Whether a chunk with a choice carries usage although nobody asked."""
        if self._arm.counts_itself is not None:
            return
        self._buffer += data
        while (end := _event_end(self._buffer)) is not None:
            event = bytes(self._buffer[:end])
            del self._buffer[:end]
            fingerprint = _FINGERPRINT.search(event)
            known = None if fingerprint is None else fingerprint.group()
            if _FINISH.search(event) is not None or (known and _NO_CHOICES.search(event)):
                usage = _USAGE.search(event) is not None and not _NO_CHOICES.search(event)
                self._arm.saw(usage=usage, fingerprint=known)
                self._buffer.clear()
                return
        if len(self._buffer) > MAX_EVENT_BYTES:
            self._buffer.clear()


def _wish(body: bytes) -> Wish | None:
    """What the client asked for; None when it asked for no stream, or is no JSON object."""
    try:
        request: Any = orjson.loads(body)
        if not isinstance(request, dict) or request.get("stream") is not True:
            return None
        options = request.get("stream_options")
        options = {} if options is None else options
        if not isinstance(options, dict):
            return None  # the engine refuses it, and is to be seen refusing it
        usage = options.get("include_usage") is True
        continuous = usage and options.get("continuous_usage_stats") is True
        prompt = request.get("prompt")
        prompts = len(prompt) if isinstance(prompt, list) and _texts(prompt) else 1
        n = request.get("n") or 1
        return Wish(usage, continuous, int(n) * prompts)
    except (ValueError, TypeError, AttributeError):
        return None


def _texts(prompt: list[Any]) -> bool:
    """Whether a list is several prompts, not the token ids of one."""
    return bool(prompt) and not isinstance(prompt[0], int)


def _asking(body: bytes) -> bytes | None:
    """The body with our stream_options; every byte outside them is kept. None: untouched.

    Written anew, a seed of more than 64 bits would become a float, and a float lose digits.
    """
    request = orjson.loads(body)
    if "stream_options" not in request:
        opening = _OPEN.match(body)
        assert opening is not None  # it was parsed as an object
        options = b'"stream_options":' + orjson.dumps(ASKED) + b","
        return body[: opening.end()] + options + body[opening.end() :]
    request["stream_options"] = {**(request["stream_options"] or {}), **ASKED}
    text = body.decode()
    for key in reversed(list(_STREAM_OPTIONS.finditer(text))[-MAX_KEYS:]):
        try:
            value, end = _DECODER.raw_decode(text, key.end())
            options = json.dumps({**(value or {}), **ASKED}).encode()
        except (ValueError, TypeError, RecursionError):
            continue
        asking = text[: key.end()].encode() + options + text[end:].encode()
        if orjson.loads(asking) == request:  # else the key of an inner object
            return asking
    return None


_DECODER = json.JSONDecoder()

MAX_KEYS = 4
"""Places that are tried, the last first (of two equal keys it counts): each costs a parse."""


def _event_end(buffer: bytearray) -> int | None:
    """Index behind the first blank line, or None."""
    lf, crlf = buffer.find(b"\n\n"), buffer.find(b"\r\n\r\n")
    ends = [at + size for at, size in ((lf, 2), (crlf, 4)) if at >= 0]
    return min(ends) if ends else None


def _cut(event: bytes, usage: re.Match[bytes]) -> bytes:
    """The event without its usage object (which holds numbers and objects, never text)."""
    depth, at = 1, usage.end()
    while depth and at < len(event):
        depth += {0x7B: 1, 0x7D: -1}.get(event[at], 0)
        at += 1
    return event[: usage.start()] + event[at:]


def _with_fingerprint(event: bytes, fingerprint: bytes) -> bytes:
    """The event with the fingerprint member before the closing brace of its object."""
    close = event.rfind(b"}")
    if not fingerprint or close < 0 or _FINGERPRINT.search(event) is not None:
        return event
    return event[:close] + fingerprint + event[close:]
