"""PostgreSQL: a pool, and migrations as plain SQL files under an advisory lock."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import LiteralString, cast

import psycopg
import psycopg.sql
from psycopg_pool import AsyncConnectionPool

from shared.errors import Fault, Verdict

MIGRATION_LOCK = 0x6165_7468


class DatabaseUnavailable(Fault):
    """PostgreSQL does not answer."""

    code = "db.unavailable"
    verdict = Verdict.RETRY


@asynccontextmanager
async def open_pool(dsn: str, *, size: int = 4) -> AsyncGenerator[AsyncConnectionPool]:
    """A pool that reconnects by itself; opening does not wait for the server."""
    pool: AsyncConnectionPool[psycopg.AsyncConnection] = AsyncConnectionPool(
        dsn, min_size=1, max_size=size, open=False, timeout=5.0, kwargs={"autocommit": True}
    )
    await pool.open(wait=False)
    try:
        yield pool
    finally:
        await pool.close()


async def migrate(pool: AsyncConnectionPool, folder: Path, *, schema: str) -> list[str]:
    """Apply the `NNNN_name.sql` files that `schema` lacks, in order; gives the names applied.

    Raises:
        DatabaseUnavailable: PostgreSQL does not answer.
    """
    try:
        async with pool.connection() as connection, connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock(%s)", (MIGRATION_LOCK,))
            return await _apply(connection, folder, schema)
    except psycopg.OperationalError as error:
        raise DatabaseUnavailable(f"PostgreSQL does not answer: {error}") from error


async def _apply(connection: psycopg.AsyncConnection, folder: Path, schema: str) -> list[str]:
    name = psycopg.sql.Identifier(schema)
    await connection.execute(psycopg.sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(name))
    await connection.execute(psycopg.sql.SQL("SET LOCAL search_path TO {}").format(name))
    await connection.execute("CREATE TABLE IF NOT EXISTS migrations (name text PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT now())")
    rows = await (await connection.execute("SELECT name FROM migrations")).fetchall()
    have = {row[0] for row in rows}
    applied: list[str] = []
    for file in sorted(folder.glob("*.sql")):
        if file.name not in have:
            # The files are the project's own, so their text is trusted like code.
            await connection.execute(psycopg.sql.SQL(cast(LiteralString, file.read_text())))
            await connection.execute("INSERT INTO migrations (name) VALUES (%s)", (file.name,))
            applied.append(file.name)
    return applied
