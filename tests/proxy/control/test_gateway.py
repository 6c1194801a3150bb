"""The gateway as dialogues: two scripted engines, one proxy, who gets which request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support.engine import (
    DONE,
    STREAM_HEAD,
    Conn,
    Message,
    Peer,
    ScriptedEngine,
    chunked,
    completion,
    event,
    get,
    ok,
    post,
    scripted_engine,
    until,
)
from tests.support.proxied import Proxied, dialogue, proxied

from breakeven_proxy.control.steer import Control

FAST = {"interval_s": 0.02, "rise_after": 2, "hold_s": 0.0}


def arms(base: ScriptedEngine, draft: ScriptedEngine) -> dict[str, Any]:
    return {"base": {"url": base.url}, "draft": {"url": draft.url, "role": "candidate"}}


@asynccontextmanager
async def gateway(
    routing: dict[str, Any] | None = None, **settings: Any
) -> AsyncIterator[tuple[ScriptedEngine, ScriptedEngine, Proxied]]:
    """Baseline, candidate and a proxy that sends everything to the candidate, seen ready."""
    async with scripted_engine() as base, scripted_engine() as draft:
        chosen = {"arm": "draft", "health": FAST, **(routing or {})}
        async with proxied({}, arms=arms(base, draft), routing=chosen, **settings) as proxy:
            ready = proxy.proxy.arms
            await until(lambda: ready["base"].up and ready["draft"].up)
            yield base, draft, proxy


async def order(proxy: Proxied, path: str, body: bytes = b"", headers: str = "") -> Message:
    """A POST to the admin port."""
    from tests.support.engine import dial

    peer = await dial(proxy.admin_port)
    await peer.send(post(body, path=path, headers=f"Connection: close\r\n{headers}"))
    message = await peer.message()
    peer.close()
    return message


async def refused_bytes(proxy: Proxied, path: str, authorization: bytes) -> int:
    """The status of an order whose Authorization is these bytes."""
    from tests.support.engine import dial

    peer = await dial(proxy.admin_port)
    head, _, body = post(b"{}", path=path).partition(b"\r\n\r\n")
    await peer.send(head + b"\r\nAuthorization: " + authorization + b"\r\n\r\n" + body)
    status = (await peer.message()).status
    peer.close()
    return status


async def answer(conn: Conn, body: bytes | None = None) -> None:
    await conn.request()
    await conn.send(ok(body or completion()))


async def ask(client: Peer, engine: ScriptedEngine, **kw: Any) -> Message:
    """One request and its answer through whichever engine is expected."""
    await client.send(post(**kw))
    conn = await engine.accept()
    await answer(conn)
    message = await client.message()
    conn.close()
    return message


def state(proxy: Proxied) -> str:
    return str(proxy.proxy.control.status()["candidates"]["draft"]["state"])


def test_tripped_by_hand_and_armed_again() -> None:
    """>> trip: the next request goes to the baseline. >> rearm: back to the candidate."""

    async def script() -> None:
        async with gateway() as (base, draft, proxy):
            client = await proxy.dial()
            assert (await ask(client, draft)).status == 200
            got = await order(proxy, "/arms/draft/trip", b'{"reason": "quality floor broken"}')
            assert (got.status, json.loads(got.body)["state"]) == (200, "tripped")
            assert (await ask(client, base)).status == 200
            status = await proxy.status()
            last = status["routing"]["transitions"][-1]
            assert (last["reason"], last["detail"]) == ("tripped_by_hand", "quality floor broken")
            name = "route_transitions_total"
            assert await proxy.total(name, arm="draft", reason="tripped_by_hand") == 1
            assert '"reason":"tripped_by_hand"' in proxy.log.getvalue()
            got = await order(proxy, "/arms/draft/rearm")
            assert (got.status, json.loads(got.body)["state"]) == (200, "serving")
            assert (await ask(client, draft)).status == 200

    dialogue(script())


def test_a_tripped_arm_finishes_its_streams() -> None:
    """A stream that runs when its arm is tripped goes on to its end."""

    async def script() -> None:
        async with gateway() as (_, draft, proxy):
            client = await proxy.dial()
            await client.send(post())
            conn = await draft.accept()
            await conn.request()
            await conn.send(STREAM_HEAD + chunked(event(tokens=1), end=False))
            await client.head()
            first = await client.chunk()
            await order(proxy, "/arms/draft/trip", b'{"reason": "x"}')
            assert state(proxy) == "tripped"
            await conn.send(chunked(event(tokens=2, finish="stop"), DONE))
            rest = await client.chunk()
            while DONE not in rest:
                rest += await client.chunk()
            assert b'"content"' in first + rest
            await proxy.idle()
            assert (await proxy.verdicts()).get("error") is None

    dialogue(script())


def test_a_connection_that_cannot_be_made_goes_to_the_baseline() -> None:
    """The candidate's port is closed: the very request that finds out is served by the baseline."""

    async def script() -> None:
        async with gateway({"health": {"interval_s": 600}}) as (base, _, proxy):
            await _stop_listening(proxy, "draft")
            client = await proxy.dial()
            body = b'{"prompt": "carried along whole"}'
            await client.send(post(body))
            conn = await base.accept()
            request = await conn.request()
            assert request.body == body
            assert request.get("host") == f"127.0.0.1:{base.port}".encode()
            await conn.send(ok(completion()))
            assert (await client.message()).status == 200
            assert state(proxy) == "unhealthy"
            assert await proxy.total("route_diverted_total", arm="draft") == 1
            # one request, one verdict, at the arm that served it
            assert await proxy.total("requests_total") == 1
            assert await proxy.total("requests_total", arm="base") == 1
            await proxy.idle()

    dialogue(script())


