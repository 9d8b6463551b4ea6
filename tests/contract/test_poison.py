"""A request that a service fails at each time ends in the log and in a dead letter; one that only waits does not (case RW-42)."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from shared import inbox as inboxes
from shared import subjects
from shared.bus import Bus
from shared.errors import LogUnavailable
from shared.eventlog import NatsEventLog
from shared.events.run import TimerFired
from shared.ids import new_id
from shared.inbox import Delivery, NatsInbox
from shared.subjects import Aggregate
from tests.requirements import covers
from tests.support.waiting import until


@covers("inbox.poison")
async def test_a_request_that_always_fails_is_given_up_and_the_next_one_is_handled(
    bus: Bus, nats_log: NatsEventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inboxes, "MAX_ATTEMPTS", 3)
    first, second = Aggregate("run", new_id()), Aggregate("run", new_id())
    name = f"poison-{new_id()[:8]}"
    given_up: list[tuple[str, str]] = []
    handled, ended = asyncio.Event(), asyncio.Event()

    async def handle(delivery: Delivery) -> bool:
        if delivery.fact.scope == first.scope:
            raise ZeroDivisionError("a bug")
        handled.set()
        return True

    async def give_up(delivery: Delivery, reason: str) -> None:
        given_up.append((delivery.fact.scope, reason))
        ended.set()

    filters = (subjects.fact("run", first.scope, "timer_fired"), subjects.fact("run", second.scope, "timer_fired"))
    inbox = NatsInbox(bus, nats_log, name, filters, poisoned=give_up, pause_s=0.01)
    (fact,) = await nats_log.append(first, [TimerFired(key="bad")], after=0)
    await nats_log.append(second, [TimerFired(key="good")], after=0)
    running = asyncio.create_task(inbox.run(handle))
    async with asyncio.timeout(10):
        await handled.wait()
        await ended.wait()
        await until(lambda: dead_letters(bus, name))
    letters = await dead_letters(bus, name)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert given_up == [(first.scope, "ZeroDivisionError: a bug")]
    assert letters[0]["seq"] == fact.seq


async def test_a_request_that_waits_for_something_to_come_back_is_never_given_up(
    bus: Bus, nats_log: NatsEventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inboxes, "MAX_ATTEMPTS", 2)
    run = Aggregate("run", new_id())
    tries, done = [0], asyncio.Event()

    async def handle(delivery: Delivery) -> bool:
        tries[0] += 1
        if tries[0] < 5:
            raise LogUnavailable("the log is away")
        done.set()
        return True

    async def give_up(delivery: Delivery, reason: str) -> None:
        raise AssertionError("given up")

    filters = (subjects.fact("run", run.scope, "timer_fired"),)
    inbox = NatsInbox(bus, nats_log, f"patient-{new_id()[:8]}", filters, poisoned=give_up, pause_s=0.01)
    await nats_log.append(run, [TimerFired(key="x")], after=0)
    running = asyncio.create_task(inbox.run(handle))
    async with asyncio.timeout(10):
        await done.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def dead_letters(bus: Bus, name: str) -> list[dict[str, object]]:
    stored = await bus.client.jetstream().subscribe(subjects.dead_letter(name), stream=subjects.DEAD_LETTER_STREAM, ordered_consumer=True)
    try:
        return [orjson.loads((await stored.next_msg(timeout=0.3)).data)]
    except TimeoutError:
        return []
    finally:
        await stored.unsubscribe()
