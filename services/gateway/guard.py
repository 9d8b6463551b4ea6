"""Who may call: a bearer token where one is set, otherwise only this machine under its own name."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from services.gateway import problems
from services.gateway.problems import ForeignHost, Unauthorized
from shared.config import is_loopback
from shared.errors import Fault

OPEN = frozenset({"/healthz", "/readyz"})
"""What supervisors and load balancers ask without a token; it tells nothing but whether the gateway works."""


@dataclass
class Guard:
    """ASGI middleware in front of everything."""

    app: ASGIApp
    token: str | None
    loopback_only: bool

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN:
            fault = self.objection(Headers(scope=scope))
            if fault is not None:
                await problems.response(fault, scope["path"])(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def objection(self, headers: Headers) -> Fault | None:
        if self.token is not None:
            scheme, _, given = headers.get("authorization", "").partition(" ")
            matches = secrets.compare_digest(given.strip().encode(), self.token.encode())
            if scheme.lower() == "bearer" and matches:
                return None
            return Unauthorized("this API needs a token: send 'Authorization: Bearer <token>' with the value of gateway.token")
        host = headers.get("host", "")
        name = host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]
        if self.loopback_only and name and not is_loopback(name):
            # A page on the internet may point a name of its own at this machine; its requests carry that name.
            return ForeignHost(f"host {host!r} is not this machine: call 127.0.0.1, or set gateway.token", field="Host")
        return None
