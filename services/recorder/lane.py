"""Projections that move through the log together, and what happens when one of them fails."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from services.recorder import metrics
from services.recorder.projections import Projection
from services.recorder.tables import Moved, Tables
from shared.db import DatabaseUnavailable
from shared.errors import LogUnavailable
from shared.events.envelope import Fact

WAITS = (Moved, DatabaseUnavailable, LogUnavailable)
"""Nobody's bug: it passes, or is found out by reading the positions again."""


class Stuck(Exception):
    """A projection cannot handle a fact; its lane stands just before it."""

    def __init__(self, lane: Lane, fact: Fact, error: Exception) -> None:
        super().__init__(f"cannot handle fact {fact.seq} ({fact.type}): {error!r}"[:300])
        self.lane = lane
        self.fact = fact


@dataclass(slots=True, eq=False)
class Lane:
    """Projections at the same position; their rows are stored in one transaction."""

    projections: tuple[Projection, ...]
    position: int

    @property
    def names(self) -> list[str]:
        return [projection.name for projection in self.projections]

    async def write(self, tables: Tables, facts: Sequence[Fact]) -> None:
        """Store what `facts` do to all projections, and move on; or nothing of it.

        Raises:
            Moved, DatabaseUnavailable, LogUnavailable: not now.
            Exception: one of the projections has a bug.
        """
        try:
            changes = [change for projection in self.projections for change in await projection.changes(facts)]
            await tables.write(self.names, changes, after=self.position, to=facts[-1].seq)
        except BaseException:
            for projection in self.projections:
                projection.forget()
            raise
        self.position = facts[-1].seq
        for name in self.names:
            metrics.POSITION.labels(name).set(self.position)

    async def write_singly(self, tables: Tables, facts: Sequence[Fact]) -> None:
        """`write` fact by fact, for a lane that failed on them together.

        Raises:
            Stuck: the lane fails on one of them; those before it are stored.
        """
        for fact in facts:
            try:
                await self.write(tables, [fact])
            except WAITS:
                raise
            except Exception as error:
                raise Stuck(self, fact, error) from error
