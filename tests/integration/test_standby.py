"""Two real scheduler processes on a real log: one works, the other stands by, and takes over from one that dies or is stopped."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from shared import subjects
from shared.bus import Bus, connect
from shared.eventlog import NatsEventLog, ensure_streams
from shared.events.envelope import Fact
from shared.events.llm import LlmCompleted, LlmFailed
from shared.events.model import ModelLoading
from shared.events.run import LlmRequested, MessageAdded
from shared.ids import new_id
from shared.subjects import Aggregate
from shared.tenure import NatsRegister
from shared.transcript import reference
from simulators.lmstudio.config import LmConfig, SimModel
from simulators.lmstudio.server import LmStudioServer
from simulators.openai_server import CLIENT_LEFT, SERVED
from simulators.script import Script
from simulators.testing import serving
from tests.conftest import NatsServer
from tests.requirements import covers
from tests.support import schedulers
from tests.support.schedulers import Scheduler
from tests.support.waiting import until

MODEL = "qwen3-8b"
WITHIN_S = 10.0  # the bound that a takeover is held to
SLOW_ONCE: list[Any] = [{"content": "Good day.", "fault": "never", "first_n": 1}]


@dataclass
class Box:
    """A log, an LM Studio, and the schedulers of one inference box."""

    url: str
    bus: Bus
    log: NatsEventLog
    studio: LmStudioServer
    studio_url: str
    folder: Path
    schedulers: list[Scheduler] = field(default_factory=list[Scheduler])
    run: str = field(default_factory=new_id)

    async def start(self, instance: str) -> Scheduler:
        slots = {"primary": {"url": self.studio_url, "kind": "lm-studio", "models": {MODEL: {}}}}
        made = await schedulers.start(self.folder, self.url, instance, {"AETHERIUM_SCHEDULER__SLOTS": json.dumps(slots)})
        self.schedulers.append(made)
        return made

    async def pair(self) -> tuple[Scheduler, Scheduler]:
        """The active one, and one that stands by."""
        active = await self.start("0")
        await until(lambda: self.is_held_by(active))
        return active, await self.start("1")

    async def is_held_by(self, scheduler: Scheduler) -> bool:
        _, record = await NatsRegister(self.bus, "scheduler").read()
        return record is not None and record.owner == scheduler.name.removeprefix("aetherium/")

    async def ask(self, call_id: str) -> None:
        """A run's model call, as the orchestrator asks for it."""
        aggregate = Aggregate("run", self.run)
        newest = await self.log.last(aggregate.filter)
        said = MessageAdded(key=call_id, agent="coder", role="user", content="Greet me.")
        (message,) = await self.log.append(aggregate, [said], after=newest.seq if newest else 0)
        request = LlmRequested(key=call_id, call_id=call_id, agent="coder", turn=1, adds=(reference(message),), model=MODEL, timeout_s=60)
        await self.log.append(aggregate, [request], after=message.seq)

    async def answers(self, call_id: str) -> list[Fact]:
        facts = await self.log.read(Aggregate("llm", self.run).filter)
        endings = [fact for fact in facts if isinstance(fact.event, LlmCompleted | LlmFailed)]
        return [fact for fact in endings if getattr(fact.event, "call_id", "") == call_id]

    async def loads_decided(self) -> int:
        return len(await self.log.read(subjects.every(ModelLoading.TYPE)))


@asynccontextmanager
async def box(folder: Path, *, replies: Any, load_s: float = 0.0) -> AsyncGenerator[Box]:
    config = LmConfig(models=(SimModel(key=MODEL),), load_s=load_s, jit=False, replies=Script.model_validate(replies))
    (folder / "nats").mkdir()
    server = NatsServer(folder / "nats")
    server.start()
    studio = LmStudioServer(config)
    try:
        async with serving(studio) as studio_url:
            bus = await connect(server.url, "test")
            await ensure_streams(bus)
            made = Box(server.url, bus, NatsEventLog(bus, "test"), studio, studio_url, folder)
            try:
                yield made
            finally:
                for each in made.schedulers:
                    await each.killed()
                await bus.close()
    finally:
        server.kill()


@pytest.mark.parametrize("moment", ["loading", "answering"])
@covers("standby.takes_over")
async def test_a_killed_schedulers_call_is_answered_by_the_one_that_stood_by(tmp_path: Path, moment: str) -> None:
    slow_load = moment == "loading"
    replies = [{"content": "Good day."}] if slow_load else SLOW_ONCE
    async with asyncio.timeout(90), box(tmp_path, replies=replies, load_s=2.0 if slow_load else 0.0) as made:
        active, standby = await made.pair()
        await made.ask("call-1")
        await until(lambda: made.studio.card.loads and (slow_load or made.studio.requests))
        await active.killed()
        began = time.monotonic()
        await until(lambda: made.answers("call-1"), timeout=WITHIN_S)
        assert time.monotonic() - began < WITHIN_S
        (answer,) = await made.answers("call-1")
        assert isinstance(answer.event, LlmCompleted), answer.event
        assert (answer.event.content, answer.source) == ("Good day.", standby.name)
        assert len(made.studio.card.loads) == await made.loads_decided() == 1
        assert [each.outcome for each in made.studio.requests] == ([SERVED] if slow_load else [CLIENT_LEFT, SERVED])


@covers("standby.fenced")
async def test_a_stopped_scheduler_is_relieved_and_decides_nothing_when_it_wakes(tmp_path: Path) -> None:
    async with asyncio.timeout(90), box(tmp_path, replies=[{"content": "Good day."}]) as made:
        active, standby = await made.pair()
        await made.ask("call-1")
        await until(lambda: made.answers("call-1"))
        active.send(signal.SIGSTOP)
        await until(lambda: made.is_held_by(standby), timeout=WITHIN_S)
        relieved_at = await made.log.last_seq()
        active.send(signal.SIGCONT)
        await made.ask("call-2")
        await until(lambda: made.answers("call-2"))
        assert [fact.source for fact in await made.answers("call-2")] == [standby.name]
        await until(lambda: "work_left_to_the_active_scheduler" in active.said.read_text())
        assert {fact.source for fact in await made.log.read(subjects.EVENTS, after=relieved_at)} == {"test", standby.name}
        await standby.killed()  # the one that was relieved stands by, and is as good as any other
        await until(lambda: made.is_held_by(active), timeout=WITHIN_S)
        await made.ask("call-3")
        await until(lambda: made.answers("call-3"))
        assert len(made.studio.card.loads) == await made.loads_decided() == 1


@covers("standby.takes_over")
async def test_a_scheduler_that_is_told_to_stop_hands_over_at_once(tmp_path: Path) -> None:
    async with asyncio.timeout(60), box(tmp_path, replies=[{"content": "Good day."}]) as made:
        active, standby = await made.pair()
        active.send(signal.SIGTERM)
        assert await active.process.wait() == 0
        await until(lambda: made.is_held_by(standby), timeout=2.0)
        await made.ask("call-1")
        await until(lambda: made.answers("call-1"))
        assert [fact.source for fact in await made.answers("call-1")] == [standby.name]
