"""A streaming model server that answers at once, so that what is left is the engine's own time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import orjson

PIECES = ("The ", "program ", "prints ", "the ", "25 ", "primes ", "below ", "100.")


def _chunk(delta: dict[str, str], finish: str | None = None, **more: object) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    body = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "instant", "choices": [choice], **more}
    return b"data: " + orjson.dumps(body) + b"\n\n"


USAGE = {"prompt_tokens": 100, "completion_tokens": len(PIECES), "total_tokens": 100 + len(PIECES)}
STREAM = b"".join([*(_chunk({"content": piece}) for piece in PIECES), _chunk({}, "stop"), _chunk({}, usage=USAGE), b"data: [DONE]\n\n"])
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
MODELS = orjson.dumps({"object": "list", "data": [{"id": "instant", "object": "model"}]})


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"POST "):
            size = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
            await reader.readexactly(size)
            writer.write(HEAD + STREAM)
        elif b" /v1/models" in head:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n" + MODELS)
        else:
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
    writer.close()


@asynccontextmanager
async def running() -> AsyncGenerator[str]:
    """Serve until the block ends; gives the URL."""
    server = await asyncio.start_server(_serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
