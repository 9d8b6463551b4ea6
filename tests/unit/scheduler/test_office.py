"""The arbiter at work: facts before deeds, deeds done again after a crash, and servers that fail in every way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from services.scheduler.arbiter import fold
from services.scheduler.arbiter.commands import BadRequest, Command, EndRun, Release, RequestLease, Seen
from services.scheduler.arbiter.state import State
from services.scheduler.backends.faults import StateUnknown
from services.scheduler.counter import Counter
from services.scheduler.invariants import violations
from services.scheduler.office import RELIEVE_S, Office
from services.scheduler.slots import catalogue
from shared.errors import BadInput, Fault
from shared.events.lease import Priority
from shared.tenure import StoodDown
from shared.testing.clock import FakeClock
from shared.testing.memory import MemoryLog
from tests.requirements import covers
from tests.support.waiting import until
from tests.unit.scheduler.arbiter.world import box

KNOWN = catalogue(box())


@dataclass
class FakeServer:
    """An inference server that holds what it was told to, and fails as it is told to."""

    slot: str
    loaded: dict[str, Seen] = field(default_factory=dict[str, Seen])
    away: bool = False
    fails: Fault | None = None
    asked: list[str] = field(default_factory=list[str])

    async def listing(self) -> tuple[Seen, ...]:
        if self.away:
            raise StateUnknown(f"{self.slot} answered HTML")
        return tuple(self.loaded.get(name, Seen(name)) for name in {**KNOWN.slots[self.slot].models, **self.loaded})

    async def load(self, model: str, context_tokens: int | None) -> None:
        self.asked.append(f"load {model}")
        if self.fails is not None:
            raise self.fails
        self.loaded[model] = Seen(model, "loaded", context_tokens=context_tokens)

    async def unload(self, model: str, instance: str | None) -> None:
        self.asked.append(f"unload {instance or model}")
        if self.fails is not None:
            raise self.fails
        self.loaded.pop(instance or model, None)


def servers() -> dict[str, FakeServer]:
    made = {name: FakeServer(name) for name in KNOWN.slots}
    made["primary"].loaded["embed"] = Seen("embed", "loaded")
    return made


@asynccontextmanager
async def at_work(log: MemoryLog, clock: FakeClock, made: dict[str, FakeServer]) -> AsyncIterator[Office]:
    office = Office(log, KNOWN, made, clock)
    running = asyncio.create_task(office.run())
    try:
        yield office
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


def run_lease(lease_id: str, model: str, **more: Any) -> RequestLease:
    return RequestLease(lease_id, f"run {lease_id}", Priority.RUN, "primary", (model,), run_id=f"run-{lease_id}", **more)


def batch_lease(lease_id: str, model: str, **more: Any) -> RequestLease:
    return RequestLease(lease_id, f"batch {lease_id}", Priority.BATCH, "primary", (model,), **more)


def granted(office: Office, lease_id: str) -> Callable[[], bool]:
    return lambda: (found := office.state.lease(lease_id)) is not None and found.status.value == "granted"


def ended(office: Office, lease_id: str) -> Callable[[], bool]:
    return lambda: office.state.ending(lease_id) is not None


def at_rest(office: Office, made: dict[str, FakeServer]) -> Callable[[], bool]:
    """Whether nothing is loading, and the standard set is back."""
    return lambda: "std" in made["primary"].loaded and not office.state.slot("primary").is_changing and not list(office.state.leases())


@covers("lease.office")
async def test_a_run_has_its_model_loaded_before_it_is_told_that_it_may_go() -> None:
    made = servers()
    async with asyncio.timeout(5), at_work(MemoryLog(), FakeClock(), made) as office:
        await until(at_rest(office, made))
        await office.do(run_lease("a", "big"))
        await until(granted(office, "a"))
        assert "big" in made["primary"].loaded
        assert "std" not in made["primary"].loaded  # it did not fit beside it
        await office.do(EndRun("run-a"))
        await until(at_rest(office, made))
        assert set(made["primary"].loaded) == {"embed", "std"}


@covers("lease.unknown")
async def test_a_server_that_answers_nonsense_is_unknown_and_nothing_is_loaded_there() -> None:
    made = servers()
    made["primary"].away = True
    async with asyncio.timeout(5), at_work(MemoryLog(), FakeClock(), made) as office:
        await until(lambda: office.probes.failed.get("primary"))
        assert not office.state.slot("primary").known
        await office.do(run_lease("a", "big"))
        assert made["primary"].asked == []


@pytest.mark.parametrize("fault", [StateUnknown("the connection broke"), Fault("out of memory")])
@covers("lease.office")
async def test_a_failed_load_ends_the_lease_with_the_reason(fault: Fault) -> None:
    made = servers()
    async with asyncio.timeout(5), at_work(MemoryLog(), FakeClock(), made) as office:
        await until(at_rest(office, made))
        made["primary"].fails = fault
        await office.do(run_lease("a", "tiny"))
        await until(ended(office, "a"))
        ending = office.state.ending("a")
        assert ending is not None
        assert fault.message in ending.reason
        assert office.state.slot("primary").known is not isinstance(fault, StateUnknown)


@covers("lease.expiry")
async def test_time_alone_ends_a_lease_that_is_not_renewed() -> None:
    made, clock = servers(), FakeClock()
    async with asyncio.timeout(5), at_work(MemoryLog(clock=clock), clock, made) as office:
        await until(at_rest(office, made))
        await office.do(batch_lease("b", "std", ttl=timedelta(seconds=30)))
        await until(granted(office, "b"))
        await until(lambda: len(clock.sleepers) > len(made))
        clock.advance(31)
        await until(ended(office, "b"))


@covers("lease.office")
async def test_who_waits_hears_of_what_another_process_decided_though_nothing_follows_from_it_here() -> None:
    made, log = servers(), MemoryLog()
    async with asyncio.timeout(5), at_work(log, FakeClock(), made) as first:
        await until(at_rest(first, made))
        await first.do(run_lease("a", "std"))
        await until(granted(first, "a"))
        second = Office(log, KNOWN, made, FakeClock())
        await second.do(run_lease("b", "tiny"))  # a conflict: it takes in what there is
        assert granted(second, "a")()
        waiting = asyncio.create_task(Counter(second).lease({"leaseId": "a", "seen": "granted", "waitS": 20}))
        await asyncio.sleep(0)
        await first.do(EndRun("run-a"))  # a conflict here too
        assert await second.do(Release("a")) == [], "it was released already"
        assert (await waiting)["state"] == "released"


@covers("lease.office")
async def test_a_fact_of_another_process_before_our_own_last_one_is_taken_in() -> None:
    made, log = servers(), MemoryLog()
    async with asyncio.timeout(5), at_work(log, FakeClock(), made) as first:
        await until(at_rest(first, made))
        await first.do(run_lease("a", "std"))
        second = Office(log, KNOWN, made, FakeClock())
        await second.do(run_lease("b", "std"))
        await first.do(RequestLease("far", "chat", Priority.INTERACTIVE, "secondary", ("coder",)))
        await second.do(Release("b"))  # beyond what `first` wrote about the other slot
        await second.do(RequestLease("near", "chat", Priority.INTERACTIVE, "secondary", ("coder",)))
        assert ended(second, "far")()
        assert ended(second, "near")()
        assert fold(State(KNOWN), (fact.event for fact in log.facts)) == second.state


SCRIPT: Sequence[Command] = (
    batch_lease("b", "mid"),
    run_lease("a", "big"),
    Release("b"),
    RequestLease("c", "chat", Priority.INTERACTIVE, "secondary", ("coder",)),
    EndRun("run-a"),
)


async def scenario(log: MemoryLog, clock: FakeClock, made: dict[str, FakeServer], done: int = 0) -> int:
    """Play the script from step `done` on until the log dies or all is at rest; gives how many steps were decided."""
    async with at_work(log, clock, made) as office:
        for command in SCRIPT[done:]:
            doing = asyncio.ensure_future(office.do(command))
            await until(lambda doing=doing: doing.done() or log.dead)
            if log.dead:
                doing.cancel()
                return done
            done += 1
            await until(lambda: log.dead or not office.state.slot("primary").is_changing)
            if log.dead:
                return done
        await until(lambda: log.dead or at_rest(office, made)())
    return done


@covers("lease.office")
async def test_killed_after_every_fact_the_next_one_ends_where_an_undisturbed_one_does() -> None:
    whole = MemoryLog()
    undisturbed = servers()
    async with asyncio.timeout(20):
        await scenario(whole, FakeClock(), undisturbed)
    expected = _end(whole)
    assert len(whole.facts) > 15
    for cut in range(1, len(whole.facts)):
        made, clock = servers(), FakeClock()
        async with asyncio.timeout(20):
            dying = MemoryLog(crash_at=cut)
            done = await scenario(dying, clock, made)
            log = dying.reopened()
            # The client whose answer died with the process asks again, as clients do: every command may be given twice.
            await scenario(log, clock, made, done)
        assert _end(log) == expected, f"cut after {cut} facts"
        assert set(made["primary"].loaded) == {"embed", "std"}
        assert violations(log.facts, frozenset({"embed"})) == []


def _end(log: MemoryLog) -> tuple[Any, ...]:
    """What is left when all is over: open leases, and what each slot holds."""
    state = fold(State(KNOWN), (fact.event for fact in log.facts))
    slots = {name: sorted((each.name, each.state) for each in slot.models.values()) for name, slot in state.slots.items()}
    return [each.id for each in state.leases()], slots


@covers("lease.api")
async def test_two_requests_under_one_key_are_one_lease_and_another_one_is_refused() -> None:
    made = servers()
    async with asyncio.timeout(5), at_work(MemoryLog(), FakeClock(), made) as office:
        await until(at_rest(office, made))
        counter = Counter(office)
        ask = {"holder": "nightly", "slot": "primary", "models": ["std"], "key": "k1"}
        first = await counter.request(ask)
        assert first["state"] == "granted"
        assert (await counter.request(ask))["leaseId"] == first["leaseId"]
        with pytest.raises(BadRequest, match="k1"):
            await counter.request({**ask, "models": ["mid"]})


@covers("lease.api")
async def test_who_holds_a_batch_lease_is_told_when_a_run_wants_its_place() -> None:
    made = servers()
    async with asyncio.timeout(5), at_work(MemoryLog(), FakeClock(), made) as office:
        await until(at_rest(office, made))
        counter = Counter(office)
        mine = await counter.request({"holder": "nightly", "slot": "primary", "models": ["mid"]})
        while mine["state"] != "granted":
            mine = await counter.lease({"leaseId": mine["leaseId"], "seen": mine["state"], "waitS": 5})
        waiting = asyncio.create_task(counter.lease({"leaseId": mine["leaseId"], "seen": "granted", "waitS": 5}))
        await asyncio.sleep(0)
        await office.do(run_lease("a", "big"))
        told = await waiting
        assert told["state"] == "release_wanted"
        assert told["wantedBy"] == "run a"
        (row,) = (await counter.queue({}))["queue"]
        assert (row["holder"], row["code"], row["position"]) == ("run a", "preempting", 1)
        await counter.release({"leaseId": mine["leaseId"]})
        await until(granted(office, "a"))


@pytest.mark.parametrize(
    ("ask", "field"),
    [
        ({"holder": "x"}, "slot"),
        ({"holder": "x", "slot": "nowhere"}, "slot"),
        ({"holder": "x", "slot": "primary", "models": ["nobody"]}, "models"),
        ({"holder": "x", "slot": "primary", "servicesMib": -1}, "servicesMib"),
        ({"holder": "x", "slot": "primary", "priority": "run"}, "priority"),
        ({"holder": "", "slot": "primary"}, "holder"),
        ({"holder": "x", "slot": "primary", "ttlS": 0}, "ttlS"),
        ({"holder": "x", "slot": "primary", "color": "red"}, "color"),
    ],
)
@covers("lease.bad_input")
async def test_a_wrong_request_names_its_field_and_changes_nothing(ask: dict[str, Any], field: str) -> None:
    made, log = servers(), MemoryLog()
    async with asyncio.timeout(5), at_work(log, FakeClock(), made) as office:
        await until(at_rest(office, made))
        before = len(log.facts)
        with pytest.raises((BadInput, BadRequest)) as raised:
            await Counter(office).request(ask)
        assert raised.value.details["field"] == field
        assert len(log.facts) == before


# ---- another scheduler is active


@dataclass
class Relieved:
    """A tenure that is lost at the `at`-th time that it is asked for."""

    at: int
    asked: int = 0

    async def confirm(self, *, anew: bool = False) -> None:
        self.asked += 1
        if self.asked >= self.at:
            raise StoodDown("another is active")


@pytest.mark.parametrize(("at", "is_stored"), [(1, False), (2, True)])
@covers("standby.fenced")
async def test_a_scheduler_that_was_relieved_acts_on_nothing_and_its_successor_on_all_that_is_stored(at: int, is_stored: bool) -> None:
    log, clock, made = MemoryLog(), FakeClock(), servers()
    made["primary"].loaded["std"] = Seen("std", "loaded")
    async with asyncio.timeout(5), at_work(log, clock, made) as successor:
        await until(at_rest(successor, made))
        stopped = Office(log, KNOWN, made, clock)
        await stopped.do(batch_lease("early", "std"))  # it is in the middle of its work, and knows the log
        await until(lambda: stopped.state.lease("early") is not None)
        made["primary"].asked.clear()
        stopped.tenure = Relieved(at)
        with pytest.raises(StoodDown):
            await stopped.do(batch_lease("a", "tiny"))
        assert any(getattr(fact.event, "lease_id", "") == "a" for fact in log.facts) is is_stored
        assert made["primary"].asked == []
        clock.advance(RELIEVE_S)
        await until(lambda: successor.state.lease("early") is not None)
        if is_stored:
            await until(granted(successor, "a"))
        assert made["primary"].asked == (["load tiny"] if is_stored else [])
