"""The three generating routes: admission, flight, answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping
from time import monotonic, time
from uuid import uuid4

from aiohttp import web

from . import faults, requests
from .answers import Answer
from .config import ServeConfig
from .driver import Driver
from .faults import Fault, Faults
from .generation import EngineDead, Flight
from .heads import LOAD_METRICS, full_response, head, stream_response
from .requests import ApiError, Endpoint, Generation, Limits
from .responses_api import ResponsesAnswer
from .streams import ENGINE_DEAD, EventStream, FaultyOutlet, Outlet
from .wire import Envelope

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
OBJECTS = {"chat": ("chatcmpl-", "chat.completion"), "completions": ("cmpl-", "text_completion")}
PATHS: dict[Endpoint, str] = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
}
BUSY = (
    "The engine is currently busy and cannot accept new requests. "
    "Please try again later or on a different instance."
)


class Generating:
    """Handlers of the generating routes of one server."""

    def __init__(self, config: ServeConfig, driver: Driver) -> None:
        self.load = 0
        self.faults = Faults(config.faults, config.engine.seed)
        self._config = config
        self._driver = driver
        self._limits = Limits((config.model,), config.context_tokens, config.options.tool_calls)
        self._started = monotonic()
        self._serial = 0

    @property
    def elapsed_s(self) -> float:
        """Real seconds since the start: the clock of timed faults."""
        return monotonic() - self._started

    def wall(self) -> float:
        """The engine's wall clock, seconds since the epoch."""
        return time() + self.faults.wall_offset_s(self.elapsed_s)

    def head(self, request: web.Request) -> dict[str, str]:
        """Head lines of any response of this server."""
        return head(request, self._config.options.request_id_headers, self.wall())

    def handler(self, endpoint: Endpoint) -> Handler:
        """The handler of one route."""

        async def handle(request: web.Request) -> web.StreamResponse:
            values = requests.read_body(
                await request.read(), request.headers.get("content-type", "")
            )
            generation = requests.parse(endpoint, values, self._limits)
            self._admit(generation)
            kinds = self.faults.of_request(self._serial)
            self._serial += 1
            self.load += 1
            try:
                return await self._generate(request, generation, kinds)
            finally:
                self.load -= 1

        return handle

    def _admit(self, generation: Generation) -> None:
        """The queue limits of vLLM: requests in flight, and prompt tokens still in prefill."""
        config, engine = self._config, self._driver.engine
        asked = generation.n * len(generation.prompts)
        reason = ""
        limit = config.max_num_queued_reqs
        if limit is not None and engine.running + engine.waiting + asked > limit:
            reason = "max_num_queued_reqs"
        limit = config.max_num_queued_tokens
        if limit is not None and engine.prefill_backlog_tokens >= limit:
            reason = "max_num_queued_tokens"
        if reason:
            self._driver.metrics.add("vllm:admission_rejections", 1, reason)
        if reason or self.faults.active("503-burst", self.elapsed_s):
            raise ApiError(503, "Service Unavailable", BUSY)
        if self._driver.dead:
            raise ApiError(500, "InternalServerError", ENGINE_DEAD)

    async def _generate(
        self, request: web.Request, generation: Generation, kinds: Mapping[str, Fault]
    ) -> web.StreamResponse:
        flight = Flight(self._driver, generation, self._config.engine.seed)
        answer = self._answer(request, flight)
        try:
            if "slow-first-byte" in kinds:
                await asyncio.sleep(kinds["slow-first-byte"]["for"])
            if generation.stream:
                return await self._stream(request, flight, answer, kinds)
            await flight.finished()
            lines = self.head(request) | self._load_line(request)
            return full_response(lines, 200, self._hurt(answer.body(), kinds))
        except EngineDead:
            raise ApiError(500, "InternalServerError", ENGINE_DEAD) from None
        finally:
            flight.close()

    async def _stream(
        self,
        request: web.Request,
        flight: Flight,
        answer: Answer | ResponsesAnswer,
        kinds: Mapping[str, Fault],
    ) -> web.StreamResponse:
        response = await stream_response(request, self.head(request))
        outlet = FaultyOutlet(request, response, kinds) if kinds else Outlet(request, response)
        stream = EventStream(flight, answer, outlet, self._config.sse_keep_alive_interval_s)
        with contextlib.suppress(ConnectionError):
            await stream.run()
        return response

    def _hurt(self, body: bytes, kinds: Mapping[str, Fault]) -> bytes:
        """The faults that make sense for a whole body."""
        if "missing-usage" in kinds:
            body = faults.without_usage(body)
        if "wrong-usage" in kinds:
            body = faults.with_wrong_usage(body, int(kinds["wrong-usage"]["by"]))
        return body[: len(body) * 2 // 3] if "garble" in kinds else body

    def _answer(self, request: web.Request, flight: Flight) -> Answer | ResponsesAnswer:
        config, generation = self._config, flight.generation
        given = request.headers.get("x-request-id") or generation.request_id
        name = given or uuid4().hex[:16]
        created, mark = int(self.wall()), config.fingerprint
        if generation.endpoint == "responses":
            envelope = Envelope(f"resp_{name}", "response", created, config.model, mark)
            return ResponsesAnswer(flight, envelope, config.options.per_request_metrics)
        prefix, kind = OBJECTS[generation.endpoint]
        if generation.endpoint == "chat" and generation.stream:
            kind += ".chunk"
        envelope = Envelope(prefix + name, kind, created, config.model, mark)
        return Answer(flight, envelope, config.options, config.engine.max_k)

    def _load_line(self, request: web.Request) -> dict[str, str]:
        """ORCA load header of a whole answer, for a client that asks for it."""
        wanted = request.headers.get("endpoint-load-metrics-format", "").upper()
        engine = self._driver.engine
        values = {
            "num_requests_waiting": float(engine.waiting),
            "kv_cache_usage_perc": engine.pool.usage,
        }
        if wanted == "JSON":
            return {LOAD_METRICS: "JSON " + json.dumps({"named_metrics": values})}
        if wanted == "TEXT":
            pairs = ", ".join(f"named_metrics.{name}={value}" for name, value in values.items())
            return {LOAD_METRICS: "TEXT " + pairs}
        return {}
