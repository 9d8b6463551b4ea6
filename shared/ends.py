"""Which runs are over, for services that must not begin work for a run that nobody waits for any more."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from shared import subjects
from shared.eventlog import EventLog
from shared.events import run
from shared.events.envelope import Fact

FACTS = (run.Interrupted, *run.TERMINAL)
REMEMBERED = 10_000


@dataclass
class Ends:
    """Runs that were interrupted or have ended: those seen while following, and before that what the log says.

    `since` is where following began. A request from before it may be of a run that ended while this
    process was away, whatever its delivery says: a server that was killed forgets what it had handed out.
    """

    log: EventLog
    since: int = 0
    _seen: OrderedDict[str, None] = field(default_factory=OrderedDict[str, None])

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
