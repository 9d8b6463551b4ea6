"""Which backend a configured server gets."""

from __future__ import annotations

import httpx

from services.scheduler.backends.base import Backend, ChatReply, ChatRequest, Health, ModelInfo, OnDelta
from services.scheduler.backends.faults import InferenceUnreachable
from services.scheduler.backends.llama_server import LlamaServerBackend
from services.scheduler.backends.openai import OpenAiBackend

WHAT_TO_DO = (
    "No inference server is configured or found. Start LM Studio, llama-server or Ollama on this machine, set "
    "AETHERIUM_INFERENCE__URL to a server, or install the local model with `make model`."
)


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
    """The backend for a server; `auto` asks it whether it is a llama-server."""
    if url is None:
        return NoBackend()
    if kind == "llama-server" or (kind == "auto" and await _speaks_llama(url, api_key)):
        return LlamaServerBackend(url, api_key=api_key)
    return OpenAiBackend(url, api_key=api_key)


async def _speaks_llama(url: str, api_key: str | None) -> bool:
    """Whether the server answers /props as llama-server does. One that is away now is taken as generic."""
    base = url.rstrip("/").removesuffix("/v1")
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        async with httpx.AsyncClient(timeout=2.0, trust_env=False) as client:
            answer = await client.get(f"{base}/props", headers=headers)
        return answer.status_code == 200 and "default_generation_settings" in answer.json()
    except (httpx.HTTPError, ValueError):
        return False
