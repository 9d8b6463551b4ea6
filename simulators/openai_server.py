"""A scripted model behind llama-server's wire format.

    python -m simulators.openai_server --script FILE --port 0 --port-file F

Answers come from a script (`simulators.script`); every request is kept and shown by `GET /_requests`,
with how it ended, so that a test can tell a client that left from one that was served.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import uvicorn
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from simulators import wire
from simulators.script import DEFAULT_SCRIPT, Chosen, FaultKind, Script, load_script
from simulators.wire import Answer, Json

SERVED, FAULTED, CLIENT_LEFT, OPEN = "served", "faulted", "client_left", "open"
_EVENT_STREAM = "text/event-stream"


@dataclass(slots=True)
class Recorded:
    """A chat request as it arrived, and how it ended: open, served, faulted or client_left."""

    index: int
    body: Json
    headers: dict[str, str]
    outcome: str = OPEN

    def as_dict(self) -> Json:
        return {"index": self.index, "body": self.body, "headers": self.headers, "outcome": self.outcome}


class ClientLeft(Exception):
    """The client closed its connection, or the server stops."""


@dataclass(slots=True)
class Exchange:
    """One HTTP exchange: what ASGI gives, and the moment the client leaves."""

    send: Send
    gone: asyncio.Event
    transport: asyncio.Transport
    started: bool = False

    def drop(self) -> None:
        """Close the socket, whatever the answer lacks."""
        self.transport.close()

    async def pause(self, seconds: float | None) -> None:
        """Wait, but not for a client that has left. None waits for that alone."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.gone.wait(), seconds)
        if self.gone.is_set():
            raise ClientLeft

    async def json(self, status: int, body: Json) -> None:
        await self.head(status, "application/json; charset=utf-8")
        await self.end(json.dumps(body).encode())

    async def head(self, status: int, content_type: str) -> None:
        self.started = True
        await self.send({"type": "http.response.start", "status": status, "headers": [(b"content-type", content_type.encode())]})

    async def write(self, data: bytes) -> None:
        if self.gone.is_set():
            raise ClientLeft
        await self.send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes = b"") -> None:
        await self.send({"type": "http.response.body", "body": data, "more_body": False})


