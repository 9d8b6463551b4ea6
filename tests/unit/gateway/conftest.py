"""A gateway over the in-memory twins, and a stand-in for the orchestrator that writes what a test says."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from services.gateway import web
from services.gateway.app import listen, server_of
from services.gateway.core import Gateway, Policy
from services.gateway.feed import Feed
from services.gateway.index import Index
from services.gateway.relaying.relay import Relay
from services.gateway.submission import Limits, Submitter
from shared import subjects
from shared.errors import Fault
from shared.eventlog import EventLog
from shared.events.content import Budgets
from shared.events.envelope import Event, Fact
from shared.events.run import RunCompleted, RunStarted, RunSubmitted
from shared.subjects import Aggregate
from shared.testing.memory import MemoryBlobs, MemoryLog
from tests.support.waiting import until


@dataclass
class FixedCatalogue:
    value: str = "tools-digest"

    async def digest(self) -> str:
        return self.value


@dataclass
class MemoryLive:
    takers: dict[str, list[Callable[[bytes], None]]] = field(default_factory=dict[str, list[Callable[[bytes], None]]])

    @asynccontextmanager
    async def of_run(self, run_id: str, put: Callable[[bytes], None]) -> AsyncGenerator[None, None]:
        self.takers.setdefault(run_id, []).append(put)
        yield
        self.takers[run_id].remove(put)


async def put(log: EventLog, run_id: str, *events: Event) -> list[Fact]:
    """Append events to a run, whatever is there."""
    stored: list[Fact] = []
    for event in events:
        aggregate = Aggregate(event.TYPE.split(".")[0], run_id)
        newest = await log.last(aggregate.filter)
        stored += await log.append(aggregate, [event], after=newest.seq if newest else 0)
    return stored


@dataclass
class FixedArbiter:
    """An arbiter that answers what it is given, and notes what it was asked."""

    answer: dict[str, Any] | Fault = field(default_factory=dict[str, Any])
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list[tuple[str, dict[str, Any]]])

    async def ask(self, verb: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        self.asked.append((verb, dict(fields)))
        if isinstance(self.answer, Fault):
            raise self.answer
        return self.answer


@dataclass
class World:
    """A gateway and its surroundings."""

    log: MemoryLog
    gateway: Gateway
    client: httpx.AsyncClient
    live: MemoryLive

    @property
    def arbiter(self) -> FixedArbiter:
        return cast(FixedArbiter, self.gateway.arbiter)

    async def submitted(self, count: int = 1) -> list[Fact]:
        """The submissions in the log, once there are so many."""
        await until(lambda: sum(fact.type == RunSubmitted.TYPE for fact in self.log.facts) >= count)
        return await self.log.read(subjects.every(RunSubmitted.TYPE))

    async def folded(self) -> None:
        """Wait until the gateway's follower has seen everything."""
        await until(lambda: self.gateway.index.seq >= len(self.log.facts))

    async def finish(self, run_id: str, *events: Event) -> None:
        await put(self.log, run_id, RunStarted(owner="o", engine="e"), *(events or (RunCompleted(reply="Done."),)))

    async def start_run(self, **fields: object) -> str:
        answer = await self.client.post("/api/orchestrator/run-from-template?wait=false", json={**ASK, **fields})
        assert answer.status_code == 202, answer.text
        return answer.json()["runGuid"]


ASK = {"templateId": "quick-script", "projectName": "p", "message": "Write primes.py."}
LIMITS = Limits("test-engine", Budgets(), 1000)


def make_gateway(log: EventLog, folder: Path, live: MemoryLive, policy: Policy, relay: Relay | None = None) -> Gateway:
    index, blobs, arbiter = Index(), MemoryBlobs(), FixedArbiter()
    return Gateway(
        log=log,
        blobs=blobs,
        live=live,
        index=index,
        feed=Feed(log, index),
        submitter=Submitter(log, blobs, index, FixedCatalogue(), LIMITS),
        arbiter=arbiter,
        relay=relay or Relay(arbiter, {}),
        workspaces=folder / "workspaces",
        user_templates=folder / "templates",
        policy=policy,
    )


@asynccontextmanager
async def opened(folder: Path, policy: Policy, log: MemoryLog | None = None) -> AsyncIterator[World]:
    log = log or MemoryLog()
    live = MemoryLive()
    gateway = make_gateway(log, folder, live, policy)
    await gateway.start()
    following = asyncio.create_task(gateway.feed.run())
    transport = httpx.ASGITransport(web.build(gateway), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        yield World(log, gateway, client, live)
    following.cancel()
    with suppress(asyncio.CancelledError):
        await following


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with opened(tmp_path, Policy(max_body_bytes=50_000)) as made:
        yield made


@asynccontextmanager
async def served(gateway: Gateway) -> AsyncIterator[str]:
    """The gateway on a real socket, for what the in-process transport cannot do: streams and clients that leave."""
    listener = listen("127.0.0.1", 0)
    server = server_of(gateway, web.nothing_missing)
    serving = asyncio.create_task(server.serve([listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        gateway.feed.close()
        server.should_exit = True
        await serving


@pytest.fixture
async def url(world: World) -> AsyncIterator[str]:
    async with served(world.gateway) as address:
        yield address


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
