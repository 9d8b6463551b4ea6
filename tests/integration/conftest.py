"""A real PostgreSQL for the tests of a worker, and a database of its own for each test."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg_pool import AsyncConnectionPool

from aetherium.launcher import postgres
from aetherium.launcher.child import Child
from shared.db import open_pool
from tests.conftest import free_port
from tests.support.waiting import LOOK_EVERY_S


class PostgresServer:
    """The embedded server in a folder of the test. It can be killed and started again on the same data and port."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.spec = postgres.spec(folder, port=self.port, env=dict(os.environ), logs=folder)
        self.child: Child | None = None

    @property
    def dsn(self) -> str:
        return postgres.dsn(self.folder, self.port)

    def start(self) -> None:
        asyncio.run(self.start_inside())

    async def start_inside(self) -> None:
        """`start` for a test that runs in a loop of its own."""
        assert self.spec.prepare is not None
        await self.spec.prepare()
        log = self.folder / "postgres.log"
        child = Child.start(self.spec.argv, env=self.spec.env, log=log, account=self.spec.account)
        self.child = child
        deadline = time.monotonic() + 30
        while not await self.spec.ready(child.pid):
            if time.monotonic() > deadline:
                raise RuntimeError(log.read_text())
            await asyncio.sleep(LOOK_EVERY_S)

    async def kill_inside(self) -> None:
        """End it at once, as a power cut would: no tidying, recovery at the next start."""
        if self.child is not None:
            child, self.child = self.child, None
            child.send(self.spec.hard_stop_signal)
            await child.exited()

    def kill(self) -> None:
        asyncio.run(self.kill_inside())


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """One server for all tests of a worker; each test makes a database of its own in it."""
    server = PostgresServer(tmp_path_factory.mktemp("postgres"))
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="session")
def postgres_dsn(postgres_server: PostgresServer) -> str:
    return postgres_server.dsn


@pytest.fixture
def own_postgres_server(tmp_path: Path) -> Iterator[PostgresServer]:
    """A server that the test may kill."""
    server = PostgresServer(tmp_path)
    server.start()
    yield server
    server.kill()


@pytest.fixture
async def database_dsn(postgres_dsn: str) -> AsyncIterator[str]:
    """A fresh database, dropped after the test."""
    name = f"test_{uuid.uuid4().hex}"
    async with await psycopg.AsyncConnection.connect(postgres_dsn, autocommit=True) as connection:
        await connection.execute(psycopg.sql.SQL("CREATE DATABASE {}").format(psycopg.sql.Identifier(name)))
        yield make_conninfo(postgres_dsn, dbname=name)
        await connection.execute(psycopg.sql.SQL("DROP DATABASE {} WITH (FORCE)").format(psycopg.sql.Identifier(name)))


@pytest.fixture
async def pool(database_dsn: str) -> AsyncIterator[AsyncConnectionPool]:
    async with open_pool(database_dsn, size=8) as opened:
        yield opened
