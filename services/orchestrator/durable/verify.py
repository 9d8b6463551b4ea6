"""Audit: re-execute a run's code against its log, with no service, and report the first divergence."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from services.orchestrator.durable.context import Run, World
from services.orchestrator.durable.execution import Code, Outcome, ending
from services.orchestrator.durable.faults import NonDeterminism
from services.orchestrator.durable.history import History, place_of
from services.orchestrator.durable.journal import Journal
from shared.clock import SystemClock
from shared.events import run
from shared.events.content import MessageRef
from shared.events.envelope import Event, Fact
from shared.ids import short_digest
from shared.template import Node, Template
from shared.testing.memory import MemoryLog
from shared.transcript import message_of

QUIET_ROUNDS = 100  # rounds of the event loop without progress after which the code waits for the log's end


@dataclass(frozen=True, slots=True)
class Verdict:
    """`facts` were agreed with; `diverged_at` is the sequence of the first fact that the code disagrees with."""

    facts: int
    diverged_at: int | None = None
    message: str = ""


@dataclass
class ClosedJournal(Journal):
    """A journal at whose end nothing more is written: the code waits there for ever."""

    beyond: list[Event] = field(default_factory=list[Event])

    async def append(self, *events: Event) -> list[Fact]:
        self.beyond += events
        return await asyncio.get_running_loop().create_future()


async def verify(run_id: str, facts: Sequence[Fact], template: Template, code: Code) -> Verdict:
    """Re-execute `code` against the facts of one run."""
    history = History.of(run_id, facts)
    changed = _changed_text(history)
    if changed is not None:
        return Verdict(len(facts), changed, f"fact {changed} does not read as it was seen when the run ended")
    journal = ClosedJournal(MemoryLog(), history)
    world = World(journal, template, SystemClock(), _Nobody())
    task = asyncio.ensure_future(code(Run(world)))
    await _until_quiet(task, world)
    try:
        return _judge(history, world, journal, task)
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await task


class _Nobody:
    """Verifying asks no service: what the log lacks here is where it ends."""

    async def tools(self, node: Node) -> run.ToolsOffered:
        return await asyncio.get_running_loop().create_future()

    async def model(self, node: Node, model: str | None) -> run.ModelProfiled:
        return await asyncio.get_running_loop().create_future()


async def _until_quiet(task: asyncio.Future[Outcome], world: World) -> None:
    """Let the code run until it ends or only waits for what the log does not hold."""
    quiet, progress = 0, -1
    while not task.done() and quiet < QUIET_ROUNDS:
        await asyncio.sleep(0)
        now = len(world.used) + len(world.touched)
        quiet, progress = (quiet + 1 if now == progress else 0), now


def _changed_text(history: History) -> int | None:
    """The first answer whose text is not what the terminal fact's digests were taken over."""
    terminal = history.terminal
    seen: tuple[MessageRef, ...] = getattr(terminal.event, "seen", ()) if terminal else ()
    by_seq = {fact.seq: fact for fact in history.facts}
    for ref in seen:
        if ref.seq in by_seq and short_digest(message_of(by_seq[ref.seq], ref.form)) != ref.digest:
            return ref.seq
    return None


def _judge(history: History, world: World, journal: ClosedJournal, task: asyncio.Future[Outcome]) -> Verdict:
    count = len(history.facts)
    error = task.exception() if task.done() and not task.cancelled() else None
    if isinstance(error, NonDeterminism):
        return Verdict(count, error.seq, str(error))
    for fact in history.facts:
        if place_of(fact.event) is not None and fact.seq not in world.touched and not _engines_own(fact.event):
            return Verdict(count, fact.seq, f"the code no longer asks for fact {fact.seq} ({fact.type} at {place_of(fact.event)})")
    if history.interrupted is not None or history.terminal is None:
        return Verdict(count)
    if not task.done():
        asked = journal.beyond[0].TYPE if journal.beyond else "an answer"
        return Verdict(count, history.terminal.seq, f"the code goes on to ask for {asked} where the log ends the run")
    return _judge_end(history, task, count)


def _judge_end(history: History, task: asyncio.Future[Outcome], count: int) -> Verdict:
    terminal = history.terminal
    assert terminal is not None
    if isinstance(terminal.event, run.RunFailed) and terminal.event.code == "run.poison":
        return Verdict(count)
    wanted = ending(history.usage, history.undigested, history.changed_files, task)
    ignore = {"usage", "seen", "files"} if not isinstance(wanted, run.RunCompleted) else {"usage", "seen"}
    if type(wanted) is not type(terminal.event) or wanted.model_dump(exclude=ignore) != terminal.event.model_dump(exclude=ignore):
        return Verdict(
            count, terminal.seq, f"the run ended as {terminal.type}, the code now ends in {wanted.TYPE}: {getattr(wanted, 'reason', '')}"
        )
    return Verdict(count)


def _engines_own(event: Event) -> bool:
    """Facts that the engine wrote beside the code: warnings of a budget."""
    return isinstance(event, run.Noted) and event.tag == "BUDGET"
