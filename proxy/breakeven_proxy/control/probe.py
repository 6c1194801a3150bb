"""Active health: asks an arm's /health and /v1/models, and says what was seen as a signal.

Here: the questions and their reading. Not here: hysteresis (core `health`), consequences
(`steer`), the engine's metrics (`observe`).
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

import aiohttp
import orjson

from breakeven import __version__
from breakeven.health import Signal

MAX_MODELS_BYTES = 1 << 20
"""A model list larger than this is no model list."""


USER_AGENT = f"breakeven-probe/{__version__}"
"""So that an engine's access log shows who asks each second."""


async def probe(
    session: aiohttp.ClientSession, origin: str, model: str | None, *, list_models: bool = True
) -> Signal:
    """One look at an engine.

    NOT_READY (at once down): nobody listens, /health says 503, or /v1/models does not name
    `model` (any model, if None). PROBE_FAILED (may be a hiccup): late, broken, or another status.
    A 404 of /health is an engine that has no such page: its model list decides.

    Args:
        session: with the timeout of the whole probe.
        origin: scheme, host, port and prefix.
        list_models: False asks /health only.
    """
    try:
        async with session.get(f"{origin}/health", allow_redirects=False) as response:
            status = response.status
        if status not in (200, 404):
            return Signal.NOT_READY if status == 503 else Signal.PROBE_FAILED
        if not list_models:
            return Signal.READY
        async with session.get(f"{origin}/v1/models", allow_redirects=False) as response:
            if response.status != 200:
                ready = response.status == 503
                return Signal.NOT_READY if ready else Signal.PROBE_FAILED
            body = await _limited(response)
    except aiohttp.ClientConnectorError:
        return Signal.NOT_READY
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
        return Signal.PROBE_FAILED
    names = model_names(body)
    if names is None:
        return Signal.PROBE_FAILED
    named = model in names if model is not None else bool(names)
    return Signal.READY if named else Signal.NOT_READY


async def _limited(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for part in response.content.iter_any():
        body += part
        if len(body) > MAX_MODELS_BYTES:
            raise ValueError("model list too large")
    return bytes(body)


def model_names(body: bytes) -> frozenset[str] | None:
    """Ids of an OpenAI model list (`{"data": [{"id": …}]}`); None when it is not one."""
    try:
        rows = orjson.loads(body)["data"]
        return frozenset(str(row["id"]) for row in rows)
    except (ValueError, KeyError, TypeError):
        return None


class Prober:
    """Probes one arm for as long as it runs."""

    def __init__(
        self,
        origin: str,
        *,
        interval_s: float,
        timeout_s: float,
        model: Callable[[], str | None],
        tell: Callable[[Signal], None],
        tls: ssl.SSLContext | None = None,
        list_models: bool = True,
    ) -> None:
        self._origin = origin
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._model = model
        self._tell = tell
        self._tls = tls
        self._list_models = list_models

    async def run(self) -> None:
        """Until cancelled. A fresh connection each time: a kept one says nothing of `listen`."""
        timeout = aiohttp.ClientTimeout(total=self._timeout_s)
        connector = aiohttp.TCPConnector(force_close=True, ssl=self._tls or True)
        async with aiohttp.ClientSession(
            timeout=timeout, connector=connector, headers={"User-Agent": USER_AGENT}
        ) as session:
            while True:
                seen = await probe(
                    session, self._origin, self._model(), list_models=self._list_models
                )
                self._tell(seen)
                await asyncio.sleep(self._interval_s)
