"""Which backend a configured server gets, and which management."""

from __future__ import annotations

from typing import Literal

import httpx

from services.scheduler.backends.base import Backend, ChatReply, ChatRequest, Health, ModelInfo, OnDelta
from services.scheduler.backends.faults import BackendFault, InferenceUnreachable, ModelLoading, NotManaged
from services.scheduler.backends.http import HttpServer
from services.scheduler.backends.llama_management import LlamaDialect
from services.scheduler.backends.llama_server import LlamaServerBackend
from services.scheduler.backends.lm_studio import LmStudioBackend, LmStudioDialect
from services.scheduler.backends.loads import Managed
from services.scheduler.backends.management import Can, Dialect, Management, Row
from services.scheduler.backends.openai import OpenAiBackend

WHAT_TO_DO = (
    "No inference server is configured or found. Start LM Studio, llama-server or Ollama on this machine, set "
    "AETHERIUM_INFERENCE__URL to a server, or install the local model with `make model`."
)
_PROBE_S = 2.0

ServerKind = Literal["openai", "llama-server", "lm-studio"]


class NoBackend:
    """Stands in when there is no server, so that a run fails at once and says what to do."""

    name = "none"

    async def chat(self, request: ChatRequest, on_delta: OnDelta | None = None) -> ChatReply:
        raise InferenceUnreachable(WHAT_TO_DO)

    async def models(self) -> list[ModelInfo]:
        return []

    async def healthy(self) -> Health:
        return Health("down", WHAT_TO_DO)

    async def close(self) -> None:
        return None


async def choose(url: str | None, kind: str, api_key: str | None = None) -> Backend:
    """The backend for a server; `auto` asks it what it is. One that is away now is taken as generic."""
    if url is None:
        return NoBackend()
    match await _kind_or_generic(url, api_key) if kind == "auto" else kind:
        case "llama-server":
            return LlamaServerBackend(url, api_key=api_key)
        case "lm-studio":
            return LmStudioBackend(url, api_key=api_key)
        case _:
            return OpenAiBackend(url, api_key=api_key)


async def _kind_or_generic(url: str, api_key: str | None) -> ServerKind:
    try:
        return await server_kind(url, api_key=api_key)
    except BackendFault:
        return "openai"


async def server_kind(url: str, *, api_key: str | None = None, transport: httpx.AsyncBaseTransport | None = None) -> ServerKind:
    """What answers at `url`.

    Raises:
        BackendFault: nothing that can be told from another answers there now.
    """
    server = HttpServer(url, api_key=api_key, transport=transport)
    try:
        if await _is_llama_server(server):
            return "llama-server"
        if await _is_lm_studio(server):
            return "lm-studio"
        await server.get("/v1/models", timeout_s=_PROBE_S)
        return "openai"
    finally:
        await server.close()


async def _is_llama_server(server: HttpServer) -> bool:
    try:
        return "default_generation_settings" in await server.get("/props", timeout_s=_PROBE_S)
    except ModelLoading:
        return True
    except InferenceUnreachable:
        raise
    except BackendFault:
        return False


async def _is_lm_studio(server: HttpServer) -> bool:
    """Others answer 404 there, or 200 with something that is no list."""
    try:
        return isinstance((await server.get("/api/v0/models", timeout_s=_PROBE_S)).get("data"), list)
    except InferenceUnreachable:
        raise
    except BackendFault:
        return False


def manage(url: str, kind: str = "auto", *, api_key: str | None = None, transport: httpx.AsyncBaseTransport | None = None) -> Management:
    """The management of a server. With `auto` it is asked what it is when it first answers."""
    return Managed(_dialect(url, kind, api_key, transport))


def _dialect(url: str, kind: str, api_key: str | None, transport: httpx.AsyncBaseTransport | None) -> Dialect:
    match kind:
        case "llama-server":
            return LlamaDialect(url, api_key=api_key, transport=transport)
        case "lm-studio":
            return LmStudioDialect(url, api_key=api_key, transport=transport)
        case "auto":
            return _Detecting(url, api_key, transport)
        case _:
            return NoDialect(url)


class NoDialect:
    """Ollama, vLLM and others that are known by the OpenAI protocol alone: its model list has no states (integrations, "LM Studio")."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def close(self) -> None:
        return None

    async def can(self) -> Can:
        return Can()

    async def listing(self) -> tuple[Row, ...]:
        raise NotManaged(f"{self.url} does not tell which models are loaded. Name its kind in the settings, if it is one that does.")

    async def load(self, row: Row | None, model: str, context_tokens: int | None) -> str | None:
        raise NotManaged(f"{self.url} loads no models when asked. Load {model!r} there.")

    async def unload(self, row: Row) -> None:
        raise NotManaged(f"{self.url} unloads no models when asked. Unload {row.id!r} there.")


class _Detecting:
    """A server of unknown kind, which may be away when the scheduler starts."""

    def __init__(self, url: str, api_key: str | None, transport: httpx.AsyncBaseTransport | None) -> None:
        self.url = url
        self._api_key, self._transport = api_key, transport
        self._found: Dialect | None = None

    async def _dialect(self) -> Dialect:
        if self._found is None:
            kind = await server_kind(self.url, api_key=self._api_key, transport=self._transport)
            self._found = self._found or _dialect(self.url, kind, self._api_key, self._transport)
        return self._found

    async def close(self) -> None:
        if self._found is not None:
            await self._found.close()

    async def can(self) -> Can:
        return await (await self._dialect()).can()

    async def listing(self) -> tuple[Row, ...]:
        return await (await self._dialect()).listing()

    async def load(self, row: Row | None, model: str, context_tokens: int | None) -> str | None:
        return await (await self._dialect()).load(row, model, context_tokens)

    async def unload(self, row: Row) -> None:
        await (await self._dialect()).unload(row)
