"""One relayed answer: from the first place that takes the request to its last byte, or to whoever ends it earlier."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any, cast

import httpx
import orjson
import structlog
from fastapi import Response
from starlette.types import Receive, Scope, Send

from services.gateway.relaying.chat import Chat
from services.gateway.relaying.leases import LeaseLost
from services.gateway.relaying.relay import UNREACHABLE, Found, Place, Relay
from services.gateway.relaying.servers import TooLong, whole
from services.gateway.relaying.stream import Passage, error_body, error_event
from shared.errors import Fault

NOT_LOADED = "model is not loaded"  # the router's own words: clients tell by them that another server should be tried
GIVEN_AWAY = "the card was given to a run"

logger = structlog.get_logger()


def failed(status: int, message: str, kind: str = "invalid_request_error", **members: Any) -> Response:
    """An answer in the protocol's own form of an error."""
    return Response(orjson.dumps(error_body(status, message, kind, **members)), status, media_type="application/json")


class _NotServed(Exception):
    """The server said that it cannot serve this name, before anything was passed on."""


class Relayed(Response):
    """Passes on the answer as it comes. A client that leaves, and a run that takes the card, both end the work upstream at once."""

    def __init__(self, relay: Relay, chat: Chat, client: str) -> None:
        super().__init__()
        self.relay, self.chat, self.client_name = relay, chat, client
        self.has_begun = self.is_broken = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answering = asyncio.ensure_future(self._answer(scope, receive, send))
        leaving = asyncio.ensure_future(_left(receive))
        try:
            await asyncio.wait([answering, leaving], return_when=asyncio.FIRST_COMPLETED)
        finally:
            has_left = not answering.done()
            for task in (answering, leaving):
                task.cancel()
            await asyncio.gather(answering, leaving, return_exceptions=True)
            if has_left:
                await self.relay.leases.leave(self.client_name)
        if not answering.cancelled() and (error := answering.exception()) is not None:
            raise error

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            last = self.relay.last(self.client_name, self.chat.model)
            if last is not None and await self._by(last, send):
                return
            found = await self.relay.find(self.chat.model)
            for place in found.places:
                if await self._by(place, send):
                    self.relay.answered(self.client_name, self.chat.model, place)
                    return
        except Fault as fault:
            if self.has_begun:
                raise
            await failed(503, fault.message, "unavailable_error")(scope, receive, send)
        else:
            await self._refusal(found)(scope, receive, send)

    def _refusal(self, found: Found) -> Response:
        if self.is_broken:
            return failed(502, "the server with the model gave no answer: it is away, or its connection broke", "server_error")
        return failed(400, NOT_LOADED if found.is_listed else f"model '{self.chat.model}' not found")

    async def _by(self, place: Place, send: Send) -> bool:
        """Whether the request is answered there, be it by the news that the card was taken away in the middle of it."""
        if place.slot is None:
            return await self._from(place, send)
        try:
            async with self.relay.leases.use(self.client_name, place.slot, place.names[-1]) as is_granted:
                return is_granted and await self._from(place, send)
        except LeaseLost as lost:
            logger.info("relay_cut_off", slot=place.slot, reason=str(lost))
            if self.has_begun:
                await self._break_off(send, GIVEN_AWAY)
            return self.has_begun

    async def _from(self, place: Place, send: Send) -> bool:
        """Whether a place answered, with whatever; a name that it cannot serve is followed by its next one."""
        for name in place.names:
            try:
                async with self.relay.servers.chat(self.relay.upstream(place), self.chat.for_model(name)) as response:
                    await self._pass_on(response, send, may_refuse=name == place.names[-1])
                    return True
            except _NotServed:
                continue
            except UNREACHABLE as error:
                logger.warning("relay_upstream_failed", slot=place.slot, reason=repr(error))
                is_away = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)  # a slot that is away has nothing loaded
                self.is_broken = self.is_broken or place.slot is None or not is_away
                if self.has_begun:
                    await self._break_off(send, "the server's connection broke")
                    return True
        return False

    # ---- what comes back

    async def _pass_on(self, response: httpx.Response, send: Send, *, may_refuse: bool) -> None:
        """
        Raises:
            _NotServed: it is an error, and may not be passed on since another name is left to be tried.
        """
        kind = response.headers.get("content-type", "application/json")
        if response.status_code >= 400 and not may_refuse:
            raise _NotServed
        if response.status_code == 200 and "event-stream" in kind:
            await self._stream(response, send, kind, may_refuse=may_refuse)
        else:
            await self._whole(response, send, kind, may_refuse=may_refuse)

    async def _whole(self, response: httpx.Response, send: Send, kind: str, *, may_refuse: bool) -> None:
        """Read to its end before its first byte is passed on: what breaks off in the middle can still be said by the status."""
        try:
            body = await whole(response)
        except TooLong:
            body, kind = orjson.dumps(error_body(502, "the server's answer is larger than 64 MiB", "server_error")), "application/json"
            await self._begin(send, 502, kind)
        else:
            is_error = response.status_code == 200 and _is_error(body)  # as proxies and some servers send it
            if is_error and not may_refuse:
                raise _NotServed
            await self._begin(send, 500 if is_error else response.status_code, kind, response.headers.get("retry-after"))
        await send({"type": "http.response.body", "body": body, "more_body": False})

    async def _stream(self, response: httpx.Response, send: Send, kind: str, *, may_refuse: bool) -> None:
        passage = Passage()
        async with aclosing(cast("Any", response.aiter_bytes())) as pieces:
            async for piece in pieces:
                passed = passage.feed(piece)
                if passage.is_over and not self.has_begun and not may_refuse:
                    raise _NotServed
                if passed:
                    await self._send(send, kind, passed)
                if passage.is_over:
                    break
        rest = passage.finish()
        if passage.is_over and not self.has_begun and not may_refuse:
            raise _NotServed
        await self._send(send, kind, rest)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send, kind: str, data: bytes) -> None:
        if not self.has_begun:
            await self._begin(send, 200, kind)
        await send({"type": "http.response.body", "body": data, "more_body": True})

    async def _begin(self, send: Send, status: int, kind: str, retry_after: str | None = None) -> None:
        headers = [(b"content-type", kind.encode("latin-1")), (b"cache-control", b"no-cache")]
        if retry_after is not None:
            headers.append((b"retry-after", retry_after.encode("latin-1")))
        self.has_begun = True
        await send({"type": "http.response.start", "status": status, "headers": headers})

    async def _break_off(self, send: Send, why: str) -> None:
        """End a stream in the middle: its status is sent, so the reason is an event, as llama-server sends it."""
        await send({"type": "http.response.body", "body": error_event(503, why, "unavailable_error"), "more_body": False})


def _is_error(body: bytes) -> bool:
    """Whether a whole answer under status 200 is an error."""
    if b'"error"' not in body[:200]:
        return False
    try:
        data: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    return isinstance(data, dict) and bool(cast("dict[str, Any]", data).get("error"))


async def _left(receive: Receive) -> None:
    """Return when the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
