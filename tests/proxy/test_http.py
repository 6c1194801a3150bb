"""HTTP correctness as dialogues: what the client sends, what the engine gets, and back."""

from __future__ import annotations

import pytest
from tests.support.engine import (
    DONE,
    STREAM_HEAD,
    chunked,
    completion,
    event,
    get,
    ok,
    post,
    scripted_engine,
    status_of,
)
from tests.support.proxied import dialogue, proxied


def test_a_request_passes_byte_for_byte_and_comes_back() -> None:
    """Method, target, body and end-to-end headers reach the engine; status and body return."""

    async def script() -> None:
        async with scripted_engine() as engine, proxied(engine.url) as proxy:
            client = await proxy.dial()
            body = b'{"model": "m",  "messages": []}'
            await client.send(post(body, path="/v1/chat/completions?a=b%20c", headers="X-A: 1\r\n"))
            conn = await engine.accept()
            seen = await conn.request()
            assert seen.start == b"POST /v1/chat/completions?a=b%20c HTTP/1.1"
            assert seen.body == body
            assert seen.get("x-a") == b"1"
            assert seen.all("host") == [f"127.0.0.1:{engine.port}".encode()]
            await conn.send(ok(completion(), b"X-Request-Id: r1\r\n"))
            answer = await client.message()
            assert answer.status == 200
            assert answer.body == completion()
            assert answer.get("x-request-id") == b"r1"
            assert await proxy.verdicts() == {"good": 1}

    dialogue(script())


def test_hop_by_hop_and_connection_named_headers_stop_at_the_proxy() -> None:
    """RFC 9110 7.6.1, both ways; x-breakeven-* is for the proxy and goes no further."""

    async def script() -> None:
        async with scripted_engine() as engine, proxied(engine.url) as proxy:
            client = await proxy.dial()
            await client.send(
                get(
                    headers="Connection: X-Hop, keep-alive\r\nX-Hop: 1\r\nKeep-Alive: 5\r\n"
                    "TE: trailers\r\nProxy-Authorization: p\r\nProxy-Connection: x\r\n"
                    "Authorization: Bearer k\r\nX-Breakeven-Cohort: c\r\nX-End: 1\r\n"
                )
            )
            conn = await engine.accept()
            names = {name.lower() for name, _ in conn.first.headers}
            assert names == {b"host", b"authorization", b"x-end"}
            await conn.send(
                b"HTTP/1.1 200 OK\r\nConnection: X-Back\r\nX-Back: 1\r\nKeep-Alive: timeout=5\r\n"
                b"Proxy-Authenticate: x\r\nX-End: 2\r\nContent-Length: 2\r\n\r\nok"
            )
            answer = await client.message()
            names = {name.lower() for name, _ in answer.headers}
            assert names == {b"x-end", b"content-length"}

    dialogue(script())


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n"
         b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
         b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n"
         b"Content-Length: 3\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\na", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length : 1\r\n\r\na", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"GET / HTTP/1.1\nHost: a\n\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\n folded\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: \x00\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET nonsense HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"NOPE / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n", 501),
        (b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\n"
         b"HTTP2-Settings: AAMAAABkAAQ\r\n\r\n", 501),
        (b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", 501),
        (b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 200-ok\r\nContent-Length: 1\r\n\r\n", 417),
        (b"GET /" + b"a" * 70000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 70000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: a\r\n" * 14000 + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 400000, 431),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 134217729\r\n\r\n", 413),
    ],
    ids=range(24),
)  # fmt: skip
def test_a_bad_request_is_answered_and_the_connection_closed(
    request_bytes: bytes, status: int
) -> None:
    """Strict parsing, size limits and refused upgrades: one answer, no byte to the engine."""

    async def script() -> None:
        async with scripted_engine() as engine, proxied(engine.url) as proxy:
            client = await proxy.dial()
            await client.send(request_bytes)
            raw = await client.rest()
            assert status_of(raw) == [status]
            assert b"\r\nConnection: close\r\n" in raw
            assert b"smuggled" not in raw
            await proxy.idle()
            assert engine.connections == 0
            assert await proxy.total("bad_requests_total", code=str(status)) == 1

    dialogue(script())


