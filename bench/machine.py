"""A nats-server of the bench's own, configured as the engine ships it, and the other processes that it needs."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from aetherium.launcher import nats, probe, stack
from aetherium.launcher.ports import Ports

PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Server:
    """A running nats-server."""

    url: str
    pid: int
    version: str


@asynccontextmanager
async def nats_server() -> AsyncGenerator[Server]:
    """A server with fsync on every append, in a folder that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="aetherium-bench-") as folder:
        ports = Ports()
        port, monitor = ports.pick(0, "127.0.0.1"), ports.pick(0, "127.0.0.1")
        spec = nats.spec(Path(folder), port=port, monitor_port=monitor, env=dict(os.environ))
        process = await asyncio.create_subprocess_exec(*spec.argv, "--log", str(Path(folder) / "nats.log"))
        try:
            await _until_ready(process, spec.ready)
            version = ".".join(map(str, nats.version(nats.binary())))
            yield Server(f"nats://127.0.0.1:{port}", process.pid, version)
        finally:
            await _end(process)


@asynccontextmanager
async def python(module: str, *arguments: str, env: dict[str, str] | None = None) -> AsyncGenerator[int]:
    """`python -m module` until the block ends; it is up when it has printed a line. Gives its pid."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, *arguments, stdout=asyncio.subprocess.PIPE, env={**stack.base_environ(), **(env or {})}
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            if not await process.stdout.readline():
                raise RuntimeError(f"{module} ended before it was ready: see its output above")
        yield process.pid
    finally:
        await _end(process)


@asynccontextmanager
async def service(name: str, settings: dict[str, str]) -> AsyncGenerator[int]:
    """A service of the engine as its own process, until the block ends; gives its pid."""
    port = Ports().pick(0, "127.0.0.1")
    env = {**stack.base_environ(), **settings, "AETHERIUM_HEALTH__PORT": str(port)}
    process = await asyncio.create_subprocess_exec(*stack.service_argv(name), env=env)
    ready = probe.http_ok(f"http://127.0.0.1:{port}/readyz")
    try:
        await _until_ready(process, ready)
        yield process.pid
    finally:
        await _end(process)


async def _until_ready(process: asyncio.subprocess.Process, ready: Callable[[int], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await ready(process.pid):
            if process.returncode is not None:
                raise RuntimeError(f"process {process.pid} ended before it was ready: see its output above")
            await asyncio.sleep(0.05)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
        await process.wait()


def cpu_s(pids: Sequence[int]) -> float:
    """CPU seconds that this process and `pids` have used so far."""
    others = (psutil.Process(pid).cpu_times() for pid in pids)
    return time.process_time() + sum(times.user + times.system for times in others)
