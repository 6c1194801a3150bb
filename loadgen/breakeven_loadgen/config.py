"""Settings of `loadgen replay`: one frozen dataclass, whose fields are the long options.

Here: fields, defaults and what makes a value impossible. Not here: flags (cli), files it names.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any, Literal

from breakeven.errors import InputError
from breakeven.settings import settings_class
from breakeven.units import Seconds, parse_duration, parse_rate

from .traffic.arrivals import Arrival, parse_arrival
from .traffic.content import PATHS, TOKEN_IDS, Endpoint
from .traffic.formats import SYNTHETIC

DEFAULT_MAX_INFLIGHT = 1024
"""Bound of requests in flight: far above what one engine batches (256 in vLLM), far below what
a process can hold open."""
DEFAULT_TIMEOUT_S = 600.0
"""Longest that one request may take; longer than any answer somebody would wait for."""
DEFAULT_EPSILON_S = 0.002
"""Gaps below it are inside a burst (docs/definitions.md)."""
MAX_WORKERS = 256
"""Each is a process with a client of its own; more than that is a slip, and ends the machine."""
MAX_TOKEN_ID = 2**31
"""Above every vocabulary; engines read ids as 32-bit numbers."""
OWN_HEADERS = ("content-length", "transfer-encoding", "connection", "content-type", "expect")
"""Headers that frame the message: a second one makes every request invalid."""
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+\Z")


@settings_class
class ReplayConfig:
    """Everything that one replay needs. Durations are seconds; text such as "500ms" is taken.

    `arm` and `block` are labels that go into every row; replay gives them no meaning, except
    that `block` also chooses which random numbers and prompts are drawn.
    """

    trace: str = ""
    url: str = ""
    model: str | None = None
    out: str = ""
    # traffic
    rate: float | None = None
    arrival: str | None = None
    duration: Seconds | None = None
    requests: int | None = None
    warmup: Seconds = 0.0
    window: str | None = None
    skip: int = 0
    gap_cap: Seconds | None = None
    skip_empty: bool = False
    time_unit: Literal["s", "ms"] | None = None
    block_size: int | None = None
    cancel_share: float = 0.0
    seed: int = 0
    # content
    endpoint: Endpoint | None = None
    content: str | None = None
    content_label: Literal["real", "public-proxy"] = "real"
    reuse_content: bool = False
    output_length: Literal["forced", "capped"] | None = None
    sampling: Literal["greedy", "sampled"] | None = None
    token_ids: str | None = None
    # client
    max_inflight: int = DEFAULT_MAX_INFLIGHT
    timeout: Seconds = DEFAULT_TIMEOUT_S
    header: tuple[str, ...] = ()
    api_key_env: str | None = None
    stamps: Literal["kernel", "loop"] = "kernel"
    epsilon: Seconds = DEFAULT_EPSILON_S
    # judging
    goodput: str | None = None
    min_goodput: float | None = None
    abort_below: float | None = None
    usd_per_hour: float | None = None
    acceptance: Literal["measured", "synthetic"] = "measured"
    metrics_url: tuple[str, ...] = ()
    proxy_metrics_url: str | None = None
    metrics_listen: str | None = None
    # scale
    workers: int = 1
    shard: str | None = None
    start_at: float | None = None
    # output
    force: bool = False
    arm: str = ""
    block: int = 0


@dataclass(frozen=True, slots=True)
class Shard:
    """Part `number` (from 0) of `of` parts."""

    number: int = 0
    of: int = 1


def check(config: ReplayConfig) -> None:
    """Refuse values that cannot be, before anything is opened or sent.

    Raises:
        InputError: names option, value and mend.
    """
    for name in ("trace", "url", "out"):
        if not getattr(config, name):
            raise _bad(name, "is missing", None, "loadgen replay TRACE --url URL --out DIR …")
    if config.rate is not None:
        _renamed("rate", lambda: parse_rate(config.rate or 0.0))
    if config.max_inflight < 1:
        raise _bad("max-inflight", "must be at least 1", config.max_inflight, "e.g. 256")
    if config.requests is not None and config.requests < 1:
        raise _bad("requests", "must be at least 1", config.requests, "e.g. 200")
    for name in ("duration", "timeout", "epsilon", "gap_cap"):
        value = getattr(config, name)
        if value is not None and value <= 0:
            raise _bad(_flag(name), "must be above 0", value, "e.g. 60s")
    if not 0 <= config.cancel_share <= 1:
        raise _bad("cancel-share", "must be within 0 and 1", config.cancel_share, "e.g. 0.05")
    for name in ("skip", "seed", "block"):
        if getattr(config, name) < 0:
            raise _bad(name, "must not be negative", getattr(config, name), "use 0 or more")
    if not 1 <= config.workers <= MAX_WORKERS or (config.workers > 1 and config.shard is not None):
        mend = f"1 to {MAX_WORKERS}, and not with --shard"
        raise _bad("workers", "cannot be used so", config.workers, mend)
    if config.workers > 1 and config.metrics_listen is not None:
        mend = "leave it out: with --workers no process sees the whole run"
        raise _bad("metrics-listen", "cannot be used so", config.metrics_listen, mend)
    for name in ("abort_below", "min_goodput"):
        value = getattr(config, name)
        if value is not None and not 0 < value <= 100:
            raise _bad(_flag(name), "must be a percentage above 0, up to 100", value, "e.g. 90")
    if config.usd_per_hour is not None and config.usd_per_hour < 0:
        raise _bad("usd-per-hour", "must not be negative", config.usd_per_hour, "e.g. 3.0")
    arrival_of(config)
    window_of(config)
    shard_of(config)
    token_ids_of(config)
    headers_of(config, {})
    if config.metrics_listen is not None:
        host_port(config.metrics_listen)


def arrival_of(config: ReplayConfig) -> Arrival:
    """How arrivals are spaced: a trace keeps its shape, synthetic traffic is Poisson."""
    if config.arrival is not None:
        arrival = parse_arrival(config.arrival)
        if arrival.kind == "trace" and config.trace.startswith(SYNTHETIC):
            raise _bad("arrival", "synthetic traffic has no times of its own", "trace", "poisson")
        return arrival
    return Arrival("poisson" if config.trace.startswith(SYNTHETIC) else "trace")


def endpoint_of(config: ReplayConfig) -> Endpoint:
    """Chat for the user's own prompts; completions for synthetic ones, whose length is then
    exact without a tokenizer."""
    if config.endpoint is not None:
        return config.endpoint
    return "chat" if config.content else "completions"


def forced_length(config: ReplayConfig) -> bool:
    """Whether exactly the trace's number of output tokens is ordered: always for synthetic
    prompts, only on request for real ones (it cuts off or stretches real answers)."""
    if config.output_length is not None:
        return config.output_length == "forced"
    return config.content is None


def window_of(config: ReplayConfig) -> tuple[float, float] | None:
    """START:END of the trace, seconds after its first arrival."""
    if config.window is None:
        return None
    low, _, high = config.window.partition(":")
    window: tuple[float, float] = _renamed(
        "window", lambda: (parse_duration(low or 0), parse_duration(high))
    )
    if window[0] >= window[1]:
        raise _bad("window", "must end after it starts", config.window, "e.g. 60s:180s")
    return window


def shard_of(config: ReplayConfig) -> Shard:
    """i/n with 0 ≤ i < n."""
    if config.shard is None:
        return Shard()
    number, _, of = config.shard.partition("/")
    if not (_is_number(number) and _is_number(of) and int(number) < int(of)):
        raise _bad("shard", "must be i/n with 0 <= i < n", config.shard, "e.g. 0/4")
    return Shard(int(number), int(of))


def token_ids_of(config: ReplayConfig) -> tuple[int, int]:
    """LOW:HIGH, the range that synthetic token ids are drawn from."""
    if config.token_ids is None:
        return TOKEN_IDS
    low, _, high = config.token_ids.partition(":")
    known = _is_number(low) and _is_number(high)
    if not (known and int(low) < int(high) <= MAX_TOKEN_ID):
        mend = f"e.g. 1000:9000; no id is above {MAX_TOKEN_ID}"
        raise _bad("token-ids", "must be LOW:HIGH", config.token_ids, mend)
    return int(low), int(high)


def headers_of(config: ReplayConfig, environ: dict[str, str] | None = None) -> Any:
    """Request headers: JSON, the given ones, and the key of --api-key-env.

    The only place of replay that reads the environment. Values are never printed or stored.

    Raises:
        InputError: a header that is no `Name: value`, or an unset environment variable.
    """
    headers = [(b"Content-Type", b"application/json")]
    for text in config.header:
        name, sep, value = text.partition(":")
        if not sep or not name.strip() or not (text.isascii() and text.isprintable()):
            raise InputError(
                "no header", key="--header", value=name[:40], mend="write 'Name: value'"
            )
        name = name.strip()
        if not _HEADER_NAME.match(name) or name.lower() in OWN_HEADERS:
            raise InputError(
                "cannot be set so", key="--header", value=name[:40],
                mend=f"a name of letters, digits and -; never {', '.join(OWN_HEADERS)}",
            )  # fmt: skip
        headers.append((name.encode(), value.strip().encode()))
    if config.api_key_env is not None and environ is None:
        key = os.environ.get(config.api_key_env)
        if not key:
            raise _bad("api-key-env", "is not set", config.api_key_env, "export the variable")
        headers.append((b"Authorization", b"Bearer " + key.encode()))
    return tuple(headers)


def host_port(text: str) -> tuple[str, int]:
    """HOST:PORT of --metrics-listen; IPv6 in brackets.

    Raises:
        InputError: anything else.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not host or not _is_number(port) or int(port) > 65535:
        raise _bad("metrics-listen", "no HOST:PORT", text, "write e.g. 127.0.0.1:9400")
    return host.strip("[]"), int(port)


def path_of(config: ReplayConfig) -> bytes:
    """Request path of the endpoint."""
    return PATHS[endpoint_of(config)].encode()


def _is_number(text: str) -> bool:
    """Plain digits, few enough for int(): `isdigit` alone also takes superscripts."""
    return text.isascii() and text.isdigit() and len(text) <= 18


def _flag(name: str) -> str:
    return name.replace("_", "-")


def _bad(name: str, what: str, value: object, mend: str) -> InputError:
    return InputError(what, key=f"--{name}", value=value, mend=mend)


def _renamed(name: str, read: Any) -> Any:
    """Run a parser; its error gets the option's name."""
    try:
        return read()
    except InputError as error:
        raise InputError(error.what, key=f"--{name}", value=error.value, mend=error.mend) from None
