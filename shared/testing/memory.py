"""In-memory twins of the log, its inboxes and the blob store, held to the same contract tests.

`MemoryLog(crash_at=n)` dies after its n-th fact: that append stores the fact and never returns, and no more
does any later call, as if the machine had lost power; `reopened` gives what the disk holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace

import structlog

from shared.blobs import reference_to
from shared.clock import Clock, SystemClock
from shared.errors import BadInput, Conflict, LogUnavailable, NotFound
from shared.eventlog import MAX_BODY, Write
from shared.events.content import BlobRef
from shared.events.envelope import Event, Fact, body_of, decode, headers_of, subject_of
from shared.ids import new_id
from shared.inbox import Delivery, Handler
from shared.subjects import Aggregate
from shared.tenure import Record

logger = structlog.get_logger()


def matches(subject_filter: str, subject: str) -> bool:
    """Whether a NATS subject filter covers a subject."""
    wanted, tokens = subject_filter.split("."), subject.split(".")
    for place, token in enumerate(wanted):
        if token == ">":
            return len(tokens) > place
        if place >= len(tokens) or token not in ("*", tokens[place]):
            return False
    return len(wanted) == len(tokens)


@dataclass
class MemoryLog:
    """A log that lives as long as the test."""

    source: str = "test"
    clock: Clock = field(default_factory=SystemClock)
    crash_at: int | None = None
    facts: list[Fact] = field(default_factory=list[Fact])
    subjects: list[str] = field(default_factory=list[str])
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    delivered: dict[str, set[int]] = field(default_factory=dict[str, set[int]])
    acknowledged: dict[str, set[int]] = field(default_factory=dict[str, set[int]])

    def reopened(self, *, crash_at: int | None = None) -> MemoryLog:
        """The log as a new process finds it."""
        return MemoryLog(
            self.source,
            self.clock,
            crash_at,
            list(self.facts),
            list(self.subjects),
            delivered={name: set(seqs) for name, seqs in self.delivered.items()},
            acknowledged={name: set(seqs) for name, seqs in self.acknowledged.items()},
        )

    @property
    def dead(self) -> bool:
        return self.crash_at is not None and len(self.facts) >= self.crash_at

    async def _alive(self) -> None:
        if self.dead:
            await asyncio.get_running_loop().create_future()

    async def append(self, aggregate: Aggregate, events: Sequence[Event], *, after: int, cause: Fact | None = None) -> list[Fact]:
        return (await self.commit([Write(aggregate, events, after, cause)]))[0]

    async def commit(self, writes: Sequence[Write]) -> list[list[Fact]]:
        await self._alive()
        for write in writes:
            if write.after is None:
                continue
            newest = await self.last(write.aggregate.filter)
            if (newest.seq if newest else 0) != write.after:
                raise Conflict(f"{write.aggregate} is not at {write.after}", aggregate=str(write.aggregate))
        # All of them in their wire form first: one that cannot be stored stops them all.
        wire = [[self._wire(write, event) for event in write.events] for write in writes]
        if not any(wire):
            raise ValueError("nothing to append")
        stored = [[self._store(*message) for message in row] for row in wire]
        async with self._changed:
            self._changed.notify_all()
        await self._alive()
        return stored

    def _wire(self, write: Write, event: Event) -> tuple[str, dict[str, str], bytes]:
        body = body_of(event)
        if len(body) > MAX_BODY:
            raise BadInput(f"{event.TYPE} of {write.aggregate} has {len(body)} bytes; a fact holds at most {MAX_BODY}", field=event.TYPE)
        cause = write.cause
        headers = headers_of(
            event,
            id=new_id(),
            time=self.clock.now(),
            source=self.source,
            scope=write.aggregate.scope,
            causation_id=cause.id if cause else None,
            traceparent=cause.traceparent if cause else None,
        )
        return subject_of(write.aggregate, event), headers, body

    def _store(self, subject: str, headers: dict[str, str], body: bytes) -> Fact:
        # Through the wire form and back, so that a test sees what a reader would.
        fact = decode(len(self.facts) + 1, subject, headers, body)
        self.facts.append(fact)
        self.subjects.append(subject)
        return fact

    async def read(self, subject_filter: str, *, after: int = 0) -> list[Fact]:
        await self._alive()
        stored = zip(self.facts, self.subjects, strict=True)
        return [fact for fact, subject in stored if fact.seq > after and matches(subject_filter, subject)]

    async def follow(self, *subject_filters: str, after: int) -> AsyncIterator[Fact]:
        while True:
            await self._alive()
            fresh = list(zip(self.facts[after:], self.subjects[after:], strict=True))
            for fact, subject in fresh:
                after = fact.seq
                if any(matches(each, subject) for each in subject_filters):
                    yield fact
            async with self._changed:
                if len(self.facts) <= after and not self.dead:
                    await self._changed.wait()

    async def get(self, seq: int) -> Fact:
        await self._alive()
        if not 0 < seq <= len(self.facts):
            raise NotFound(f"the log holds no fact {seq}", seq=seq)
        return self.facts[seq - 1]

    async def last(self, subject_filter: str) -> Fact | None:
        await self._alive()
        for fact, subject in zip(reversed(self.facts), reversed(self.subjects), strict=True):
            if matches(subject_filter, subject):
                return fact
        return None

    async def last_seq(self) -> int:
        return len(self.facts)

    def with_body(self, seq: int, event: Event) -> MemoryLog:
        """A copy in which the fact at `seq` holds another event: a log that somebody edited."""
        copy = self.reopened()
        copy.facts[seq - 1] = replace(copy.facts[seq - 1], event=event)
        return copy


@dataclass
class MemoryInbox:
    """The twin of a durable consumer: what was not acknowledged is delivered to the next process."""

    log: MemoryLog
    durable: str
    filters: tuple[str, ...]
    pause_s: float = 0.5

    async def run(self, handler: Handler) -> None:
        delivered = self.log.delivered.setdefault(self.durable, set())
        done = self.log.acknowledged.setdefault(self.durable, set())
        before = set(delivered)
        async with asyncio.TaskGroup() as tasks:
            async for fact in self.log.follow(*self.filters, after=0):
                if fact.seq not in done:
                    delivered.add(fact.seq)
                    tasks.create_task(self._work(Delivery(fact, recovered=fact.seq in before), handler))

    async def _work(self, delivery: Delivery, handler: Handler) -> None:
        """Deliver it until it is answered, after a growing pause each time."""
        while not await self._answered(delivery, handler):
            await self.log.clock.sleep(min(self.pause_s * 2 ** min(delivery.attempt, 6), 30.0))
            delivery = Delivery(delivery.fact, delivery.attempt + 1)
        if not self.log.dead:
            self.log.acknowledged[self.durable].add(delivery.fact.seq)

    async def _answered(self, delivery: Delivery, handler: Handler) -> bool:
        try:
            return await handler(delivery)
        except Exception as error:  # the outermost loop of a request, like that of the real inbox
            logger.exception("request_failed", durable=self.durable, seq=delivery.fact.seq, error=repr(error))
            return False


@dataclass
class MemoryBlobs:
    content: dict[str, bytes] = field(default_factory=dict[str, bytes])

    async def put(self, content: bytes, *, preview: str = "") -> BlobRef:
        ref = reference_to(content, preview)
        self.content[ref.sha256] = content
        return ref

    async def get(self, ref: BlobRef) -> bytes:
        content = self.content.get(ref.sha256)
        if content is None or reference_to(content).sha256 != ref.sha256:
            raise NotFound(f"no blob {ref.sha256}, or not whole", sha256=ref.sha256)
        return content


@dataclass
class MemoryRegister:
    """An office's record, shared by those that compete for it in a test. `away`: it does not answer."""

    record: Record | None = None
    revision: int = 0
    away: bool = False

    async def read(self) -> tuple[int, Record | None]:
        self._answer()
        return self.revision, self.record

    async def write(self, record: Record, *, after: int) -> int:
        self._answer()
        if after != self.revision:
            raise Conflict("written by another")
        self.record, self.revision = record, self.revision + 1
        return self.revision

    def _answer(self) -> None:
        if self.away:
            raise LogUnavailable("the register is away")
