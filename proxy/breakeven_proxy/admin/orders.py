"""Orders on the admin port: take a candidate out, arm it again.

    POST /arms/NAME/trip   {"reason": "quality floor chat/en broken"}
    POST /arms/NAME/rearm

From this machine, or with the token of `admin_token_file` as `Authorization: Bearer …`. A page in
somebody's browser is refused (it sends an Origin): it must not steer traffic through loopback.
"""

from __future__ import annotations

import hmac
import ipaddress
from typing import Any, Protocol

import orjson
from aiohttp import web

MAX_REASON = 1000
"""Longest reason that is read; what is kept of it is shorter still."""


class Steered(Protocol):
    """What the orders need of `control`."""

    def candidate(self, arm: str) -> bool: ...
    def trip(self, arm: str, reason: str) -> None: ...
    def rearm(self, arm: str) -> bool: ...
    def status(self) -> dict[str, Any]: ...


class Orders:
    """The routes.

    Args:
        token: None allows this machine only.
    """

    def __init__(self, control: Steered, token: str | None) -> None:
        self._control = control
        self._token = token

    def routes(self) -> list[web.RouteDef]:
        """For `add_routes`."""
        return [
            web.post("/arms/{name}/trip", self.trip),
            web.post("/arms/{name}/rearm", self.rearm),
        ]

    async def trip(self, request: web.Request) -> web.Response:
        """Takes the arm out until it is armed again."""
        refusal = self._refusal(request)
        if refusal is not None:
            return refusal
        try:
            body = orjson.loads(await request.read())
            reason = body["reason"]
        except (ValueError, KeyError, TypeError):
            reason = None
        if not isinstance(reason, str) or not reason.strip() or len(reason) > MAX_REASON:
            words = f'the body must be {{"reason": "…"}} of at most {MAX_REASON} characters'
            return _answer(400, error=words)
        name = request.match_info["name"]
        self._control.trip(name, reason)
        return self._state(name)

    async def rearm(self, request: web.Request) -> web.Response:
        """Arms the arm again."""
        refusal = self._refusal(request)
        if refusal is not None:
            return refusal
        name = request.match_info["name"]
        if not self._control.rearm(name):
            return _answer(409, error="routing.guard.rearm is never: restart to arm it again")
        return self._state(name)

    def _state(self, name: str) -> web.Response:
        found = self._control.status()["candidates"][name]
        return _answer(200, arm=name, state=found["state"], reason=found["reason"])

    def _refusal(self, request: web.Request) -> web.Response | None:
        if not self._may(request):
            where = "from this machine, or with Authorization: Bearer and admin_token_file's token"
            return _answer(403, error=f"orders are taken {where}")
        if not self._control.candidate(request.match_info["name"]):
            return _answer(404, error="no such candidate")
        return None

    def _may(self, request: web.Request) -> bool:
        given = request.headers.get("Authorization", "")
        if self._token is not None and given:
            # aiohttp decodes headers so that bytes which are no UTF-8 can come back as they were.
            sent = given.encode("utf-8", "surrogateescape")
            return hmac.compare_digest(sent, b"Bearer " + self._token.encode())
        return "Origin" not in request.headers and is_loopback(request.remote)


def is_loopback(address: str | None) -> bool:
    """Whether a peer's address is this machine's own."""
    try:
        found = ipaddress.ip_address((address or "").partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return (mapped or found).is_loopback


def _answer(status: int, **fields: object) -> web.Response:
    return web.Response(
        status=status, body=orjson.dumps(fields) + b"\n", content_type="application/json"
    )
