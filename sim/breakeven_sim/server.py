"""The simulated vLLM over HTTP: routes, errors, the engine beside them. aiohttp."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from time import monotonic, time

from aiohttp import web

from . import faults, requests, text, wire
from .config import ServeConfig
from .driver import Driver
from .engine import SimEngine
from .generating import PATHS, Generating, Handler
from .heads import full_response
from .http_metrics import UNCOUNTED, HttpMetrics
from .metrics import CONTENT_TYPE, EngineMetrics, Identity, new_registry, page
from .requests import ApiError
from .streams import ENGINE_DEAD

MAX_BODY_BYTES = 256 * 2**20
# How long /health answers 503 after an engine death before the port closes (recorded: about 1.5 s).
DEATH_S = 1.5


def _silent(_: str) -> None:
    """No complaints wanted."""


class SimServer:
    """One simulated engine and its HTTP surface. `complain` takes lines for the operator."""

    def __init__(self, config: ServeConfig, complain: Callable[[str], None] = _silent) -> None:
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
        self.generating = Generating(config, self.driver)
        # Set when the port has to close: the engine died and /health has said so.
        self.ended = asyncio.Event()
        self._complain = complain

    # -- application ------------------------------------------------------------------------------

    def app(self) -> web.Application:
        """The aiohttp application; the step loop lives as long as it does."""
        app = web.Application(middlewares=[self._around], client_max_size=MAX_BODY_BYTES)
        app.cleanup_ctx.append(self._stepping)
        get: dict[str, Handler] = {
            "/health": self._health,
            "/ping": self._health,
            "/v1/models": self._models,
            "/version": self._constant({"version": wire.VERSION}),
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
        for endpoint, path in PATHS.items():
            app.router.add_post(path, self.generating.handler(endpoint))
        return app

    async def _stepping(self, _: web.Application) -> AsyncIterator[None]:
        task = asyncio.create_task(self.driver.run())
        task.add_done_callback(self._stepped)
        timers = self._time_faults()
        yield
        for timer in timers:
            timer.cancel()
        task.cancel()
        await asyncio.wait({task})

    def _stepped(self, task: asyncio.Task[None]) -> None:
        """A bug in the step loop must end as an engine death, not as streams that hang."""
        if task.cancelled() or task.exception() is None:
            return
        self._complain(f"the step loop failed: {type(task.exception()).__name__}")
        self.driver.die()
        self.ended.set()

    def _time_faults(self) -> list[asyncio.TimerHandle]:
        loop, plan = asyncio.get_running_loop(), self.generating.faults
        timers: list[asyncio.TimerHandle] = []
        if stall := plan.get("stall"):
            timers.append(loop.call_later(stall["at"], self.driver.stall, stall["for"]))
        if reset := plan.get("counters-reset"):
            timers.append(loop.call_later(reset["at"], self._reset_counters))
        if die := plan.get("die"):
            timers.append(loop.call_later(die["at"], self.driver.die))
            timers.append(loop.call_later(die["at"] + DEATH_S, self.ended.set))
        return timers

    def _reset_counters(self) -> None:
        self.metrics.reset(self.generating.wall())

    @web.middleware
    async def _around(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Count the request; turn errors into vLLM's bodies."""
        started = monotonic()
        response: web.StreamResponse | None = None
        try:
            response = await handler(request)
        except ApiError as error:
            response = self._error(request, error)
        except web.HTTPException as error:
            response = self._http_error(request, error)
        except Exception as error:  # noqa: BLE001 - a traceback could quote a request's content
            self._complain(f"internal error {type(error).__name__} on {request.path}")
            response = self._error(request, ApiError(500, "InternalServerError", ENGINE_DEAD))
        finally:
            self._count(request, response, monotonic() - started)
        return response

    def _error(self, request: web.Request, error: ApiError) -> web.Response:
        body = wire.error_body(error.message, error.kind, error.param, error.status)
        return full_response(self.generating.head(request), error.status, body)

    def _http_error(self, request: web.Request, error: web.HTTPException) -> web.Response:
        lines = self.generating.head(request)
        if isinstance(error, web.HTTPMethodNotAllowed):
            # Starlette names the methods of the first route of the path only.
            lines["allow"] = sorted(error.allowed_methods - {"HEAD"})[0]
        return full_response(lines, error.status, wire.dumps({"detail": error.reason}))

    def _count(
        self, request: web.Request, response: web.StreamResponse | None, seconds: float
    ) -> None:
        path = request.path
        if path in UNCOUNTED or response is None:
            return
        known = request.match_info.route.resource is not None and response.status != 405
        sizes = (request.content_length or 0, response.content_length or 0)
        self.http.record(path if known else "none", request.method, response.status, sizes, seconds)

    # -- small routes -----------------------------------------------------------------------------

    def _json(self, request: web.Request, value: object) -> web.Response:
        return full_response(self.generating.head(request), 200, wire.dumps(value))

    async def _health(self, request: web.Request) -> web.StreamResponse:
        status = 503 if self.driver.dead else 200
        return full_response(self.generating.head(request), status, None)

    def _constant(self, value: object) -> Handler:
        async def handler(request: web.Request) -> web.StreamResponse:
            return self._json(request, value)

        return handler

    async def _load(self, request: web.Request) -> web.StreamResponse:
        return self._json(request, {"server_load": self.generating.load})

    async def _models(self, request: web.Request) -> web.StreamResponse:
        config = self.config
        value = wire.models(
            config.model,
            f"simulated/{config.engine.engine.name}",
            int(self.started),
            config.max_model_len,
        )
        return self._json(request, value)

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        text_page = page(self.registry)
        if self.generating.faults.active("metrics-renamed", self.generating.elapsed_s):
            text_page = faults.renamed(text_page)
        return full_response(self.generating.head(request), 200, text_page, CONTENT_TYPE)

    async def _tokenize(self, request: web.Request) -> web.StreamResponse:
        values = requests.read_body(await request.read(), request.headers.get("content-type", ""))
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
        return self._json(request, answer)

    async def _reset_prefix_cache(self, request: web.Request) -> web.StreamResponse:
        self.engine.pool.forget()
        return full_response(self.generating.head(request), 200, None)
