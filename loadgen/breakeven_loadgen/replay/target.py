"""The target before the run: is it ready, what does it serve, how does it count a prompt's tokens.

Here: small requests made before the first arrival. Not here: the run's own requests (attempt).
Bodies of errors are never quoted: they can echo request content.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from breakeven.errors import EngineError, InputError, NotReadyError
from breakeven_wire import Deadlines, EnginePool, FetchedResponse, Headers

from ..traffic.content import PATHS, Calibration, Endpoint, prompt_fields
from ..traffic.words import WORDS

PROBE_DEADLINES = Deadlines(connect_s=5.0, first_byte_s=30.0, idle_s=30.0, total_s=60.0)
CALIBRATION_WORDS = (16, 144)
"""Lengths of the two probe prompts; two points give overhead and slope."""


@dataclass(frozen=True, slots=True)
class Target:
    """What the target says of itself. None is "not said".

    `simulated` is true when its version names Breakeven's simulated engine.
    """

    model: str
    version: str | None
    simulated: bool


async def look_at(pool: EnginePool, headers: Headers, model: str | None) -> Target:
    """Ask for models and version.

    Raises:
        NotReadyError: unreachable, or no model list (exit 3).
        InputError: `model` is not served, or none was given and several are served.
    """
    served = _models(await _get(pool, "/v1/models", headers))
    version = await _version(pool, headers)
    if model is None:
        if len(served) != 1:
            raise InputError(
                f"the target serves {len(served)} models",
                key="--model",
                mend=f"choose one of: {', '.join(served[:8])}",
            )
        model = served[0]
    elif served and model not in served:
        raise InputError(
            "the target does not serve this model",
            key="--model",
            value=model,
            mend=f"it serves: {', '.join(served[:8])}",
        )
    simulated = bool(version and "breakeven.sim" in version)
    return Target(model, version, simulated)


async def _get(pool: EnginePool, path: str, headers: Headers) -> FetchedResponse:
    try:
        response = await pool.fetch("GET", path, headers, deadlines=PROBE_DEADLINES)
    except EngineError as error:
        raise NotReadyError(f"{pool.origin}{path}: {error}") from None
    if response.status in (401, 403):
        raise NotReadyError(
            f"{pool.origin}{path}: status {response.status}; give the key with --api-key-env"
        )
    if response.status != 200:
        raise NotReadyError(f"{pool.origin}{path}: status {response.status}; is the engine ready?")
    return response


def _models(response: FetchedResponse) -> list[str]:
    try:
        return [str(item["id"]) for item in orjson.loads(response.body)["data"]]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        raise NotReadyError("/v1/models: no list of models; is this an OpenAI-style API?") from None


async def _version(pool: EnginePool, headers: Headers) -> str | None:
    try:
        response = await pool.fetch("GET", "/version", headers, deadlines=PROBE_DEADLINES)
        version = orjson.loads(response.body)["version"] if response.status == 200 else None
    except (EngineError, orjson.JSONDecodeError, KeyError, TypeError):
        return None
    return version[:80] if isinstance(version, str) else None


async def calibrate(
    pool: EnginePool, headers: Headers, model: str, endpoint: Endpoint
) -> Calibration:
    """How many tokens the target makes of words: by /tokenize, else by two one-token requests.

    Raises:
        NotReadyError: the target answers neither with a token count.
    """
    points: list[tuple[int, int]] = []
    for count in CALIBRATION_WORDS:
        text = " ".join(WORDS[i % len(WORDS)] for i in range(count))
        tokens = await _tokenize(pool, headers, model, endpoint, text)
        if tokens is None:
            tokens = await _prompt_tokens(pool, headers, model, endpoint, text)
        points.append((count, tokens))
    return Calibration.fit(points)


async def _tokenize(
    pool: EnginePool, headers: Headers, model: str, endpoint: Endpoint, text: str
) -> int | None:
    response = await _post(
        pool, headers, "/tokenize", {"model": model, **prompt_fields(text, endpoint)}
    )
    count = response.get("count") if response is not None else None
    return count if isinstance(count, int) else None


async def _prompt_tokens(
    pool: EnginePool, headers: Headers, model: str, endpoint: Endpoint, text: str
) -> int:
    body = {"model": model, **prompt_fields(text, endpoint), "max_tokens": 1, "temperature": 0.0}
    response = await _post(pool, headers, PATHS[endpoint], body)
    usage = response.get("usage") if response is not None else None
    count = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    if not isinstance(count, int):
        raise NotReadyError(
            f"{pool.origin}: neither /tokenize nor usage tells prompt tokens; give --content, or "
            "use --endpoint completions"
        )
    return count


async def _post(
    pool: EnginePool, headers: Headers, path: str, body: dict[str, Any]
) -> dict[str, Any] | None:
    """The JSON object of a 200, else None."""
    try:
        response = await pool.fetch(
            "POST", path, headers, orjson.dumps(body), deadlines=PROBE_DEADLINES
        )
    except EngineError as error:
        raise NotReadyError(f"{pool.origin}{path}: {error}") from None
    if response.status != 200:
        return None
    try:
        value = orjson.loads(response.body)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None
