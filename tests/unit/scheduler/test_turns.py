"""Calls of runs on slots that share a card: leases before calls, models in the fewest swaps, and nothing left behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from services.scheduler.arbiter.commands import RequestLease, Seen
from services.scheduler.backends.base import Backend
from services.scheduler.backends.faults import BackendFault, StateUnknown
from services.scheduler.counter import Counter
from services.scheduler.invariants import violations
from services.scheduler.office import Office
from services.scheduler.ordering.desk import Desk
from services.scheduler.ordering.slots import Slot as Place
from services.scheduler.run_leases import LeaseRefused, RunLeases
from services.scheduler.slots import catalogue
from services.scheduler.turns import LeasedSlots, NoSuchPlace, Slot
from shared.events.content import Sampling
from shared.events.envelope import Fact
from shared.events.lease import Priority
from shared.events.run import LlmRequested, RunCompleted
from shared.subjects import Aggregate
from shared.testing.clock import FakeClock
from shared.testing.memory import MemoryLog
from tests.requirements import covers
from tests.support.waiting import until
from tests.unit.scheduler.arbiter.world import box
from tests.unit.scheduler.test_office import FakeServer, Relieved

KNOWN = catalogue(box())


@dataclass
class Floor:
    """The scheduler's parts over fake servers."""

    log: MemoryLog
    office: Office
    leases: RunLeases
    turns: LeasedSlots
    servers: dict[str, FakeServer]
    seq: int = 0
    told: list[tuple[str, int, str]] = field(default_factory=list[tuple[str, int, str]])

    def call(self, run: str, number: int, model: str | None = None, slot: str | None = "primary") -> tuple[Fact, LlmRequested]:
        self.seq += 1
        request = LlmRequested(
            key=f"t{number}",
            call_id=f"{run}-{number}",
            agent="coder",
            turn=number,
            adds=(),
            model=model,
            slot=slot,
            sampling=Sampling(temperature=0.0),
        )
        fact = Fact(self.seq, f"f{self.seq}", self.office.clock.now(), "test", Aggregate("run", run), request)
        return fact, request

    async def answer(self, run: str, number: int, model: str | None = None, slot: str | None = "primary", holds: float = 0.0) -> str | None:
        """Take a turn and give it back; the model that answered."""
        fact, request = self.call(run, number, model, slot)

        async def queued(position: int, reason: str) -> None:
            self.told.append((request.call_id, position, reason))

        async with self.turns.turn(fact, request, queued) as turn:
            await asyncio.sleep(holds)
            return turn.model

    async def note(self, position: int, reason: str) -> None:
        self.told.append(("", position, reason))

    @property
    def loads(self) -> list[str]:
        return [asked.removeprefix("load ") for asked in self.servers["primary"].asked if asked.startswith("load ")]


@asynccontextmanager
async def opened(log: MemoryLog | None = None) -> AsyncIterator[Floor]:
    log, clock = log or MemoryLog(), FakeClock()
    servers = {name: FakeServer(name) for name in KNOWN.slots}
    servers["primary"].loaded["embed"] = Seen("embed", "loaded")
    office = Office(log, KNOWN, servers, clock)
    leases = RunLeases(office, log)
    slots = {name: Slot(name, cast(Backend, None), 2, 60.0) for name in KNOWN.slots}
    desk = Desk([Place(name, 2) for name in KNOWN.slots])
    floor = Floor(log, office, leases, LeasedSlots(office, leases, slots, desk, asyncio.get_running_loop().time), servers)
    tasks = [asyncio.create_task(office.run()), asyncio.create_task(leases.keep())]
    if not log.facts:
        await until(lambda: "std" in servers["primary"].loaded and not office.state.slot("primary").is_changing)
    servers["primary"].asked.clear()
    try:
        yield floor
    finally:
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


