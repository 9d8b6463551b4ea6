"""Real scheduler processes on a real log, which tests kill and stop."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.conftest import free_port
from tests.support.waiting import LOOK_EVERY_S


@dataclass
class Scheduler:
    """A scheduler process. What it logged is in `said`."""

    instance: str
    process: asyncio.subprocess.Process
    said: Path

    @property
    def name(self) -> str:
        """The source of its facts."""
        return f"aetherium/scheduler-{self.instance}"

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    async def killed(self) -> None:
        if self.process.returncode is None:
            self.send(signal.SIGKILL)
        await self.process.wait()


async def start(folder: Path, nats_url: str, instance: str, settings: Mapping[str, str]) -> Scheduler:
    """A scheduler that is ready; `settings` are further variables of its environment."""
    port = free_port()
    kept = {name: text for name, text in os.environ.items() if not name.startswith("AETHERIUM_") and not name.lower().endswith("_proxy")}
    env = {
        **kept,
        "AETHERIUM_NATS__URL": nats_url,
        "AETHERIUM_DATA_DIR": str(folder),
        "AETHERIUM_INSTANCE": instance,
        "AETHERIUM_HEALTH__PORT": str(port),
        **settings,
    }
    said = folder / f"scheduler-{instance}.log"
    with said.open("wb") as file:
        command = (sys.executable, "-m", "services.scheduler.app")
        process = await asyncio.create_subprocess_exec(*command, env=env, stdout=file, stderr=file)
    made = Scheduler(instance, process, said)
    async with httpx.AsyncClient(trust_env=False) as http, asyncio.timeout(30):
        while True:
            with suppress(httpx.TransportError):
                if (await http.get(f"http://127.0.0.1:{port}/readyz")).is_success:
                    return made
            assert process.returncode is None, said.read_text()
            await asyncio.sleep(LOOK_EVERY_S)
