"""`python -m services.recorder.rebuild`: fold the whole log into fresh tables, then put them in place.

The tables in use stay as they are until the new ones have caught up with them; the swap is a renaming of
schemas in one transaction, so a reader sees either all old or all new tables. The recorder may run
meanwhile: it finds its position moved and goes on in the new tables.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import asdict, dataclass, replace

import orjson
from psycopg import AsyncConnection
from psycopg.sql import SQL, Identifier
from psycopg_pool import AsyncConnectionPool

from services.recorder.batches import batches
from services.recorder.lane import WAITS, Lane, Stuck
from services.recorder.projections import Projection, all_projections
from services.recorder.settings import dsn_of
from services.recorder.tables import REBUILD_LOCK, SCHEMA, Tables, database_errors
from shared import config, subjects
from shared.db import open_pool
from shared.errors import Conflict, Fault
from shared.eventlog import EventLog
from shared.events.envelope import Fact
from shared.process import opened

PROGRESS_S = 1.0


class RebuildFailed(Fault):
    """A projection cannot handle a fact; the tables in use were not touched."""

    code = "recorder.rebuild_failed"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a rebuild is."""

    facts: int
    position: int
    target: int
    elapsed_s: float
    swapped: bool = False


Report = Callable[[Progress], None]


async def rebuild(
    log: EventLog,
    pool: AsyncConnectionPool,
    *,
    schema: str = SCHEMA,
    projections: Sequence[Projection] | None = None,
    report: Report = lambda progress: None,
) -> Progress:
    """Replace the tables of `schema` by what the log says, from its first fact on.

    Raises:
        Conflict: another rebuild is under way.
        RebuildFailed: a projection cannot handle a fact.
        DatabaseUnavailable, LogUnavailable: one of them is away; the tables in use were not touched.
    """
    live, fresh = Tables(pool, schema), Tables(pool, f"{schema}_new")
    async with live.exclusive(REBUILD_LOCK) as alone:
        if not alone:
            raise Conflict("another rebuild is under way: wait for its end")
        await _drop(pool, f"{schema}_new", f"{schema}_old")
        await live.prepare()
        await fresh.prepare()
        work = _Rebuild(log, fresh, Lane(tuple(projections or all_projections(log)), 0), report)
        await fresh.positions(work.lane.names)
        await work.fold_to(await log.last_seq())
        async with _held(live) as connection:
            # Not one fact behind the tables in use, which stand still now: a reader never sees time go backwards.
            standing = await (await connection.execute("SELECT coalesce(max(seq), 0) FROM positions")).fetchone()
            await work.fold_to(standing[0] if standing else 0)
            await _swap(connection, schema)
        await _drop(pool, f"{schema}_old")
        return replace(work.progress(), swapped=True)


class _Rebuild:
    """A lane that moves from the log's first fact on, and tells how far it is."""

    def __init__(self, log: EventLog, tables: Tables, lane: Lane, report: Report) -> None:
        self.log, self.tables, self.lane, self.report = log, tables, lane, report
        self.facts = self.target = 0
        self.started = self.told = time.monotonic()

    def progress(self) -> Progress:
        return Progress(self.facts, self.lane.position, self.target, round(time.monotonic() - self.started, 3))

    async def fold_to(self, target: int) -> None:
        """Fold the facts up to sequence `target`."""
        self.target = max(self.target, target)
        if self.lane.position >= target:
            return
        async with aclosing(batches(self.log.follow(subjects.EVENTS, after=self.lane.position), window_s=0.0)) as feed:
            async for facts in feed:
                await self._write([fact for fact in facts if fact.seq <= target])
                if facts[-1].seq >= target:
                    return

    async def _write(self, facts: Sequence[Fact]) -> None:
        try:
            await self.lane.write(self.tables, facts)
        except WAITS:
            raise
        except Exception as error:
            raise await self._explained(facts) from error
        self.facts += len(facts)
        if time.monotonic() - self.told >= PROGRESS_S:
            self.told = time.monotonic()
            self.report(self.progress())

    async def _explained(self, facts: Sequence[Fact]) -> RebuildFailed:
        """Which projection fails on which fact."""
        for projection in self.lane.projections:
            lane = Lane((projection,), self.lane.position)
            try:
                await lane.write_singly(self.tables, facts)
            except Stuck as stuck:
                return RebuildFailed(
                    f"projection {projection.name!r} {stuck}; the tables in use were not touched",
                    projection=projection.name,
                    seq=stuck.fact.seq,
                )
        return RebuildFailed(f"the facts {facts[0].seq} to {facts[-1].seq} cannot be stored together; the tables in use were not touched")


@asynccontextmanager
async def _held(tables: Tables) -> AsyncGenerator[AsyncConnection, None]:
    """A transaction during which no recorder writes to the tables."""
    async with database_errors(), tables.pool.connection() as connection, connection.transaction():
        await connection.execute(SQL("SET LOCAL search_path TO {}").format(Identifier(tables.schema)))
        await connection.execute("LOCK TABLE positions IN EXCLUSIVE MODE")  # waits for the transaction of a recorder
        yield connection


async def _swap(connection: AsyncConnection, schema: str) -> None:
    for old, new in ((schema, f"{schema}_old"), (f"{schema}_new", schema)):
        await connection.execute(SQL("ALTER SCHEMA {} RENAME TO {}").format(Identifier(old), Identifier(new)))


async def _drop(pool: AsyncConnectionPool, *schemas: str) -> None:
    async with database_errors(), pool.connection() as connection:
        for schema in schemas:
            await connection.execute(SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(Identifier(schema)))


def _as_text(progress: Progress) -> str:
    if progress.swapped:
        return f"rebuilt: {progress.facts} facts in {progress.elapsed_s:.1f} s, the new tables are in use"
    share = 100 * progress.position // max(progress.target, 1)
    return f"fact {progress.position} of {progress.target} ({share} %), {progress.elapsed_s:.0f} s"


def _as_json(progress: Progress) -> str:
    return orjson.dumps(asdict(progress)).decode()


async def _command(as_json: bool) -> None:
    settings = config.load()
    dsn = dsn_of(settings)

    def say(progress: Progress) -> None:
        print(_as_json(progress) if as_json else _as_text(progress), flush=True)

    async with opened("recorder-rebuild", settings) as process, open_pool(dsn) as pool:
        say(await rebuild(process.log, pool, report=say))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m services.recorder.rebuild", description="Rebuild the read models from the event log.")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    arguments = parser.parse_args()
    try:
        asyncio.run(_command(arguments.json))
    except Fault as fault:
        print(orjson.dumps(fault.as_dict()).decode() if arguments.json else f"rebuild: {fault.message}", file=sys.stderr)
        raise SystemExit(2 if fault.code == "config.invalid" else 1) from fault


if __name__ == "__main__":
    main()
