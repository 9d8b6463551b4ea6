"""Deciding about one aggregate at a time: read, decide, append, and decide again after a conflict.

A decision is a pure function from the aggregate's facts to the facts to add; it may run several times.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
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
    """The facts of one aggregate, kept current by whoever writes it."""

    log: EventLog
    aggregate: Aggregate
    facts: list[Fact] = field(default_factory=list[Fact])
    _loaded: bool = False
    _is_behind: bool = False
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def decide(self, decision: Decision, *, cause: Fact | None = None) -> list[Fact]:
        """Append what `decision` says of the facts as they are; nothing when it says nothing."""
        async with self._lock:
            if not self._loaded:
                await self._refresh()
            while True:
                events = decision(self.facts)
                if not events:
                    return []
                try:
                    stored = await self.log.append(self.aggregate, events, after=self._seq, cause=cause)
                except Conflict:
                    self._is_behind = True
                    await self._refresh()
                    continue
                self.facts += stored
                return stored

    @property
    def _seq(self) -> int:
        return self.facts[-1].seq if self.facts else 0

    async def _refresh(self) -> None:
        while not self._loaded or self._is_behind:
            try:
                self.facts += await self.log.read(self.aggregate.filter, after=self._seq)
            except LogUnavailable:  # appends wait for the log, so a decision does too
                await asyncio.sleep(PAUSE_S)
                continue
            self._loaded, self._is_behind = True, False


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
