"""Facts come in order and in batches, and the reading ends when nobody listens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from services.recorder.batches import batches
from shared.events.envelope import Fact
from shared.events.run import RunStarted
from shared.subjects import Aggregate
from shared.testing.memory import MemoryLog

RUN = Aggregate("run", "r")


async def a_log(count: int) -> MemoryLog:
    log = MemoryLog()
    await log.append(RUN, [RunStarted(owner="o", engine="e") for _ in range(count)], after=0)
    return log


async def first(log: MemoryLog, count: int) -> AsyncIterator[Fact]:
    """A follower that ends."""
    async for fact in log.follow(RUN.filter, after=0):
        yield fact
        if fact.seq == count:
            return


async def test_all_facts_come_once_and_in_order_in_batches_of_at_most_the_size() -> None:
    log = await a_log(107)
    async with asyncio.timeout(5), aclosing(batches(first(log, 107), size=10, window_s=0.0)) as feed:
        found = [batch async for batch in feed]
    assert [fact.seq for batch in found for fact in batch] == list(range(1, 108))
    assert max(len(batch) for batch in found) == 10


async def test_facts_that_come_close_together_share_a_batch_and_the_first_does_not_wait() -> None:
    log = await a_log(1)
    async with asyncio.timeout(5), aclosing(batches(log.follow(RUN.filter, after=0), window_s=0.1)) as feed:
        assert len(await anext(feed)) == 1
        for seq in range(1, 6):
            await log.append(RUN, [RunStarted(owner="o", engine="e")], after=seq)
            await asyncio.sleep(0)
        assert [fact.seq for fact in await anext(feed)] == [2, 3, 4, 5, 6]


async def test_what_ends_the_reading_is_raised_after_what_was_read() -> None:
    async def breaks() -> AsyncIterator[Fact]:
        for fact in (await a_log(3)).facts:
            yield fact
        raise KeyError("the log is gone")

    async with asyncio.timeout(5), aclosing(batches(breaks(), size=1)) as feed:
        assert [[fact.seq for fact in await anext(feed)] for _ in range(3)] == [[1], [2], [3]]
        with pytest.raises(KeyError, match="the log is gone"):
            await anext(feed)


async def test_closing_ends_the_reading_even_when_the_queue_is_full() -> None:
    ended = asyncio.Event()

    async def endless() -> AsyncIterator[Fact]:
        fact = (await a_log(1)).facts[0]
        try:
            while True:
                yield fact
        finally:
            ended.set()

    async with asyncio.timeout(5):
        async with aclosing(batches(endless(), size=2)) as feed:
            await anext(feed)
        assert ended.is_set()
