"""The embedded infrastructure for real: nats-server, PostgreSQL and Chroma, with stand-ins for the services."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import nats
import psutil
import psycopg
import pytest

from aetherium.launcher import lock, ports, stack, state
from aetherium.launcher.errors import AlreadyRunning
from aetherium.launcher.process import State
from aetherium.launcher.stack import Engine, Parts
from shared.config import InferenceSettings, Settings
from tests.requirements import covers
from tests.support.waiting import until
from tests.unit.aetherium import stand_in
from tests.unit.aetherium.children import is_gone

STAND_INS = Parts(stack.PARTS.after, lambda _: (sys.executable, str(stand_in.__file__)))


def settings(folder: Path) -> Settings:
    return Settings(data_dir=folder, inference=InferenceSettings(detect=False, local_model=False))


async def all_ready(engine: Engine) -> None:
    async with asyncio.timeout(60):
        assert await engine.ready(), engine.supervisor.statuses


def pids(engine: Engine) -> set[int]:
    """Every process of the engine, with those that they started."""
    own = [status.pid for status in engine.supervisor.statuses if status.pid is not None]
    return {each.pid for pid in own for each in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]}


async def store(engine: Engine) -> None:
    """Leave something in each of the three."""
    client = await nats.connect(engine.plan.urls["nats"])
    await client.jetstream().add_stream(name="KEPT", subjects=["kept"])
    await client.jetstream().publish("kept", b"a fact")
    await client.close()
    async with await psycopg.AsyncConnection.connect(engine.plan.urls["postgres"]) as connection:
        await connection.execute("create table kept as select 'a row' as value")
    async with httpx.AsyncClient(trust_env=False) as http:
        (await http.post(f"{engine.plan.urls['chroma']}{COLLECTIONS}", json={"name": "kept"})).raise_for_status()


COLLECTIONS = "/api/v2/tenants/default_tenant/databases/default_database/collections"


async def stored(engine: Engine) -> tuple[str, str, list[str]]:
    client = await nats.connect(engine.plan.urls["nats"])
    fact = await client.jetstream().get_last_msg("KEPT", "kept")
    await client.close()
    async with await psycopg.AsyncConnection.connect(engine.plan.urls["postgres"]) as connection:
        row: Any = await (await connection.execute("select value from kept")).fetchone()
    async with httpx.AsyncClient(trust_env=False) as http:
        collections = (await http.get(f"{engine.plan.urls['chroma']}{COLLECTIONS}")).json()
    return (fact.data or b"").decode(), row[0], [each["name"] for each in collections]


@covers("stack.stop")
async def test_a_stopped_engine_leaves_nothing_and_the_next_start_finds_its_data(tmp_path: Path) -> None:
    async with stack.running(settings(tmp_path), parts=STAND_INS) as engine:
        await all_ready(engine)
        assert state.find(tmp_path) == engine.state
        with pytest.raises(AlreadyRunning, match=str(os.getpid())):
            async with stack.running(settings(tmp_path), parts=STAND_INS):
                pass
        await store(engine)
        ran = pids(engine)
        taken = [status.port for status in engine.supervisor.statuses if status.port]
    assert len(ran) > 9
    assert [pid for pid in ran if not is_gone(pid)] == []
    assert all(ports.is_free(port) for port in taken)
    assert state.find(tmp_path) is None
    with lock.held(tmp_path):
        pass

    async with stack.running(settings(tmp_path), parts=STAND_INS) as engine:
        await all_ready(engine)
        assert await stored(engine) == ("a fact", "a row", ["kept"])


@covers("stack.start")
async def test_killed_infrastructure_comes_back_on_its_ports_with_its_data(tmp_path: Path) -> None:
    async with stack.running(settings(tmp_path), parts=Parts({})) as engine:
        await all_ready(engine)
        await store(engine)
        for status in engine.supervisor.statuses:
            assert status.pid is not None
            os.kill(status.pid, signal.SIGKILL)
        await until(lambda: all(status.restarts and status.state is State.READY for status in engine.supervisor.statuses))
        assert await stored(engine) == ("a fact", "a row", ["kept"])


_UP = """
import asyncio, sys
from pathlib import Path
from aetherium.cli import up
from tests.integration.test_launcher import STAND_INS, settings
asyncio.run(up.stay(settings(Path(sys.argv[1])), scripted=False, as_json=sys.argv[2] == "json", parts=STAND_INS))
"""


@contextmanager
def up(folder: Path, output: str) -> Generator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", _UP, str(folder), output], stdout=subprocess.PIPE, text=True)
    with process:
        try:
            yield process
        finally:
            process.kill()


def processes_of(printed_state: str) -> set[int]:
    own = [process["pid"] for process in json.loads(printed_state)["processes"]]
    return {each.pid for pid in own for each in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]}


@covers("stack.stop")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_up_stops_everything_when_it_is_asked_to(tmp_path: Path, number: signal.Signals) -> None:
    with up(tmp_path, "json") as engine:
        assert engine.stdout is not None
        ran = processes_of(engine.stdout.readline())
        engine.send_signal(number)
        assert engine.wait(timeout=30) == 0
    assert [pid for pid in ran if not is_gone(pid)] == []
    assert state.find(tmp_path) is None


@covers("stack.killed")
async def test_a_killed_engine_leaves_no_process_and_no_lock_and_starts_again(tmp_path: Path) -> None:
    with up(tmp_path, "json") as engine:
        assert engine.stdout is not None
        ran = processes_of(engine.stdout.readline())
        engine.kill()
        engine.wait()
        await until(lambda: all(is_gone(pid) for pid in ran))
    assert state.find(tmp_path) is None
    async with stack.running(settings(tmp_path), parts=STAND_INS) as again:
        await all_ready(again)


async def test_an_engine_killed_during_its_first_start_starts_afterwards(tmp_path: Path) -> None:
    with up(tmp_path, "text") as engine:
        await until((tmp_path / "postgres" / "data.new").exists)
        engine.kill()
        engine.wait()
    async with stack.running(settings(tmp_path), parts=Parts({})) as again:
        await all_ready(again)


async def test_up_says_where_things_are(tmp_path: Path) -> None:
    with up(tmp_path, "text") as engine:
        assert engine.stdout is not None
        lines: list[str] = []
        while not lines or not lines[-1].startswith("Ctrl-C"):
            lines.append(engine.stdout.readline())
        running = state.find(tmp_path)
        assert running is not None
        said = "".join(lines)
        assert f"API           {running.urls['gateway']}" in said
        assert f"event stream  {running.urls['nats']}" in said
        assert str(tmp_path / "workspaces") in said
        assert "nats is ready" in said
        engine.send_signal(signal.SIGINT)
        assert engine.wait(timeout=30) == 0
