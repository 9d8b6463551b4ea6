"""Durable work: requests are consumed straight from the log, and acknowledged after their answer is in it.

A durable pull consumer hands each request to one live process. A process that dies lets go after the
ack wait; the same process restarted does not wait for that: it reads the requests that were handed out and
not acknowledged, and takes up those that its handler recognises as its own (`recovered`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

import nats.errors
import orjson
import structlog
from nats.aio.msg import Msg

from shared import subjects
from shared.bus import Bus, JetStreamError, delivery_of
from shared.errors import Fault, LogUnavailable, Verdict
from shared.eventlog import EventLog, read_together
from shared.events.envelope import Fact, decode, subject_of

logger = structlog.get_logger()

PULL_SIZE = 256
PULL_EXPIRES_S = 20.0
PULL_HEARTBEAT_S = 0.5  # silence of two and a half of them means that the server forgot the request, as a restarted one does
DONE_MEMORY = 10_000
MAX_ATTEMPTS = 6  # tries of a request whose handler fails; with the growing pause about half a minute


@dataclass(frozen=True, slots=True)
class Delivery:
    """A request to be answered.

    `attempt` counts deliveries; `recovered` means that it was read from the log at start, because it
    had been handed out before and nobody has acknowledged it. A handler must then make sure that no
    other live process works on it (by the owner that the log names) or return False.
    """

    fact: Fact
    attempt: int = 1
    recovered: bool = False


Handler = Callable[[Delivery], Awaitable[bool]]
"""Answers a request. True: done, acknowledge. False: not mine, leave it to whoever holds it."""


class Inbox(Protocol):
    """Runs a handler for each request until cancelled."""

    async def run(self, handler: Handler) -> None: ...


@dataclass(slots=True)
class _Work:
    """One request under way; `reply` is where its acknowledgement goes, once it has been delivered."""

    task: asyncio.Task[bool]
    reply: str | None


@dataclass
class NatsInbox:
    """An inbox over a durable consumer of the stream `EVENTS`."""

    bus: Bus
    log: EventLog
    durable: str
    filters: tuple[str, ...]
    ack_wait_s: float = 5.0
    max_in_flight: int = 1000
    poisoned: Callable[[Delivery, str], Awaitable[None]] | None = None  # says in the log that a request cannot be answered
    pause_s: float = 0.5  # before a request that was given back comes again; doubles with each delivery
    _active: dict[int, _Work] = field(default_factory=dict[int, _Work])
    _done: dict[int, None] = field(default_factory=dict[int, None])
    _wanted: int = 0
    _heard_at: float = 0.0

    async def run(self, handler: Handler) -> None:
        """Consume until cancelled. Work under way is cancelled with it."""
        await self._ensure_consumer()
        inbox = self.bus.client.new_inbox()
        tap = self.bus.client.tap(inbox, lambda message: self._take(message, handler))
        try:
            await self._recover(handler)
            async with asyncio.TaskGroup() as loops:
                loops.create_task(self._pull(inbox))
                loops.create_task(self._heartbeat())
        finally:
            tap.close()
            for work in self._active.values():
                work.task.cancel()
            await asyncio.gather(*(work.task for work in self._active.values()), return_exceptions=True)

    async def _ensure_consumer(self) -> None:
        wanted = {
            "durable_name": self.durable,
            "ack_policy": "explicit",
            "ack_wait": int(self.ack_wait_s * 1e9),
            "deliver_policy": "all",
            "max_ack_pending": self.max_in_flight,
            "max_deliver": -1,
            "filter_subjects": list(self.filters),
        }
        pause = 0.1
        while True:
            try:
                ask = {"stream_name": subjects.STREAM, "config": wanted}
                await self.bus.api(f"CONSUMER.DURABLE.CREATE.{subjects.STREAM}.{self.durable}", ask)
                return
            except LogUnavailable:
                await asyncio.sleep(pause)
                pause = min(pause * 2, 2.0)

    async def _recover(self, handler: Handler) -> None:
        """Take up what was handed out and not acknowledged, without waiting for its redelivery."""
        try:
            info = await self.bus.api(f"CONSUMER.INFO.{subjects.STREAM}.{self.durable}")
            if not info.get("num_ack_pending"):
                return
            floor, delivered = int(info["ack_floor"]["stream_seq"]), int(info["delivered"]["stream_seq"])
            handed_out = [fact for fact in await read_together(self.log, *self.filters, after=floor) if fact.seq <= delivered]
        except (JetStreamError, LogUnavailable, ValueError) as error:  # ValueError: one of them cannot be read
            logger.warning("recovery_left_to_redelivery", durable=self.durable, error=str(error))
            return
        for fact in handed_out:
            if fact.seq not in self._active and fact.seq not in self._done:
                self._start(Delivery(fact, recovered=True), None, handler)

    async def _pull(self, inbox: str) -> None:
        """Keep a pull request open; ask again before it runs dry and whenever the server falls silent."""
        loop = asyncio.get_running_loop()
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{subjects.STREAM}.{self.durable}"
        ask = orjson.dumps({"batch": PULL_SIZE, "expires": int(PULL_EXPIRES_S * 1e9), "idle_heartbeat": int(PULL_HEARTBEAT_S * 1e9)})
        connection = self.bus.link.reconnects
        while True:
            silent = loop.time() - self._heard_at > PULL_HEARTBEAT_S * 2.5
            forgotten = connection != self.bus.link.reconnects  # a server that restarted knows of no pull request
            if self._wanted < PULL_SIZE // 4 or silent or forgotten:
                connection = self.bus.link.reconnects
                self._heard_at = loop.time()
                self._wanted = PULL_SIZE
                with suppress(nats.errors.Error):
                    await self.bus.client.publish(subject, ask, reply=inbox)
            await asyncio.sleep(0.05)

    def _take(self, message: Msg, handler: Handler) -> None:
        self._heard_at = asyncio.get_running_loop().time()
        if not message.reply or not message.reply.startswith("$JS.ACK."):
            status = (message.headers or {}).get("Status")
            if status in ("404", "408", "409"):
                self._wanted = 0  # the pull request ended: the loop asks again
            return
        self._wanted -= 1
        seq, attempt = delivery_of(message.reply)
        if seq in self._done:
            return self._acknowledge(message.reply)
        if seq in self._active:
            self._active[seq].reply = message.reply
            return None
        try:
            fact = decode(seq, message.subject, message.headers or {}, message.data)
        except Exception as error:  # it cannot be read now, and never will be
            return self._bury(message.reply, message.subject, seq, error)
        self._start(Delivery(fact, attempt), message.reply, handler)
        return None

    def _bury(self, reply: str, subject: str, seq: int, error: Exception) -> None:
        """End a request that nobody can answer, and keep a record of it for an operator."""
        reason = f"{type(error).__name__}: {error}"[:300]
        logger.error("request_buried", durable=self.durable, seq=seq, subject=subject, reason=reason)
        record = orjson.dumps({"consumer": self.durable, "subject": subject, "seq": seq, "reason": reason})
        self.bus.client.send(subjects.dead_letter(self.durable), record, {"Nats-Msg-Id": f"{self.durable}-{seq}"})
        if reply:
            self.bus.client.send(reply, b"+TERM")

    def _start(self, delivery: Delivery, reply: str | None, handler: Handler) -> None:
        task = asyncio.create_task(self._work(delivery, handler))
        self._active[delivery.fact.seq] = _Work(task, reply)

    async def _work(self, delivery: Delivery, handler: Handler) -> bool:
        seq = delivery.fact.seq
        answered = False
        try:
            answered = await handler(delivery)
        except Exception as error:  # the outermost loop of a request: it is delivered again, later
            logger.exception("request_failed", durable=self.durable, seq=seq, attempt=delivery.attempt, error=repr(error))
            if await self._is_poison(delivery, error):
                answered = True
        finally:
            work = self._active.pop(seq, None)
        if work is None:
            return answered
        if answered:
            self._remember(seq)
            if work.reply:
                self._acknowledge(work.reply)
        elif work.reply:
            self._later(work.reply, delivery.attempt)
        return answered

    async def _is_poison(self, delivery: Delivery, error: Exception) -> bool:
        """Whether this was the last try. What only waits for something else to come back has no last try."""
        waits = isinstance(error, Fault) and error.verdict is Verdict.RETRY
        if waits or delivery.attempt < MAX_ATTEMPTS or self.poisoned is None:
            return False
        try:
            await self.poisoned(delivery, f"{type(error).__name__}: {error}"[:300])
        except Exception:
            logger.exception("poison_not_recorded", durable=self.durable, seq=delivery.fact.seq)
            return False
        work = self._active.get(delivery.fact.seq)
        self._bury(
            work.reply if work and work.reply else "", subject_of(delivery.fact.aggregate, delivery.fact.event), delivery.fact.seq, error
        )
        return True

    def _remember(self, seq: int) -> None:
        self._done[seq] = None
        if len(self._done) > DONE_MEMORY:
            self._done.pop(next(iter(self._done)))

    def _acknowledge(self, reply: str) -> None:
        self.bus.client.send(reply, b"+ACK")

    def _later(self, reply: str, attempt: int) -> None:
        """Give it back with a growing pause: an immediate one burns all deliveries within milliseconds."""
        delay_s = min(self.pause_s * 2 ** min(attempt, 6), 30.0)
        self.bus.client.send(reply, b"-NAK " + orjson.dumps({"delay": int(delay_s * 1e9)}))

    async def _heartbeat(self) -> None:
        """Tell the server that work goes on, well inside the ack wait."""
        while True:
            await asyncio.sleep(self.ack_wait_s / 4)
            for work in list(self._active.values()):
                if work.reply:
                    self.bus.client.send(work.reply, b"+WPI")
