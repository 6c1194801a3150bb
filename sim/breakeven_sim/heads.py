"""Response heads as uvicorn writes them for vLLM: these names, in this order."""

from __future__ import annotations

from email.utils import formatdate
from uuid import uuid4

from aiohttp import web
from multidict import CIMultiDict

JSON = "application/json"
LOAD_METRICS = "endpoint-load-metrics"
EVENT_STREAM = "text/event-stream; charset=utf-8"


def head(request: web.Request, with_request_id: bool, wall_s: float) -> dict[str, str]:
    """The lines every response has; `x-request-id` only with --enable-request-id-headers."""
    lines = {"date": formatdate(wall_s, usegmt=True), "server": "uvicorn"}
    if with_request_id:
        lines["x-request-id"] = request.headers.get("x-request-id") or uuid4().hex
    return lines


def full_response(
    lines: dict[str, str], status: int, body: bytes | None, content_type: str = JSON
) -> web.Response:
    """A response with a known length; no body: no content-type."""
    headers: CIMultiDict[str] = CIMultiDict()
    for name in ("date", "server", "allow", LOAD_METRICS):
        if name in lines:
            headers[name] = lines[name]
    headers["content-length"] = str(len(body or b""))
    if body is not None:
        headers["content-type"] = content_type
    headers["vary"] = "Origin"
    if "x-request-id" in lines:
        headers["x-request-id"] = lines["x-request-id"]
    response = web.Response(status=status, body=body, headers=headers)
    if body is None:
        # aiohttp would invent application/octet-stream.
        response.headers.popall("content-type", None)
    return response


async def stream_response(request: web.Request, lines: dict[str, str]) -> web.StreamResponse:
    """An event stream whose head has been sent: vLLM answers 200 before the first token."""
    headers: CIMultiDict[str] = CIMultiDict(
        {"date": lines["date"], "server": lines["server"], "content-type": EVENT_STREAM}
    )
    headers["vary"] = "Origin"
    if "x-request-id" in lines:
        headers["x-request-id"] = lines["x-request-id"]
    if not request.keep_alive:
        headers["connection"] = "close"
    response = web.StreamResponse(headers=headers)
    if request.version >= (1, 1):
        response.enable_chunked_encoding()
    await response.prepare(request)
    return response
