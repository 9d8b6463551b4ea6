"""What an outsider sees of the engine while its processes die: two followers, and how long a resume takes."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime

from aetherium.client import GatewayClient, Reset
from shared import subjects
from shared.eventlog import EventLog
from shared.events.envelope import Fact
from shared.events.run import TERMINAL, RunResumed
from shared.runstate import RunState, Status, evolve


@dataclass
class Takeover:
    """The runs that a killed orchestrator owned, until each has gone on."""

    at: datetime
    began: float
    waiting: set[str]

    @classmethod
    def of(cls, runs: set[str]) -> Takeover:
        return cls(datetime.now(UTC), time.monotonic(), runs)


@dataclass
class Observer:
    """Follows the log itself for what runs do, and the gateway's stream for what a client is shown."""

    log: EventLog
    gateway: GatewayClient
    runs: dict[str, RunState] = field(default_factory=dict[str, RunState])
    shown: dict[int, Fact] = field(default_factory=dict[int, Fact])  # by sequence, as the gateway's stream had them
    last_shown: int = 0
    repeated: list[int] = field(default_factory=list[int])  # sequences that the stream had twice
    resets: list[str] = field(default_factory=list[str])
    resume_s: list[float] = field(default_factory=list[float])
    resumed: int = 0
    progress_at: float = field(default_factory=time.monotonic)
    _takeovers: list[Takeover] = field(default_factory=list[Takeover])
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def follow_log(self) -> None:
        """Never ends."""
        async for fact in self.log.follow(subjects.EVENTS, after=0):
            if fact.aggregate.domain in ("run", "llm", "tool", "signal"):
                self._take(fact)
                async with self._changed:
                    self._changed.notify_all()

    async def follow_stream(self) -> None:
        """Never ends; the client takes a broken stream up again."""
        async for item in self.gateway.events():
            if isinstance(item, Reset):
                self.resets.append(item.reason)
            elif isinstance(item, Fact):
                if item.seq in self.shown:
                    self.repeated.append(item.seq)
                self.shown[item.seq] = item
                self.last_shown = item.seq
                async with self._changed:
                    self._changed.notify_all()

    async def shown_to(self, seq: int) -> None:
        """Wait until the gateway's stream has come to a fact."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.last_shown >= seq)

    def _take(self, fact: Fact) -> None:
        self.progress_at = time.monotonic()
        self.runs[fact.scope] = evolve(self.runs.get(fact.scope) or RunState(fact.scope), fact)
        if fact.aggregate.domain != "run":
            return
        self.resumed += isinstance(fact.event, RunResumed)
        for takeover in self._takeovers:
            if fact.scope in takeover.waiting:
                self._went_on(takeover, fact)
        self._takeovers = [takeover for takeover in self._takeovers if takeover.waiting]

    def _went_on(self, takeover: Takeover, fact: Fact) -> None:
        if fact.time > takeover.at:
            takeover.waiting.discard(fact.scope)
            self.resume_s.append(time.monotonic() - takeover.began)
        elif isinstance(fact.event, TERMINAL):  # its last fact was already on its way
            takeover.waiting.discard(fact.scope)

    def orchestrator_killed(self) -> int:
        """Start to measure; gives the number of runs that the dead process owned."""
        owned = {state.run_id for state in self.runs.values() if state.status is Status.RUNNING}
        if owned:
            self._takeovers.append(Takeover.of(owned))
        return len(owned)

    @property
    def not_resumed(self) -> set[str]:
        return {run for takeover in self._takeovers for run in takeover.waiting}

    async def ended(self, run_id: str) -> RunState:
        """The run once it has ended."""
        async with self._changed:
            await self._changed.wait_for(lambda: run_id in self.runs and self.runs[run_id].status.is_final)
        return self.runs[run_id]


def percentile(values: list[float], share: float) -> float:
    """The smallest value that at least `share` of all do not exceed; 0 for none."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * int(share * 100) // 100) - 1)] if ordered else 0.0
