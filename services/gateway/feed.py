"""The live feed: one follower of the log serves every subscriber, and none loses a fact.

A fact is encoded once and its bytes shared. A subscriber has a bounded queue; one that cannot keep up
loses its queue, not its place: it goes on from the log where it stopped. History and live are joined by
subscribing first and dropping by sequence what was sent already.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Generator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field

import structlog
from prometheus_client import Counter, Gauge

from services.gateway import wire
from services.gateway.index import Index
from shared import subjects
from shared.eventlog import EventLog
from shared.events import run
from shared.events.envelope import Fact

QUEUE = 2000  # facts that wait for one subscriber
JOIN_S = 0.002  # what comes within this time after a write goes out as one …
JOIN_PER_SUBSCRIBER_S = 0.0001  # … and longer with every open stream: writes, not bytes, are what costs
CHUNK = 256 * 1024

SUBSCRIBERS = Gauge("aetherium_gateway_subscribers", "Event streams that are open")
GAPS = Counter("aetherium_gateway_gaps_filled_total", "Times a slow event stream was continued from the log")

logger = structlog.get_logger()


@dataclass(slots=True)
class Item:
    """What goes to a subscriber; `seq` None = a delta, which may be lost."""

    seq: int | None
    content: bytes
    ends_run: bool = False


@dataclass(slots=True)
class Subscriber:
    """A queue between the feed and one stream."""

    wanted: Callable[[Fact], bool]
    limit: int = QUEUE
    queue: deque[Item] = field(default_factory=deque[Item])
    overflowed: bool = False
    ended: bool = False
    ready: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, item: Item) -> None:
        if self.overflowed or (item.seq is None and len(self.queue) >= self.limit):
            return
        if len(self.queue) >= self.limit:
            self.queue.clear()
            self.overflowed = True
        else:
            self.queue.append(item)
        self.ready.set()

    def end(self) -> None:
        self.ended = True
        self.ready.set()

    def take(self) -> list[Item]:
        """Everything that waits."""
        self.ready.clear()
        items = list(self.queue)
        self.queue.clear()
        return items


@dataclass
class Feed:
    """Follows the log for the index and all subscribers."""

    log: EventLog
    index: Index
    _by_run: dict[str, set[int]] = field(default_factory=dict[str, set[int]])
    _of_all: set[int] = field(default_factory=set[int])
    _subscribers: dict[int, Subscriber] = field(default_factory=dict[int, Subscriber])

    async def run(self) -> None:
        """Follow from the first fact on, until cancelled."""
        async for fact in self.log.follow(subjects.EVENTS, after=0):
            self.publish(fact)

    def publish(self, fact: Fact) -> None:
        try:
            self.index.apply(fact)
        except Exception:  # the outermost loop of the follower: a fact that cannot be folded must not stop the others
            logger.exception("fact_not_folded", seq=fact.seq, type=fact.type)
            self.index.seq = fact.seq
        keys = self._by_run.get(fact.scope, set()) | self._of_all
        takers = [taker for key in keys if (taker := self._subscribers[key]).wanted(fact)]
        if takers:
            item = Item(fact.seq, wire.event_of(fact), ends_run(fact))
            for taker in takers:
                taker.put(item)

    @contextmanager
    def subscribed(self, run_id: str | None, wanted: Callable[[Fact], bool], *, limit: int = QUEUE) -> Generator[Subscriber]:
        """A subscriber to the facts of a run, or of all (None)."""
        subscriber = Subscriber(wanted, limit)
        key = id(subscriber)
        group = self._of_all if run_id is None else self._by_run.setdefault(run_id, set())
        self._subscribers[key] = subscriber
        group.add(key)
        SUBSCRIBERS.inc()
        try:
            yield subscriber
        finally:
            SUBSCRIBERS.dec()
            group.discard(key)
            del self._subscribers[key]
            if run_id is not None and not group:
                self._by_run.pop(run_id, None)

    @property
    def pause_s(self) -> float:
        """How long a stream gathers facts before its next write."""
        return JOIN_S + JOIN_PER_SUBSCRIBER_S * len(self._subscribers)

    @property
    def subscribers(self) -> Collection[Subscriber]:
        return self._subscribers.values()

    def close(self) -> None:
        """End every stream, so that the server can stop."""
        for subscriber in self._subscribers.values():
            subscriber.end()


def ends_run(fact: Fact) -> bool:
    return isinstance(fact.event, run.TERMINAL)


History = Callable[[int], AsyncGenerator[Fact, None]]
"""The stored facts of a stream after a sequence, as far as they go now."""


async def stream(
    subscriber: Subscriber,
    history: History,
    *,
    after: int,
    ends_with_run: bool,
    keep_alive_s: float = 15.0,
    pause_s: Callable[[], float] = lambda: JOIN_S,
) -> AsyncGenerator[bytes, None]:
    """Everything after `after`, each fact once and in order; ends with the run, or when the feed is closed."""
    sent = after
    subscriber.overflowed = True  # the first gap to fill is the history
    while True:
        if subscriber.overflowed:
            # Cleared before reading: what is published from here on is queued, what was published before is in the log.
            subscriber.overflowed = False
            if sent > after:
                GAPS.inc()
            over = False
            async with aclosing(_joined(history(sent))) as pages:
                async for page in pages:
                    sent, over = page.seq, over or page.ends_run
                    yield page.content
            if over and ends_with_run:
                return
        elif await _quiet(subscriber, keep_alive_s):
            yield wire.KEEP_ALIVE
        items = [item for item in subscriber.take() if item.seq is None or item.seq > sent]
        if items:
            sent = max([sent, *(item.seq for item in items if item.seq is not None)])
            yield b"".join(item.content for item in items)
            if ends_with_run and any(item.ends_run for item in items):
                return
            await asyncio.sleep(pause_s())
        if subscriber.ended:
            return


async def _quiet(subscriber: Subscriber, seconds: float) -> bool:
    """Wait for something to send; True when nothing came in time."""
    if subscriber.ready.is_set():
        return False
    try:
        await asyncio.wait_for(subscriber.ready.wait(), seconds)
    except TimeoutError:
        return True
    return False


@dataclass(frozen=True, slots=True)
class _Page:
    seq: int
    content: bytes
    ends_run: bool


async def _joined(facts: AsyncGenerator[Fact, None]) -> AsyncGenerator[_Page, None]:
    """Facts joined into large writes."""
    parts: list[bytes] = []
    seq, size, over = 0, 0, False
    async with aclosing(facts) as source:
        async for fact in source:
            parts.append(wire.event_of(fact))
            seq, size, over = fact.seq, size + len(parts[-1]), over or ends_run(fact)
            if size >= CHUNK:
                yield _Page(seq, b"".join(parts), over)
                parts, size, over = [], 0, False
    if parts:
        yield _Page(seq, b"".join(parts), over)
