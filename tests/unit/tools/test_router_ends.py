"""No tool runs for a run that nobody waits for any more."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from mcp.server import MCPServer

from services.tools.router import Router
from services.tools.servers.base import Tier, catalogue, declare
from shared.errors import LogUnavailable
from shared.events import run
from shared.events.content import BlobRef, Pins
from shared.events.envelope import Fact
from shared.inbox import Delivery
from shared.subjects import Aggregate
from shared.template import Node, Template
from shared.testing.memory import MemoryBlobs, MemoryLog
from tests.requirements import covers

RUN = "r1"


class Blobs(MemoryBlobs):
    """A store that is away at first."""

    refusals = 0

    async def put(self, content: bytes, *, preview: str = "") -> BlobRef:
        if self.refusals:
            self.refusals -= 1
            raise LogUnavailable("the blob store is away")
        return await super().put(content, preview=preview)


class Bench:
    """A router over one tool that counts how often it runs."""

    def __init__(self, folder: Path) -> None:
        self.log, self.blobs, self.folder, self.ran = MemoryLog(), Blobs(), folder, 0

    def server(self) -> MCPServer:
        server = MCPServer("bench")

        async def work() -> str:
            """Do something."""
            self.ran += 1
            return "done"

        declare(server, tier=Tier.STANDARD)(work)
        return server

    async def router(self) -> Router:
        servers = [self.server()]

        async def abandon(_call_id: str) -> None:
            return None

        return Router(self.log, self.blobs, servers, await catalogue(servers), "tools-0", self.folder, abandon)

    async def requested(self) -> Fact:
        node = Node(id="a", name="A", system_prompt="p", mcp_servers=("bench",), tools=("work",))
        template = await self.blobs.put(Template(id="t", name="T", nodes=(node,)).as_bytes())
        submitted = run.RunSubmitted(project_id=1, template_id="t", template=template, message="m", pins=Pins(template="0"))
        asked = run.ToolRequested(key="turn-1/tool/c1", call_id="c1", agent="a", tool="work")
        _, fact = await self.log.append(Aggregate("run", RUN), [submitted, asked], after=0)
        return fact


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


async def test_a_requested_tool_runs(bench: Bench) -> None:
    assert await (await bench.router()).handle(Delivery(await bench.requested()))
    assert bench.ran == 1


@covers("run.cancel")
@pytest.mark.parametrize("end", [run.RunCancelled(), run.Interrupted(cause="cancel")])
async def test_no_tool_runs_for_a_run_that_ended_while_the_service_was_away(bench: Bench, end: run.RunCancelled | run.Interrupted) -> None:
    fact = await bench.requested()
    await bench.log.append(Aggregate("run", RUN), [end], after=fact.seq)
    router = await bench.router()
    watching = asyncio.create_task(router.watch_ends(after=await bench.log.last_seq()))
    await asyncio.sleep(0)
    assert await router.handle(Delivery(fact, attempt=1))
    watching.cancel()
    assert bench.ran == 0


@covers("run.cancel")
async def test_no_tool_runs_for_a_run_whose_end_came_first(bench: Bench) -> None:
    router = await bench.router()
    watching = asyncio.create_task(router.watch_ends(after=0))
    fact = await bench.requested()
    await bench.log.append(Aggregate("run", RUN), [run.Interrupted(cause="cancel"), run.RunCancelled()], after=fact.seq)
    for _ in range(10):
        await asyncio.sleep(0)
    assert await router.handle(Delivery(fact))
    watching.cancel()
    assert bench.ran == 0


async def test_a_before_image_waits_for_a_store_that_is_away(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.tools.router.STORE_PAUSE_S", 0)
    router = await bench.router()
    bench.blobs.refusals = 3
    ref = await router._kept(b"before")  # pyright: ignore[reportPrivateUsage]
    assert await bench.blobs.get(ref) == b"before"
