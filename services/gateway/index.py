"""What every run is now, and who waits for its end: the one fold, kept in memory by the gateway's follower."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from shared.events import project
from shared.events.envelope import Fact
from shared.runstate import RunState, Status, evolve

RUN_DOMAINS = frozenset({"run", "llm", "tool", "signal"})
"""The domains whose scope is a run's id."""


def ends_a_wait(state: RunState) -> bool:
    """Whether a caller should be answered: the run is over, or stands still until the engine is mended."""
    return state.status.is_final or state.status is Status.PARKED


@dataclass
class Index:
    """Folds facts in order. Holds what the log says up to `seq`."""

    runs: dict[str, RunState] = field(default_factory=dict[str, RunState])
    newest_project: int = 0
    seq: int = 0
    _waiters: dict[str, set[asyncio.Future[RunState]]] = field(default_factory=dict[str, set["asyncio.Future[RunState]"]])

    def apply(self, fact: Fact) -> None:
        self.seq = fact.seq
        if fact.aggregate.domain in RUN_DOMAINS:
            state = evolve(self.runs.get(fact.scope) or RunState(fact.scope), fact)
            self.runs[fact.scope] = state
            if ends_a_wait(state):
                self._wake(state)
        elif isinstance(fact.event, project.ProjectCreated) and fact.scope.isdecimal():
            self.newest_project = max(self.newest_project, int(fact.scope))

    def take_project_id(self) -> int:
        """The next id that nobody here has been given. Only the log decides whether it is free."""
        self.newest_project += 1
        return self.newest_project

    async def ended(self, run_id: str) -> RunState:
        """The run once it is over or parked."""
        state = self.runs.get(run_id)
        if state is not None and ends_a_wait(state):
            return state
        waiter: asyncio.Future[RunState] = asyncio.get_running_loop().create_future()
        waiters = self._waiters.setdefault(run_id, set())
        waiters.add(waiter)
        try:
            return await waiter
        finally:
            waiters.discard(waiter)
            if not waiters:
                self._waiters.pop(run_id, None)

    def is_awaited(self, run_id: str) -> bool:
        """Whether a caller waits for the run's end."""
        return run_id in self._waiters

    def newest(self, wanted: Callable[[RunState], bool], limit: int) -> list[RunState]:
        """The newest runs that are wanted, the newest first."""
        found: list[RunState] = []
        for state in reversed(self.runs.values()):
            if len(found) == limit:
                break
            if state.submitted_at is not None and wanted(state):
                found.append(state)
        return found

    def _wake(self, state: RunState) -> None:
        for waiter in self._waiters.get(state.run_id, ()):
            if not waiter.done():
                waiter.set_result(state)