@dataclass(slots=True)
class ScriptedServer:
    """The ASGI application. One instance is one simulated server with its own counters."""

    script: Script
    keep: int | None = None  # bodies of the newest requests that are kept; None = all
    requests: list[Recorded] = field(default_factory=list[Recorded])
    _faults: Counter[tuple[int, int]] = field(default_factory=Counter[tuple[int, int]])
    _started_at: float = field(default_factory=time.monotonic)
    _open: set[asyncio.Event] = field(default_factory=set[asyncio.Event])
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def until(self, reached: Callable[[list[Recorded]], bool]) -> None:
        """Wait until the recorded requests satisfy `reached`."""
        async with self._changed:
            await self._changed.wait_for(lambda: reached(self.requests))

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def stop(self) -> None:
        """End every answer that is still being given."""
        for gone in self._open:
            gone.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        body = await _read_body(receive)
        gone = asyncio.Event()
        self._open.add(gone)
        watcher = asyncio.create_task(_watch(receive, gone))
        exchange = Exchange(send, gone, scope["state"]["transport"])
        try:
            await self._route(scope, body, exchange)
        except ClientLeft:
            exchange.drop()
        finally:
            watcher.cancel()
            self._open.discard(gone)

    async def _route(self, scope: Scope, body: bytes, exchange: Exchange) -> None:
        method, path = scope["method"], scope["path"]
        if (method, path) == ("GET", "/_requests"):
            await exchange.json(200, {"requests": [request.as_dict() for request in self.requests]})
        elif time.monotonic() - self._started_at < self.script.load_s:
            await exchange.json(503, wire.LOADING)
        elif (method, path) in {("POST", "/v1/chat/completions"), ("POST", "/chat/completions")}:
            await self._chat(scope, body, exchange)
        elif (page := self._page(method, path)) is not None:
            await exchange.json(200, page)
        else:
            await exchange.json(404, wire.NOT_FOUND)

    def _page(self, method: str, path: str) -> Json | None:
        pages: dict[tuple[str, str], Callable[[], Json]] = {
            ("GET", "/health"): lambda: {"status": "ok"},
            ("GET", "/v1/models"): lambda: wire.models(self.script),
            ("GET", "/models"): lambda: wire.models(self.script),
            ("GET", "/props"): lambda: wire.props(self.script),
        }
        page = pages.get((method, path))
        return page() if page else None

    async def _chat(self, scope: Scope, raw: bytes, exchange: Exchange) -> None:
        try:
            body: Json = json.loads(raw)
            messages: list[Json] = body["messages"]
        except (ValueError, KeyError, TypeError) as error:
            await exchange.json(500, {"error": {"code": 500, "message": f"parse error: {error}", "type": "server_error"}})
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        request = Recorded(len(self.requests), body, headers)
        self.requests.append(request)
        if self.keep is not None and request.index >= self.keep:
            self.requests[request.index - self.keep].body = {}
        await self._tell()
        try:
            request.outcome = await self._answer(body, messages, exchange)
        except ClientLeft:
            request.outcome = CLIENT_LEFT
            exchange.drop()
        await self._tell()

    async def _answer(self, body: Json, messages: list[Json], exchange: Exchange) -> str:
        chosen = self.script.choose(messages)
        if chosen is None:
            await exchange.json(400, wire.bad_request("the script has no conversation for this request"))
            return FAULTED
        answer, fault = Answer(self._script_for(body), chosen, body), self._fault_of(chosen)
        if fault is not None and await self._refuse(fault, answer, exchange):
            return FAULTED
        if chosen.spec.first_token_delay_s:
            await exchange.pause(chosen.spec.first_token_delay_s)
        if not body.get("stream") and fault is None:
            await exchange.json(200, answer.whole())
            return SERVED
        await exchange.head(200, _EVENT_STREAM)
        await self._stream_deltas(answer, chosen, fault, exchange)
        if fault is not None:
            await _break_stream(fault, exchange)
            return FAULTED
        options: Json = body.get("stream_options") or {}
        include_usage = bool(options.get("include_usage"))
        for chunk in answer.closing_chunks(include_usage=include_usage):
            await exchange.write(_event(chunk))
        await exchange.end(b"data: [DONE]\n\n")
        return SERVED

    def _script_for(self, body: Json) -> Script:
        """The script as the model that answers this request has it."""
        return self.script

    def _fault_of(self, chosen: Chosen) -> FaultKind | None:
        """The fault that hits this request. Counted before anything is awaited, so arrival order decides."""
        spec = chosen.spec
        if spec.fault is None:
            return None
        place = (chosen.conversation, chosen.entry)
        self._faults[place] += 1
        return spec.fault if spec.first_n is None or self._faults[place] <= spec.first_n else None

    async def _refuse(self, fault: FaultKind, answer: Answer, exchange: Exchange) -> bool:
        """Answer with a fault that shows before the stream begins. False: it shows later."""
        match fault:
            case FaultKind.HTTP_500:
                await exchange.json(500, wire.BROKEN)
            case FaultKind.PARSER_REJECTS:
                await exchange.json(500, wire.PARSER_REJECTS)
            case FaultKind.LOADING:
                await exchange.json(503, wire.LOADING)
            case FaultKind.CONTEXT_EXCEEDED:
                context = self.script.context
                await exchange.json(400, wire.context_exceeded(max(answer.prompt_tokens, context + 1), context))
            case FaultKind.NEVER:
                await exchange.pause(None)
            case FaultKind.DROP_BEFORE_ANSWER:
                exchange.drop()
            case _:
                return False
        return True

    async def _stream_deltas(self, answer: Answer, chosen: Chosen, fault: FaultKind | None, exchange: Exchange) -> None:
        deltas = list(answer.deltas())
        shown = deltas if fault is None else deltas[: max(1, len(deltas) // 2)]
        for number, delta in enumerate(shown):
            if number > 1 and chosen.spec.delay_s:
                await exchange.pause(chosen.spec.delay_s)
            await exchange.write(_event(answer.chunk(delta)))


async def _break_stream(fault: FaultKind, exchange: Exchange) -> None:
    match fault:
        case FaultKind.ERROR_IN_STREAM:
            await exchange.write(_event(wire.BROKEN))
            await exchange.end()
        case FaultKind.GARBAGE:
            await exchange.end(b'data: {"choices": [{"delta": {"content": \n\ndata: [DONE]\n\n')
        case FaultKind.PROXY_ERROR_IN_STREAM:
            await exchange.end(wire.PROXY_ERROR)
        case FaultKind.HALF_STREAM:
            await exchange.end()
        case _:
            exchange.drop()  # DROP_MID_STREAM: what was written is still sent


def _event(data: Json) -> bytes:
    return b"data: " + json.dumps(data, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n\n"


async def _read_body(receive: Receive) -> bytes:
    parts: list[bytes] = []
    while True:
        message: Message = await receive()
        parts.append(message.get("body", b""))
        if message["type"] != "http.request" or not message.get("more_body"):
            return b"".join(parts)


async def _watch(receive: Receive, gone: asyncio.Event) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    gone.set()


class _Protocol(H11Protocol):
    """Hands each request its connection, so that a fault can close it before a status line is sent."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        self.app_state = {**self.app_state, "transport": transport}


class Server(uvicorn.Server):
    """Serves a script: as a process with `serve`, or within another program with `open` and `shut`."""

    def __init__(self, app: ScriptedServer, on_ready: Callable[[], None] | None = None) -> None:
        # Faults end a response early on purpose, which uvicorn reports as an error: hence "critical".
        config = uvicorn.Config(
            app, log_level="critical", access_log=False, lifespan="off", ws="none", http=_Protocol, timeout_graceful_shutdown=1
        )
        super().__init__(config)
        self._app, self._on_ready = app, on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._on_ready is not None:
            self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._app.stop()
        await super().shutdown(sockets)

    async def open(self, sock: socket.socket) -> None:
        """Accept connections on `sock`, and leave the program's signals alone."""
        self.config.load()
        self.lifespan = self.config.lifespan_class(self.config)
        await self.startup([sock])

    async def shut(self) -> None:
        """End every answer and close every connection, now; `shutdown` waits for politeness' sake."""
        for server in self.servers:
            server.close()
        self._app.stop()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        await asyncio.gather(*self.server_state.tasks)


def bind(port: int, host: str = "127.0.0.1") -> socket.socket:
    """A bound socket; port 0 takes a free one."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((host, port))
    return sock


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m simulators.openai_server", description="A scripted OpenAI-compatible model server.")
    parser.add_argument("--script", type=Path, default=DEFAULT_SCRIPT, help="YAML script; default: the demo's task")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free port")
    parser.add_argument("--port-file", type=Path, help="written with the port once the server accepts connections")
    parser.add_argument("--keep", type=int, default=200, help="request bodies kept for /_requests (default 200)")
    options = parser.parse_args(argv)
    app = ScriptedServer(load_script(options.script), keep=options.keep)
    serve_app(app, "scripted model", options.host, options.port, options.port_file)


def serve_app(app: ScriptedServer, what: str, host: str, port: int, port_file: Path | None) -> None:
    """Serve as a process until it is interrupted; port 0 takes a free one."""
    sock = bind(port, host)
    taken = sock.getsockname()[1]

    def ready() -> None:
        if port_file is not None:
            _write_whole(port_file, f"{taken}\n")
        print(f"{what} at http://{host}:{taken}", flush=True)

    with suppress(KeyboardInterrupt):
        asyncio.run(Server(app, ready).serve([sock]))


def _write_whole(path: Path, text: str) -> None:
    """Replace in one step: a reader never meets an empty port file."""
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


if __name__ == "__main__":
    main()
