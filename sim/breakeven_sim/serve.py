"""Runs the server until it is told to stop: port, ready line, signals, parent."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

from aiohttp import web

from .config import ServeConfig
from .server import SimServer

PARENT_POLL_S = 0.5
BACKLOG = 2048


def ready_line(config: ServeConfig, port: int) -> str:
    """The one machine-readable line on stdout."""
    host = f"[{config.host}]" if ":" in config.host else config.host
    engine = config.engine
    return (
        f"listening http://{host}:{port} (simulated engine preset={engine.engine.name} "
        f"draft={config.draft} k={engine.max_k} seed={engine.seed} "
        f"time_scale={config.time_scale:g} model={config.model})"
    )


async def serve(
    config: ServeConfig, say: Callable[[str], None], *, exit_with_parent: bool = False
) -> None:
    """Serve until SIGTERM or SIGINT, or until the parent process is gone. OSError if no port."""
    server = SimServer(config)
    runner = web.AppRunner(server.app(), access_log=None, handler_cancellation=True)
    await runner.setup()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    watch = asyncio.create_task(_parent_gone(stop)) if exit_with_parent else None
    try:
        site = web.TCPSite(runner, config.host, config.port, shutdown_timeout=0.5, backlog=BACKLOG)
        await site.start()
        say(ready_line(config, runner.addresses[0][1]))
        await stop.wait()
    finally:
        if watch is not None:
            watch.cancel()
        await runner.cleanup()


async def _parent_gone(stop: asyncio.Event) -> None:
    """Set `stop` when this process is handed to another parent."""
    parent = os.getppid()
    while os.getppid() == parent:  # noqa: ASYNC110 - the kernel sends no event to an orphan
        await asyncio.sleep(PARENT_POLL_S)
    stop.set()
