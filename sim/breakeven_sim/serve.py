"""Runs the server until it is told to stop: port, ready line, signals, parent."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable

from aiohttp import web

from .config import ServeConfig
from .errors import EngineDied
from .server import SimServer

PARENT_POLL_S = 0.5
BACKLOG = 2048
# Streams in flight at SIGTERM are cut: the engine would be gone too.
SHUTDOWN_S = 0.2


def ready_line(config: ServeConfig, port: int) -> str:
    """The one machine-readable line on stdout."""
    host = f"[{config.host}]" if ":" in config.host else config.host
    engine = config.engine
    return (
        f"listening http://{host}:{port} (simulated engine preset={engine.engine.name} "
        f"draft={config.draft} k={engine.max_k} seed={engine.seed} "
        f"time_scale={config.time_scale:g} model={config.model})"
    )


@contextlib.asynccontextmanager
async def listening(server: SimServer) -> AsyncIterator[int]:
    """Serve while the block runs; gives the port. OSError if it cannot be had."""
    runner = web.AppRunner(
        server.app(), access_log=None, handler_cancellation=True, shutdown_timeout=SHUTDOWN_S
    )
    await runner.setup()
    try:
        site = web.TCPSite(runner, server.config.host, server.config.port, backlog=BACKLOG)
        await site.start()
        closing = asyncio.create_task(_close_when_ended(server, site))
        yield runner.addresses[0][1]
        closing.cancel()
    finally:
        await runner.cleanup()


async def serve(
    config: ServeConfig,
    say: Callable[[str], None],
    complain: Callable[[str], None],
    *,
    exit_with_parent: bool = False,
) -> None:
    """Serve until SIGTERM or SIGINT, or until the parent process is gone.

    Raises OSError when the port cannot be had, EngineDied when the engine died (a fault, or a bug).
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    watch = asyncio.create_task(_parent_gone(stop)) if exit_with_parent else None
    try:
        server = SimServer(config, complain)
        async with listening(server) as port:
            say(ready_line(config, port))
            stopping = asyncio.create_task(stop.wait())
            dying = asyncio.create_task(server.ended.wait())
            await asyncio.wait((stopping, dying), return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            dying.cancel()
        if server.ended.is_set():
            raise EngineDied("the simulated engine died")
    finally:
        if watch is not None:
            watch.cancel()


async def _close_when_ended(server: SimServer, site: web.TCPSite) -> None:
    await server.ended.wait()
    await site.stop()


async def _parent_gone(stop: asyncio.Event) -> None:
    """Set `stop` when this process is handed to another parent."""
    parent = os.getppid()
    while os.getppid() == parent:  # noqa: ASYNC110 - the kernel sends no event to an orphan
        await asyncio.sleep(PARENT_POLL_S)
    stop.set()
