"""The journal of a run that is under way: its history, and the one writer that extends it.

Branches append at the same time; what they ask for while an append is under way waits for it. A
conflict means that another orchestrator owns the run: this one is fenced, and its code is stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from services.orchestrator.durable.history import History
from shared.errors import Conflict
from shared.eventlog import BATCH_FROM, EventLog
from shared.events.envelope import Event, Fact
from shared.subjects import Aggregate

Pending = tuple[Sequence[Event], "asyncio.Future[list[Fact]]"]


@dataclass
class Journal:
    """One run's facts, as its owner appends and receives them."""

    log: EventLog
    history: History
    fenced: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)  # somebody asked for the run to be stopped
    _pending: list[Pending] = field(default_factory=list[Pending])
    _writer: asyncio.Task[None] | None = None
    _waiting: dict[str, asyncio.Future[Fact]] = field(default_factory=dict[str, "asyncio.Future[Fact]"])

    @property
    def aggregate(self) -> Aggregate:
        return Aggregate("run", self.history.run_id)

    async def append(self, *events: Event) -> list[Fact]:
        """Make facts true. Does not return when another orchestrator owns the run."""
        stored: asyncio.Future[list[Fact]] = asyncio.get_running_loop().create_future()
        self._pending.append((events, stored))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write())
        return await stored

    async def _write(self) -> None:
        while self._pending and not self.fenced.is_set():
            taken = self._next()
            events = [event for group, _ in taken for event in group]
            try:
                facts = await self.log.append(self.aggregate, events, after=self.history.run_seq, cause=self.history.submitted)
            except Conflict:
                self.fenced.set()  # those who wait are cancelled with the run's code
                return
            except Exception as error:
                for _, stored in taken:
                    if not stored.done():
                        stored.set_exception(error)
                continue
            for fact in facts:
                self.history.add(fact)
            for group, stored in taken:
                if not stored.done():
                    stored.set_result(facts[: len(group)])
                facts = facts[len(group) :]

    def _next(self) -> list[Pending]:
        """What branches asked for goes out one after the other, unless so much waits that one batch is sooner done."""
        count = len(self._pending) if len(self._pending) >= BATCH_FROM else 1
        taken, self._pending = self._pending[:count], self._pending[count:]
        return taken

    async def answer(self, call_id: str) -> Fact:
        """The fact that answers a call, as soon as the log has it. A call is waited for once, as its key is used once."""
        known = self.history.answers.get(call_id)
        if known is not None:
            return known
        waiting = self._waiting[call_id] = asyncio.get_running_loop().create_future()
        try:
            return await waiting
        finally:
            del self._waiting[call_id]

    def deliver(self, fact: Fact) -> None:
        """Take in a fact that another service wrote."""
        if not self.history.add(fact):
            return
        if self.history.cancel is not None:
            self.cancelled.set()
        call_id = str(getattr(fact.event, "call_id", ""))
        answer, waiting = self.history.answers.get(call_id), self._waiting.get(call_id)
        if answer is not None and waiting is not None and not waiting.done():
            waiting.set_result(answer)

    async def close(self) -> None:
        """Stop writing: the run is over here, or it is left to its next owner."""
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.gather(self._writer, return_exceptions=True)
