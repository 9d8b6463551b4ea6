"""Long reads and slow followers on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from shared import subjects
from shared.bus import Bus, JetStreamError, connect
from shared.eventlog import NatsEventLog
from shared.events.envelope import Fact
from shared.events.run import Noted
from shared.feed import Feed
from shared.ids import new_id
from shared.pages import PAGE
from shared.subjects import Aggregate
from tests.conftest import NatsServer
from tests.contract.proxy import Proxy, proxied
from tests.requirements import covers
from tests.support.waiting import until

BATCH = 100


@pytest.fixture
async def proxy(nats_server: NatsServer) -> AsyncIterator[Proxy]:
    async with proxied(nats_server.port) as opened:
        yield opened


async def written(log: NatsEventLog, count: int, size: int = 10) -> tuple[Aggregate, list[Fact]]:
    """A run of `count` facts with a text of `size` characters each."""
    run, facts = Aggregate("run", new_id()), list[Fact]()
    for start in range(0, count, BATCH):
        events = [Noted(key=f"{start + number}", tag="T", text="x" * size) for number in range(BATCH)]
        facts += await log.append(run, events, after=facts[-1].seq if facts else 0)
    return run, facts


@covers("log.read.order")
async def test_a_read_longer_than_a_page_is_whole_and_in_order(bus: Bus) -> None:
    log = NatsEventLog(bus, "test")
    run, facts = await written(log, PAGE * 3)
    assert await log.read(run.filter) == facts
    assert await log.read(run.filter, after=facts[PAGE].seq) == facts[PAGE + 1 :]


@covers("log.follow.whole")
async def test_a_read_goes_on_behind_what_it_has_when_the_connection_is_cut(bus: Bus, proxy: Proxy) -> None:
    run, facts = await written(NatsEventLog(bus, "test"), PAGE * 6, size=2000)
    behind = await connect(f"nats://127.0.0.1:{proxy.port}", "behind")
    reading = asyncio.create_task(NatsEventLog(behind, "test").read(run.filter))
    async with asyncio.timeout(20):
        for _ in range(3):
            await until(lambda: behind.client.taps or reading.done())
            proxy.cut()
            await asyncio.sleep(0)
        assert await reading == facts
    await behind.close()


@covers("log.follow.whole")
async def test_a_follower_that_is_slow_gets_everything_while_the_server_waits(bus: Bus) -> None:
    run, facts = await written(NatsEventLog(bus, "test"), 800, size=20_000)  # several times the server's first window
    got: list[Fact] = []
    async with asyncio.timeout(30):
        async for fact in NatsEventLog(bus, "slow").follow(run.filter, after=0):
            got.append(fact)
            if len(got) % 100 == 0:
                await bus.client.flush()  # a round trip, in which the server sends on as far as its window goes
            if len(got) == len(facts):
                break
    assert got == facts


@covers("log.follow.whole")
async def test_a_follower_begins_anew_when_its_consumer_is_deleted(bus: Bus) -> None:
    log = NatsEventLog(bus, "test")
    run, facts = await written(log, BATCH)
    names: list[str] = []
    post_init = Feed.open

    async def noted(feed: Feed, *arguments: object) -> None:
        names.append(feed.name)
        await post_init(feed, *arguments)  # pyright: ignore[reportArgumentType]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Feed, "open", noted)
        following = log.follow(run.filter, after=facts[-1].seq)
        waiting = asyncio.ensure_future(anext(following))
        async with asyncio.timeout(10):
            await until(lambda: names)
            await until(lambda: bus.client.taps)
            await deleted(bus, names[0])
            await until(lambda: len(names) > 1)
            (fact,) = await log.append(run, [Noted(key="last", tag="T", text="x")], after=facts[-1].seq)
            assert await waiting == fact
        await following.aclose()  # pyright: ignore[reportAttributeAccessIssue]  a generator


async def deleted(bus: Bus, name: str) -> None:
    """Delete a consumer as soon as the server has it."""
    while True:
        try:
            await bus.api(f"CONSUMER.DELETE.{subjects.STREAM}.{name}")
        except JetStreamError:
            await asyncio.sleep(0)
        else:
            return
