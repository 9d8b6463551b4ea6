"""What an inbox promises: every request is answered by somebody, also when processes die."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise

import orjson
import pytest

from shared import subjects
from shared.bus import Bus, JetStreamError, connect
from shared.eventlog import EventLog, NatsEventLog, ensure_streams
from shared.events.run import StepStarted
from shared.ids import new_id
from shared.inbox import Delivery, Handler, Inbox, NatsInbox
from shared.subjects import Aggregate
from shared.testing.memory import MemoryInbox, MemoryLog
from tests.conftest import NatsServer
from tests.requirements import covers
from tests.support.waiting import until


@dataclass
class World:
    """A log, and inboxes of one durable consumer over the requests of one run."""

    log: EventLog
    bus: Bus | None = None
    run: Aggregate = field(default_factory=lambda: Aggregate("run", new_id()))
    durable: str = field(default_factory=lambda: f"test-{new_id()}")

    def inbox(self, *, ack_wait_s: float = 5.0, pause_s: float = 0.02) -> Inbox:
        """What a process has; another call is another process."""
        filters = (subjects.fact("run", self.run.scope, "step_started"),)
        if isinstance(self.log, MemoryLog):
            return MemoryInbox(self.log, self.durable, filters, pause_s=pause_s)
        assert self.bus is not None
        return NatsInbox(self.bus, self.log, self.durable, filters, ack_wait_s=ack_wait_s, pause_s=pause_s)

    async def ask(self, *keys: str) -> None:
        newest = await self.log.last(self.run.filter)
        await self.log.append(self.run, [StepStarted(key=key, agent="a") for key in keys], after=newest.seq if newest else 0)


@pytest.fixture(params=["memory", "nats"])
def world(request: pytest.FixtureRequest) -> World:
    if request.param == "memory":
        return World(MemoryLog())
    return World(request.getfixturevalue("nats_log"), request.getfixturevalue("bus"))


@pytest.fixture
def real(nats_log: NatsEventLog, bus: Bus) -> World:
    return World(nats_log, bus)


@asynccontextmanager
async def process(inbox: Inbox, handler: Handler) -> AsyncIterator[None]:
    """A process that consumes, and dies at the end of the block."""
    task = asyncio.create_task(inbox.run(handler))
    try:
        yield
    finally:
        if task.done():
            task.result()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@dataclass
class Seen:
    """A handler that remembers what it was given, as (key, attempt, recovered), and answers as told."""

    answer: Callable[[Delivery], Awaitable[bool]]
    got: list[tuple[str, int, bool]] = field(default_factory=list[tuple[str, int, bool]])
    at: list[float] = field(default_factory=list[float])

    async def __call__(self, delivery: Delivery) -> bool:
        assert isinstance(delivery.fact.event, StepStarted)
        self.got.append((delivery.fact.event.key, delivery.attempt, delivery.recovered))
        self.at.append(asyncio.get_running_loop().time())
        return await self.answer(delivery)

    @property
    def keys(self) -> list[str]:
        return [key for key, _, _ in self.got]


async def yes(_: Delivery) -> bool:
    return True


async def never(_: Delivery) -> bool:
    return await asyncio.get_running_loop().create_future()


async def test_requests_asked_before_and_during_a_process_are_each_given_once(world: World) -> None:
    await world.ask("one", "two")
    seen = Seen(yes)
    async with process(world.inbox(), seen):
        await until(lambda: len(seen.got) == 2)
        await world.ask("three")
        await until(lambda: len(seen.got) == 3)
    assert seen.got == [("one", 1, False), ("two", 1, False), ("three", 1, False)]


@covers("inbox.once")
async def test_what_was_answered_is_not_given_to_the_next_process(world: World) -> None:
    await world.ask("one")
    first, second = Seen(yes), Seen(yes)
    async with process(world.inbox(), first):
        await until(lambda: first.got)
        await settled(world, 0)
    await world.ask("two")
    async with process(world.inbox(), second):
        await until(lambda: second.got)
    assert second.got == [("two", 1, False)]


async def settled(world: World, unanswered: int) -> None:
    """Wait until the consumer knows what was answered: an acknowledgement is itself not acknowledged."""
    if world.bus is None:
        return
    bus = world.bus

    async def known() -> bool:
        info = await bus.api(f"CONSUMER.INFO.{subjects.STREAM}.{world.durable}")
        return info["num_ack_pending"] == unanswered and info["num_pending"] == 0

    await until(known)


@covers("inbox.recover")
async def test_a_restarted_process_takes_up_at_once_what_it_had_not_answered(world: World) -> None:
    await world.ask("answered", "open", "open too")

    async def one_only(delivery: Delivery) -> bool:
        return True if delivery.fact.event == StepStarted(key="answered", agent="a") else await never(delivery)

    first, second = Seen(one_only), Seen(yes)
    async with process(world.inbox(ack_wait_s=30), first):
        await until(lambda: len(first.got) == 3)
        await settled(world, 2)
    async with process(world.inbox(ack_wait_s=30), second):
        await until(lambda: len(second.got) >= 2)
        await world.ask("new")
        await until(lambda: "new" in second.keys)
    # What was answered may be given again, marked as recovered: the handler looks into the log.
    assert {("open", 1, True), ("open too", 1, True), ("new", 1, False)} <= set(second.got)
    assert second.keys.count("open") == second.keys.count("new") == 1


async def test_a_recovered_request_that_is_not_mine_is_left_to_its_holder_and_given_later(world: World) -> None:
    await world.ask("one")
    first = Seen(never)
    async with process(world.inbox(ack_wait_s=0.5), first):
        await until(lambda: first.got)

    async def not_recovered(delivery: Delivery) -> bool:
        return not delivery.recovered

    second = Seen(not_recovered)
    async with process(world.inbox(ack_wait_s=0.5), second):
        await until(lambda: len(second.got) >= 2)
    assert second.got[0] == ("one", 1, True)
    assert second.got[1][1:] == (2, False)


async def test_a_request_given_back_comes_again(world: World) -> None:
    await world.ask("one")

    async def third_time(delivery: Delivery) -> bool:
        return delivery.attempt == 3

    seen = Seen(third_time)
    async with process(world.inbox(), seen):
        await until(lambda: len(seen.got) == 3)
        await settled(world, 0)
        await world.ask("two")
        await until(lambda: "two" in seen.keys)
    assert [each for each in seen.got if each[0] == "one"] == [("one", 1, False), ("one", 2, False), ("one", 3, False)]


async def test_a_handler_that_fails_gets_the_request_again_later_and_later(world: World) -> None:
    await world.ask("bad", "good")

    async def fails(delivery: Delivery) -> bool:
        if delivery.fact.event == StepStarted(key="bad", agent="a") and delivery.attempt < 4:
            raise KeyError("a bug")
        return True

    seen = Seen(fails)
    async with process(world.inbox(pause_s=0.05), seen):
        await until(lambda: ("bad", 4, False) in seen.got)
    assert seen.keys.count("good") == 1, "the next request does not wait for it"
    at = [moment for moment, key in zip(seen.at, seen.keys, strict=True) if key == "bad"]
    pauses = [after - before for before, after in pairwise(at)]
    # Each pause is at least what was asked for, and that doubles; a busy machine can only lengthen them.
    assert all(pause >= 0.09 * 2**place for place, pause in enumerate(pauses))


async def test_requests_are_worked_on_beside_each_other(world: World) -> None:
    await world.ask(*(f"{n}" for n in range(20)))
    gate = asyncio.Barrier(20)

    async def together(_: Delivery) -> bool:
        await gate.wait()
        return True

    seen = Seen(together)
    async with process(world.inbox(), seen):
        await until(lambda: len(seen.got) == 20)
        await settled(world, 0)


# ---- the real server only


async def consuming(world: World, processes: int) -> None:
    """Wait until so many processes ask for work: each has taken up by then what others hold."""
    assert world.bus is not None
    bus = world.bus

    async def asked() -> bool:
        try:
            info = await bus.api(f"CONSUMER.INFO.{subjects.STREAM}.{world.durable}")
        except JetStreamError:  # the first of them has not made it yet
            return False
        return info["num_waiting"] == processes

    await until(asked)


@covers("inbox.once")
async def test_of_two_processes_each_request_goes_to_one(real: World) -> None:
    seen = [Seen(yes), Seen(yes)]
    async with process(real.inbox(), seen[0]), process(real.inbox(), seen[1]):
        await consuming(real, 2)
        await real.ask(*(f"{n}" for n in range(50)))
        await until(lambda: len(seen[0].got) + len(seen[1].got) >= 50)
        await settled(real, 0)
    assert sorted(seen[0].keys + seen[1].keys, key=int) == [f"{n}" for n in range(50)]
    assert seen[0].got, "the first is not left out"
    assert seen[1].got, "nor is the second"


@covers("inbox.recover")
async def test_a_living_process_gets_what_a_dead_one_held(real: World) -> None:
    dead, living = Seen(never), Seen(yes)
    keys = {f"{n}" for n in range(40)}
    async with process(real.inbox(ack_wait_s=0.5), living):
        await consuming(real, 1)
        async with process(real.inbox(ack_wait_s=0.5), dead):
            await consuming(real, 2)
            await real.ask(*sorted(keys))
            await until(lambda: {*dead.keys, *living.keys} == keys)
        await until(lambda: set(living.keys) == keys)
    assert dead.got
    assert {attempt for key, attempt, _ in living.got if key in dead.keys} == {2}


async def test_heartbeats_keep_slow_work_from_being_given_to_another(real: World) -> None:
    release = asyncio.Event()

    async def slow(_: Delivery) -> bool:
        return await release.wait()

    seen, other = Seen(slow), Seen(yes)
    async with process(real.inbox(ack_wait_s=0.4), seen):
        await real.ask("one")
        await until(lambda: seen.got)
        async with process(real.inbox(ack_wait_s=0.4), other):
            await until(lambda: other.got)  # recovered at its start; after that nothing must come
            other.got.clear()
            with suppress(TimeoutError):
                await until(lambda: other.got or len(seen.got) > 1, timeout=1.6)
            release.set()
            await settled(real, 0)
    assert (len(seen.got), other.got) == (1, [])


async def test_work_goes_on_after_the_server_was_killed(own_nats_server: NatsServer) -> None:
    bus = await connect(own_nats_server.url, "test")
    await ensure_streams(bus)
    world = World(NatsEventLog(bus, "test"), bus)
    seen = Seen(yes)
    async with process(world.inbox(), seen):
        await world.ask("before")
        await until(lambda: seen.got)
        own_nats_server.kill()
        await until(lambda: not bus.client.is_connected)
        own_nats_server.start()
        await world.ask("after")
        await until(lambda: "after" in seen.keys, timeout=4)
    await bus.close()


@covers("inbox.poison")
async def test_a_request_that_nobody_can_read_is_ended_once_and_recorded(real: World) -> None:
    assert real.bus is not None
    await real.bus.client.request(subjects.fact("run", real.run.scope, "step_started"), b"{", timeout=2)
    bad = await real.log.last_seq()
    await real.ask("good")
    seen = Seen(yes)
    async with process(real.inbox(ack_wait_s=0.3), seen):
        await until(lambda: seen.got)
        await settled(real, 0)
    record = await real.bus.client.jetstream().get_last_msg(subjects.DEAD_LETTER_STREAM, subjects.dead_letter(real.durable))
    told = orjson.loads(record.data or b"")
    assert (told["consumer"], told["seq"], told["subject"]) == (real.durable, bad, subjects.fact("run", real.run.scope, "step_started"))
    assert "JSON" in told["reason"]
