"""The real orchestrator inside the bench's process, and runs submitted to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from bench.workload import TEMPLATE, UNBOUNDED, Plan, Workload
from services.orchestrator.dispatch import Orchestrator, work
from shared import subjects
from shared.blobs import NatsBlobs
from shared.bus import Bus, connect
from shared.clock import SystemClock
from shared.errors import NotFound
from shared.eventlog import NatsEventLog, ensure_streams
from shared.events import run
from shared.events.content import Pins
from shared.ids import new_id
from shared.inbox import NatsInbox
from shared.template import Node

PATIENCE_S = 600.0


@dataclass
class Engine:
    """An orchestrator at work on the bench's topology."""

    bus: Bus
    log: NatsEventLog
    workload: Workload

    async def finish(self, plans: Sequence[Plan]) -> list[str]:
        """Submit runs at the same time and wait for the end of all; gives their ids."""
        template = await NatsBlobs(self.bus).put(TEMPLATE.as_bytes())
        ids = [new_id() for _ in plans]
        ends = asyncio.create_task(self._ends(set(ids), await self.log.last_seq()))
        for run_id, plan in zip(ids, plans, strict=True):
            event = run.RunSubmitted(
                project_id=1,
                template_id=TEMPLATE.id,
                template=template,
                message=plan.as_message(),
                pins=Pins(template=template.sha256),
                budgets=UNBOUNDED,
            )
            await self.log.append(subjects.Aggregate("run", run_id), [event], after=0)
        async with asyncio.timeout(PATIENCE_S):
            await ends
        return ids

    async def _ends(self, open_runs: set[str], after: int) -> None:
        wanted = (run.RunParked.TYPE, *(event.TYPE for event in run.TERMINAL))
        async for fact in self.log.follow(*map(subjects.every, wanted), after=after):
            if not isinstance(fact.event, run.RunCompleted):
                raise RuntimeError(f"a measured run ended as {fact.type}: {getattr(fact.event, 'reason', '')}")
            open_runs.discard(fact.scope)
            if not open_runs:
                return


@asynccontextmanager
async def running(url: str) -> AsyncGenerator[Engine]:
    bus = await connect(url, "bench")
    await ensure_streams(bus)
    log = NatsEventLog(bus, "aetherium/bench")
    workload = Workload()
    orchestrator = Orchestrator(log, NatsBlobs(bus), SystemClock(), "bench-0", "bench", {"single": workload}, NoSources())
    inbox = NatsInbox(bus, log, "bench-orchestrator", (subjects.every(run.RunSubmitted.TYPE),))
    working = asyncio.create_task(work(orchestrator, inbox, after=await log.last_seq()))
    try:
        yield Engine(bus, log, workload)
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        await bus.close()


class NoSources:
    """The bench's topology asks nothing of other services before its effects."""

    async def tools(self, node: Node) -> run.ToolsOffered:
        raise NotFound("the bench offers no tools")

    async def model(self, node: Node, model: str | None) -> run.ModelProfiled:
        raise NotFound("the bench knows no model")
