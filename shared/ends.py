"""Which runs are over, for services that must not begin, or go on with, work for a run that nobody waits for any more."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from shared import subjects
from shared.eventlog import EventLog
from shared.events import run
from shared.events.envelope import Fact

FACTS = (run.Interrupted, *run.TERMINAL)
FILTERS = tuple(subjects.every(event.TYPE) for event in FACTS)
REMEMBERED = 10_000

T = TypeVar("T")


@dataclass
class Ends:
    """Runs that were interrupted or have ended: those seen while following, and before that what the log says.

    `since` is where following began. A request from before it may be of a run that ended while this
    process was away, whatever its delivery says: a server that was killed forgets what it had handed out.
    """

    log: EventLog
    since: int = 0
    _seen: OrderedDict[str, None] = field(default_factory=OrderedDict[str, None])
    _running: dict[str, set[asyncio.Task[Any]]] = field(default_factory=dict[str, "set[asyncio.Task[Any]]"])

    async def stoppable(self, run_id: str, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run `work` as a task that the end of its run cancels; gives the task, which is then done."""
        task = asyncio.ensure_future(work)
        self._running.setdefault(run_id, set()).add(task)
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            raise
        finally:
            self._running[run_id].discard(task)
            if not self._running[run_id]:
                del self._running[run_id]
        return task

    async def watch(self, *, after: int, forget: Callable[[str], object] = lambda _: None) -> None:
        """Cancel what still runs for a run that was interrupted or has ended, and `forget` it; never returns."""
        self.since = after
        async for fact in self.log.follow(*FILTERS, after=after):
            self.saw(fact.scope)
            forget(fact.scope)
            for task in self._running.get(fact.scope, set()):
                if not task.cancelling():  # a run ends in two facts, and a second cancel would break into the tidying after the first
                    task.cancel()

    def saw_end_of(self, run_id: str) -> bool:
        """Whether this process saw that the run was interrupted or has ended; of runs long past it may not know."""
        return run_id in self._seen

    def saw(self, run_id: str) -> None:
        self._seen[run_id] = None
        if len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)

    async def is_over(self, request: Fact, *, again: bool) -> bool:
        """Whether the run of a request is over; `again` = it was delivered before."""
        if request.scope in self._seen:
            return True
        if not again and request.seq > self.since:
            return False
        newest = await self.log.last(subjects.Aggregate("run", request.scope).filter)
        return newest is not None and isinstance(newest.event, FACTS)
