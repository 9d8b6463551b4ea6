"""Keeps the read models up with the log: one recorder writes, others stand by.

All projections that keep up form the main lane: the log is read once, and a batch of facts is one
transaction. A projection that fails on a fact leaves the lane, so that the others go on; it tries that fact
again, later and later, and comes back when it has caught up. It never passes over a fact.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import NoReturn

import structlog

from services.recorder import metrics
from services.recorder.batches import batches
from services.recorder.lane import WAITS, Lane, Stuck
from services.recorder.projections import Projection
from services.recorder.tables import WRITER_LOCK, Moved, Tables
from shared import subjects
from shared.db import DatabaseUnavailable
from shared.errors import LogUnavailable
from shared.eventlog import EventLog
from shared.events.envelope import Fact, Unknown

logger = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Pauses:
    """How long to wait, in seconds."""

    first_s: float = 0.25  # before the first new try; each further one waits twice as long
    outage_s: float = 2.0  # at most, while PostgreSQL or the log is away
    stuck_s: float = 30.0  # at most, for a projection that fails
    standby_s: float = 0.5  # between two looks at whether the active recorder is gone
    lag_s: float = 2.0  # between two measurements of the lag


@dataclass
class Recorder:
    """Follows the log into the tables until cancelled, through outages of either."""

    log: EventLog
    tables: Tables
    projections: Sequence[Projection]
    pauses: Pauses = field(default_factory=Pauses)
    problems: dict[str, str] = field(default_factory=lambda: {"position": "not caught up yet"})
    _main: Lane = field(default_factory=lambda: Lane((), 0))
    _told: dict[str, int] = field(default_factory=dict[str, int])  # the fact that each projection was last stuck on
    _moving: asyncio.Lock = field(default_factory=asyncio.Lock)  # held while the main lane moves or changes

    async def missing(self) -> dict[str, str]:
        """What is lacking, by dependency or projection; empty = the tables can be relied on."""
        answers = await self.tables.answers()
        return self.problems | ({} if answers else {"postgres": "does not answer"})

    async def run(self) -> NoReturn:
        """Record until cancelled."""
        pause = self.pauses.first_s
        while True:
            try:
                await self.tables.prepare()
                async with self.tables.exclusive(WRITER_LOCK) as active:
                    if active:
                        pause = self.pauses.first_s
                        await self._record()
                # Another recorder writes. This one lacks nothing: it can take over at any time.
                self.problems.clear()
                await asyncio.sleep(self.pauses.standby_s)
            except Moved as moved:
                logger.info("position_moved", reason=str(moved))
            except (DatabaseUnavailable, LogUnavailable) as fault:
                metrics.OUTAGES.inc()
                self.problems["postgres" if isinstance(fault, DatabaseUnavailable) else "nats"] = fault.message
                logger.warning("recorder_waits", reason=fault.message, pause_s=pause)
                await asyncio.sleep(pause)
                pause = min(pause * 2, self.pauses.outage_s)
            finally:
                metrics.ACTIVE.set(0)

    async def _record(self) -> NoReturn:
        """Follow the log from where the tables stand, as the one active recorder."""
        metrics.ACTIVE.set(1)
        target = await self.log.last_seq()
        self._main, *behind = await self._lanes()
        # All at once: until here it is not known what is lacking, so what was lacking before still counts.
        self.problems = {_place(lane): "catching up" for lane in behind}
        self._note_position(target)
        logger.info("recording", position=self._main.position, behind=[lane.names[0] for lane in behind])
        async with _task_group() as tasks:
            tasks.create_task(self._measure_lag())
            for lane in behind:
                tasks.create_task(self._catch_up(lane, pause=0.0))
            async with aclosing(batches(self.log.follow(subjects.EVENTS, after=self._main.position))) as feed:
                async for facts in feed:
                    for stuck in await self._advance(facts):
                        self._note_stuck(stuck, pause=self.pauses.first_s)
                        tasks.create_task(self._catch_up(stuck.lane, pause=self.pauses.first_s))
                    self._note_position(target)
                    _count(facts)
        raise AssertionError("the log came to an end")

    async def _lanes(self) -> list[Lane]:
        """The lane of the projections that are farthest, then one for each that must catch up with it."""
        positions = await self.tables.positions([projection.name for projection in self.projections])
        farthest = max(positions.values(), default=0)
        level = tuple(each for each in self.projections if positions[each.name] == farthest)
        behind = [Lane((each,), positions[each.name]) for each in self.projections if each not in level]
        return [Lane(level, farthest), *behind]

    async def _advance(self, facts: Sequence[Fact]) -> list[Stuck]:
        """Move the main lane over `facts`; gives the projections that had to leave it."""
        async with self._moving:
            try:
                await self._main.write(self.tables, facts)
            except WAITS:
                raise
            except Exception:  # one of them has a bug: each by itself shows which
                return await self._part(facts)
            return []

    async def _part(self, facts: Sequence[Fact]) -> list[Stuck]:
        level: list[Projection] = []
        failed: list[Stuck] = []
        for projection in self._main.projections:
            lane = Lane((projection,), self._main.position)
            try:
                await lane.write_singly(self.tables, facts)
                level.append(projection)
            except Stuck as stuck:
                failed.append(stuck)
        self._main = Lane(tuple(level), facts[-1].seq)
        return failed

    async def _catch_up(self, lane: Lane, *, pause: float) -> None:
        """Bring a lane of one to where the main lane is, and back into it."""
        while True:
            await asyncio.sleep(pause)
            try:
                async with aclosing(batches(self.log.follow(subjects.EVENTS, after=lane.position))) as feed:
                    async for facts in feed:
                        if await self._caught_up(lane, facts):
                            return
                        pause = 0.0
            except Stuck as stuck:
                pause = min(max(pause * 2, self.pauses.first_s), self.pauses.stuck_s)
                self._note_stuck(stuck, pause=pause)

    async def _caught_up(self, lane: Lane, facts: Sequence[Fact]) -> bool:
        """Move a lane over `facts`, but never past the main lane; whether it is now part of that."""
        while facts:
            due = [fact for fact in facts if fact.seq <= self._main.position]
            if due:
                try:
                    await lane.write(self.tables, due)
                except WAITS:
                    raise
                except Exception:
                    await lane.write_singly(self.tables, due)
            if await self._rejoined(lane):
                return True
            facts = facts[len(due) :]
        return False

    async def _rejoined(self, lane: Lane) -> bool:
        async with self._moving:
            if lane.position < self._main.position:
                return False
            self._main = Lane((*self._main.projections, *lane.projections), self._main.position)
        self.problems.pop(_place(lane), None)
        metrics.STUCK.labels(lane.names[0]).set(0)
        logger.info("projection_caught_up", projection=lane.names[0], position=lane.position)
        return True

    def _note_stuck(self, stuck: Stuck, *, pause: float) -> None:
        name = stuck.lane.names[0]
        self.problems[_place(stuck.lane)] = f"{stuck}; tried again in {pause:g} s"
        metrics.STUCK.labels(name).set(1)
        metrics.FAILURES.labels(name).inc()
        is_new = self._told.get(name) != stuck.fact.seq
        self._told[name] = stuck.fact.seq
        # The traceback once; the line each time, so that nobody has to look far back for it.
        traceback = {"exc_info": stuck.__cause__} if is_new else {}
        logger.error("projection_stuck", projection=name, seq=stuck.fact.seq, reason=str(stuck), pause_s=pause, **traceback)

    def _note_position(self, target: int) -> None:
        """Once the tables have reached what the log held at the start, they count as caught up."""
        if self._main.position >= target:
            self.problems.pop("position", None)
        else:
            self.problems["position"] = f"at fact {self._main.position} of {target}"

    async def _measure_lag(self) -> NoReturn:
        while True:
            with suppress(LogUnavailable):
                newest = await self.log.last_seq()
                for name, position in (await self.tables.positions([each.name for each in self.projections])).items():
                    metrics.LAG.labels(name).set(max(0, newest - position))
            await asyncio.sleep(self.pauses.lag_s)


def _place(lane: Lane) -> str:
    return f"projection {lane.names[0]}"


def _count(facts: Sequence[Fact]) -> None:
    metrics.FACTS.inc(len(facts))
    for fact in facts:
        if isinstance(fact.event, Unknown) and fact.event.problem:
            metrics.UNREADABLE.inc()
            logger.error("fact_unreadable", seq=fact.seq, type=fact.type, scope=fact.scope, reason=fact.event.problem)


@asynccontextmanager
async def _task_group() -> AsyncGenerator[asyncio.TaskGroup, None]:
    """A task group whose outages come out as themselves rather than as a group."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as raised:
        waits, other = raised.split(WAITS)
        if waits is None or other is not None:
            raise
        first: BaseException = waits
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from raised
