"""The inference servers as the relay reaches them."""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx

CONNECT_S = 5.0
MAX_WHOLE = 64 * 2**20


class TooLong(Exception):
    """An answer that is no stream is larger than any that a model gives."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """An inference server, as it is reached. Its key goes to it and nowhere else."""

    url: str
    api_key: str | None = field(default=None, repr=False)


@dataclass
class Servers:
    """One client for each. `silence_s` is the longest pause of a server inside one answer."""

    silence_s: float
    transport: httpx.AsyncBaseTransport | None = None
    _clients: dict[Upstream, httpx.AsyncClient] = field(default_factory=dict[Upstream, httpx.AsyncClient])

    @asynccontextmanager
    async def chat(self, upstream: Upstream, body: bytes) -> AsyncGenerator[httpx.Response]:
        """The open answer to a chat. Leaving the block closes the connection, which stops the server's work.

        Raises:
            httpx.HTTPError: the server cannot be reached, or falls silent.
        """
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        timeout = httpx.Timeout(self.silence_s, connect=CONNECT_S)
        async with self._client(upstream).stream(
            "POST", "/v1/chat/completions", content=body, headers=headers, timeout=timeout
        ) as response:
            yield response

    async def models(self, upstream: Upstream) -> httpx.Response:
        return await self._client(upstream).get("/v1/models", timeout=CONNECT_S)

    async def close(self) -> None:
        clients, self._clients = self._clients, {}
        for client in clients.values():
            await client.aclose()

    def _client(self, upstream: Upstream) -> httpx.AsyncClient:
        found = self._clients.get(upstream)
        if found is None:
            found = self._clients[upstream] = httpx.AsyncClient(
                base_url=upstream.url.rstrip("/").removesuffix("/v1"),
                headers={"Authorization": f"Bearer {upstream.api_key}"} if upstream.api_key else {},
                trust_env=False,  # a proxy of the environment must not see what is said to a local server
                # llama-server closes a socket after a stream although it promised to keep it: see the scheduler's client.
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
                # Certificates are loaded only for https: that takes longer than a whole local call.
                verify=True if upstream.url.startswith("https:") else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
                transport=self.transport,
            )
        return found


async def whole(response: httpx.Response) -> bytes:
    """
    Raises:
        TooLong: it has more than 64 MiB.
    """
    parts, size = list[bytes](), 0
    async for piece in response.aiter_bytes():
        parts.append(piece)
        size += len(piece)
        if size > MAX_WHOLE:
            raise TooLong
    return b"".join(parts)
