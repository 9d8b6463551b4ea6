"""Any OpenAI-compatible server: chat as a stream, model list, health."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import httpx

from services.scheduler.backends.assembly import Assembly
from services.scheduler.backends.base import ChatReply, ChatRequest, Delta, Health, Json, ModelInfo, OnDelta
from services.scheduler.backends.errors import error_in_body, fault_of
from services.scheduler.backends.faults import BackendFault, CallTimeout, ModelLoading, StreamBroken
from services.scheduler.backends.http import HttpServer, chunks_of, read_text
from services.scheduler.backends.sse import LineTooLong, SseEvent, SseParser

_IDLE_S = 600.0  # a long prompt on a slow machine is silent for minutes
_HEALTH_S = 2.0
_DONE = "[DONE]"


class OpenAiBackend:
    """A server that is known only by the protocol it speaks."""

    _chat_path = "/v1/chat/completions"

    def __init__(
        self,
        url: str,
        *,
        name: str = "openai",
        api_key: str | None = None,
        idle_timeout_s: float = _IDLE_S,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """`url` with or without `/v1`. Raises ValueError if it is not an http URL."""
        self._server = HttpServer(url, api_key=api_key, transport=transport)
        self._name = name
        self._idle_timeout_s = idle_timeout_s

    @property
    def name(self) -> str:
        return self._name

    @property
    def url(self) -> str:
        return self._server.url

    async def close(self) -> None:
        await self._server.close()

    async def chat(self, request: ChatRequest, on_delta: OnDelta | None = None) -> ChatReply:
        """Answer one request; see `Backend.chat`. Always streamed, so that a caller who leaves stops the work."""
        answer = _Answer(on_delta, lambda assembly: self._check_answer(request, assembly))
        limit = asyncio.timeout(request.timeout_s)
        with _keeping_fragment(answer.assembly):
            try:
                async with limit:
                    await self._exchange(request, answer)
            except TimeoutError as error:
                if not limit.expired():
                    raise
                message = f"{self.url} did not finish within {request.timeout_s:g} s. Allow more time, or ask for less."
                raise CallTimeout(message, server=self.url, kind="total", timeout_s=request.timeout_s) from error
        return answer.reply()

    async def _exchange(self, request: ChatRequest, answer: _Answer) -> None:
        body = {**_body_of(request), **self._extras()}
        idle_timeout_s = request.idle_timeout_s or self._idle_timeout_s
        with self._server.translating():
            async with self._server.post(self._chat_path, body, idle_timeout_s=idle_timeout_s) as response:
                if _is_stream(response):
                    await self._read_stream(response, answer)
                else:
                    answer.take_whole(self._server.object_of(await read_text(response), response.status_code))
        if answer.assembly.finish_reason is None or not answer.is_done:
            raise StreamBroken(f"The answer of {self.url} ended before it was whole. Try again.", server=self.url)

    def _check_answer(self, request: ChatRequest, assembly: Assembly) -> None:
        """Refuse an answer that is not from what was asked. Called for each chunk, before anybody hears of it."""

    def _extras(self) -> Json:
        """Fields that only this kind of server knows."""
        return {}

    async def _read_stream(self, response: httpx.Response, answer: _Answer) -> None:
        parser = SseParser()
        try:
            async with chunks_of(response) as chunks:
                async for chunk in chunks:
                    for event in parser.feed(chunk):
                        self._take(event, answer)
                    if answer.is_done:
                        return
        except LineTooLong as error:
            raise self._server.protocol_error("sent a line without end") from error
        for event in parser.finish():
            self._take(event, answer)

    def _take(self, event: SseEvent, answer: _Answer) -> None:
        """One event: an error before anything else, then the end, then a chunk."""
        if event.kind == "error":
            raise fault_of(error_in_body(event.data), status=None, server=self.url)
        if event.stray:
            self._take_stray(event.data)
        elif event.data.strip() == _DONE:
            answer.is_done = True
        elif not answer.is_done:
            answer.take(self._server.object_of(event.data))

    def _take_stray(self, line: str) -> None:
        """A line that is no SSE: an error of the server or of a router before it; anything else is ignored."""
        if line.startswith("{") or line.lower().startswith("proxy error"):
            raise fault_of(error_in_body(line), status=None, server=self.url)

    async def models(self) -> list[ModelInfo]:
        """The models that the server lists. A listed model need not be loaded."""
        rows: Any = (await self._server.get("/v1/models")).get("data")
        if not isinstance(rows, list | None):
            raise self._server.protocol_error("sent a model list that is none")
        listed = [cast("Json", row) for row in cast("list[Any]", rows or []) if isinstance(row, dict)]
        return [ModelInfo(id=str(row["id"])) for row in listed if row.get("id")]

    async def healthy(self) -> Health:
        """Whether it answers. A model list alone does not tell that a model is loaded."""
        return await self._health_at("/v1/models")

    async def _health_at(self, path: str) -> Health:
        try:
            await self._server.get(path, timeout_s=_HEALTH_S)
        except ModelLoading as fault:
            return Health("loading", fault.message)
        except BackendFault as fault:
            return Health("down", fault.message)
        return Health("ready")


@dataclass(slots=True)
class _Answer:
    """An answer as it grows, with its times."""

    on_delta: OnDelta | None
    check: Callable[[Assembly], None]
    assembly: Assembly = field(default_factory=Assembly)
    is_done: bool = False
    started: float = field(default_factory=time.perf_counter)
    first_token_ms: float | None = None

    def take(self, chunk: Json) -> None:
        self._tell(self.assembly.add(chunk))

    def take_whole(self, body: Json) -> None:
        """A server that does not stream: its body is as whole as HTTP says it is."""
        self._tell(self.assembly.add_whole(body))
        self.is_done = True

    def _tell(self, delta: Delta | None) -> None:
        self.check(self.assembly)
        if self.first_token_ms is None and self.assembly.has_begun:
            self.first_token_ms = self._elapsed_ms()
        if delta is not None and self.on_delta is not None:
            self.on_delta(delta)

    def _elapsed_ms(self) -> float:
        return (time.perf_counter() - self.started) * 1000

    def reply(self) -> ChatReply:
        parts = self.assembly
        return ChatReply(
            content=parts.content,
            reasoning=parts.reasoning,
            tool_calls=parts.calls,
            finish_reason=parts.finish_reason or "stop",
            model=parts.model,
            usage=parts.usage,
            first_token_ms=self.first_token_ms,
            duration_ms=self._elapsed_ms(),
        )


@contextmanager
def _keeping_fragment(assembly: Assembly) -> Generator[None]:
    """Add to a fault what the model had written, for people to read; it is never an answer."""
    try:
        yield
    except BackendFault as fault:
        if assembly.content:
            fault.details["fragment"] = assembly.content
        raise


def _is_stream(response: httpx.Response) -> bool:
    kind = response.headers.get("content-type", "").lower()
    return "json" not in kind and "html" not in kind


def _body_of(request: ChatRequest) -> Json:
    optional: Json = {
        "model": request.model,
        "tools": list(request.tools) or None,
        "temperature": request.temperature,
        "seed": request.seed,
        "top_p": request.top_p,
        "max_tokens": request.max_tokens,
        "response_format": request.response_format,
        "stop": list(request.stop) or None,
    }
    fixed: Json = {"messages": list(request.messages), "stream": True, "stream_options": {"include_usage": True}}
    return {**fixed, **{name: value for name, value in optional.items() if value is not None}}
