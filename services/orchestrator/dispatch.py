"""Owns runs: takes submissions from the inbox, executes them, and routes answers to those under way."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

import structlog

from services.orchestrator.durable.context import Sources
from services.orchestrator.durable.execution import Code, End, Execution
from services.orchestrator.durable.history import History
from services.orchestrator.durable.journal import Journal
from shared import subjects, telemetry
from shared.blobs import Blobs
from shared.clock import Clock
from shared.errors import BadInput, NotFound
from shared.eventlog import EventLog
from shared.events import run
from shared.inbox import Delivery, Inbox
from shared.template import parse_template

logger = structlog.get_logger()

ROUTED = (subjects.of_domain("llm"), subjects.of_domain("tool"), subjects.of_domain("signal"))


@dataclass
class Orchestrator:
    """The runs of this process."""

    log: EventLog
    blobs: Blobs
    clock: Clock
    owner: str
    engine: str
    topologies: Mapping[str, Code]
    sources: Sources
    active: dict[str, Journal] = field(default_factory=dict[str, Journal])

    async def route(self, *, after: int) -> None:
        """Deliver the answers of other services to the runs that wait for them; never ends."""
        async for fact in self.log.follow(*ROUTED, after=after):
            journal = self.active.get(fact.scope)
            if journal is not None:
                journal.deliver(fact)

    async def handle(self, delivery: Delivery) -> bool:
        """Bring one submitted run to its end. False: leave it to whoever owns it, or to another version."""
        run_id = delivery.fact.scope
        if run_id in self.active:
            return False
        journal = Journal(self.log, History(run_id))
        self.active[run_id] = journal  # before reading, so that no answer falls between
        try:
            for fact in await self.log.read(subjects.of_run(run_id)):
                journal.deliver(fact)
            if journal.history.terminal is not None:
                return True
            if not self._may_take(delivery, journal.history):
                return False
            return await self._execute(journal)
        finally:
            self.active.pop(run_id, None)
            await journal.close()

    def _may_take(self, delivery: Delivery, history: History) -> bool:
        newest = next((fact for fact in reversed(history.facts) if fact.aggregate.domain == "run"), None)
        if newest is not None and isinstance(newest.event, run.RunParked):
            taken = next(fact.event for fact in reversed(history.facts) if isinstance(fact.event, run.RunStarted | run.RunResumed))
            # Parked by this very code: it would only park again, unless somebody wants it to stop.
            return taken.engine != self.engine or history.cancel is not None
        return not delivery.recovered or _owner(history) in (None, self.owner)

    async def _execute(self, journal: Journal) -> bool:
        submitted = journal.history.submitted
        assert submitted is not None
        with telemetry.span("orchestrator.run", submitted.traceparent, run=submitted.scope):
            execution = await self._prepare(journal)
            if execution is None:
                return True
            end = await execution.run()
        logger.info("run_released", run=submitted.scope, end=str(end))
        return end is End.FINISHED

    async def _prepare(self, journal: Journal) -> Execution | None:
        """What the run needs; None when it cannot run at all, which is then its end."""
        submission = journal.history.submission
        try:
            template = parse_template(await self.blobs.get(submission.template), submission.template_id)
            code = self.topologies[template.topology]
        except (BadInput, NotFound) as fault:
            await journal.append(run.RunFailed(code="run.unrunnable", reason=fault.message))
            return None
        except KeyError as missing:
            await journal.append(run.RunFailed(code="run.unrunnable", reason=f"this engine has no topology {missing.args[0]!r}"))
            return None

        return Execution(journal, template, code, self.clock, self.owner, self.engine, self.sources)


def _owner(history: History) -> str | None:
    for fact in reversed(history.facts):
        if isinstance(fact.event, run.RunStarted | run.RunResumed):
            return fact.event.owner
    return None


async def work(orchestrator: Orchestrator, inbox: Inbox, *, after: int) -> None:
    """Route and execute until cancelled."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(orchestrator.route(after=after))
        tasks.create_task(inbox.run(orchestrator.handle))
