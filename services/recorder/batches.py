"""Facts in batches: as many as wait, and one transaction per window at most."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

from shared.events.envelope import Fact

SIZE = 500
WINDOW_S = 0.05


async def batches(facts: AsyncIterator[Fact], *, size: int = SIZE, window_s: float = WINDOW_S) -> AsyncGenerator[list[Fact], None]:
    """The facts in order, in lists of up to `size`.

    A fact that comes after a quiet time is passed on at once; under load a list gathers what comes within
    `window_s` of the last one. Close it (`aclosing`) to end the reading.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[Fact | None] = asyncio.Queue(maxsize=2 * size)
    reading = asyncio.create_task(_read(facts, queue))
    gathered_at = loop.time() - window_s
    try:
        while (first := await queue.get()) is not None:
            if queue.qsize() < size - 1:
                await asyncio.sleep(gathered_at + window_s - loop.time())
            batch, ended = _take(queue, first, size)
            gathered_at = loop.time()
            yield batch
            if ended:
                break
        await reading  # raises what the reading did
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def _read(facts: AsyncIterator[Fact], queue: asyncio.Queue[Fact | None]) -> None:
    try:
        async with closing(facts):
            async for fact in facts:
                await queue.put(fact)
    except asyncio.CancelledError:
        raise  # nobody takes from the queue any more
    except BaseException:
        await queue.put(None)
        raise
    else:
        await queue.put(None)


@asynccontextmanager
async def closing(facts: AsyncIterator[Fact]) -> AsyncGenerator[AsyncIterator[Fact], None]:
    """Ends a reading of the log at the end of the block, and not when the garbage is collected."""
    try:
        yield facts
    finally:
        if isinstance(facts, AsyncGenerator):
            await facts.aclose()


def _take(queue: asyncio.Queue[Fact | None], first: Fact, size: int) -> tuple[list[Fact], bool]:
    batch = [first]
    while len(batch) < size and not queue.empty():
        fact = queue.get_nowait()
        if fact is None:
            return batch, True
        batch.append(fact)
    return batch, False
