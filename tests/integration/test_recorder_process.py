"""The recorder and its rebuild as their operator starts them: as processes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import orjson
import pytest
from psycopg_pool import AsyncConnectionPool

from services.recorder.tables import Tables, dump
from shared.bus import Bus, connect
from shared.eventlog import NatsEventLog, ensure_streams
from tests.conftest import NatsServer, free_port
from tests.integration.recorder_world import a_history, rows, until_recorded
from tests.support.waiting import until


@pytest.fixture
async def own_bus(own_nats_server: NatsServer) -> AsyncIterator[Bus]:
    bus = await connect(own_nats_server.url, "test")
    await ensure_streams(bus)
    yield bus
    await bus.close()


def environment(nats: NatsServer, dsn: str | None, health: int = 0) -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("AETHERIUM_")}
    env |= {"AETHERIUM_NATS__URL": nats.url, "AETHERIUM_HEALTH__PORT": str(health), "AETHERIUM_TELEMETRY__LOG_FORMAT": "json"}
    return env | ({"AETHERIUM_POSTGRES__DSN": dsn} if dsn else {})


@asynccontextmanager
async def started(module: str, *arguments: str, env: dict[str, str], folder: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process of the engine; killed at the end if it still runs."""
    root = Path(__file__).parents[2]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        module,
        *arguments,
        cwd=folder,
        env=env | {"PYTHONPATH": str(root)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def readiness(port: int) -> tuple[int, dict[str, str]]:
    async with httpx.AsyncClient() as client:
        try:
            answer = await client.get(f"http://127.0.0.1:{port}/readyz")
        except httpx.HTTPError:
            return 0, {}
    return answer.status_code, answer.json()["missing"]


@pytest.mark.parametrize("module", ["services.recorder.app", "services.recorder.rebuild"])
async def test_without_a_database_it_says_what_to_do_and_exits_2(own_nats_server: NatsServer, tmp_path: Path, module: str) -> None:
    async with started(module, env=environment(own_nats_server, None), folder=tmp_path) as process:
        _, told = await process.communicate()
    assert process.returncode == 2
    assert b"set AETHERIUM_POSTGRES__DSN=" in told
    assert b"Traceback" not in told


async def test_it_becomes_ready_says_how_far_it_is_and_ends_tidily(
    own_nats_server: NatsServer, own_bus: Bus, database_dsn: str, pool: AsyncConnectionPool, tmp_path: Path
) -> None:
    log, tables, port = NatsEventLog(own_bus, "test"), Tables(pool), free_port()
    await a_history(log, runs=1)
    env = environment(own_nats_server, database_dsn, port)
    async with started("services.recorder.app", env=env, folder=tmp_path) as process:

        async def ready() -> bool:
            return await readiness(port) == (200, {})

        await until(ready, timeout=30)
        await until_recorded(log, tables)
        async with httpx.AsyncClient() as client:
            metrics = (await client.get(f"http://127.0.0.1:{port}/metrics")).text
        newest = await log.last_seq()
        assert f'recorder_position{{projection="runs"}} {newest:.1f}' in metrics
        assert 'recorder_lag{projection="runs"}' in metrics
        process.send_signal(signal.SIGTERM)
        _, told = await process.communicate()
    assert process.returncode == 0, told.decode()


async def test_without_an_answer_of_the_database_it_is_alive_but_not_ready(
    own_nats_server: NatsServer, own_bus: Bus, tmp_path: Path
) -> None:
    port = free_port()
    env = environment(own_nats_server, f"postgresql://nobody:secret@127.0.0.1:{free_port()}/none", port)
    async with started("services.recorder.app", env=env, folder=tmp_path) as process:

        async def told() -> bool:
            status, missing = await readiness(port)
            return status == 503 and "does not answer" in missing.get("postgres", "")

        await until(told, timeout=30)
        async with httpx.AsyncClient() as client:
            assert (await client.get(f"http://127.0.0.1:{port}/healthz")).status_code == 200
        process.send_signal(signal.SIGTERM)
        _, logged = await process.communicate()
    assert process.returncode == 0
    assert b"secret" not in logged


async def test_the_rebuild_command_rebuilds_and_reports(
    own_nats_server: NatsServer, own_bus: Bus, database_dsn: str, pool: AsyncConnectionPool, tmp_path: Path
) -> None:
    log, tables = NatsEventLog(own_bus, "test"), Tables(pool)
    ids = await a_history(log, runs=2)
    env = environment(own_nats_server, database_dsn)
    async with started("services.recorder.rebuild", "--json", env=env, folder=tmp_path) as process:
        said, problems = await process.communicate()
    assert process.returncode == 0, problems.decode()
    last = orjson.loads(said.splitlines()[-1])
    newest = await log.last_seq()
    assert (last["swapped"], last["facts"], last["position"], last["target"]) == (True, newest, newest, newest)
    assert {row["run_id"] for row in await rows(tables, "runs")} == set(ids)
    first = await dump(tables)
    async with started("services.recorder.rebuild", env=env, folder=tmp_path) as process:
        said, _ = await process.communicate()
    assert process.returncode == 0
    assert said.decode().startswith(f"rebuilt: {newest} facts in ")
    assert await dump(tables) == first
