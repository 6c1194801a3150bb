"""The simulated vLLM over HTTP: routes, headers, streams. aiohttp; the engine runs beside it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from time import monotonic, time
from uuid import uuid4

from aiohttp import web

from . import requests, text, wire
from .answers import Answer
from .config import ServeConfig
from .driver import Driver
from .engine import SimEngine
from .generation import EngineDead, Flight
from .heads import LOAD_METRICS, full_response, head, stream_response
from .http_metrics import UNCOUNTED, HttpMetrics
from .metrics import CONTENT_TYPE, EngineMetrics, Identity, new_registry, page
from .requests import ApiError, Endpoint, Generation, Limits
from .responses_api import ResponsesAnswer
from .streams import ENGINE_DEAD, EventStream, Outlet
from .wire import Envelope

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
OBJECTS = {"chat": ("chatcmpl-", "chat.completion"), "completions": ("cmpl-", "text_completion")}
BUSY = (
    "The engine is currently busy and cannot accept new requests. "
    "Please try again later or on a different instance."
)
MAX_BODY_BYTES = 256 * 2**20


class SimServer:
    """One simulated engine and its HTTP surface."""

    def __init__(self, config: ServeConfig) -> None:
        self.config = config
        self.engine = SimEngine(config.engine)
        self.started = time()
        identity = Identity(
            config.model, config.engine.engine.name, config.draft, config.engine.max_k,
            config.engine.seed, config.time_scale, config.max_model_len, wire.VERSION,
        )  # fmt: skip
        self.metrics = EngineMetrics(self.engine, identity, self.started)
        self.registry = new_registry(self.metrics)
        self.http = HttpMetrics(self.registry)
        self.driver = Driver(self.engine, self.metrics, time_scale=config.time_scale)
        self.load = 0
        self._limits = Limits((config.model,), config.context_tokens)

    # -- application ------------------------------------------------------------------------------

    def app(self) -> web.Application:
        """The aiohttp application; the step loop lives as long as it does."""
        app = web.Application(middlewares=[self._around], client_max_size=MAX_BODY_BYTES)
        app.cleanup_ctx.append(self._stepping)
        get = {
            "/health": self._health,
            "/ping": self._health,
            "/v1/models": self._models,
            "/version": self._version,
            "/metrics": self._metrics,
            "/load": self._load,
            "/is_sleeping": self._constant({"is_sleeping": False}),
            "/is_paused": self._constant({"is_paused": False}),
            "/kv_event_sources": self._constant({}),
        }
        for path, handler in get.items():
            app.router.add_get(path, handler, allow_head=False)
        app.router.add_post("/ping", self._health)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post("/reset_prefix_cache", self._reset_prefix_cache)
        for endpoint, path in (
            ("chat", "/v1/chat/completions"),
            ("completions", "/v1/completions"),
            ("responses", "/v1/responses"),
        ):
            app.router.add_post(path, self._generating(endpoint))  # type: ignore[arg-type]
        return app

    async def _stepping(self, _: web.Application) -> AsyncIterator[None]:
        task = asyncio.create_task(self.driver.run())
        yield
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    @web.middleware
    async def _around(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Count the request; turn errors into vLLM's bodies."""
        started = monotonic()
        response: web.StreamResponse | None = None
        try:
            response = await handler(request)
        except ApiError as error:
            body = wire.error_body(error.message, error.kind, error.param, error.status)
            response = full_response(self._head(request), error.status, body)
        except web.HTTPException as error:
            response = self._http_error(request, error)
        finally:
            self._count(request, response, monotonic() - started)
        return response

    def _head(self, request: web.Request) -> dict[str, str]:
        return head(request, self.config.options.request_id_headers)

    def _load_line(self, request: web.Request) -> dict[str, str]:
        """ORCA load header of a whole answer, for a client that asks for it."""
        wanted = request.headers.get("endpoint-load-metrics-format", "").upper()
        values = {
            "num_requests_waiting": float(self.engine.waiting),
            "kv_cache_usage_perc": self.engine.pool.usage,
        }
        if wanted == "JSON":
            return {LOAD_METRICS: "JSON " + json.dumps({"named_metrics": values})}
        if wanted == "TEXT":
            pairs = ", ".join(f"named_metrics.{name}={value}" for name, value in values.items())
            return {LOAD_METRICS: "TEXT " + pairs}
        return {}

    def _http_error(self, request: web.Request, error: web.HTTPException) -> web.Response:
        lines = self._head(request)
        if isinstance(error, web.HTTPMethodNotAllowed):
            # Starlette names the first route of the path only.
            lines["allow"] = sorted(error.allowed_methods - {"HEAD"})[0]
        return full_response(lines, error.status, wire.dumps({"detail": error.reason}))

    def _count(
        self, request: web.Request, response: web.StreamResponse | None, seconds: float
    ) -> None:
        path = request.path
        if path in UNCOUNTED or response is None:
            return
        resource = request.match_info.route.resource
        known = resource is not None and response.status != 405
        sizes = (request.content_length or 0, response.content_length or 0)
        self.http.record(path if known else "none", request.method, response.status, sizes, seconds)

    # -- small routes -----------------------------------------------------------------------------

    async def _health(self, request: web.Request) -> web.StreamResponse:
        return full_response(self._head(request), 503 if self.driver.dead else 200, None)

    def _constant(self, value: dict[str, object]) -> Handler:
        async def handler(request: web.Request) -> web.StreamResponse:
            return full_response(self._head(request), 200, wire.dumps(value))

        return handler

    async def _version(self, request: web.Request) -> web.StreamResponse:
        return full_response(self._head(request), 200, wire.dumps({"version": wire.VERSION}))

    async def _load(self, request: web.Request) -> web.StreamResponse:
        return full_response(self._head(request), 200, wire.dumps({"server_load": self.load}))

    async def _models(self, request: web.Request) -> web.StreamResponse:
        body = wire.models(self.config.model, int(self.started), self.config.max_model_len)
        return full_response(self._head(request), 200, body)

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        return full_response(self._head(request), 200, page(self.registry), CONTENT_TYPE)

    async def _tokenize(self, request: web.Request) -> web.StreamResponse:
        values = requests.read_body(await request.read(), request.content_type)
        messages = values.get("messages")
        if isinstance(messages, list):
            ids = text.encode_chat([m for m in messages if isinstance(m, dict)])
        else:
            ids = text.encode(str(values.get("prompt", "")))
        answer = {
            "count": len(ids),
            "max_model_len": self.config.max_model_len,
            "tokens": ids,
            "token_strs": None,
        }
        return full_response(self._head(request), 200, wire.dumps(answer))

    async def _reset_prefix_cache(self, request: web.Request) -> web.StreamResponse:
        self.engine.pool.forget()
        return full_response(self._head(request), 200, None)

    # -- generation -------------------------------------------------------------------------------

    def _generating(self, endpoint: Endpoint) -> Handler:
        async def handler(request: web.Request) -> web.StreamResponse:
            raw = await request.read()
            values = requests.read_body(raw, request.headers.get("content-type", ""))
            generation = requests.parse(endpoint, values, self._limits)
            self._admit(generation)
            self.load += 1
            try:
                return await self._generate(request, generation)
            finally:
                self.load -= 1

        return handler

    def _admit(self, generation: Generation) -> None:
        """The queue limits of vLLM: requests in flight, and prompt tokens still in prefill."""
        limit = self.config.max_num_queued_reqs
        asked = generation.n * len(generation.prompts)
        reason = ""
        if limit is not None and self.engine.running + self.engine.waiting + asked > limit:
            reason = "max_num_queued_reqs"
        limit = self.config.max_num_queued_tokens
        if limit is not None and self.engine.prefill_backlog_tokens >= limit:
            reason = "max_num_queued_tokens"
        if reason:
            self.metrics.add("vllm:admission_rejections", 1, reason)
            raise ApiError(503, "Service Unavailable", BUSY)
        if self.driver.dead:
            raise ApiError(500, "InternalServerError", ENGINE_DEAD)

    async def _generate(self, request: web.Request, generation: Generation) -> web.StreamResponse:
        flight = Flight(self.driver, generation, self.config.engine.seed)
        answer = self._answer(request, flight)
        try:
            if generation.stream:
                return await self._stream(request, flight, answer)
            await flight.finished()
            return full_response(self._head(request) | self._load_line(request), 200, answer.body())
        except EngineDead:
            raise ApiError(500, "InternalServerError", ENGINE_DEAD) from None
        finally:
            flight.close()

    def _answer(self, request: web.Request, flight: Flight) -> Answer | ResponsesAnswer:
        generation = flight.generation
        given = request.headers.get("x-request-id") or generation.request_id
        name = given or uuid4().hex[:16]
        created = int(time())
        model, mark = self.config.model, self.config.fingerprint
        if generation.endpoint == "responses":
            envelope = Envelope(f"resp_{name}", "response", created, model, mark)
            return ResponsesAnswer(flight, envelope, self.config.options.per_request_metrics)
        prefix, kind = OBJECTS[generation.endpoint]
        if generation.endpoint == "chat" and generation.stream:
            kind += ".chunk"
        envelope = Envelope(prefix + name, kind, created, model, mark)
        return Answer(flight, envelope, self.config.options, self.config.engine.max_k)

    async def _stream(
        self, request: web.Request, flight: Flight, answer: Answer | ResponsesAnswer
    ) -> web.StreamResponse:
        response = await stream_response(request, self._head(request))
        outlet = Outlet(request, response)
        stream = EventStream(flight, answer, outlet, self.config.sse_keep_alive_interval_s)
        with contextlib.suppress(ConnectionError):
            await stream.run()
        return response