@covers("lease.runs")
async def test_calls_of_two_runs_that_want_two_models_are_answered_in_two_loads() -> None:
    async with asyncio.timeout(10), opened() as floor:
        models = {"a": "big", "b": "mid"}  # they do not fit together
        calls = [floor.answer(run, number, model) for number in range(6) for run, model in models.items()]
        assert await asyncio.gather(*calls) == ["big", "mid"] * 6
        assert sorted(floor.loads) == ["big", "mid"]
        for run in models:
            await floor.turns.forget(run)
        await until(lambda: not list(floor.office.state.leases()))
        assert violations(floor.log.facts, frozenset({"embed"})) == []


@covers("lease.runs")
async def test_a_run_that_names_no_model_takes_what_is_loaded_and_loads_nothing() -> None:
    async with asyncio.timeout(10), opened() as floor:
        assert await floor.answer("a", 1) == "std"
        assert floor.loads == []
        (lease,) = floor.office.state.leases()
        assert lease.asked.resident_only


@covers("lease.runs")
async def test_the_first_call_of_a_run_takes_its_lease_and_later_ones_use_it() -> None:
    async with asyncio.timeout(10), opened() as floor:
        for number in range(3):
            await floor.answer("a", number, "mid")
        assert len(list(floor.office.state.leases())) == 1
        assert sum(fact.type == "lease.requested" for fact in floor.log.facts) == 1


@covers("lease.runs")
async def test_a_cancelled_call_gives_its_turn_to_the_next() -> None:
    async with asyncio.timeout(10), opened() as floor:
        first = [asyncio.create_task(floor.answer("a", number, "mid", holds=60)) for number in range(2)]
        await until(lambda: len(floor.turns.desk.slots["primary"].running) == 2)
        waiting = asyncio.create_task(floor.answer("a", 3, "mid"))
        await until(lambda: any(told[:2] == ("a-3", 1) for told in floor.told))
        first[0].cancel()
        assert await waiting == "mid"
        first[1].cancel()
        await asyncio.gather(*first, return_exceptions=True)
        assert not floor.office.answering["primary", "mid"]


@covers("lease.runs")
async def test_a_model_that_cannot_fit_fails_the_call_with_the_arithmetic() -> None:
    async with asyncio.timeout(10), opened() as floor:
        with pytest.raises(LeaseRefused, match="MiB"):
            await floor.answer("a", 1, "huge")


@pytest.mark.parametrize(("slot", "model"), [("nowhere", None), ("primary", "unheard-of"), (None, "unheard-of")])
@covers("lease.runs")
async def test_a_slot_or_model_that_there_is_not_fails_the_call_and_is_named(slot: str | None, model: str | None) -> None:
    async with asyncio.timeout(10), opened() as floor:
        with pytest.raises(NoSuchPlace, match=model or slot or ""):
            await floor.answer("a", 1, model, slot)


@pytest.mark.parametrize("fault", [StateUnknown("the connection broke"), BackendFault("out of memory")])
@covers("lease.runs")
async def test_a_load_that_fails_fails_the_calls_that_wait_for_it(fault: BackendFault) -> None:
    async with asyncio.timeout(10), opened() as floor:
        floor.servers["primary"].fails = fault
        with pytest.raises(LeaseRefused):
            await floor.answer("a", 1, "tiny")


@covers("lease.reload")
async def test_a_model_that_its_server_lost_is_loaded_again_under_the_runs_lease() -> None:
    async with asyncio.timeout(10), opened() as floor:
        fact, request = floor.call("a", 1, "mid")
        async with floor.turns.turn(fact, request, floor.note) as turn:
            del floor.servers["primary"].loaded["mid"]  # by another hand
            assert turn.reload is not None
            await turn.reload()
            assert floor.office.state.slot("primary").is_loaded("mid")
        assert floor.loads == ["mid", "mid"]
        assert await floor.answer("a", 2, "mid") == "mid"
        assert violations(floor.log.facts, frozenset({"embed"})) == []


@covers("lease.reload")
async def test_a_server_that_still_lists_the_model_is_not_told_to_load_it_twice() -> None:
    async with asyncio.timeout(10), opened() as floor:
        fact, request = floor.call("a", 1, "mid")
        async with floor.turns.turn(fact, request, floor.note) as turn:
            assert turn.reload is not None
            await turn.reload()
        assert floor.loads == ["mid"]


