"""Finding an inference server on this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from services.scheduler.backends.faults import BackendFault, ModelLoading
from services.scheduler.backends.openai import OpenAiBackend

# LM Studio, llama-server, Ollama, each where it listens by default; the first that answers is taken.
USUAL_PLACES = ("http://127.0.0.1:1234", "http://127.0.0.1:8080", "http://127.0.0.1:11434")


async def detect(candidates: Sequence[str], *, timeout_s: float = 1.0) -> str | None:
    """The first of `candidates` that can serve a model, or None; all are asked at once.

    Servers answer 200 to anything, so the body must be a model list with a model in it; a server that
    is still loading one counts too.
    """
    async with asyncio.TaskGroup() as group:
        probes = [group.create_task(_serves(url, timeout_s)) for url in candidates]
    return next((url for url, probe in zip(candidates, probes, strict=True) if probe.result()), None)


async def _serves(url: str, timeout_s: float) -> bool:
    backend = OpenAiBackend(url)
    try:
        async with asyncio.timeout(timeout_s):
            return bool(await backend.models())
    except ModelLoading:
        return True
    except (BackendFault, TimeoutError):
        return False
    finally:
        await backend.close()