def test_a_chunked_body_over_the_limit_is_413() -> None:
    """A body that grows past the limit without saying so is refused while it comes."""

    async def script() -> None:
        limits = {"body_bytes": 1000}
        async with scripted_engine() as engine, proxied(engine.url, limits=limits) as proxy:
            client = await proxy.dial()
            await client.send(
                b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
                + chunked(b"a" * 600, end=False)
            )
            conn = await engine.accept()
            await client.send(chunked(b"a" * 600, end=False))
            assert status_of(await client.rest()) == [413]
            assert await conn.closed() in (True, False)
            assert await proxy.verdicts() == {"error": 1}

    dialogue(script())


def test_pipelined_requests_are_answered_in_order() -> None:
    """Three requests in one segment: the engine sees one at a time, the answers keep the order."""

    async def script() -> None:
        async with scripted_engine() as engine, proxied(engine.url) as proxy:
            client = await proxy.dial()
            await client.send(get("/a") + post(b"bb", path="/b") + get("/c"))
            conn = await engine.accept()
            for path, body in ((b"/a", b"1"), (b"/b", b"22"), (b"/c", b"333")):
                seen = await (conn.request() if path == b"/a" else conn.next())
                assert seen.start.split()[1] == path
                await conn.send(ok(body))
            for body in (b"1", b"22", b"333"):
                assert (await client.message()).body == body
            assert engine.connections == 1

    dialogue(script())


def test_a_bad_request_behind_a_good_one_is_answered_after_it() -> None:
    """The good request keeps its answer; then comes 400 and the close."""

    async def script() -> None:
        async with scripted_engine() as engine, proxied(engine.url) as proxy:
            client = await proxy.dial()
            await client.send(get("/a") + b"NOT HTTP\r\n\r\n")
            conn = await engine.accept()
            await conn.send(ok(b"1"))
            assert (await client.message()).body == b"1"
            assert (await client.message()).status == 400
            assert await client.closed()

    dialogue(script())


def test_expect_continue_is_asked_of_the_engine_and_passed_back() -> None:
    """RFC 9110 10.1.1: the head goes on with Expect, the 100 comes back, then the body goes."""

    async def script() -> None:
        async with scripted_engine() as engine, proxied(engine.url) as proxy:
            client = await proxy.dial()
            head = post(b"", headers="Expect: 100-continue\r\n").replace(b": 0\r\n", b": 4\r\n")
            await client.send(head)
            conn = await engine.accept()
            assert conn.first.get("expect") == b"100-continue"
            await conn.send(b"HTTP/1.1 100 Continue\r\n\r\n")
            assert (await client.head()).status == 100
            await client.send(b"body")
            assert (await conn.request()).body == b"body"
            await conn.send(ok(completion()))
            assert (await client.message()).status == 200

    dialogue(script())


def test_early_hints_pass_and_the_final_answer_follows() -> None:
    """1xx heads are forwarded to an HTTP/1.1 client."""

    async def script() -> None:
        async with scripted_engine() as engine, proxied(engine.url) as proxy:
            client = await proxy.dial()
            await client.send(get())
            conn = await engine.accept()
            await conn.send(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + ok(b"1"))
            assert (await client.head()).status == 103
            assert (await client.message()).body == b"1"

    dialogue(script())


