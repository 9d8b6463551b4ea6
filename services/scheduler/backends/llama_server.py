"""llama-server: the OpenAI protocol, and what it tells besides."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from services.scheduler.backends.base import Health, Json, ModelInfo
from services.scheduler.backends.faults import BackendRefused
from services.scheduler.backends.fields import count_at, object_at
from services.scheduler.backends.openai import OpenAiBackend


class LlamaServerBackend(OpenAiBackend):
    """One model behind llama-server, or its router.

    With `autoload=False` the router loads nothing for a call, which would unload another model that somebody
    else needs: it answers that the model is not loaded, and whoever decides about the card loads it.
    """

    def __init__(self, url: str, *, autoload: bool = True, **options: Any) -> None:
        super().__init__(url, **options)
        if not autoload:
            self._chat_path = "/v1/chat/completions?autoload=false"

    def _extras(self) -> Json:
        # Progress chunks while it reads the prompt, so that silence means trouble.
        return {"cache_prompt": True, "return_progress": True}

    async def healthy(self) -> Health:
        """Ready once the model is loaded; the model list answers earlier and does not count."""
        return await self._health_at("/health")

    async def models(self) -> list[ModelInfo]:
        """The models, with the context of one slot: the server divides what it was started with."""
        listed = await super().models()
        props = await self._props()
        if props.get("role") == "router":
            return await self._router_models()
        context = count_at(object_at(props, "default_generation_settings"), "n_ctx")
        return [replace(model, context=context, parallel=count_at(props, "total_slots")) for model in listed]

    async def _router_models(self) -> list[ModelInfo]:
        """Its models; those that run tell their context, which is that of one slot."""
        rows = self._server.rows_of(await self._server.get("/models"), "data", "id")
        return [ModelInfo(id=str(row["id"]), context=count_at(object_at(row, "meta"), "n_ctx")) for row in rows]

    async def _props(self) -> Json:
        try:
            return await self._server.get("/props")
        except BackendRefused:  # another server behind this setting, or the endpoint is closed
            return {}
