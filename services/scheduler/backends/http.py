"""The HTTP side of every backend: one client, bounded bodies, driver errors translated once."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Any, cast

import httpx
import orjson

from services.scheduler.backends.base import Json
from services.scheduler.backends.errors import error_in, error_in_body, fault_of
from services.scheduler.backends.faults import BackendFault, CallTimeout, ConnectionDropped, InferenceUnreachable, ProtocolError

_MAX_ERROR_BODY = 2**20
_MAX_BODY = 64 * 2**20
_CONNECT_S = 5.0
_QUERY_S = 5.0


class HttpServer:
    """An inference server's address. Every failure leaves here as a `BackendFault`."""

    def __init__(self, url: str, *, api_key: str | None = None, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self.url = root_of(url)
        self._client = httpx.AsyncClient(
            base_url=self.url,
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            trust_env=False,  # a proxy of the environment must not see prompts for a local server
            # llama-server closes a socket after a stream although it promised to keep it: a reused
            # connection then fails on the next request. A fresh one costs a fraction of a millisecond.
            limits=httpx.Limits(max_keepalive_connections=0),
            verify=_tls_of(self.url),
            transport=transport,
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def get(self, path: str, *, timeout_s: float = _QUERY_S) -> Json:
        """The JSON object at `path`. A body that holds an error is a fault under any status."""
        with self.translating():
            response = await self._client.get(path, timeout=timeout_s)
        if response.status_code != 200:
            raise self.fault_of_response(response, response.text)
        return self.object_of(response.text, response.status_code)

    async def ask(self, path: str, body: Json, *, timeout_s: float) -> Json:
        """The JSON object that a POST is answered with, after a silence of at most `timeout_s`."""
        with self.translating():
            async with self.post(path, body, idle_timeout_s=timeout_s) as response:
                text = await read_text(response)
        return self.object_of(text, response.status_code)

    @asynccontextmanager
    async def post(self, path: str, body: Json, *, idle_timeout_s: float | None) -> AsyncGenerator[httpx.Response]:
        """An open answer to a POST, with status 200. Leaving the block closes the connection."""
        timeout = httpx.Timeout(idle_timeout_s, connect=_CONNECT_S, write=30.0)
        content = _as_json(body)
        headers = {"Content-Type": "application/json"}
        async with self._client.stream("POST", path, content=content, headers=headers, timeout=timeout) as response:
            if response.status_code != 200:
                raise self.fault_of_response(response, await read_text(response, _MAX_ERROR_BODY))
            yield response

    def object_of(self, text: str, status: int | None = None) -> Json:
        """A JSON object that is no error."""
        try:
            data: Any = _from_json(text)
        except (ValueError, RecursionError) as error:
            if text.lstrip().lower().startswith("proxy error"):
                raise fault_of(error_in_body(text), status=status, server=self.url) from error
            raise self.protocol_error(f"sent what is not JSON: {text[:80]!r}") from error
        if (failed := error_in(data)) is not None:
            raise fault_of(failed, status=status, server=self.url)
        if not isinstance(data, dict):
            raise self.protocol_error(f"sent JSON that is no object: {text[:80]!r}")
        return cast("Json", data)

    def rows_of(self, body: Json, name: str, key: str) -> list[Json]:
        """The objects in the list `name`, each with a text under `key`. A list that is missing or broken is no empty list."""
        items: Any = body.get(name)
        if not isinstance(items, list):
            raise self.protocol_error(f"sent no list of {name}")
        for item in cast("list[Any]", items):
            if not isinstance(item, dict) or not isinstance(cast("Json", item).get(key), str):
                raise self.protocol_error(f"sent a list of {name} with an entry that has no {key}")
        return cast("list[Json]", items)

    def protocol_error(self, what: str) -> ProtocolError:
        return ProtocolError(f"{self.url} {what}. Check that the URL is that of an OpenAI-compatible server.", server=self.url)

    def fault_of_response(self, response: httpx.Response, text: str) -> BackendFault:
        """The fault that a response other than 200 means."""
        after = response.headers.get("retry-after", "")
        seconds = float(after) if after.isascii() and after.isdigit() else None
        return fault_of(error_in_body(text), status=response.status_code, server=self.url, retry_after_s=seconds)

    @contextmanager
    def translating(self) -> Generator[None]:
        """Turn the driver's errors into faults."""
        try:
            yield
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            message = f"No inference server answers at {self.url}. Start it, or set the URL of the one to use."
            raise InferenceUnreachable(message, server=self.url) from error
        except httpx.TimeoutException as error:
            message = f"{self.url} was silent for too long. Raise the idle timeout, or use a smaller prompt or model."
            raise CallTimeout(message, server=self.url, kind="idle") from error
        except httpx.DecodingError as error:
            raise self.protocol_error("sent a body that cannot be decoded") from error
        except httpx.TransportError as error:
            message = f"{self.url} closed the connection before its answer was whole. Try again; then look into the server's log."
            raise ConnectionDropped(message, server=self.url) from error


def _as_json(body: Json) -> bytes:
    try:
        return orjson.dumps(body)
    except TypeError:  # a lone surrogate cannot be sent as UTF-8; stored text holds none, and a test's may
        return json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")


def _from_json(text: str) -> Any:
    try:
        return orjson.loads(text)
    except ValueError:  # half of a surrogate pair, or NaN: servers send both, and the standard allows neither
        return json.loads(text)


def _tls_of(url: str) -> ssl.SSLContext | bool:
    """Certificates are loaded only for https: that takes longer than a whole local call."""
    return True if url.startswith("https:") else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def root_of(url: str) -> str:
    """The address without its `/v1`, so that paths beside it can be reached too.

    >>> root_of("http://127.0.0.1:1234/v1/")
    'http://127.0.0.1:1234'

    Raises:
        ValueError: not an http or https URL with a host.
    """
    try:
        parsed = httpx.URL(url.strip())
    except httpx.InvalidURL as error:
        raise ValueError(f"{url!r} is not a URL: {error}") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ValueError(f"{url!r} is not an http or https URL")
    return str(parsed).rstrip("/").removesuffix("/v1").rstrip("/")


def chunks_of(response: httpx.Response) -> aclosing[AsyncGenerator[bytes]]:
    """The body in pieces, decompressed, closed with its block."""
    return aclosing(cast("AsyncGenerator[bytes]", response.aiter_bytes()))


async def read_text(response: httpx.Response, limit: int = _MAX_BODY) -> str:
    """The body as text, of which no more than `limit` bytes are kept."""
    parts: list[bytes] = []
    size = 0
    async with chunks_of(response) as chunks:
        async for chunk in chunks:
            parts.append(chunk)
            size += len(chunk)
            if size > limit:
                break
    return b"".join(parts)[:limit].decode("utf-8", "replace")
