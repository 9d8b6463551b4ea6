"""`/v1/chat/completions` and `/v1/models` for any client of the OpenAI protocol (S17)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

import httpx
import orjson
import structlog
from fastapi import APIRouter, Request, Response
from starlette.types import Receive, Scope, Send

from services.gateway import body as bodies
from services.gateway.relay import Place, Relay, error_body
from shared.errors import Fault

NOT_LOADED = "model is not loaded"  # the router's own words: clients tell by them that another server should be tried

logger = structlog.get_logger()


def router(relay: Relay, *, limit: int) -> APIRouter:
    api = APIRouter(prefix="/v1", tags=["openai"])

    @api.get("/models")
    async def models() -> Response:
        """Every model that a server lists, in OpenAI's form."""
        try:
            names = await relay.models()
        except (Fault, httpx.HTTPError, ValueError, LookupError, TypeError) as error:
            return _failed(502, f"no server says what it lists: {error}", "server_error")
        rows = [{"id": name, "object": "model", "created": 0, "owned_by": "aetherium"} for name in names]
        return _json(200, {"object": "list", "data": rows})

    @api.post("/chat/completions")
    async def chat(request: Request) -> Response:
        """A chat, answered by a server that has the model loaded and nothing else to do; 400 where there is none."""
        try:
            asked = orjson.loads(await bodies.bounded(request, limit))
        except orjson.JSONDecodeError as error:
            return _failed(400, f"the body is not JSON: {error}")
        except Fault as fault:
            return _failed(413, fault.message)
        if (problem := _problem(asked)) is not None:
            return problem
        fields = cast(dict[str, Any], asked)
        try:
            places = await relay.places(fields["model"])
        except Fault as fault:
            return _failed(503, fault.message, "unavailable_error")
        return Relayed(relay, fields, places, _client_of(request, fields))

    return api


def _problem(asked: Any) -> Response | None:
    if not isinstance(asked, dict):
        return _failed(400, "the body must be a JSON object")
    fields = cast(dict[str, Any], asked)
    if not fields.get("model"):
        return _failed(400, "model name is missing from the request", param="model")
    if not isinstance(fields["model"], str):
        return _failed(400, "model must be a string", param="model")
    if not isinstance(fields.get("messages"), list):
        return _failed(400, "messages must be a list", param="messages")
    return None


def _client_of(request: Request, fields: Mapping[str, Any]) -> str:
    """Who asks, as far as a client says so: the protocol's own `user`, else the program and where it runs."""
    user = fields.get("user") or fields.get("safety_identifier")
    if isinstance(user, str):
        return user[:100]
    host = request.client.host if request.client else ""
    return f"{request.headers.get('user-agent', '')[:60]} at {host}".strip()


def _json(status: int, content: Mapping[str, Any]) -> Response:
    return Response(orjson.dumps(content), status, media_type="application/json")


def _failed(status: int, message: str, kind: str = "invalid_request_error", **members: Any) -> Response:
    return _json(status, error_body(status, message, kind, **members))


class Relayed(Response):
    """The answer of the first place that takes the request, passed on as it comes.

    A client that leaves, and a run that takes the card, both end the work upstream at once.
    """

    def __init__(self, relay: Relay, asked: dict[str, Any], places: list[Place], client: str) -> None:
        super().__init__()
        self.relay, self.asked, self.places, self.client_name = relay, asked, places, client
        self.has_begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answering = asyncio.ensure_future(self._answer(scope, receive, send))
        leaving = asyncio.ensure_future(_left(receive))
        try:
            await asyncio.wait([answering, leaving], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (answering, leaving):
                task.cancel()
            await asyncio.gather(answering, leaving, return_exceptions=True)
        if not answering.cancelled() and (error := answering.exception()) is not None:
            raise error

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        for place in self.places:
            async with self.relay.lease(self.client_name, place) as lease_id:
                if lease_id is not None and await self._unless_lost(lease_id, lambda place=place: self._from(place, send), send):
                    return
        await _failed(400, NOT_LOADED)(scope, receive, send)

    async def _unless_lost(self, lease_id: str, work: Callable[[], Awaitable[bool]], send: Send) -> bool:
        """Whether the request is answered, be it by the news that the card was taken away in the middle of it."""
        working, losing = asyncio.ensure_future(work()), asyncio.ensure_future(self.relay.lost(lease_id))
        try:
            await asyncio.wait([working, losing], return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
        finally:
            for task in (working, losing):
                task.cancel()
            await asyncio.gather(working, losing, return_exceptions=True)
        if self.has_begun:
            await self._break_off(send, "the card was given to a run")
        return self.has_begun

    async def _from(self, place: Place, send: Send) -> bool:
        """Whether a place answered, with whatever; a name that it cannot serve is followed by its next one."""
        for name in place.names:
            try:
                async with self.relay.answer(place, orjson.dumps({**self.asked, "model": name})) as response:
                    if response.status_code >= 400 and name != place.names[-1]:
                        continue
                    await self._pass_on(response, send)
                    return True
            except httpx.HTTPError as error:
                logger.warning("relay_upstream_failed", slot=place.slot, reason=repr(error))
                if self.has_begun:
                    await self._break_off(send, "the server's connection broke")
                    return True
        return False

    async def _pass_on(self, response: httpx.Response, send: Send) -> None:
        kind = response.headers.get("content-type", "application/json")
        headers = [(b"content-type", kind.encode("latin-1")), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
        self.has_begun = True
        async for piece in response.aiter_raw():
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _break_off(self, send: Send, why: str) -> None:
        """End a stream in the middle: its status is sent, so the reason is an event, as llama-server sends it."""
        last = b"data: " + orjson.dumps(error_body(503, why, "unavailable_error")) + b"\n\n" if self.asked.get("stream") else b""
        await send({"type": "http.response.body", "body": last, "more_body": False})


async def _left(receive: Receive) -> None:
    """Return when the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
