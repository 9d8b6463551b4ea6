"""`/v1/chat/completions` and `/v1/models` for any client of the OpenAI protocol (S17)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import httpx
import orjson
from fastapi import APIRouter, Request, Response

from services.gateway import body as bodies
from services.gateway.relaying import chat as chats
from services.gateway.relaying.relay import Relay
from services.gateway.relaying.relayed import Relayed, failed
from shared.errors import Fault

LARGE = 256 * 1024  # bytes from which a body is read beside the loop: pictures take it as long as many small requests


def router(relay: Relay, *, limit: int) -> APIRouter:
    api = APIRouter(prefix="/v1", tags=["openai"])

    @api.get("/models")
    async def models() -> Response:
        """Every model that a server lists, in OpenAI's form."""
        try:
            names = await relay.models()
        except (Fault, httpx.HTTPError, ValueError, LookupError, TypeError) as error:
            return failed(502, f"no server says what it lists: {error}", "server_error")
        rows = [{"id": name, "object": "model", "created": 0, "owned_by": "aetherium"} for name in names]
        return _json(200, {"object": "list", "data": rows})

    @api.post("/chat/completions")
    async def chat(request: Request) -> Response:
        """A chat, answered by a server that has the model loaded and nothing else to do; 400 where there is none."""
        try:
            raw = await bodies.bounded(request, limit)
            asked = await asyncio.to_thread(chats.read, raw) if len(raw) > LARGE else chats.read(raw)
        except chats.WrongChat as wrong:
            return failed(400, wrong.message, **({"param": wrong.param} if wrong.param else {}))
        except Fault as fault:
            return failed(413, fault.message)
        return Relayed(relay, asked, asked.user or _program(request))

    return api


def _program(request: Request) -> str:
    """Who asks, where the client does not say: the program and where it runs."""
    host = request.client.host if request.client else ""
    return f"{request.headers.get('user-agent', '')[:60]} at {host}".strip()


def _json(status: int, content: Mapping[str, Any]) -> Response:
    return Response(orjson.dumps(content), status, media_type="application/json")
