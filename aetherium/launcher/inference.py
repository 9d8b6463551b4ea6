"""Which inference server is already there: the usual ones, on their usual ports of this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pydantic import BaseModel, ValidationError

from aetherium.launcher import probe

USUAL = (
    ("LM Studio", "http://127.0.0.1:1234"),
    ("llama-server", "http://127.0.0.1:8080"),
    ("Ollama", "http://127.0.0.1:11434"),
)


class _Listed(BaseModel):
    id: str


class _Models(BaseModel):
    data: list[_Listed]


async def models_of(url: str) -> list[str] | None:
    """The ids that an OpenAI-compatible server lists; None when no such server answers at `url`."""
    answer = await probe.get(f"{url.rstrip('/').removesuffix('/v1')}/v1/models")
    if answer is None:
        return None
    try:
        return [model.id for model in _Models.model_validate_json(answer.content).data]
    except ValidationError:
        return None  # something else lives on that port


async def detect(candidates: Sequence[tuple[str, str]] = USUAL) -> tuple[str, str] | None:
    """Name and URL of the first server that lists at least one model."""
    listed = await asyncio.gather(*(models_of(url) for _, url in candidates))
    return next((candidate for candidate, models in zip(candidates, listed, strict=True) if models), None)
