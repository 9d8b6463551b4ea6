"""llama-server: the OpenAI protocol, and what it tells besides."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from services.scheduler.backends.base import Health, Json, ModelInfo
from services.scheduler.backends.faults import BackendRefused
from services.scheduler.backends.openai import OpenAiBackend


class LlamaServerBackend(OpenAiBackend):
    """One model behind llama-server, or its router."""

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
        settings: Any = props.get("default_generation_settings")
        context = _positive(cast("Json", settings).get("n_ctx")) if isinstance(settings, dict) else None
        return [replace(model, context=context, parallel=_positive(props.get("total_slots"))) for model in listed]

    async def _props(self) -> Json:
        try:
            return await self._server.get("/props")
        except BackendRefused:  # another server behind this setting, or the endpoint is closed
            return {}


def _positive(value: Any) -> int | None:
    return value if isinstance(value, int) and value > 0 else None
