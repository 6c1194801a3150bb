"""Probes of a real server: what each answer of /health and /v1/models means."""

from __future__ import annotations

import asyncio
import socket

import aiohttp
import pytest
from aiohttp import web

from breakeven.health import Signal
from breakeven_proxy.control.probe import MAX_MODELS_BYTES, Prober, model_names, probe

MODELS = b'{"object":"list","data":[{"id":"m","object":"model"},{"id":"lora"}]}'


async def look(health: int, models: int | bytes, model: str | None) -> Signal:
    async def on_health(_: web.Request) -> web.Response:
        return web.Response(status=health)

    async def on_models(_: web.Request) -> web.Response:
        if isinstance(models, int):
            return web.Response(status=models)
        return web.Response(body=models, content_type="application/json")

    app = web.Application()
    app.add_routes([web.get("/health", on_health), web.get("/v1/models", on_models)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0]
    try:
        async with aiohttp.ClientSession() as session:
            return await probe(session, f"http://{host}:{port}", model)
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("health", "models", "model", "signal"),
    [
        (200, MODELS, None, Signal.READY),
        (200, MODELS, "lora", Signal.READY),
        (200, MODELS, "other", Signal.NOT_READY),  # it serves something else
        (404, MODELS, "m", Signal.READY),  # no such page: the model list decides
        (503, MODELS, "m", Signal.NOT_READY),  # the engine's own word
        (500, MODELS, "m", Signal.PROBE_FAILED),
        (302, MODELS, "m", Signal.PROBE_FAILED),
        (200, 503, "m", Signal.NOT_READY),
        (200, 500, "m", Signal.PROBE_FAILED),
        (200, b'{"data": []}', None, Signal.NOT_READY),  # nothing loaded yet
        (200, b"<html>", None, Signal.PROBE_FAILED),
        (200, b'{"data": 3}', None, Signal.PROBE_FAILED),
        (200, b" " * (MAX_MODELS_BYTES + 1), None, Signal.PROBE_FAILED),
    ],
)
def test_what_an_answer_means(
    health: int, models: int | bytes, model: str | None, signal: Signal
) -> None:
    """Each pair of answers gives the signal of its row."""
    assert asyncio.run(look(health, models, model)) is signal


def test_nobody_listens() -> None:
    """A refused connection is down at once, not a hiccup."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))  # bound, not listening: refused
        port = sock.getsockname()[1]

        async def ask() -> Signal:
            async with aiohttp.ClientSession() as session:
                return await probe(session, f"http://127.0.0.1:{port}", None)

        assert asyncio.run(ask()) is Signal.NOT_READY


def test_a_server_that_hangs_or_hangs_up() -> None:
    """Accepted but silent, or closed without a word: may be a hiccup."""

    async def ask(close: bool) -> Signal:
        ends: list[asyncio.StreamWriter] = []

        async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            ends.append(writer)
            if close:
                writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        seen: asyncio.Queue[Signal] = asyncio.Queue()
        prober = Prober(
            f"http://127.0.0.1:{port}", interval_s=60, timeout_s=0.05,
            model=lambda: None, tell=seen.put_nowait,
        )  # fmt: skip
        task = asyncio.create_task(prober.run())
        try:
            return await asyncio.wait_for(seen.get(), 5)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            server.close()
            for end in ends:
                end.close()
            await asyncio.gather(*(end.wait_closed() for end in ends), return_exceptions=True)

    assert asyncio.run(ask(close=False)) is Signal.PROBE_FAILED
    assert asyncio.run(ask(close=True)) is Signal.PROBE_FAILED


@pytest.mark.parametrize(
    ("body", "names"),
    [
        (MODELS, {"m", "lora"}),
        (b'{"data": [{"id": 3}]}', {"3"}),
        (b'{"data": [{}]}', None),
        (b"[]", None),
        (b"null", None),
        (b"\xff", None),
    ],
)
def test_model_names(body: bytes, names: set[str] | None) -> None:
    """Ids of a model list; anything else is None."""
    assert model_names(body) == names
