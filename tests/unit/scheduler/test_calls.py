"""Which calls are made, and how one that is stopped ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from services.scheduler.backends.base import ChatReply, ChatRequest, Delta, Health, ModelInfo, OnDelta
from services.scheduler.backends.faults import BackendFault, ModelNotLoaded
from services.scheduler.calls import Calls
from services.scheduler.turns import OneSlot, Queued, Slot, Turn
from shared.events import run
from shared.events.content import BlobRef, Pins
from shared.events.envelope import Fact
from shared.events.llm import LlmCompleted, LlmFailed
from shared.inbox import Delivery
from shared.subjects import Aggregate
from shared.testing.memory import MemoryLog
from shared.transcript import reference
from tests.requirements import covers
from tests.support.waiting import until

RUN = "r1"
CALL = "llm_1"


@dataclass
class Backend:
    """Answers at once, or stays silent and takes its time to let go of a call that is stopped."""

    name: str = "test"
    silent: bool = False
    asked: int = 0
    let_go: int = 0
    never: asyncio.Event = field(default_factory=asyncio.Event)

    async def chat(self, request: ChatRequest, on_delta: OnDelta | None = None) -> ChatReply:
        self.asked += 1
        try:
            if self.silent:
                await self.never.wait()
            return ChatReply("hello")
        finally:
            for _ in range(10):  # closing a connection takes some rounds of the loop
                await asyncio.sleep(0)
            self.let_go += 1

    async def models(self) -> list[ModelInfo]:
        return []

    async def healthy(self) -> Health:
        return Health("ready")

    async def close(self) -> None:
        return None


async def requested(log: MemoryLog) -> Fact:
    """A run that asks its model."""
    submitted = run.RunSubmitted(project_id=1, template_id="t", template=BlobRef(sha256="0", size=1), message="m", pins=Pins(template="0"))
    _, said = await log.append(
        Aggregate("run", RUN), [submitted, run.MessageAdded(key="task", agent="a", role="user", content="Hi.")], after=0
    )
    asked = run.LlmRequested(key="turn-1/llm", call_id=CALL, agent="a", turn=1, adds=(reference(said),))
    (fact,) = await log.append(Aggregate("run", RUN), [asked], after=said.seq)
    return fact


def nobody_watches(_run_id: str, _call_id: str, _delta: Delta) -> None:
    """The text that a model writes is shown to no one here."""


def calls_of(log: MemoryLog, backend: Backend) -> Calls:
    return Calls(log, OneSlot(Slot("primary", backend, 1, 60.0)), nobody_watches)


def types(log: MemoryLog) -> list[str]:
    return [fact.type for fact in log.facts if fact.type.startswith("llm.")]


async def test_a_call_is_answered_once() -> None:
    log, backend = MemoryLog(), Backend()
    assert await calls_of(log, backend).handle(Delivery(await requested(log)))
    assert types(log) == ["llm.dispatched", "llm.completed"]


@dataclass
class Losing(Backend):
    """Loses its model before the first answers."""

    losses: int = 1

    async def chat(self, request: ChatRequest, on_delta: OnDelta | None = None) -> ChatReply:
        if self.asked < self.losses:
            self.asked += 1
            raise ModelNotLoaded("model is not loaded")
        return await super().chat(request, on_delta)


@dataclass
class Reloading(OneSlot):
    """A slot whose model can be brought back."""

    reloads: int = 0
    fails: BackendFault | None = None

    @asynccontextmanager
    async def turn(self, fact: Fact, request: run.LlmRequested, queued: Queued) -> AsyncGenerator[Turn]:
        async with super().turn(fact, request, queued) as turn:
            yield replace(turn, reload=self.reload)

    async def reload(self) -> None:
        self.reloads += 1
        if self.fails is not None:
            raise self.fails


@covers("lease.reload")
async def test_a_call_whose_model_was_lost_is_asked_again_after_a_reload_and_only_once() -> None:
    log, backend = MemoryLog(), Losing()
    turns = Reloading(Slot("primary", backend, 1, 60.0))
    await Calls(log, turns, nobody_watches).handle(Delivery(await requested(log)))
    assert [kind for kind in types(log) if kind != "llm.dispatched"] == ["llm.retried", "llm.completed"]
    assert turns.reloads == 1
    log, backend = MemoryLog(), Losing(losses=2)
    turns = Reloading(Slot("primary", backend, 1, 60.0))
    await Calls(log, turns, nobody_watches).handle(Delivery(await requested(log)))
    assert (types(log)[-1], turns.reloads) == ("llm.failed", 1)


@covers("lease.reload")
async def test_a_reload_that_is_refused_fails_the_call_with_its_reason() -> None:
    log = MemoryLog()
    turns = Reloading(Slot("primary", Losing(), 1, 60.0), fails=BackendFault("20000 MiB do not fit"))
    await Calls(log, turns, nobody_watches).handle(Delivery(await requested(log)))
    failed = log.facts[-1].event
    assert isinstance(failed, LlmFailed)
    assert failed.message == "20000 MiB do not fit"


@covers("run.resume.after_crash")
async def test_an_answered_call_that_a_killed_server_hands_out_as_if_for_the_first_time_is_not_made_again() -> None:
    log, backend = MemoryLog(), Backend()
    fact = await requested(log)
    await log.append(Aggregate("llm", RUN), [LlmCompleted(call_id=CALL, content="hello")], after=0)
    assert await calls_of(log, backend).handle(Delivery(fact, attempt=1))
    assert backend.asked == 0


@covers("run.cancel")
async def test_no_call_is_made_for_a_run_that_ended_while_the_scheduler_was_away() -> None:
    log, backend = MemoryLog(), Backend()
    fact = await requested(log)
    await log.append(Aggregate("run", RUN), [run.RunCancelled(reason="enough")], after=fact.seq)
    calls = calls_of(log, backend)
    watching = asyncio.create_task(calls.watch_ends(after=await log.last_seq()))
    await asyncio.sleep(0)
    assert await calls.handle(Delivery(fact, attempt=1))
    watching.cancel()
    assert backend.asked == 0


@covers("run.cancel")
async def test_no_call_is_made_for_a_run_whose_end_came_first() -> None:
    log, backend = MemoryLog(), Backend()
    calls = calls_of(log, backend)
    watching = asyncio.create_task(calls.watch_ends(after=0))
    fact = await requested(log)
    await log.append(Aggregate("run", RUN), [run.Interrupted(cause="cancel"), run.RunCancelled()], after=fact.seq)
    for _ in range(10):
        await asyncio.sleep(0)
    assert await calls.handle(Delivery(fact))
    watching.cancel()
    assert backend.asked == 0


@covers("run.cancel")
async def test_a_stopped_call_lets_go_of_its_connection_though_its_run_ends_in_two_facts() -> None:
    log, backend = MemoryLog(), Backend(silent=True)
    calls = calls_of(log, backend)
    watching = asyncio.create_task(calls.watch_ends(after=0))
    fact = await requested(log)
    handling = asyncio.create_task(calls.handle(Delivery(fact)))
    await until(lambda: backend.asked == 1)
    # The second comes while the connection is being closed.
    await log.append(Aggregate("run", RUN), [run.Interrupted(cause="cancel")], after=fact.seq)
    await asyncio.sleep(0)
    await log.append(Aggregate("run", RUN), [run.RunCancelled()], after=log.facts[-1].seq)
    assert await handling
    watching.cancel()
    assert backend.let_go == 1
    (failed,) = [fact.event for fact in log.facts if isinstance(fact.event, LlmFailed)]
    assert failed.code == "llm.cancelled"
