"""TLS upstreams: verified, loop stamps, and a client's leaving reaches the engine all the same."""

from __future__ import annotations

import ssl
from pathlib import Path

from tests.support.engine import STREAM_HEAD, chunked, event, post, scripted_engine
from tests.support.proxied import dialogue, proxied

TLS = Path(__file__).parents[1] / "wire" / "tls"


def server_tls() -> ssl.SSLContext:
    """The scripted engine's side."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "server.pem", TLS / "server.key")
    return context


def test_a_stream_over_tls_uses_loop_stamps_and_says_so() -> None:
    """The stream passes and is metered; /metrics and /status name the stamps in use, and why."""

    async def script() -> None:
        async with scripted_engine(ssl=server_tls()) as engine:
            url = f"https://localhost:{engine.port}"
            arms = {"a": {"url": url, "ca_file": str(TLS / "ca.pem")}}
            async with proxied("", arms=arms, stamps="kernel") as proxy:
                client = await proxy.dial()
                await client.send(post())
                conn = await engine.accept()
                await conn.request()
                await conn.send(STREAM_HEAD + chunked(event("a"), event("b", finish="stop")))
                assert (await client.message()).status == 200
                assert await proxy.verdicts() == {"good": 1}
                assert await proxy.total("stamps_info", stamps="loop") == 1
                status = (await proxy.status())["arms"]["a"]
                assert status["stamps"] == "loop"
                assert "TLS" in status["stamps_because"]

    dialogue(script())


def test_a_client_that_leaves_is_seen_through_tls() -> None:
    """Row 25: abort, not a polite close that would go on downloading."""

    async def script() -> None:
        async with scripted_engine(ssl=server_tls()) as engine:
            arms = {"a": {"url": f"https://localhost:{engine.port}", "tls_verify": False}}
            async with proxied("", arms=arms) as proxy:
                client = await proxy.dial()
                await client.send(post())
                conn = await engine.accept()
                await conn.send(STREAM_HEAD + chunked(event("a"), end=False))
                await client.head()
                client.close()
                await conn.closed()
                await proxy.idle()
                assert await proxy.verdicts() == {"cancelled": 1}

    dialogue(script())


def test_an_unverified_engine_is_502() -> None:
    """A certificate nobody trusts: no request is sent; counted as a TLS failure."""

    async def script() -> None:
        async with (
            scripted_engine(ssl=server_tls()) as engine,
            proxied(f"https://localhost:{engine.port}") as proxy,
        ):
            client = await proxy.dial()
            await client.send(post())
            assert (await client.message()).status == 502
            assert engine.connections == 0
            assert await proxy.total("upstream_failures_total", kind="tls") == 1

    dialogue(script())


def test_kernel_stamps_are_named_too() -> None:
    """Where they work they are in use by default."""
    from breakeven_wire import kernel_stamps_work

    async def script() -> None:
        async with scripted_engine() as engine, proxied(engine.url) as proxy:
            want = "kernel" if kernel_stamps_work() else "loop"
            assert await proxy.total("stamps_info", stamps=want) == 1
            assert (await proxy.status())["arms"]["baseline"]["stamps"] == want

    dialogue(script())


def test_a_step_of_the_clock_makes_a_stream_unmeasured() -> None:
    """Kernel stamps are CLOCK_REALTIME: after a step no time of the stream is known; counted."""
    from breakeven_wire import ClockWatch

    async def script() -> None:
        slo = {"ttft_s": 10}
        async with scripted_engine() as engine, proxied(engine.url, slo=slo) as proxy:
            pool = proxy.proxy.arms["baseline"].pool
            if pool.stamps != "kernel":
                return
            shift = [0.0]
            pool._watch = ClockWatch(lambda: pool.now() + shift[0])
            client = await proxy.dial()
            await client.send(post())
            conn = await engine.accept()
            shift[0] = -7200.0
            await conn.send(STREAM_HEAD + chunked(event("a"), event("b", finish="stop")))
            await client.message()
            assert await proxy.verdicts() == {"unmeasured": 1}
            assert await proxy.total("clock_steps_total") == 1

    dialogue(script())
