"""The whole engine: how long it takes to start, and what it holds in memory when idle."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil

from aetherium.launcher import nats, stack
from aetherium.launcher.stack import Parts
from aetherium.launcher.state import EngineState
from shared.config import InferenceSettings, Settings

Runs = dict[str, list[float]]
SERVERS = ("nats", "postgres", "chroma")
SETTLE_S = 10.0
PATIENCE_S = 180.0


async def measure(quick: bool) -> tuple[Runs, dict[str, Any]]:
    rounds = 1 if quick else 3
    runs: Runs = {}
    with tempfile.TemporaryDirectory(prefix="aetherium-bench-") as folder:
        data_dir = Path(folder) / "data"
        os.chmod(folder, 0o755)  # the database runs under an account of its own and must get here
        async with _up(data_dir) as (_, started_s):
            runs["first_start_s"] = [started_s]
        for _ in range(rounds):
            runs.setdefault("floor_servers_start_s", []).append(await _servers_start_s(data_dir))
            async with _up(data_dir) as (state, started_s):
                runs.setdefault("cold_start_s", []).append(started_s)
                await asyncio.sleep(SETTLE_S)
                runs.setdefault("idle_rss_mb", []).append(_megabytes([state.pid]))
                servers = [process.pid for process in state.processes if process.name in SERVERS and process.pid]
                runs.setdefault("floor_idle_rss_mb", []).append(_megabytes(servers))
    version = ".".join(map(str, nats.version(nats.binary())))
    return runs, {"nats": version, "memory": "PSS of every process: pages that several share are counted once", "settled_s": SETTLE_S}


@asynccontextmanager
async def _up(data_dir: Path) -> AsyncGenerator[tuple[EngineState, float]]:
    """`aetherium up --scripted`, until the block ends; gives its state and the seconds until all was ready."""
    arguments = ("-m", "aetherium", "up", "--scripted", "--json", "--data-dir", str(data_dir))
    began = time.perf_counter()
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE, env=stack.base_environ())
    try:
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            line = await process.stdout.readline()
        took = time.perf_counter() - began
        state = EngineState.model_validate_json(line)
        if not state.is_ready:
            raise RuntimeError(f"the engine did not become ready: {[(each.name, each.state, each.problem) for each in state.processes]}")
        yield state, took
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
            await process.wait()


async def _servers_start_s(data_dir: Path) -> float:
    """The same servers without the engine's services: nothing can be ready before they are."""
    settings = Settings(data_dir=data_dir, inference=InferenceSettings(detect=False, local_model=False))
    began = time.perf_counter()
    async with stack.running(settings, parts=Parts({})) as engine:
        async with asyncio.timeout(PATIENCE_S):
            await engine.ready()
        return time.perf_counter() - began


def _megabytes(roots: Iterable[int]) -> float:
    """Megabytes that processes and all below them hold (PSS)."""
    tree = {each.pid for root in roots for each in (psutil.Process(root), *psutil.Process(root).children(recursive=True))}
    return sum(_pss_kb(pid) for pid in tree) * 1024 / 1e6


def _pss_kb(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):  # it ended meanwhile
        return 0
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
