"""The engine as a person starts it: the command line in a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from aetherium.client import GatewayClient
from aetherium.launcher import stack, state
from aetherium.launcher.state import EngineState
from shared.config import PREFIX
from tests.support.waiting import until

READY_S = 120.0


def environment(**settings: str) -> dict[str, str]:
    """The environment without settings of whoever runs the tests, and without a vector store, which these do not need."""
    return {**stack.base_environ(), f"{PREFIX}CHROMA__ENABLED": "false", **settings}


def command(*arguments: object) -> tuple[str, ...]:
    return (sys.executable, "-m", "aetherium", *map(str, arguments))


@dataclass
class Up:
    """A running `aetherium up`."""

    process: subprocess.Popen[bytes]
    data_dir: Path
    output: Path

    @property
    def state(self) -> EngineState:
        found = state.find(self.data_dir)
        assert found is not None, self.said
        return found

    @property
    def said(self) -> str:
        return self.output.read_text()

    @property
    def is_ready(self) -> bool:
        assert self.process.poll() is None, self.said
        found = state.find(self.data_dir)
        return found is not None and bool(found.processes) and found.is_ready and "Ctrl-C stops it" in self.said

    def gateway(self) -> GatewayClient:
        return GatewayClient(self.state.urls["gateway"])

    def everything(self) -> set[int]:
        """Every process of the engine now, the command itself included."""
        own = psutil.Process(self.process.pid)
        return {own.pid, *(child.pid for child in own.children(recursive=True))}

    async def interrupt(self) -> int:
        """Ctrl-C; gives the exit code."""
        self.process.send_signal(signal.SIGINT)
        await until(lambda: self.process.poll() is not None, timeout=60)
        return self.process.returncode


@asynccontextmanager
async def up(data_dir: Path, *arguments: object) -> AsyncGenerator[Up]:
    """A ready engine of the command line; what it printed is in a file beside its data."""
    data_dir.mkdir(parents=True, exist_ok=True)
    output = data_dir.with_name(f"{data_dir.name}.{len(list(data_dir.parent.iterdir()))}.txt")
    engine = started(data_dir, output, *arguments)
    try:
        await until(lambda: engine.is_ready, timeout=READY_S)
        yield engine
    finally:
        engine.process.kill()  # its children follow it
        engine.process.wait()


def started(data_dir: Path, output: Path, *arguments: object) -> Up:
    with output.open("wb") as sink:
        argv = command("up", "--data-dir", data_dir, *arguments)
        process = subprocess.Popen(argv, stdout=sink, stderr=subprocess.STDOUT, env=environment(), cwd=data_dir.parent)
    return Up(process, data_dir, output)