def test_an_upload_that_still_comes_goes_along() -> None:
    """A body of which half has come when the connection fails arrives whole at the baseline."""

    async def script() -> None:
        async with gateway({"health": {"interval_s": 600}}) as (base, _, proxy):
            await _stop_listening(proxy, "draft")
            client = await proxy.dial()
            raw = post(b"first-half|second-half")
            await client.send(raw[:-11])
            conn = await base.accept()
            await client.send(raw[-11:])
            assert (await conn.request()).body == b"first-half|second-half"
            await conn.send(ok(completion()))
            assert (await client.message()).status == 200

    dialogue(script())


def test_no_other_arm_means_502_and_no_second_place_is_taken() -> None:
    """Both ports closed: one 502 for the client, no gauge leaks, one verdict."""

    async def script() -> None:
        async with gateway({"health": {"interval_s": 600}}) as (_, _, proxy):
            await _stop_listening(proxy, "draft")
            await _stop_listening(proxy, "base")
            client = await proxy.dial()
            await client.send(post())
            assert (await client.message()).status == 502
            await proxy.idle()
            assert await proxy.total("requests_total") == 1

    dialogue(script())


def test_a_sent_request_is_never_sent_again() -> None:
    """The candidate dies after it took the request: that one fails, and nobody else gets it."""

    async def script() -> None:
        async with gateway() as (base, draft, proxy):
            client = await proxy.dial()
            await client.send(post())
            conn = await draft.accept()
            await conn.request()
            conn.reset()
            assert (await client.message()).status == 502
            assert base.connections == 0
            assert await proxy.verdicts() == {"error": 1}

    dialogue(script())


