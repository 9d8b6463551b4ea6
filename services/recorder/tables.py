"""The read models' tables: rows and the position they account for, in one transaction.

The position moves by compare-and-set as the first statement of the transaction. Its row lock holds a second
writer until the first has committed; the second then finds that the position has moved and writes
nothing. So a fact is counted once whatever is delivered twice, restarted or run twice.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg import AsyncConnection
from psycopg.sql import SQL, Identifier
from psycopg_pool import AsyncConnectionPool

from services.recorder import metrics
from services.recorder.projections import Change
from services.recorder.storable import Mending
from shared.db import DatabaseUnavailable, migrate

SCHEMA = "read_models"
MIGRATIONS = Path(__file__).parent / "migrations"
WRITER_LOCK = 0x6165_7265_636F  # held by the recorder that is active
REBUILD_LOCK = 0x6165_7265_6275  # held by a rebuild

# Connection, resources, transaction rollback, operator intervention, system error, lock not available. Other
# errors are about the statement and come again with it.
_AWAY = ("08", "53", "40", "57P", "58", "55P03")


class Moved(Exception):
    """Somebody else has moved the position: another recorder, or a rebuild that was swapped in."""


def is_away(error: psycopg.Error) -> bool:
    """Whether PostgreSQL is away or busy, rather than the statement wrong."""
    if error.sqlstate is not None:
        return error.sqlstate.startswith(_AWAY)
    return isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))


@asynccontextmanager
async def database_errors() -> AsyncGenerator[None, None]:
    """Errors that only mean "not now" as `DatabaseUnavailable`."""
    try:
        yield
    except psycopg.Error as error:
        if is_away(error):
            raise DatabaseUnavailable(f"PostgreSQL does not answer: {str(error).strip() or error!r}") from error
        raise


@dataclass(frozen=True, slots=True)
class Tables:
    """The read models in one schema."""

    pool: AsyncConnectionPool
    schema: str = SCHEMA

    async def prepare(self) -> None:
        """Make the schema, or bring it up to date."""
        async with database_errors():
            await migrate(self.pool, MIGRATIONS, schema=self.schema)

    async def positions(self, projections: Sequence[str]) -> dict[str, int]:
        """Where each projection stands; one that is new starts at 0."""
        found = await self._positions(projections)
        if missing := [name for name in projections if name not in found]:
            async with self._transaction() as connection:
                for name in sorted(missing):  # in order, or two that start at once could block each other for good
                    await connection.execute("INSERT INTO positions VALUES (%s, 0) ON CONFLICT DO NOTHING", (name,))
            return await self._positions(projections)
        return found

    async def _positions(self, projections: Sequence[str]) -> dict[str, int]:
        async with self._transaction() as connection:
            rows = await connection.execute("SELECT projection, seq FROM positions WHERE projection = ANY(%s)", (list(projections),))
            return {name: seq for name, seq in await rows.fetchall()}

    async def write(self, projections: Sequence[str], changes: Sequence[Change], *, after: int, to: int) -> None:
        """Store `changes` and move the positions of `projections` from `after` to `to`, or nothing of it.

        Raises:
            Moved: the projections do not stand at `after`.
            DatabaseUnavailable: PostgreSQL is away.
        """
        mending = Mending()
        async with self._transaction() as connection:
            moved = await connection.execute(
                "UPDATE positions SET seq = %s WHERE projection = ANY(%s) AND seq = %s", (to, list(projections), after)
            )
            if moved.rowcount != len(projections):
                raise Moved(f"{', '.join(projections)} no longer at {after}")
            async with connection.pipeline(), connection.cursor() as cursor:
                for change in changes:
                    await cursor.execute(change.sql, mending.values(change.values))
        metrics.MENDED.inc(mending.changed)

    async def answers(self) -> bool:
        """Whether PostgreSQL answers now."""
        try:
            async with self.pool.connection(timeout=2.0) as connection:
                await connection.execute("SELECT 1")
        except psycopg.Error:
            return False
        return True

    @asynccontextmanager
    async def _transaction(self) -> AsyncGenerator[AsyncConnection, None]:
        async with database_errors(), self.pool.connection() as connection, connection.transaction():
            await connection.execute(SQL("SET LOCAL search_path TO {}").format(Identifier(self.schema)))
            yield connection

    @asynccontextmanager
    async def exclusive(self, lock: int) -> AsyncGenerator[bool, None]:
        """Whether this process got the advisory lock; it is held until the end of the block."""
        async with database_errors(), self.pool.connection() as connection:
            row = await (await connection.execute("SELECT pg_try_advisory_lock(%s)", (lock,))).fetchone()
            got = bool(row and row[0])
            try:
                yield got
            finally:
                if got:
                    with suppress(psycopg.Error):  # a lost connection has lost the lock as well
                        await connection.execute("SELECT pg_advisory_unlock(%s)", (lock,))


async def dump(tables: Tables) -> Mapping[str, list[str]]:
    """Every row of every table as text, sorted: two read models are equal if their dumps are."""
    async with database_errors(), tables.pool.connection() as connection:
        names = await connection.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = %s AND tablename <> 'migrations' ORDER BY 1", (tables.schema,)
        )
        rows: dict[str, list[str]] = {}
        for (name,) in await names.fetchall():
            found = await connection.execute(SQL("SELECT t::text FROM {} t ORDER BY 1").format(Identifier(tables.schema, name)))
            rows[name] = [text for (text,) in await found.fetchall()]
        return rows
