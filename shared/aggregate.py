"""Deciding about one aggregate at a time: read, decide, append, and decide again after a conflict.

A decision is about one call. It is a pure function from the call's facts to the facts to add, and may run
several times. The facts of the aggregate's other calls do not reach it: a long run would make each call slower.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from shared.errors import Conflict, LogUnavailable
from shared.eventlog import EventLog
from shared.events.envelope import Event, Fact
from shared.subjects import Aggregate

PAUSE_S = 0.25

Decision = Callable[[Sequence[Fact]], Sequence[Event]]


@dataclass
class Decider:
    """The facts of one aggregate by the call that they are about, kept current by whoever writes it."""

    log: EventLog
    aggregate: Aggregate
    _by_call: defaultdict[str, list[Fact]] = field(default_factory=lambda: defaultdict[str, list[Fact]](list))
    _seq: int = 0
    _loaded: bool = False
    _is_behind: bool = False
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def decide(self, call_id: str, decision: Decision, *, cause: Fact | None = None) -> list[Fact]:
        """Append what `decision` says of the call's facts as they are; nothing when it says nothing."""
        async with self._lock:
            if not self._loaded:
                await self._refresh()
            while True:
                events = decision(self._by_call[call_id])
                if not events:
                    return []
                try:
                    stored = await self.log.append(self.aggregate, events, after=self._seq, cause=cause)
                except Conflict:
                    self._is_behind = True
                    await self._refresh()
                    continue
                self._take(stored)
                return stored

    async def known(self, call_id: str) -> Sequence[Fact]:
        """The call's facts as they are known here; the log is read when nothing of the aggregate is."""
        async with self._lock:
            await self._refresh()
            return tuple(self._by_call[call_id])

    async def _refresh(self) -> None:
        while not self._loaded or self._is_behind:
            try:
                self._take(await self.log.read(self.aggregate.filter, after=self._seq))
            except LogUnavailable:  # appends wait for the log, so a decision does too
                await asyncio.sleep(PAUSE_S)
                continue
            self._loaded, self._is_behind = True, False

    def _take(self, facts: Sequence[Fact]) -> None:
        for fact in facts:
            self._by_call[getattr(fact.event, "call_id", "")].append(fact)
            self._seq = fact.seq


@dataclass
class Deciders:
    """The deciders of one domain, by scope; those longest unused are forgotten."""

    log: EventLog
    domain: str
    keep: int = 512
    _by_scope: OrderedDict[str, Decider] = field(default_factory=OrderedDict[str, Decider])

    def of(self, scope: str) -> Decider:
        decider = self._by_scope.pop(scope, None) or Decider(self.log, Aggregate(self.domain, scope))
        self._by_scope[scope] = decider
        if len(self._by_scope) > self.keep:
            self._by_scope.popitem(last=False)
        return decider
