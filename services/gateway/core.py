"""The gateway apart from HTTP: one object that the routers call, over ports that tests have twins of."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, cast

from services.gateway import templates
from services.gateway.feed import Feed
from services.gateway.index import RUN_DOMAINS, Index
from services.gateway.problems import AlreadyOver
from services.gateway.relaying.leases import Arbiter
from services.gateway.relaying.relay import Relay
from services.gateway.submission import Submitter
from shared import subjects
from shared.blobs import Blobs
from shared.errors import Conflict, NotFound
from shared.eventlog import EventLog
from shared.events.envelope import Fact
from shared.events.project import ProjectCreated
from shared.events.run import TERMINAL, LlmRequested, RunCompleted, RunSubmitted
from shared.events.signal import CancelRequested
from shared.ids import is_token
from shared.prompt import Prompt, rebuild
from shared.runstate import RunState, fold
from shared.subjects import Aggregate


class Live(Protocol):
    """Text that models are writing now, not stored anywhere."""

    def of_run(self, run_id: str, put: Callable[[bytes], None]) -> AbstractAsyncContextManager[None]:
        """Hand each delta of a run to `put` while entered."""
        ...


@dataclass(frozen=True)
class Policy:
    """Values from the settings that the HTTP side acts by."""

    max_body_bytes: int = 1_000_000
    max_chat_bytes: int = 32_000_000  # of a relayed chat, which may hold pictures
    token: str | None = None
    loopback_only: bool = True
    keep_alive_s: float = 15.0
    queue: int = 2000


@dataclass
class Gateway:
    log: EventLog
    blobs: Blobs
    live: Live
    index: Index
    feed: Feed
    submitter: Submitter
    arbiter: Arbiter
    workspaces: Path
    user_templates: Path
    relay: Relay
    policy: Policy = field(default_factory=Policy)

    async def start(self) -> None:
        """Learn which project numbers are taken, before anything is submitted."""
        for fact in await self.log.read(subjects.every(ProjectCreated.TYPE)):
            if fact.scope.isdecimal():
                self.index.newest_project = max(self.index.newest_project, int(fact.scope))

    def library(self) -> templates.Library:
        return templates.read(self.user_templates)

    async def facts(self, run_id: str, *, after: int = 0) -> list[Fact]:
        """The facts of a run after a sequence; an unknown run has none."""
        if not is_token(run_id):  # a wildcard would match every run
            return []
        return [fact for fact in await self.log.read(subjects.of_run(run_id), after=after) if fact.aggregate.domain in RUN_DOMAINS]

    async def state(self, run_id: str) -> RunState:
        """A run as it is now.

        Raises:
            NotFound: there is no such run.
        """
        known = self.index.runs.get(run_id)
        if known is None or known.submitted_at is None:
            # The follower may be behind, for one that has just been submitted.
            known = fold(run_id, await self.facts(run_id))
        if known.seq == 0:
            raise unknown_run(run_id)
        return known

    async def state_in(self, project_id: int, run_id: str) -> RunState:
        state = await self.state(run_id)
        if state.project_id != project_id:
            raise NotFound(f"project {project_id} has no run {run_id!r}", field="runGuid")
        return state

    async def runs_of(self, project_id: int) -> list[RunState]:
        """The runs of a project, the newest first.

        Raises:
            NotFound: there is no such project.
        """
        found = self.index.newest(lambda state: state.project_id == project_id, 1_000_000)
        if not found:
            submissions = await self.log.read(subjects.every(RunSubmitted.TYPE))
            ids = [each.scope for each in submissions if isinstance(each.event, RunSubmitted) and each.event.project_id == project_id]
            found = [await self.state(run_id) for run_id in reversed(ids)]
        if not found and not await self.log.last(Aggregate("project", str(project_id)).filter):
            raise NotFound(f"no project {project_id}", field="projectId")
        return found

    async def response(self, state: RunState) -> str:
        """The whole reply of a run, also where it is too long for a fact."""
        if state.reply or not state.status.is_final:
            return state.reply
        last = await self.log.last(Aggregate("run", state.run_id).filter)
        if last is not None and isinstance(last.event, RunCompleted) and last.event.reply_blob is not None:
            return (await self.blobs.get(last.event.reply_blob)).decode("utf-8", "replace")
        return state.reply

    async def cancel(self, run_id: str, reason: str) -> None:
        """Ask a run to stop. Asking again changes nothing.

        Raises:
            NotFound: there is no such run.
            AlreadyOver: it has ended.
        """
        if not is_token(run_id):
            raise unknown_run(run_id)
        signals = Aggregate("signal", run_id)
        while True:
            newest = await self.log.last(Aggregate("run", run_id).filter)
            if newest is None:
                raise unknown_run(run_id)
            if isinstance(newest.event, TERMINAL):
                raise AlreadyOver(f"run {run_id!r} has ended already ({newest.type})", runGuid=run_id)
            earlier = await self.log.read(signals.filter)
            if any(isinstance(each.event, CancelRequested) for each in earlier):
                return
            try:
                await self.log.append(signals, [CancelRequested(reason=reason)], after=earlier[-1].seq if earlier else 0)
            except Conflict:
                continue  # another signal came first: look again
            return

    async def prompt(self, run_id: str, call_id: str) -> tuple[Fact, Prompt]:
        """A call's request, and the exact prompt that it was made with.

        Raises:
            NotFound: there is no such run or call.
        """
        facts = await self.facts(run_id)
        if not facts:
            raise unknown_run(run_id)
        asked = next((fact for fact in facts if isinstance(fact.event, LlmRequested) and fact.event.call_id == call_id), None)
        if asked is None:
            raise NotFound(f"run {run_id!r} has no model call {call_id!r}", field="callId")
        return asked, await rebuild(_Read({fact.seq: fact for fact in facts}, self.log), asked)

    async def history_of_run(self, run_id: str, after: int) -> AsyncGenerator[Fact, None]:
        for fact in await self.facts(run_id, after=after):
            yield fact

    async def history_of_all(self, after: int, wanted: Callable[[Fact], bool]) -> AsyncGenerator[Fact, None]:
        """What is stored up to where the feed is; never more of it in memory than one fact."""
        until = self.index.seq
        if after >= until:
            return
        source = self.log.follow(subjects.EVENTS, after=after)
        try:
            async for fact in source:
                if wanted(fact):
                    yield fact
                if fact.seq >= until:
                    return
        finally:
            if isinstance(source, AsyncGenerator):
                await cast("AsyncGenerator[Fact, None]", source).aclose()


@dataclass(frozen=True, slots=True)
class _Read:
    """Facts that were read at once, where asking the log for each would take a round trip."""

    facts: dict[int, Fact]
    log: EventLog

    async def get(self, seq: int) -> Fact:
        return self.facts.get(seq) or await self.log.get(seq)


def unknown_run(run_id: str) -> NotFound:
    return NotFound(f"no run {run_id!r}: GET /api/runs lists those that exist", field="runGuid")