def test_an_early_answer_to_an_unfinished_upload_arrives_whole() -> None:
    """The engine refuses in the middle of an upload: the client gets the answer, not a reset."""

    async def script() -> None:
        async with scripted_engine() as engine, proxied(engine.url) as proxy:
            client = await proxy.dial()
            await client.send(
                b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\nabc"
            )
            conn = await engine.accept()
            await conn.send(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\n\r\nno")
            answer = await client.message()
            assert (answer.status, answer.body) == (400, b"no")
            assert answer.get("connection") == b"close"
            assert await proxy.verdicts() == {"error": 1}

    dialogue(script())


@pytest.mark.parametrize("split", [1, 3, 7])
def test_a_chunked_request_with_trailers_streams_through(split: int) -> None:
    """Chunk framing is the hop's own; the bytes and the trailers are the client's."""

    async def script() -> None:
        async with scripted_engine() as engine, proxied(engine.url) as proxy:
            client = await proxy.dial()
            request = (
                b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n"
                b"Trailer: X-T\r\n\r\n5\r\nhello\r\n6;ext=1\r\n world\r\n0\r\n"
                b"X-T: 1\r\nAuthorization: x\r\n\r\n"
            )
            for i in range(0, len(request), split):
                await client.send(request[i : i + split])
            conn = await engine.accept()
            seen = await conn.request()
            assert seen.body == b"hello world"
            assert seen.trailers == b"X-T: 1\r\n"
            await conn.send(ok(completion()))
            assert (await client.message()).status == 200

    dialogue(script())


def test_response_trailers_pass() -> None:
    """Trailers of a chunked response reach the client, less those that must not be trailers."""

    async def script() -> None:
        async with scripted_engine() as engine, proxied(engine.url) as proxy:
            client = await proxy.dial()
            await client.send(get())
            conn = await engine.accept()
            await conn.send(
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-T\r\n\r\n"
                b"2\r\nok\r\n0\r\nX-T: 1\r\nConnection: x\r\n"
            )
            await conn.send(b"\r\n")  # the last CRLF in its own segment
            answer = await client.message()
            assert answer.body == b"ok"
            assert answer.trailers == b"X-T: 1\r\n"

    dialogue(script())


@pytest.mark.parametrize(
    ("method", "answer", "length"),
    [
        ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n", b"1234"),
        ("HEAD", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", None),
        ("GET", b"HTTP/1.1 204 No Content\r\n\r\n", None),
        ("GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 77\r\nETag: x\r\n\r\n", b"77"),
        ("HEAD", b"HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 31\r\n\r\n", b"31"),
    ],
)
def test_answers_without_a_body(method: str, answer: bytes, length: bytes | None) -> None:
    """HEAD, 204 and 304 have no body whatever they announce, and the connection goes on."""

    async def script() -> None:
        async with scripted_engine() as engine, proxied(engine.url) as proxy:
            client = await proxy.dial()
            await client.send(get(method=method))
            conn = await engine.accept()
            await conn.send(answer)
            head = await client.message(no_body=True)
            assert head.get("content-length") == length
            assert head.get("transfer-encoding") is None
            await client.send(get("/next"))
            assert (await conn.next()).start.startswith(b"GET /next ")
            await conn.send(ok(b"1"))
            assert (await client.message()).body == b"1"

    dialogue(script())


def test_an_http_1_0_client_gets_a_stream_without_chunks() -> None:
    """No chunked coding for HTTP/1.0: the body ends with the connection."""

    async def script() -> None:
        async with scripted_engine() as engine, proxied(engine.url) as proxy:
            client = await proxy.dial()
            await client.send(post(version="1.0"))
            conn = await engine.accept()
            body = event("a") + event("b", finish="stop") + DONE
            await conn.send(STREAM_HEAD + chunked(body))
            answer = await client.message(to_end=True)
            assert answer.get("transfer-encoding") is None
            assert answer.get("connection") == b"close"
            assert answer.body == body

    dialogue(script())


def test_an_http_1_0_client_may_keep_its_connection() -> None:
    """With a known length and Connection: keep-alive the connection serves a second request."""

    async def script() -> None:
        async with scripted_engine() as engine, proxied(engine.url) as proxy:
            client = await proxy.dial()
            request = b"GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
            await client.send(request)
            conn = await engine.accept()
            await conn.send(ok(b"1"))
            assert (await client.message()).get("connection") == b"keep-alive"
            await client.send(request)
            await conn.next()
            await conn.send(ok(b"2"))
            assert (await client.message()).body == b"2"

    dialogue(script())


def test_an_http_1_0_engine_that_ends_by_closing_is_a_clean_end() -> None:
    """A response without framing ends with its connection; the client gets chunks."""

    async def script() -> None:
        async with scripted_engine() as engine, proxied(engine.url) as proxy:
            client = await proxy.dial()
            await client.send(get())
            conn = await engine.accept()
            await conn.send(b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nhello")
            conn.close()
            answer = await client.message()
            assert answer.get("transfer-encoding") == b"chunked"
            assert answer.body == b"hello"

    dialogue(script())


def test_absolute_form_and_options_star() -> None:
    """An absolute target loses its authority; OPTIONS * passes."""

    async def script() -> None:
        async with scripted_engine() as engine, proxied(engine.url) as proxy:
            client = await proxy.dial()
            await client.send(b"GET http://other:1/v1/models?x=1 HTTP/1.1\r\nHost: other\r\n\r\n")
            conn = await engine.accept()
            assert conn.first.start == b"GET /v1/models?x=1 HTTP/1.1"
            await conn.send(ok(b"1"))
            await client.message()
            await client.send(b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n")
            assert (await conn.next()).start == b"OPTIONS * HTTP/1.1"

    dialogue(script())


def test_a_compressed_response_passes_untouched_and_says_unobserved() -> None:
    """Content-Encoding stays with its bytes; metering says that it could not read them."""

    async def script() -> None:
        async with scripted_engine() as engine, proxied(engine.url, slo={"e2e_s": 20}) as proxy:
            client = await proxy.dial()
            await client.send(post())
            conn = await engine.accept()
            await conn.send(ok(b"\x1f\x8b junk", b"Content-Encoding: gzip\r\n"))
            answer = await client.message()
            assert answer.body == b"\x1f\x8b junk"
            assert answer.get("content-encoding") == b"gzip"
            assert await proxy.total("unobserved_responses_total", reason="encoding") == 1
            assert await proxy.verdicts() == {"unmeasured": 1}

    dialogue(script())


def test_a_stream_asks_proxies_in_front_not_to_buffer() -> None:
    """X-Accel-Buffering and Cache-Control are added to streams, and left alone where present."""

    async def script() -> None:
        async with scripted_engine() as engine, proxied(engine.url) as proxy:
            client = await proxy.dial()
            await client.send(post())
            conn = await engine.accept()
            await conn.send(STREAM_HEAD + chunked(event(finish="stop") + DONE))
            answer = await client.message()
            assert answer.get("x-accel-buffering") == b"no"
            assert answer.get("cache-control") == b"no-cache"
            await client.send(get())
            await conn.next()
            await conn.send(ok(b"1"))
            assert (await client.message()).get("x-accel-buffering") is None

    dialogue(script())


@pytest.mark.parametrize(
    "endless",
    [
        b"0\r\nX: " + b"a" * 900000,
        b"1;ext=" + b"a" * 900000,
        b"0\r\n" + b"X: a\r\n" * 20000,
    ],
    ids=["trailer", "chunk extension", "trailers"],
)
def test_an_endless_field_inside_a_body_is_refused(endless: bytes) -> None:
    """Trailers and chunk lines are bounded like a head: no byte is kept without a bound."""

    async def script() -> None:
        async with scripted_engine() as engine, proxied(engine.url) as proxy:
            client = await proxy.dial()
            await client.send(
                b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
            )
            conn = await engine.accept()
            await client.send(endless)
            assert status_of(await client.rest()) == [431]
            await conn.closed()
            assert await proxy.verdicts() == {"error": 1}

    dialogue(script())
