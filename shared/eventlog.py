"""The event log: one append-only JetStream stream of facts.

`EventLog` is what services are written against; `NatsEventLog` is the real one, and
`shared.testing.memory.MemoryLog` its twin, held to the same contract tests.

Appends are group-committed: what is asked for while a commit is under way goes out together, from
`BATCH_FROM` facts on as one atomic batch (ADR-50), so that one fsync serves them all. Optimistic concurrency
is per aggregate.
"""

from __future__ import annotations

import asyncio
import base64
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Protocol

import nats.errors
import orjson
import structlog

from shared import subjects
from shared.bus import Bus, JetStreamError
from shared.client import ConnectionLost, headers_in
from shared.clock import Clock, SystemClock
from shared.errors import BadInput, Conflict, LogUnavailable, NotFound
from shared.events.envelope import Event, Fact, body_of, decode, decode_anything, headers_of, subject_of
from shared.feed import Feed, FeedBroken
from shared.ids import new_id
from shared.pages import read_page
from shared.subjects import Aggregate

WRONG_LAST_SEQUENCE = 10071
DUPLICATE_IN_BATCH = 10201
MAX_BODY = 256 * 1024
MAX_GROUP = 100  # facts in one atomic batch
BATCH_FROM = 16  # facts; the server sets up a store for each batch, which takes it as long as a dozen single appends
FOLLOW_PAUSE_S = 0.25
ACK_TIMEOUT_S = 2.0  # asking again is safe; an acknowledgement that a dying server took along should not cost more

logger = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Write:
    """Facts to append to one aggregate, if `after` is still the sequence of its last fact.

    None: it follows an earlier write of the same commit to the same aggregate, which keeps the order of facts among aggregates.
    """

    aggregate: Aggregate
    events: Sequence[Event]
    after: int | None
    cause: Fact | None = None


class EventLog(Protocol):
    """Append and read facts. All sequences are those of the one stream."""

    async def append(self, aggregate: Aggregate, events: Sequence[Event], *, after: int, cause: Fact | None = None) -> list[Fact]:
        """Store all of `events`, or none; waits as long as the log is away.

        Raises:
            Conflict: the aggregate's last fact is not the one at `after` (0 = no fact yet).
        """
        ...

    async def commit(self, writes: Sequence[Write]) -> list[list[Fact]]:
        """`append` to several aggregates at once: all, or none."""
        ...

    async def read(self, subject_filter: str, *, after: int = 0) -> list[Fact]:
        """The facts that match, in order, from the one after sequence `after` on."""
        ...

    def follow(self, *subject_filters: str, after: int) -> AsyncIterator[Fact]:
        """The facts that match, in order, as they are stored; never ends.

        A message that cannot be read is an `Unknown` with its problem, so that one cannot stop its followers.
        """
        ...

    async def get(self, seq: int) -> Fact:
        """The fact at a sequence.

        Raises:
            NotFound: there is none.
        """
        ...

    async def last(self, subject_filter: str) -> Fact | None:
        """The newest fact that matches."""
        ...

    async def last_seq(self) -> int:
        """The sequence of the newest fact of all; 0 = the log is empty."""
        ...


@dataclass(slots=True)
class _Pending:
    """A commit that waits for its turn, with the ids its facts will carry."""

    writes: Sequence[Write]
    facts: list[list[Fact]]
    messages: list[tuple[str, dict[str, str], bytes]]
    done: asyncio.Future[int]  # the sequence of its first message


