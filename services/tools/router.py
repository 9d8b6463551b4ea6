"""Decides whether a tool call runs, runs it at most once, and records how it ended (KS 6.4)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from mcp.server import MCPServer

from services.tools import ledger, seeds
from services.tools.guards import permissions
from services.tools.ledger import Claim, Next
from services.tools.paths import Workspace
from services.tools.servers.base import CallContext, Change, ToolSpec
from services.tools.servers.invoke import ToolReply, invoke
from shared import subjects, telemetry
from shared.aggregate import Decider, Deciders
from shared.blobs import Blobs
from shared.ends import Ends
from shared.errors import LogUnavailable, NotFound
from shared.eventlog import EventLog
from shared.events import run
from shared.events.content import BlobRef, FileChange, SeedFile
from shared.events.envelope import Event, Fact
from shared.events.tool import FilesLaid, ToolCompleted, ToolDenied, ToolFailed, ToolInterrupted
from shared.inbox import Delivery
from shared.template import Node, parse_template

STORE_PAUSE_S = 0.25
MAX_BEFORE_IMAGE = 4 * 1024 * 1024
REMEMBERED_RUNS = 256


@dataclass(frozen=True, slots=True)
class Team:
    """What of a run its tool calls depend on."""

    project_id: int
    nodes: dict[str, Node]
    files: tuple[SeedFile, ...] = ()  # still to be laid


@dataclass
class Router:
    """The tool calls of this process."""

    log: EventLog
    blobs: Blobs
    servers: Sequence[MCPServer]
    specs: Sequence[ToolSpec]
    owner: str
    workspaces: Path
    abandon: Callable[[str], Awaitable[None]]  # stop whatever a dead process left running for a call
    _deciders: Deciders = field(init=False)
    _ends: Ends = field(init=False)
    _teams: dict[str, Team] = field(default_factory=dict[str, Team])
    _laying: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self._deciders = Deciders(self.log, "tool")
        self._ends = Ends(self.log)

    async def handle(self, delivery: Delivery) -> bool:
        """Answer one `tool_requested`."""
        fact = delivery.fact
        assert isinstance(fact.event, run.ToolRequested)
        with telemetry.span("tools.call", fact.traceparent, run=fact.scope, tool=fact.event.tool):
            return await self._answer(fact, fact.event, delivery)

    async def give_up(self, delivery: Delivery, reason: str) -> None:
        """End a call that the router itself fails at, time and again."""
        fact = delivery.fact
        assert isinstance(fact.event, run.ToolRequested)
        text = f"The engine fails at this call: {reason}. Try another way."
        failed = ToolFailed(call_id=fact.event.call_id, tool=fact.event.tool, code="tool.poison", message=text)
        await self._end(self._deciders.of(fact.scope), fact, fact.event.call_id, failed)

    async def _answer(self, fact: Fact, request: run.ToolRequested, delivery: Delivery) -> bool:
        decider = self._deciders.of(fact.scope)
        team = await self._team(fact.scope)
        node = team.nodes.get(request.agent)
        spec = next((spec for spec in self.specs if spec.name == request.tool), None)
        servers, tools = (node.mcp_servers, node.tools) if node else ((), ())
        denial = permissions.denial(spec, request.tool, self.specs, servers, tools)
        if denial is not None:
            denied = ToolDenied(call_id=request.call_id, tool=request.tool, layer=denial.layer, message=denial.message)
            await self._end(decider, fact, request.call_id, denied)
            return True
        assert spec is not None
        if await self._ends.is_over(fact, again=delivery.recovered or delivery.attempt > 1):
            return True
        if team.files:
            await self._lay_files(decider, fact)
        return await self._claim_and_run(decider, fact, request, spec, team.project_id, delivery)

    async def _lay_files(self, decider: Decider, cause: Fact) -> None:
        """Put the run's own files in place before its first call runs, and never again.

        No call of the run has run until the fact is stored: a crash before it leaves a workspace to which what is
        missing can be added.
        """
        async with self._laying:  # a call beside this one must find all of them
            if not (team := await self._team(cause.scope)).files:
                return
            if await self.log.last(subjects.fact("tool", cause.scope, "files_laid")) is None:
                laid = await seeds.lay(Workspace(self._workspace(team.project_id)), team.files, self.blobs)
                await decider.decide("", lambda facts: () if facts else (FilesLaid(files=laid),), cause=cause)
            self._teams[cause.scope] = replace(team, files=())

    async def _claim_and_run(
        self, decider: Decider, fact: Fact, request: run.ToolRequested, spec: ToolSpec, project_id: int, delivery: Delivery
    ) -> bool:
        claim = Claim(request.call_id, spec.name, spec.server, spec.tier, self.owner, spec.read_only or spec.idempotent, delivery.recovered)
        steps = [Next.NOTHING]

        def decide(facts: Sequence[Fact]) -> Sequence[Event]:
            steps[0], events = ledger.next_step(facts, claim)
            return events

        stored = await decider.decide(request.call_id, decide, cause=fact)
        if stored and isinstance(stored[-1].event, ToolInterrupted):
            await self.abandon(request.call_id)
        if steps[0] is Next.RUN:
            context = CallContext(fact.scope, request.call_id, request.agent, project_id, self._workspace(project_id))
            began = time.monotonic()
            reply = await self._run(fact.scope, spec, request, context)
            ended = await self._ending(request.call_id, spec, reply, (time.monotonic() - began) * 1000)
            await self._end(decider, fact, request.call_id, ended)
        return steps[0] is not Next.NOT_MINE

    async def _run(self, run_id: str, spec: ToolSpec, request: run.ToolRequested, context: CallContext) -> ToolReply:
        """The call as a task that the end of its run cancels."""
        task = await self._ends.stoppable(run_id, invoke(self.servers, spec, request.arguments, context))
        if task.cancelled():
            return ToolReply("The run was stopped while this ran.", is_error=True, failure="tool.cancelled")
        return task.result()

    async def watch_ends(self, *, after: int) -> None:
        """Cancel what still runs for a run that was interrupted or has ended; never returns."""
        await self._ends.watch(after=after, forget=lambda run_id: self._teams.pop(run_id, None))

    async def _end(self, decider: Decider, cause: Fact, call_id: str, event: Event) -> None:
        await decider.decide(call_id, lambda facts: () if ledger.has_ended(facts, call_id) else (event,), cause=cause)

    async def _ending(self, call_id: str, spec: ToolSpec, reply: ToolReply, duration_ms: float) -> Event:
        changes = tuple([await self._file_change(change) for change in reply.changes])
        if reply.failure is not None:
            return ToolFailed(
                call_id=call_id, tool=spec.name, code=reply.failure, message=reply.content, changes=changes, duration_ms=duration_ms
            )
        return ToolCompleted(
            call_id=call_id,
            tool=spec.name,
            content=reply.content,
            structured=reply.structured,
            is_error=reply.is_error,
            changes=changes,
            duration_ms=duration_ms,
        )

    async def _file_change(self, change: Change) -> FileChange:
        """A change with its before-image as a blob, by which a failed step is restored."""
        before = change.before
        kept = await self._kept(before) if before is not None and len(before) <= MAX_BEFORE_IMAGE else None
        return FileChange(path=change.path, before_sha256=change.before_sha256, after_sha256=change.after_sha256, before=kept)

    async def _kept(self, content: bytes) -> BlobRef:
        """The tool has run: what it did is told however long the store is away, as appends wait for the log."""
        while True:
            try:
                return await self.blobs.put(content)
            except LogUnavailable:
                await asyncio.sleep(STORE_PAUSE_S)

    def _workspace(self, project_id: int) -> Path:
        folder = self.workspaces / str(project_id)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    async def _team(self, run_id: str) -> Team:
        if run_id not in self._teams:
            submitted = await self.log.last(subjects.fact("run", run_id, "submitted"))
            if submitted is None or not isinstance(submitted.event, run.RunSubmitted):
                raise NotFound(f"the log holds no submission of run {run_id!r}")
            event = submitted.event
            template = parse_template(await self.blobs.get(event.template), event.template_id)
            if len(self._teams) >= REMEMBERED_RUNS:
                self._teams.pop(next(iter(self._teams)))
            self._teams[run_id] = Team(event.project_id, {node.id: node for node in template.nodes}, event.files)
        return self._teams[run_id]
