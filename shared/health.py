"""/healthz (alive), /readyz (dependencies) and /metrics of a process that serves nothing else over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import orjson
from prometheus_client import generate_latest

Ready = Callable[[], Awaitable[dict[str, str]]]
"""Gives what is missing, by dependency; empty = ready."""


async def serve(host: str, port: int, ready: Ready) -> asyncio.Server | None:
    """Answer on `host:port` until the server is closed; port 0 = do not."""
    if not port:
        return None

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5.0)
            status, kind, body = await _respond(head.split(b" ", 2)[1].decode("ascii", "replace"), ready)
            writer.write(
                f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body
            )
            await writer.drain()
        writer.close()

    return await asyncio.start_server(answer, host, port)


async def _respond(path: str, ready: Ready) -> tuple[str, str, bytes]:
    match path.partition("?")[0]:
        case "/healthz":
            return "200 OK", "application/json", b'{"status":"ok"}'
        case "/readyz":
            missing = await ready()
            status = "503 Service Unavailable" if missing else "200 OK"
            return status, "application/json", orjson.dumps({"status": "waiting" if missing else "ready", "missing": missing})
        case "/metrics":
            return "200 OK", "text/plain; version=0.0.4", generate_latest()
        case _:
            return "404 Not Found", "application/json", b'{"title":"not found"}'
