"""A TCP proxy in front of a server, which can lose what the server says or end all connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class Proxy:
    """`deaf`: what the server answers is lost, while everything still reaches it."""

    def __init__(self, port: int) -> None:
        self.target = port
        self.port = 0
        self.deaf = False
        self.lost = 0
        self._writers: set[asyncio.StreamWriter] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self.target)
        self._writers |= {writer, back}
        try:
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump(reader, back, answers=False))
                pumps.create_task(self._pump(there, writer, answers=True))
        finally:
            self._writers -= {writer, back}
            writer.close()
            back.close()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, answers: bool) -> None:
        with suppress(ConnectionError):
            while data := await source.read(65536):
                if answers and self.deaf:
                    self.lost += len(data)
                    continue
                sink.write(data)
                await sink.drain()
        sink.close()

    def cut(self) -> None:
        """End every connection, as a network does."""
        for writer in list(self._writers):
            writer.transport.abort()


@asynccontextmanager
async def proxied(port: int) -> AsyncIterator[Proxy]:
    proxy = Proxy(port)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        proxy.cut()