def test_three_faults_in_a_row_take_the_candidate_out() -> None:
    """500, 500, 500: the fourth request goes to the baseline although /health is fine."""

    async def script() -> None:
        health = {"interval_s": 600.0, "fail_after": 3}
        async with gateway({"health": health}) as (base, draft, proxy):
            client = await proxy.dial()
            for _ in range(3):
                await client.send(post())
                conn = await draft.accept()
                await conn.request()
                await conn.send(b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n")
                assert (await client.message()).status == 500
                conn.close()
            assert state(proxy) == "unhealthy"
            assert (await ask(client, base)).status == 200

    dialogue(script())


def test_not_ready_is_seen_by_the_probe_and_lifted_by_it() -> None:
    """/health 503: baseline, while the candidate still answers; 200 again: back."""

    async def script() -> None:
        async with gateway() as (base, draft, proxy):
            client = await proxy.dial()
            draft.healthy = False
            await until(lambda: state(proxy) == "unhealthy")
            assert (await ask(client, base)).status == 200
            draft.healthy = True
            await until(lambda: state(proxy) == "serving")
            assert (await ask(client, draft)).status == 200

    dialogue(script())


def test_another_model_is_not_ready() -> None:
    """/v1/models without the asked model keeps the candidate out."""

    async def script() -> None:
        async with gateway({"health": {**FAST, "model": "m"}}) as (_, draft, proxy):
            draft.models = b'{"data": [{"id": "something-else"}]}'
            await until(lambda: state(proxy) == "unhealthy")

    dialogue(script())


def test_routing_that_raises_serves_from_the_baseline() -> None:
    """A fault in the policy: the request is served, the fault counted, its text logged nowhere."""

    async def script() -> None:
        async with gateway() as (base, _, proxy):
            control: Control = proxy.proxy.control

            def broken(*_: object) -> str:
                raise RuntimeError("canary-7391")

            control._steering.arm_for = broken  # type: ignore[method-assign]
            client = await proxy.dial()
            assert (await ask(client, base)).status == 200
            assert await proxy.total("route_errors_total") >= 1
            assert "control failed" in proxy.log.getvalue()
            assert "canary-7391" not in proxy.log.getvalue()

    dialogue(script())


def test_cohort_and_sticky_header_reach_the_policy() -> None:
    """The header's value decides the arm, is passed on, and is written nowhere."""

    async def script() -> None:
        split = {"policy": "split", "arm": None, "weights": {"base": 1, "draft": 1},
                 "sticky_header": "X-User"}  # fmt: skip
        async with gateway(split) as (base, draft, proxy):
            client = await proxy.dial()
            for user in ("canary-user-1", "canary-user-2", "canary-user-3", "canary-user-4"):
                arm = proxy.proxy.control.arm_for("other", user.encode())
                engine = draft if arm == "draft" else base
                for _ in range(2):
                    await client.send(post(headers=f"X-User: {user}\r\n"))
                    conn = await engine.accept()
                    request = await conn.request()
                    assert request.get("x-user") == user.encode()
                    await conn.send(ok(completion()))
                    assert (await client.message()).status == 200
                    conn.close()
            _, page = await proxy.admin("/metrics")
            for text in (page.decode(), proxy.log.getvalue(), json.dumps(await proxy.status())):
                assert "canary-user" not in text

    dialogue(script())


def test_orders_that_are_refused() -> None:
    """No such arm, the baseline, no reason, a browser, a wrong token: nothing happens."""

    async def script() -> None:
        async with gateway() as (_, _, proxy):
            good = b'{"reason": "x"}'
            for path, body, headers, status in (
                ("/arms/nobody/trip", good, "", 404),
                ("/arms/base/trip", good, "", 404),
                ("/arms/base/rearm", b"", "", 404),
                ("/arms/draft/trip", b"", "", 400),
                ("/arms/draft/trip", b"[]", "", 400),
                ("/arms/draft/trip", b'{"reason": 3}', "", 400),
                ("/arms/draft/trip", b'{"reason": " "}', "", 400),
                ("/arms/draft/trip", json.dumps({"reason": "y" * 1001}).encode(), "", 400),
                ("/arms/draft/trip", good, "Origin: http://evil.example\r\n", 403),
            ):
                got = await order(proxy, path, body, headers)
                assert got.status == status, (path, body)
            assert state(proxy) == "serving"

    dialogue(script())


def test_a_token_is_asked_for_where_one_is_given(tmp_path: Path) -> None:
    """With a wrong token even this machine is refused; with the right one a page may order, too."""

    async def script() -> None:
        file = tmp_path / "token"
        file.write_text("correct-horse-battery\n")
        async with gateway(admin_token_file=str(file)) as (_, _, proxy):
            path, body = "/arms/draft/trip", b'{"reason": "x"}'
            wrong = "Authorization: Bearer wrong-horse-battery\r\n"
            assert (await order(proxy, path, body, wrong)).status == 403
            for odd in (b"\xff\xfe", b"Bearer \xe2\x82"):  # no UTF-8
                assert await refused_bytes(proxy, path, odd) == 403
            right = "Authorization: Bearer correct-horse-battery\r\nOrigin: http://a\r\n"
            assert (await order(proxy, path, body, right)).status == 200
            assert "horse" not in proxy.log.getvalue() + json.dumps(await proxy.status())

    dialogue(script())


def test_rearm_never_is_409() -> None:
    """routing.guard.rearm: never answers a re-arm with 409 and the mend."""

    async def script() -> None:
        async with gateway({"guard": {"rearm": "never"}}) as (_, _, proxy):
            await order(proxy, "/arms/draft/trip", b'{"reason": "x"}')
            got = await order(proxy, "/arms/draft/rearm")
            assert got.status == 409
            assert b"restart" in got.body
            assert state(proxy) == "tripped"

    dialogue(script())


def test_the_guard_trips_on_what_clients_got() -> None:
    """12 answers with 400 of 12 break the error share; the figures stand in /status."""

    async def script() -> None:
        guard = {"min_requests": 10, "window_s": 60}
        async with gateway({"guard": guard}) as (base, draft, proxy):
            proxy.proxy.control.tick()
            client = await proxy.dial()
            for _ in range(12):
                await client.send(post())
                conn = await draft.accept()
                await conn.request()
                await conn.send(b"HTTP/1.1 400 No\r\nContent-Length: 0\r\n\r\n")
                assert (await client.message()).status == 400
                conn.close()
            proxy.proxy.control.tick()
            draft_now = (await proxy.status())["routing"]["candidates"]["draft"]
            because = draft_now["tripped_because"]
            assert because == "guard_error_share: 1 above 0.05 (budget)"
            assert (await ask(client, base)).status == 200

    dialogue(script())


def test_streams_that_wait_too_long_trip_before_they_end() -> None:
    """12 streams with a head and no token, older than the TTFT limit: the guard does not wait."""

    async def script() -> None:
        guard = {"min_requests": 10, "ttft_p95_s": 0.01}
        async with gateway({"guard": guard}) as (_, draft, proxy):
            clients = [await proxy.dial() for _ in range(12)]
            for client in clients:
                await client.send(post())
                conn = await draft.accept()
                await conn.request()
                await conn.send(STREAM_HEAD)
                await client.head()

            def tripped() -> bool:
                proxy.proxy.control.tick()
                return state(proxy) == "tripped"

            await until(tripped)
            reason = proxy.proxy.control.status()["candidates"]["draft"]["reason"]
            assert reason == "guard_ttft_p95"

    dialogue(script())


def test_an_engine_that_sends_no_head_trips_past_the_e2e_bound() -> None:
    """It ends no request, and no head says that they are streams: late is past the e2e bound."""

    async def script() -> None:
        guard = {"min_requests": 10, "ttft_p95_s": 0.01}
        slo = {"e2e_s": 0.02}
        async with gateway({"guard": guard}, slo=slo) as (_, draft, proxy):
            clients, conns = [], []
            for _ in range(12):
                client = await proxy.dial()
                await client.send(post())
                conn = await draft.accept()
                await conn.request()
                clients.append(client)
                conns.append(conn)
            await until(lambda: state(proxy) == "tripped")
            routing = (await proxy.status())["routing"]
            assert routing["candidates"]["draft"]["reason"] == "guard_ttft_p95"
            for client, conn in zip(clients, conns, strict=True):
                client.close()
                conn.close()

    dialogue(script())


def test_unmetered_requests_follow_the_arm() -> None:
    """A GET through the traffic port meets the candidate, and the baseline once it is out."""

    async def script() -> None:
        async with gateway() as (base, draft, proxy):
            client = await proxy.dial()
            for engine in (draft, base):
                await client.send(get("/v1/models"))
                conn = await engine.accept()
                await conn.send(ok(b"{}"))
                assert (await client.message()).status == 200
                conn.close()
                await order(proxy, "/arms/draft/trip", b'{"reason": "x"}')

    dialogue(script())


async def _stop_listening(proxy: Proxied, arm: str) -> None:
    """Points an arm's pool at a port where nobody listens."""
    from breakeven_wire import Origin

    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    proxy.proxy.arms[arm].pool.origin = Origin.parse(f"http://127.0.0.1:{port}")


def test_a_stale_connection_and_then_no_connection_is_one_retry() -> None:
    """Swallowed by a kept connection that closes, refused anew: the baseline gets the one retry."""

    async def script() -> None:
        async with gateway({"health": {"interval_s": 600}}) as (base, draft, proxy):
            client = await proxy.dial()
            await client.send(post(b"first"))
            conn = await draft.accept()
            await answer(conn)
            assert (await client.message()).status == 200
            await until(lambda: proxy.proxy.arms["draft"].pool.idle_connections == 1)
            await _stop_listening(proxy, "draft")
            await client.send(post(b"second"))
            assert (await conn.next()).body == b"second"
            conn.reset()  # no byte of an answer: the one case in which a request may be sent again
            again = await base.accept()
            assert (await again.request()).body == b"second"
            await again.send(ok(completion()))
            assert (await client.message()).status == 200
            assert base.connections == 1
            assert await proxy.total("upstream_retries_total", arm="draft") == 1
            assert await proxy.total("route_diverted_total", arm="draft") == 1

    dialogue(script())


def test_retry_switched_off_means_no_second_send() -> None:
    """retry_stale: false: the request that a closing connection swallowed fails."""

    async def script() -> None:
        settings = {"retry_stale": False}
        async with gateway({"health": {"interval_s": 600}}, **settings) as (base, draft, proxy):
            client = await proxy.dial()
            await client.send(post(b"first"))
            conn = await draft.accept()
            await answer(conn)
            await client.message()
            await until(lambda: proxy.proxy.arms["draft"].pool.idle_connections == 1)
            await client.send(post(b"second"))
            await conn.next()
            conn.reset()
            assert (await client.message()).status == 502
            assert base.connections == 0

    dialogue(script())


def test_a_full_baseline_takes_no_diverted_request() -> None:
    """No place at the baseline: 502, and the place that was held at the candidate is given back."""

    async def script() -> None:
        room = {"max_inflight": 1, "max_queue": 1}
        routing = {"health": {"interval_s": 600}}
        settings = {"admission": room, "allow_arm_header": True}
        async with gateway(routing, **settings) as (base, _, proxy):
            holder = await proxy.dial()
            await holder.send(post(headers="x-breakeven-arm: base\r\n"))
            held = await base.accept()
            await held.request()
            await _stop_listening(proxy, "draft")
            client = await proxy.dial()
            await client.send(post())
            assert (await client.message()).status == 502
            await held.send(ok(completion()))
            assert (await holder.message()).status == 200
            await proxy.idle()

    dialogue(script())


def test_an_arm_that_a_test_names_is_never_exchanged() -> None:
    """x-breakeven-arm: the request fails rather than being measured on another arm."""

    async def script() -> None:
        routing = {"arm": "base", "health": {"interval_s": 600}}
        async with gateway(routing, allow_arm_header=True) as (base, _, proxy):
            await _stop_listening(proxy, "draft")
            client = await proxy.dial()
            await client.send(post(headers="x-breakeven-arm: draft\r\n"))
            assert (await client.message()).status == 502
            assert base.connections == 0

    dialogue(script())


def test_check_prints_what_serve_would_do(tmp_path: Path) -> None:
    """`breakeven-proxy check` knows the routing keys, and names what serve would refuse."""
    from tests.support import processes

    path = tmp_path / "p.yaml"
    arms = "arms: {a: {url: http://h:1}, b: {url: http://h:2, role: candidate}}\n"
    path.write_text(arms + "routing: {policy: split, weights: {a: 9, b: 1}}\n")
    done = processes.run("breakeven-proxy", "check", "--config", str(path))
    assert done.returncode == 0, done.stderr
    assert "policy: split" in done.stdout
    path.write_text(arms + "routing: {policy: load_aware}\n")
    done = processes.run("breakeven-proxy", "check", "--config", str(path))
    assert done.returncode == 2
    assert "break_even_rps" in done.stderr