@dataclass
class NatsEventLog:
    """The log on a JetStream server."""

    bus: Bus
    source: str
    clock: Clock = field(default_factory=SystemClock)
    ack_timeout_s: float = ACK_TIMEOUT_S
    trace: Any = None  # a function that gives the traceparent to stamp on facts, if any
    _queue: list[_Pending] = field(default_factory=list[_Pending])
    _committer: asyncio.Task[None] | None = None
    _cache: OrderedDict[int, Fact] = field(default_factory=OrderedDict[int, Fact])
    cache_size: int = 4096

    # ---- append

    async def append(self, aggregate: Aggregate, events: Sequence[Event], *, after: int, cause: Fact | None = None) -> list[Fact]:
        return (await self.commit([Write(aggregate, events, after, cause)]))[0]

    async def commit(self, writes: Sequence[Write]) -> list[list[Fact]]:
        pending = self._prepare(writes)
        self._queue.append(pending)
        if self._committer is None or self._committer.done():
            self._committer = asyncio.create_task(self._commit_all())
        first = await pending.done  # of this caller alone: one that is cancelled tears no group that others are part of
        stored = _numbered(pending.facts, first)
        for row in stored:
            for fact in row:
                self.keep(fact)  # who writes a fact often reads it soon: an answer is part of the next prompt
        return stored

    def _prepare(self, writes: Sequence[Write]) -> _Pending:
        now = self.clock.now()
        facts: list[list[Fact]] = []
        messages: list[tuple[str, dict[str, str], bytes]] = []
        for write in writes:
            row: list[Fact] = []
            for place, event in enumerate(write.events):
                fact, message = self._message(write, event, now)
                if place == 0 and write.after is not None:
                    message[1]["Nats-Expected-Last-Subject-Sequence"] = str(write.after)
                    message[1]["Nats-Expected-Last-Subject-Sequence-Subject"] = write.aggregate.filter
                row.append(fact)
                messages.append(message)
            facts.append(row)
        if not messages:
            raise ValueError("nothing to append")
        return _Pending(writes, facts, messages, asyncio.get_running_loop().create_future())

    def _message(self, write: Write, event: Event, now: datetime) -> tuple[Fact, tuple[str, dict[str, str], bytes]]:
        cause = write.cause
        traceparent = (self.trace() if self.trace else None) or (cause.traceparent if cause else None)
        fact = Fact(0, new_id(), now, self.source, write.aggregate, event, cause.id if cause else None, traceparent)
        body = body_of(event)
        if len(body) > MAX_BODY:
            raise BadInput(f"{event.TYPE} of {write.aggregate} has {len(body)} bytes; a fact holds at most {MAX_BODY}", field=event.TYPE)
        headers = headers_of(
            event,
            id=fact.id,
            time=now,
            source=self.source,
            scope=write.aggregate.scope,
            causation_id=fact.causation_id,
            traceparent=traceparent,
        )
        return fact, (subject_of(write.aggregate, event), headers, body)

    async def _commit_all(self) -> None:
        while self._queue:
            group = self._take_group()
            try:
                await self._commit_group(group)
            except asyncio.CancelledError:
                for pending in group + self._queue:
                    pending.done.cancel()
                raise
            except Exception as error:  # the outermost loop of the committer: hand the bug to whoever waits
                for pending in group:
                    if not pending.done.done():
                        pending.done.set_exception(error)

    def _take_group(self) -> list[_Pending]:
        group: list[_Pending] = []
        size = 0
        touched: set[str] = set()
        while self._queue:
            pending = self._queue[0]
            aggregates = {str(write.aggregate) for write in pending.writes}
            if group and (size + len(pending.messages) > MAX_GROUP or touched & aggregates):
                break  # a batch is checked against the state before it, so an aggregate may stand in it once
            group.append(self._queue.pop(0))
            size += len(pending.messages)
            touched |= aggregates
        return group

    async def _commit_group(self, group: list[_Pending]) -> None:
        messages = [message for pending in group for message in pending.messages]
        one_is_several = len(messages) > len(group)  # it takes a batch anyway: the others come along
        if len(group) > 1 and (len(messages) >= BATCH_FROM or one_is_several):
            first = await self._publish(messages)
            if first is not None:
                for pending in group:
                    _resolve(pending.done, first)
                    first += len(pending.messages)
                return
        # Few, or one of the group was stale or unknown: each by itself, so that one cannot fail the others.
        if len(group) == 1:
            return await self._commit_alone(group[0])
        ends = await asyncio.gather(*(self._commit_alone(pending) for pending in group), return_exceptions=True)
        for pending, error in zip(group, ends, strict=True):
            if isinstance(error, Exception) and not pending.done.done():
                pending.done.set_exception(error)
        return None

    async def _commit_alone(self, pending: _Pending) -> None:
        """Publish until the answer is known: stored, or a conflict."""
        pause = 0.05
        while True:
            first = await self._publish(pending.messages)
            if first is not None:
                return _resolve(pending.done, first)
            try:
                landed = await self._landed(pending)
            except LogUnavailable:
                landed = None
            if isinstance(landed, Conflict):
                if not pending.done.done():
                    pending.done.set_exception(landed)
                return None
            if landed:
                return _resolve(pending.done, landed)
            # Not stored: the server is away, or refuses for a reason that passes (a full disk).
            logger.warning("append_waits_for_log", facts=len(pending.messages), first=pending.messages[0][0])
            await asyncio.sleep(pause)
            pause = min(pause * 2, 1.0)

    async def _publish(self, messages: Sequence[tuple[str, dict[str, str], bytes]]) -> int | None:
        """The sequence of the first message, or None when the answer was an error or did not come."""
        client = self.bus.client
        try:
            if len(messages) == 1:
                subject, headers, body = messages[0]
                reply = await client.request(subject, body, timeout=self.ack_timeout_s, headers=headers)
            else:
                batch = new_id().replace("-", "")
                for place, (subject, headers, body) in enumerate(messages[:-1], 1):
                    await client.publish(subject, body, headers={**headers, "Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(place)})
                subject, headers, body = messages[-1]
                last = {**headers, "Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(len(messages)), "Nats-Batch-Commit": "1"}
                reply = await client.request(subject, body, timeout=self.ack_timeout_s, headers=last)
        except (TimeoutError, nats.errors.Error, OSError) as error:
            logger.debug("publish_unanswered", error=repr(error))
            return None
        answer: dict[str, Any] = orjson.loads(reply.data) if reply.data else {}
        if "error" in answer or "seq" not in answer:
            logger.debug("publish_refused", error=answer.get("error"))
            return None
        return int(answer["seq"]) - len(messages) + 1

    async def _landed(self, pending: _Pending) -> int | Conflict | None:
        """What became of an unanswered or refused commit: its first sequence, a conflict, or not stored yet.

        A lost acknowledgement looks like a conflict, so the aggregate's first fact after the expected
        one is read: if it carries our id, the earlier try succeeded.
        """
        first, missing = 0, False
        for write, facts in zip(pending.writes, pending.facts, strict=True):
            if write.after is None:
                continue  # all or none: what was checked tells
            message = await self._next(write.aggregate.filter, write.after + 1)
            if message is None:
                missing = True
                continue
            seq, found = message
            if found != facts[0].id:
                return Conflict(f"{write.aggregate} has a fact at {seq}, after {write.after}", aggregate=str(write.aggregate), seq=seq)
            first = first or seq
        return None if missing else first

    async def _next(self, subject_filter: str, seq: int) -> tuple[int, str] | None:
        """Sequence and id of the first fact that matches at or after `seq`, read from the stream's leader."""
        try:
            answer = await self.bus.api(f"STREAM.MSG.GET.{subjects.STREAM}", {"seq": max(seq, 1), "next_by_subj": subject_filter})
        except JetStreamError as error:
            if error.details.get("code") == 404:
                return None
            raise
        fact = _stored(answer["message"])
        return fact.seq, fact.id

    # ---- read

    async def read(self, subject_filter: str, *, after: int = 0) -> list[Fact]:
        facts, pending = await self._first_page(subject_filter, after)
        while pending:  # a consumer takes longer to start, and is three times as fast from then on
            last = facts[-1].seq
            async with Feed(self.bus) as feed:
                await feed.open((subject_filter,), last)
                with suppress(FeedBroken):  # the rest anew, as soon as the server is back
                    while pending:
                        for item in await feed.more():
                            facts.append(decode(item.seq, item.message.subject, item.message.headers or {}, item.message.data))
                            pending = item.pending > 0
        return facts

    async def _first_page(self, subject_filter: str, after: int) -> tuple[list[Fact], bool]:
        while True:
            with suppress(ConnectionLost):  # once more, as soon as the server is back
                return await read_page(self.bus, subject_filter, after + 1)

    async def follow(self, *subject_filters: str, after: int) -> AsyncIterator[Fact]:
        last = after
        while True:
            async with Feed(self.bus) as feed:
                try:
                    await feed.open(subject_filters, last)
                    while True:
                        for item in await feed.more():
                            last = item.seq
                            yield decode_anything(item.seq, item.message.subject, item.message.headers or {}, item.message.data)
                except FeedBroken as broken:
                    logger.debug("follow_begins_anew", after=last, reason=str(broken))
                except LogUnavailable as error:
                    logger.warning("follow_waits_for_log", error=error.message)
                    await asyncio.sleep(FOLLOW_PAUSE_S)

    async def get(self, seq: int) -> Fact:
        if seq in self._cache:
            self._cache.move_to_end(seq)
            return self._cache[seq]
        try:
            message = await self.bus.ask(f"$JS.API.DIRECT.GET.{subjects.STREAM}", orjson.dumps({"seq": seq}))
        except (TimeoutError, nats.errors.Error) as error:
            raise LogUnavailable(f"the event log did not answer a read of fact {seq}") from error
        headers = message.headers or {}
        if "Nats-Sequence" not in headers:
            raise NotFound(f"the log holds no fact {seq}", seq=seq)
        fact = decode(seq, headers["Nats-Subject"], headers, message.data)
        self.keep(fact)
        return fact

    def keep(self, fact: Fact) -> None:
        """Remember a fact for `get`."""
        self._cache[fact.seq] = fact
        if len(self._cache) > self.cache_size:
            self._cache.popitem(last=False)

    async def last(self, subject_filter: str) -> Fact | None:
        try:
            answer = await self.bus.api(f"STREAM.MSG.GET.{subjects.STREAM}", {"last_by_subj": subject_filter})
        except JetStreamError as error:
            if error.details.get("code") == 404:
                return None
            raise
        return _stored(answer["message"])

    async def last_seq(self) -> int:
        return int((await self.bus.api(f"STREAM.INFO.{subjects.STREAM}"))["state"]["last_seq"])

    async def close(self) -> None:
        """Wait for what is being committed."""
        if self._committer is not None:
            with suppress(asyncio.CancelledError):
                await self._committer


async def read_together(log: EventLog, *subject_filters: str, after: int = 0) -> list[Fact]:
    """The facts that match any of several filters, in the one order; filters that overlap give a fact twice."""
    facts = [fact for each in subject_filters for fact in await log.read(each, after=after)]
    return sorted(facts, key=lambda fact: fact.seq)


def _resolve(future: asyncio.Future[int], value: int) -> None:
    if not future.done():
        future.set_result(value)


def _numbered(facts: Sequence[Sequence[Fact]], first: int) -> list[list[Fact]]:
    numbered: list[list[Fact]] = []
    for row in facts:
        numbered.append([replace(fact, seq=first + place) for place, fact in enumerate(row)])
        first += len(row)
    return numbered


def _stored(message: dict[str, Any]) -> Fact:
    """A fact from the JSON form of `STREAM.MSG.GET`; asked for its place, so one that cannot be read has one too."""
    headers = headers_in(base64.b64decode(message.get("hdrs", "")))
    return decode_anything(int(message["seq"]), message["subject"], headers, base64.b64decode(message.get("data", "")))


STREAMS: tuple[dict[str, Any], ...] = (
    {
        "name": subjects.STREAM,
        "subjects": [subjects.EVENTS],
        "storage": "file",
        "retention": "limits",
        "discard": "new",
        "allow_direct": True,
        "allow_atomic": True,
        "deny_delete": True,
        "deny_purge": True,
        "duplicate_window": 600_000_000_000,
    },
    {"name": subjects.BLOB_STREAM, "subjects": [subjects.BLOBS], "storage": "file", "max_msgs_per_subject": 1024, "allow_direct": True},
    {"name": subjects.DEAD_LETTER_STREAM, "subjects": [subjects.DEAD_LETTERS], "storage": "file", "allow_direct": True},
)


async def ensure_streams(bus: Bus, *, replicas: int = 1) -> None:
    """Create the streams that are missing; those that exist stay as their operator made them."""
    for stream in STREAMS:
        try:
            await bus.api(f"STREAM.INFO.{stream['name']}")
        except JetStreamError as error:
            if error.details.get("code") != 404:
                raise
            await bus.api(f"STREAM.CREATE.{stream['name']}", {**stream, "num_replicas": replicas})
