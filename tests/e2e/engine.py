"""A whole engine for the tests of a module: started by the launcher, with a scripted model, asked as a client would."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import orjson
import psutil
import yaml

from aetherium.client import GatewayClient, Run
from aetherium.launcher import stack
from aetherium.launcher.stack import Engine
from shared import subjects
from shared.bus import Bus, connect
from shared.config import ChromaSettings, InferenceSettings, Settings
from shared.eventlog import NatsEventLog
from shared.events.envelope import Fact

READY_S = 90.0
TEMPLATE_ID = "test"

TEMPLATE: dict[str, Any] = {
    "id": TEMPLATE_ID,
    "name": "Test",
    "nodes": [
        {
            "id": "worker",
            "name": "Worker",
            "system_prompt": "You work in a folder.",
            "mcp_servers": ["workspace", "shell"],
            "tools": ["read_file", "write_file", "list_files", "run_shell"],
        }
    ],
    "features": {"hold_to_request": False, "reask": False},
}


@dataclass
class Stack:
    """A running engine, a client of its gateway, and its log as an outsider reads it."""

    engine: Engine
    gateway: GatewayClient
    bus: Bus
    log: NatsEventLog

    @property
    def data_dir(self) -> Path:
        return self.engine.plan.settings.data_dir

    @property
    def url(self) -> str:
        return self.engine.plan.urls["gateway"]

    def pid(self, name: str) -> int:
        (found,) = [status.pid for status in self.engine.supervisor.statuses if status.name == name]
        assert found is not None, f"{name} does not run"
        return found

    def workspace(self, run: Run) -> Path:
        return self.engine.plan.settings.workspaces / str(run.project_id)

    async def start(self, message: str, *, template: str = TEMPLATE_ID, key: str | None = None, **overrides: Any) -> str:
        return (await self.gateway.submit(template, message, project=message[:40], overrides=overrides, key=key)).run_guid

    async def run(self, message: str, *, within_s: float = 30.0, template: str = TEMPLATE_ID, **overrides: Any) -> Run:
        """A run from its submission to its end."""
        async with asyncio.timeout(within_s):
            return await self.gateway.wait(await self.start(message, template=template, **overrides))

    async def facts(self, run_id: str) -> list[Fact]:
        return await self.log.read(subjects.of_run(run_id))

    async def until_fact(self, run_id: str, event_type: str, *, within_s: float = 20.0) -> Fact:
        """The first fact of a type in a run, as soon as it is there."""
        async with asyncio.timeout(within_s):
            async for fact in self.log.follow(subjects.of_run(run_id), after=0):
                if fact.type == event_type:
                    return fact
        raise AssertionError("a follower ended")

    async def requests(self) -> list[dict[str, Any]]:
        """What the scripted model was asked, in order, and how each answer ended."""
        async with httpx.AsyncClient(trust_env=False) as client:
            answer = await client.get(f"{self.engine.plan.model.url}/_requests")
        return answer.json()["requests"]


def pids_of(engine: Engine) -> set[int]:
    """Every process of an engine, with those that they started."""
    own = [status.pid for status in engine.supervisor.statuses if status.pid is not None]
    return {each.pid for pid in own for each in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]}


def write_script(folder: Path, conversations: Mapping[str, Sequence[Mapping[str, Any]]], **server: Any) -> Path:
    """A script file for the model: conversations by a text of the message that selects them."""
    path = folder / "script.yaml"
    rows = [{"match": match, "turns": list(turns)} for match, turns in conversations.items()]
    path.write_text(yaml.safe_dump({**server, "conversations": rows}))
    return path


def write_template(data_dir: Path, template: Mapping[str, Any] = TEMPLATE) -> None:
    folder = data_dir / "templates"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{template['id']}.json").write_bytes(orjson.dumps(template))


def settings_in(folder: Path, **sections: Any) -> Settings:
    """Settings of an engine that looks for nothing outside and starts no vector store."""
    quiet = InferenceSettings(detect=False, local_model=False, concurrency=4)
    return Settings.model_validate({"data_dir": folder, "chroma": ChromaSettings(enabled=False), "inference": quiet, **sections})


@asynccontextmanager
async def opened(settings: Settings, *, script: Path | bool = False) -> AsyncGenerator[Stack]:
    """A ready engine; `script` False leaves it without a model."""
    write_template(settings.data_dir)
    async with stack.running(settings, scripted=script) as engine:
        async with asyncio.timeout(READY_S):
            assert await engine.ready(), engine.supervisor.statuses
        bus = await connect(engine.plan.urls["nats"], "test")
        try:
            async with GatewayClient(engine.plan.urls["gateway"]) as gateway:
                yield Stack(engine, gateway, bus, NatsEventLog(bus, "test"))
        finally:
            await bus.close()
