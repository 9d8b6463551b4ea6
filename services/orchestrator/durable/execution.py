"""One execution of a run's code by its owner: start or resume, watch for a stop, end in one terminal fact."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

import structlog

from services.orchestrator.durable.context import Run, Sources, World
from services.orchestrator.durable.faults import DeadlinePassed
from services.orchestrator.durable.journal import Journal
from shared.clock import Clock
from shared.errors import Fault
from shared.events import run
from shared.events.envelope import Event
from shared.template import Template

logger = structlog.get_logger()

FUTILE_RESUMES = 5


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run's code ended when nothing went wrong."""

    reply: str
    files: Sequence[str] = ()


Code = Callable[[Run], Awaitable[Outcome]]
"""A topology: plain async code over the run context."""


class End(StrEnum):
    FINISHED = "finished"  # a terminal fact is in the log
    PARKED = "parked"  # the code has a bug; the run waits for another version of it
    FENCED = "fenced"  # another orchestrator owns the run


@dataclass
class Execution:
    """What is needed to run one run."""

    journal: Journal
    template: Template
    code: Code
    clock: Clock
    owner: str
    engine: str
    sources: Sources

    async def run(self) -> End:
        """Take the run over and bring it to its end. Cancelling this leaves the run to its next owner."""
        history = self.journal.history
        if history.terminal is not None:
            return End.FINISHED
        taking = asyncio.create_task(self._take_over())
        working = asyncio.create_task(self._work(taking))
        fenced = asyncio.create_task(self.journal.fenced.wait())
        try:
            await asyncio.wait({working, fenced}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                return End.FENCED
            return working.result()
        finally:
            await _stop(working, fenced, taking)

    async def _take_over(self) -> None:
        if self.journal.history.started is None:
            await self.journal.append(run.RunStarted(owner=self.owner, engine=self.engine))
        else:
            await self.journal.append(run.RunResumed(owner=self.owner, engine=self.engine))

    async def _work(self, taking: asyncio.Task[None]) -> End:
        futile = self.journal.history.futile_resumes()
        await taking
        if futile >= FUTILE_RESUMES:
            reason = f"the engine stopped {futile} times at this place of the run; its logs say why"
            return await self._finish(run.RunFailed(code="run.poison", reason=reason))
        terminal = await self._terminal()
        if isinstance(terminal, run.RunParked):
            await self.journal.append(terminal)
            return End.PARKED
        return await self._finish(terminal)

    async def _finish(self, terminal: Event) -> End:
        await self.journal.append(terminal)
        return End.FINISHED

    async def _terminal(self) -> Event:
        """Run the code until it ends or is interrupted; gives the fact that says how it ended."""
        history = self.journal.history
        if history.interrupted is None and history.cancel is not None:
            await self.journal.append(await self._interruption())
        if history.interrupted is not None:
            return self._interrupted()  # it was decided in an earlier life, or before the code had begun
        world = World(self.journal, self.template, self.clock, self.sources)
        code = asyncio.ensure_future(self.code(Run(world)))
        watch = asyncio.create_task(self._interruption())
        try:
            await asyncio.wait({code, watch}, return_when=asyncio.FIRST_COMPLETED)
            if code.done():
                return ending(history.usage, history.undigested, history.changed_files, code)
            await _stop(code)
            await self.journal.append(watch.result())
            return self._interrupted()
        finally:
            await _stop(code, watch)

    async def _interruption(self) -> run.Interrupted:
        """Waits for a cancel signal or the deadline."""
        history = self.journal.history
        cancelled = asyncio.create_task(self.journal.cancelled.wait())
        late = asyncio.create_task(self._deadline_passed())
        try:
            if history.cancel is None:
                await asyncio.wait({cancelled, late}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _stop(cancelled, late)
        if history.cancel is not None:
            return run.Interrupted(cause="cancel", reason=getattr(history.cancel.event, "reason", "") or "cancelled on request")
        return run.Interrupted(cause="deadline", reason=f"the run's wall time of {history.submission.budgets.wall_s:g} s is spent")

    async def _deadline_passed(self) -> None:
        """Returns when the run's wall time is spent; never, when it has no bound."""
        deadline = self._deadline()
        if deadline is None:
            await asyncio.get_running_loop().create_future()
        while deadline is not None and (left := (deadline - self.clock.now()).total_seconds()) > 0:
            await self.clock.sleep(left)

    def _deadline(self) -> datetime | None:
        history = self.journal.history
        began = history.started or history.submitted
        wall_s = history.submission.budgets.wall_s
        return began.time + timedelta(seconds=wall_s) if began and wall_s is not None else None

    def _interrupted(self) -> Event:
        history = self.journal.history
        assert history.interrupted is not None
        assert isinstance(history.interrupted.event, run.Interrupted)
        cause = history.interrupted.event
        if cause.cause == "cancel":
            return run.RunCancelled(reason=cause.reason, usage=history.usage(), seen=history.undigested())
        return run.RunFailed(
            code=DeadlinePassed.code, reason=cause.reason, files=history.changed_files(), usage=history.usage(), seen=history.undigested()
        )


def ending(usage: Callable[[], Any], seen: Callable[[], Any], files: Callable[[], Any], code: asyncio.Future[Outcome]) -> Event:
    """The terminal fact of code that ended by itself; a bug parks the run."""
    error = code.exception()
    if error is None:
        outcome = code.result()
        return run.RunCompleted(reply=outcome.reply, files=tuple(outcome.files), usage=usage(), seen=seen())
    if isinstance(error, Fault):
        return run.RunFailed(code=error.code, reason=error.message, verdict=error.verdict, files=files(), usage=usage(), seen=seen())
    if not isinstance(error, Exception):
        raise error
    logger.error("run_parked", error=repr(error), exc_info=error)
    trace = "".join(traceback.format_exception(error)[-6:])
    return run.RunParked(reason=f"the engine's code failed: {error}", error=trace[-4000:])


async def _stop(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks and wait for their ends. Gathered: being cancelled meanwhile must reach the caller, whose own end it is."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