@covers("lease.reload")
async def test_a_run_that_named_no_model_is_told_that_what_was_loaded_is_gone() -> None:
    async with asyncio.timeout(10), opened() as floor:
        fact, request = floor.call("a", 1)
        async with floor.turns.turn(fact, request, floor.note) as turn:
            del floor.servers["primary"].loaded["std"]
            assert turn.reload is not None
            with pytest.raises(LeaseRefused, match="std is no longer loaded on primary"):
                await turn.reload()
        assert floor.loads == []


@covers("lease.reload")
async def test_a_slot_that_does_not_say_what_it_holds_gets_no_load() -> None:
    async with asyncio.timeout(10), opened() as floor:
        fact, request = floor.call("a", 1, "mid")
        async with floor.turns.turn(fact, request, floor.note) as turn:
            floor.servers["primary"].away = True
            assert turn.reload is not None
            waiting = asyncio.create_task(turn.reload())
            await until(lambda: not floor.office.state.slot("primary").known)
            assert floor.loads == ["mid"]
            floor.servers["primary"].away = False
            await floor.office.probe("primary")
            await waiting  # it was there all the time
        assert floor.loads == ["mid"]


@covers("lease.runs")
async def test_a_batch_job_is_asked_to_go_and_the_runs_call_follows() -> None:
    async with asyncio.timeout(10), opened() as floor:
        counter = Counter(floor.office)
        job = await counter.request({"holder": "nightly", "slot": "primary", "models": ["mid"]})
        while job["state"] != "granted":
            job = await counter.lease({"leaseId": job["leaseId"], "seen": job["state"], "waitS": 5})
        call = asyncio.create_task(floor.answer("a", 1, "big"))
        while job["state"] != "release_wanted":
            job = await counter.lease({"leaseId": job["leaseId"], "seen": job["state"], "waitS": 5})
        assert not call.done()
        await counter.release({"leaseId": job["leaseId"]})
        assert await call == "big"


@covers("lease.runs")
async def test_a_chat_client_is_refused_while_a_run_has_the_slot() -> None:
    async with asyncio.timeout(10), opened() as floor:
        await floor.answer("a", 1)
        await floor.office.do(RequestLease("c", "chat", Priority.INTERACTIVE, "primary", ("std",)))
        ending = floor.office.state.ending("c")
        assert ending is not None
        assert "in use by run a" in ending.reason


@covers("lease.runs")
async def test_leases_of_runs_that_ended_while_no_scheduler_was_there_are_ended_by_the_next() -> None:
    log = MemoryLog()
    async with asyncio.timeout(10), opened(log) as floor:
        await floor.answer("a", 1, "mid")
        await floor.answer("b", 1, "mid")
    await log.append(Aggregate("run", "a"), [RunCompleted(reply="done")], after=0)
    await log.append(Aggregate("run", "b"), [cast(Any, LlmRequested)(**_asked())], after=0)
    async with asyncio.timeout(10), opened(log) as floor:
        await until(lambda: [each.asked.run_id for each in floor.office.state.leases()] == ["b"])


def _asked() -> dict[str, Any]:
    return {"key": "t", "call_id": "c", "agent": "coder", "turn": 1, "adds": (), "sampling": Sampling(temperature=0.0)}


@covers("standby.fenced")
async def test_calls_of_a_scheduler_that_was_relieved_are_not_failed_but_left_to_the_active_one() -> None:
    async with asyncio.timeout(10), opened() as floor:
        assert await floor.answer("a", 1, "mid") == "mid"
        floor.office.tenure = tenure = Relieved(3)  # the lease is stored and acted on, and the load is not even stored
        waiting = asyncio.create_task(floor.answer("a", 2, "big"))
        await until(lambda: tenure.asked >= 3 and not floor.turns._loading)
        await asyncio.sleep(0)
        assert not waiting.done()
        assert "big" not in floor.loads
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
