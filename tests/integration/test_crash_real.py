"""The crash matrix of `tests/replay/test_crash.py` on the real log: services and nats-server lose power after fact n."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from services.orchestrator.dispatch import Orchestrator, work
from services.orchestrator.durable.verify import verify
from services.orchestrator.topologies import TOPOLOGIES
from services.scheduler.backends.base import Delta
from services.scheduler.calls import Calls
from services.scheduler.turns import OneSlot, Slot
from services.tools.router import Router
from services.tools.servers import workspace
from services.tools.servers.base import Ports, catalogue
from shared import subjects
from shared.blobs import NatsBlobs
from shared.bus import connect
from shared.clock import SystemClock
from shared.eventlog import EventLog, NatsEventLog, Write, ensure_streams
from shared.events import run
from shared.events.content import Pins
from shared.events.envelope import Event, Fact
from shared.events.llm import LlmCompleted
from shared.inbox import NatsInbox
from tests.conftest import NatsServer
from tests.replay.test_crash import WORK, comparable
from tests.support.world import RUN, NoRuntime, ScriptedBackend, Sources, probe_server, template

EVERY = 6


@dataclass
class CutLog(NatsEventLog):
    """The real log, whose process dies once it has stored `cut` facts: no later call returns."""

    cut: int | None = None
    stored: int = 0
    dead: asyncio.Event = field(default_factory=asyncio.Event)

    async def commit(self, writes: Sequence[Write]) -> list[list[Fact]]:
        if self.dead.is_set() or (self.cut is not None and self.stored >= self.cut):
            await self._never()
        self.stored += sum(len(write.events) for write in writes)
        facts = await super().commit(writes)
        if self.cut is not None and self.stored >= self.cut:
            self.dead.set()
            await self._never()
        return facts

    async def _never(self) -> None:
        await asyncio.get_running_loop().create_future()


@dataclass
class RealWorld:
    """One machine: what is in its folder outlives a crash, and each `live` is a new set of processes on it."""

    folder: Path
    server: NatsServer
    backends: list[ScriptedBackend] = field(default_factory=list[ScriptedBackend])

    @classmethod
    def at(cls, folder: Path) -> RealWorld:
        folder.mkdir()
        return cls(folder, NatsServer(folder))

    @property
    def effects(self) -> Counter[str]:
        file = self.folder / "effects.txt"
        return Counter(file.read_text().splitlines()) if file.exists() else Counter()

    @asynccontextmanager
    async def opened(self, cut: int | None = None) -> AsyncGenerator[CutLog]:
        bus = await connect(self.server.url, "crash")
        try:
            await ensure_streams(bus)
            yield CutLog(bus, "crash", cut=cut)
        finally:
            await bus.close()

    async def submit(self, log: CutLog) -> None:
        ref = await NatsBlobs(log.bus).put(template().as_bytes())
        asked: Event = run.RunSubmitted(
            project_id=1, template_id="test", template=ref, message="Do the work.", pins=Pins(template=ref.sha256)
        )
        await log.append(subjects.Aggregate("run", RUN), [asked], after=0)

    async def live(self, log: CutLog) -> None:
        """Run every service until the run has ended or the log has died; then stop all of them at once."""
        services = [asyncio.ensure_future(each) for each in await self._services(log)]
        over = [asyncio.ensure_future(_ended(log)), asyncio.ensure_future(log.dead.wait())]
        try:
            async with asyncio.timeout(30):
                done, _ = await asyncio.wait([*services, *over], return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            for task in (*services, *over):
                task.cancel()
            await asyncio.wait([*services, *over], timeout=2)

    async def _services(self, log: CutLog) -> list[Any]:
        servers = [workspace.build(Ports(runtime=NoRuntime())), probe_server(self.folder / "effects.txt")]
        specs = await catalogue(servers)
        self.backends.append(ScriptedBackend(WORK))
        calls = Calls(log, OneSlot(Slot("primary", self.backends[-1], 4, 60.0)), nobody_watches)

        async def abandon(_call_id: str) -> None:
            return None

        router = Router(log, NatsBlobs(log.bus), servers, specs, "tools-0", self.folder / "ws", abandon)
        orchestrator = Orchestrator(log, NatsBlobs(log.bus), SystemClock(), "orchestrator-0", "test", TOPOLOGIES, Sources(specs))
        after = await log.last_seq()
        return [
            work(orchestrator, _inbox(log, "orchestrator", run.RunSubmitted), after=after),
            _inbox(log, "scheduler", run.LlmRequested).run(calls.handle),
            _inbox(log, "tools", run.ToolRequested).run(router.handle),
            calls.watch_ends(after=after),
            router.watch_ends(after=after),
        ]


def nobody_watches(_run_id: str, _call_id: str, _delta: Delta) -> None:
    """The text that a model writes is shown to no one here."""


def _inbox(log: CutLog, durable: str, event: type[Event]) -> NatsInbox:
    return NatsInbox(log.bus, log, durable, (subjects.every(event.TYPE),))


async def _ended(log: EventLog) -> None:
    async for fact in log.follow(*(subjects.every(event.TYPE) for event in run.TERMINAL), after=0):
        assert isinstance(fact.event, run.TERMINAL)
        return


async def lived(folder: Path, cut: int | None) -> tuple[RealWorld, list[Fact], int]:
    """A run that lost power after `cut` facts (None: it did not) and was taken up again; its facts, and how many were there."""
    world = RealWorld.at(folder)
    world.server.start()
    before = 0
    try:
        async with world.opened(cut) as log:
            await world.submit(log)
            await world.live(log)
        if cut is not None:
            world.server.kill()
            world.server.start()
            async with world.opened() as log:
                before = await log.last_seq()
                await world.live(log)
        async with world.opened() as log:
            return world, await log.read(subjects.of_run(RUN)), before
    finally:
        world.server.kill()


async def test_a_run_that_lost_power_after_any_fact_ends_as_the_undisturbed_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole_world, whole, _ = await lived(tmp_path / "whole", None)
    assert whole_world.effects == {"one": 1, "two": 1, "three": 1}
    cuts = range(2, len(whole), EVERY)
    interrupted = 0
    for cut in cuts:
        world, facts, before = await lived(tmp_path / str(cut), cut)
        assert before >= cut, f"cut {cut}: an acknowledged fact is gone"
        assert max(world.effects.values()) == 1, f"cut {cut}: an effect was repeated: {world.effects}"
        answered = Counter(fact.event.call_id for fact in facts if isinstance(fact.event, LlmCompleted))
        assert set(answered.values()) == {1}, f"cut {cut}: a finished model call was answered again"
        finished = sum(isinstance(fact.event, LlmCompleted) for fact in facts if fact.seq <= before)
        assert len(world.backends[-1].calls) <= len(answered) - finished, f"cut {cut}: a finished model call was made again"
        assert isinstance(facts[-1].event, run.RunCompleted), f"cut {cut}: {facts[-1].event}"
        if any(fact.type == "tool.interrupted" for fact in facts):
            interrupted += 1
        else:
            assert comparable(facts) == comparable(whole), f"cut {cut}"
        verdict = await verify(RUN, facts, template(), TOPOLOGIES["single"])
        assert verdict.diverged_at is None, f"cut {cut}: {verdict.message}"
    with capsys.disabled():
        print(
            f"\ncrash matrix on NATS: {len(cuts)} cuts of a run of {len(whole)} facts, {interrupted} inside a call that may not be repeated"
        )
