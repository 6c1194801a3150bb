"""A changed configuration for a running proxy: whole or not at all, and no stream breaks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.proxy.control.test_gateway import FAST, arms, ask, order, state
from tests.support.engine import (
    DONE,
    STREAM_HEAD,
    Conn,
    Peer,
    ScriptedEngine,
    chunked,
    completion,
    event,
    ok,
    post,
    scripted_engine,
    until,
)
from tests.support.proxied import Proxied, dialogue, proxied

from breakeven.errors import ConfigError
from breakeven.settings import parse_settings
from breakeven_proxy.config import ProxySettings, check
from breakeven_proxy.control.gateway import read_token

Values = dict[str, Any]
GAUGES = ("arm_info", "inflight_requests", "route_state", "route_share", "upstream_up")


def settings(values: Values) -> ProxySettings:
    made = parse_settings(values, file="new.yaml", model=ProxySettings)
    check(made, "new.yaml")
    return made


async def reload(proxy: Proxied, values: Values) -> None:
    """What SIGHUP does, with this text in the file."""
    proxy.proxy.reloader._reread = lambda: settings(values)
    await proxy.proxy.reloader.reload()


@contextlib.asynccontextmanager
async def gateway() -> AsyncIterator[tuple[ScriptedEngine, ScriptedEngine, Proxied, Values]]:
    """Everything goes to the candidate; also the values, to be changed and reloaded."""
    async with scripted_engine() as base, scripted_engine() as draft:
        values: Values = {"arms": arms(base, draft), "routing": {"arm": "draft", "health": FAST}}
        async with proxied({}, **values) as proxy:
            known = proxy.proxy.arms
            await until(lambda: known["base"].up and known["draft"].up)
            values |= {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0"}
            yield base, draft, proxy, values


async def begin_stream(proxy: Proxied, engine: ScriptedEngine) -> tuple[Peer, Conn]:
    client = await proxy.dial()
    await client.send(post())
    conn = await engine.accept()
    await conn.request()
    await conn.send(STREAM_HEAD + chunked(event(tokens=1), end=False))
    await client.head()
    await client.chunk()
    return client, conn


async def end_stream(proxy: Proxied, client: Peer, conn: Conn) -> None:
    await conn.send(chunked(event(tokens=2, finish="stop"), DONE))
    seen = b""
    while DONE not in seen:
        seen += await client.chunk()
    client.close()


def test_weights_change_and_no_stream_breaks() -> None:
    """single → split with all weight on the baseline: the running stream ends well all the same."""

    async def script() -> None:
        async with gateway() as (base, draft, proxy, values):
            client, conn = await begin_stream(proxy, draft)
            split = {"policy": "split", "weights": {"base": 1, "draft": 0}, "health": FAST}
            await reload(proxy, values | {"routing": split})
            assert state(proxy) == "standby"
            other = await proxy.dial()
            assert (await ask(other, base)).status == 200
            await end_stream(proxy, client, conn)
            await proxy.idle()
            assert (await proxy.verdicts()).keys() <= {"good", "unmeasured"}
            assert await proxy.total("config_reloads_total", result="ok") == 1
            assert (await proxy.status())["last_reload"]["ok"] is True

    dialogue(script())


def test_an_arm_gets_another_url() -> None:
    """New requests meet the new engine, the old stream ends at the old one, whose pool closes."""

    async def script() -> None:
        async with gateway() as (base, draft, proxy, values), scripted_engine() as newer:
            client, conn = await begin_stream(proxy, draft)
            old = proxy.proxy.arms["draft"]
            await reload(proxy, values | {"arms": arms(base, newer)})
            assert proxy.proxy.arms["draft"] is not old
            await until(lambda: state(proxy) == "serving")  # once it was seen ready
            other = await proxy.dial()
            assert (await ask(other, newer)).status == 200
            assert not old.pool._closed
            await end_stream(proxy, client, conn)
            await until(lambda: old.pool._closed)
            assert await proxy.total("inflight_requests") == 0

    dialogue(script())


def test_an_arm_leaves_and_another_comes() -> None:
    """The candidate leaves with its gauges, a new arm is probed and gets traffic."""

    async def script() -> None:
        async with gateway() as (base, draft, proxy, values), scripted_engine() as newer:
            client, conn = await begin_stream(proxy, draft)
            now = {"base": {"url": base.url}, "eagle": {"url": newer.url, "role": "candidate"}}
            await reload(proxy, values | {"arms": now, "routing": {"arm": "eagle", "health": FAST}})
            await until(lambda: proxy.proxy.arms["eagle"].up)
            other = await proxy.dial()
            assert (await ask(other, newer)).status == 200
            await end_stream(proxy, client, conn)
            samples = await proxy.samples()
            assert any(sample.labels.get("arm") == "eagle" for sample in samples)
            gauges = {f"breakeven_{g}" for g in GAUGES}
            left = [s for s in samples if s.name in gauges and s.labels.get("arm") == "draft"]
            assert left == []
            # what the arm that left had counted stays counted
            assert await proxy.total("requests_total", arm="draft") == 1

    dialogue(script())


def test_a_trip_outlives_a_reload() -> None:
    """A tripped candidate is tripped under the new configuration, too."""

    async def script() -> None:
        async with gateway() as (base, _, proxy, values):
            await order(proxy, "/arms/draft/trip", b'{"reason": "x"}')
            await reload(proxy, values)
            assert state(proxy) == "tripped"
            client = await proxy.dial()
            assert (await ask(client, base)).status == 200

    dialogue(script())


def test_a_bad_configuration_is_refused_and_the_old_one_goes_on(tmp_path: Path) -> None:
    """Each of these changes nothing: traffic, arms and state stay; the reason is named."""

    async def script() -> None:
        async with gateway() as (base, draft, proxy, values):
            client, conn = await begin_stream(proxy, draft)
            trips = str(tmp_path / "trips.json")
            bad: list[tuple[Values, str]] = [
                ({"listen": "127.0.0.1:9"}, "listen: cannot change while running"),
                ({"epsilon_s": 0.003}, "epsilon_s: cannot change while running"),
                ({"slo": {"ttft_s": 0.2}}, "slo: cannot change while running"),
                ({"routing": {"arm": "nobody"}}, "routing.arm: no such arm"),
                ({"routing": {"policy": "split"}}, "no arm has a weight"),
                ({"routing": {"state_file": trips}}, "routing.state_file: cannot change"),
                ({"arms": {}}, "no engine is named"),
                ({"certificate": "/no/such/file"}, "/no/such/file"),
                ({"arms": {"base": {"url": "nonsense"}}}, "arms.base.url"),
            ]
            before = proxy.proxy.settings
            for change, words in bad:
                await reload(proxy, values | change)
                last = (await proxy.status())["last_reload"]
                assert last["ok"] is False
                assert words in last["error"], last["error"]
                assert proxy.proxy.settings is before
            assert await proxy.total("config_reloads_total", result="refused") == len(bad)
            assert await proxy.total("config_last_reload_successful") == 0
            other = await proxy.dial()
            assert (await ask(other, draft)).status == 200
            await end_stream(proxy, client, conn)
            assert base.connections == 0

    dialogue(script())


def test_a_guard_limit_between_buckets_is_refused_with_its_neighbours() -> None:
    """Bounds are made at the start: 0.5 is one, 0.7 was made one, 0.6 is none and names both.

    Accepted, a limit of 0.6 would let every TTFT up to 0.7 pass as kept.
    """

    async def script() -> None:
        async with scripted_engine() as base, scripted_engine() as draft:

            def guarded(**guard: Any) -> Values:
                return {"arm": "draft", "health": FAST, "guard": guard}

            values: Values = {"arms": arms(base, draft)}
            async with proxied({}, **values, routing=guarded(ttft_p95_s=0.7)) as proxy:
                await until(lambda: proxy.proxy.arms["draft"].up)
                values |= {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0"}
                for guard, words in (
                    ({"ttft_p95_s": 0.5}, None),
                    ({"ttft_p95_s": 0.7, "gap_p99_s": 0.1}, None),
                    ({"ttft_p95_s": 0.6}, ("routing.guard.ttft_p95_s", "0.5 or 0.7", "restart")),
                    ({"gap_p99_s": 0.11}, ("routing.guard.gap_p99_s", "0.1 or 0.15", "restart")),
                    ({"gap_p99_s": 90}, ("routing.guard.gap_p99_s", "use 60", "restart")),
                    # Off, it is held to no limit; on again, it is.
                    ({"ttft_p95_s": 0.6, "enabled": False}, None),
                    ({"ttft_p95_s": 0.6, "enabled": True}, ("routing.guard.ttft_p95_s",)),
                    ({"ttft_p95_s": None}, None),
                ):
                    before = proxy.proxy.gateway.control.plan.budget
                    await reload(proxy, values | {"routing": guarded(**guard)})
                    last = (await proxy.status())["last_reload"]
                    assert last["ok"] is (words is None), (guard, last)
                    after = proxy.proxy.gateway.control.plan.budget
                    if words is None:
                        assert after.ttft_p95_s == guard.get("ttft_p95_s")
                    else:
                        assert after is before
                        assert all(word in last["error"] for word in words), last["error"]

    dialogue(script())


def test_whatever_a_reload_raises_is_survived() -> None:
    """A fault that nobody thought of is logged by its class, and the old configuration goes on."""

    async def script() -> None:
        async with gateway() as (_, draft, proxy, _):

            def broken() -> ProxySettings:
                raise ZeroDivisionError("canary-5512")

            proxy.proxy.reloader._reread = broken
            await proxy.proxy.reloader.reload()
            assert (await proxy.status())["last_reload"]["error"] == "ZeroDivisionError"
            assert "canary-5512" not in proxy.log.getvalue()
            client = await proxy.dial()
            assert (await ask(client, draft)).status == 200

    dialogue(script())


def test_two_signals_are_two_reloads_one_after_the_other() -> None:
    """Signals that come together do not mix."""

    async def script() -> None:
        async with gateway() as (_, draft, proxy, values):
            proxy.proxy.reloader._reread = lambda: settings(values)
            for _ in range(3):
                proxy.proxy.reloader.ask()
            await until(lambda: proxy.proxy.metrics["config_reloads_total"].cell("ok").value == 3)
            client = await proxy.dial()
            assert (await ask(client, draft)).status == 200

    dialogue(script())


def test_requests_in_the_queue_of_an_arm_that_leaves_are_served() -> None:
    """One in flight, one waiting, the arm leaves: the waiting one still gets its turn there."""

    async def script() -> None:
        async with scripted_engine() as base, scripted_engine() as draft:
            values: Values = {
                "arms": arms(base, draft), "routing": {"arm": "draft", "health": FAST},
                "admission": {"max_inflight": 1, "max_queue": 4},
            }  # fmt: skip
            async with proxied({}, **values) as proxy:
                await until(lambda: proxy.proxy.arms["draft"].up)
                values |= {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0"}
                client, conn = await begin_stream(proxy, draft)
                waiting = await proxy.dial()
                await waiting.send(post())
                await until(lambda: proxy.proxy.arms["draft"].queued == 1)
                only = {"base": {"url": base.url}}
                await reload(proxy, values | {"arms": only, "routing": {"health": FAST}})
                await end_stream(proxy, client, conn)
                await conn.next()  # on the connection that the first one left
                await conn.send(ok(completion()))
                assert (await waiting.message()).status == 200

    dialogue(script())


def test_a_token_file_must_hold_a_secret(tmp_path: Path) -> None:
    """Short or absent: refused with the key's name."""
    short = tmp_path / "token"
    short.write_text("short")
    for path in (str(short), str(tmp_path / "absent")):
        with pytest.raises(ConfigError, match="admin_token_file"):
            read_token(path)


def test_sighup_is_heard() -> None:
    """The signal itself reloads: the handler is installed by wait()."""

    async def script() -> None:
        async with gateway() as (_, _, proxy, values):
            proxy.proxy.reloader._reread = lambda: settings(values)
            task = asyncio.create_task(proxy.proxy.wait())
            cell = proxy.proxy.metrics["config_reloads_total"].cell("ok")
            loop = asyncio.get_running_loop()
            await asyncio.sleep(0)
            os.kill(os.getpid(), signal.SIGHUP)
            await until(lambda: cell.value == 1)
            task.cancel()
            for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    dialogue(script())
