"""The whole engine as people use it: started, asked, interrupted, stopped, and started again."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio

from aetherium.client import Refused
from aetherium.launcher import lock, ports, state
from shared.runstate import Status
from tests.e2e.cli import Up, command, environment, up
from tests.e2e.engine import Stack, opened, settings_in, write_script, write_template
from tests.requirements import covers
from tests.support.waiting import until
from tests.unit.aetherium.children import is_gone

PRIMES = [number for number in range(2, 100) if all(number % divisor for divisor in range(2, number))]
STOPS_WITHIN_S = 2.0
ENDLESS = {"name": "run_shell", "arguments": {"command": "echo $$ > pid; exec sleep 600"}}
ONE_LINE = {"name": "run_shell", "arguments": {"command": "echo once >> lines.txt"}}
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "talk for ever": [{"content": "word " * 2000, "chunk": 4, "delay_s": 0.05}],
    "run for ever": [{"content": "It will take long.", "tool_calls": [ENDLESS]}, {"content": "It ended."}],
    "write one line": [{"content": "A line.", "tool_calls": [ONE_LINE]}, {"content": "There it is."}],
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    folder = tmp_path_factory.mktemp("engine")
    async with opened(settings_in(folder), script=write_script(folder, CONVERSATIONS)) as stack:
        yield stack


async def cancelled(engine: Stack, run_id: str) -> float:
    """Ask a run to stop; gives how long that took."""
    began = time.monotonic()
    await engine.gateway.cancel(run_id, "enough")
    async with asyncio.timeout(20):
        ended = await engine.gateway.wait(run_id)
    assert (ended.status, ended.reason) == (Status.CANCELLED, "enough")
    return time.monotonic() - began


@covers("run.cancel", "api.cancel")
@pytest.mark.asyncio(loop_scope="module")
async def test_cancelling_a_run_stops_it_in_two_seconds_and_cuts_the_models_answer(engine: Stack) -> None:
    run_id = await engine.start("talk for ever")
    await engine.until_fact(run_id, "llm.dispatched")
    await until(lambda: outcome_of(engine, "talk for ever", "open"))
    assert await cancelled(engine, run_id) < STOPS_WITHIN_S
    await until(lambda: outcome_of(engine, "talk for ever", "client_left"), timeout=STOPS_WITHIN_S)


@covers("relay.untouched")
@pytest.mark.asyncio(loop_scope="module")
async def test_a_chat_client_uses_the_engines_model_by_its_own_protocol(engine: Stack) -> None:
    async with openai.AsyncOpenAI(base_url=f"{engine.url}/v1", api_key="any", max_retries=0) as client:
        answer = await client.chat.completions.create(model="scripted", messages=[{"role": "user", "content": "write one line"}])
        assert answer.choices[0].message.content == "A line."
        assert [model.id async for model in client.models.list()] == ["scripted"]


async def outcome_of(engine: Stack, message: str, outcome: str) -> bool:
    return [each["outcome"] for each in await engine.requests() if message in str(each["body"]["messages"])] == [outcome]


@covers("run.cancel", "shell.bounded")
@pytest.mark.asyncio(loop_scope="module")
async def test_cancelling_a_run_ends_the_command_that_it_waits_for(engine: Stack) -> None:
    run_id = await engine.start("run for ever")
    pid_file = engine.workspace(await engine.gateway.status(run_id)) / "pid"
    await until(lambda: pid_file.exists() and pid_file.read_text().strip())
    pid = int(pid_file.read_text())
    assert not is_gone(pid)
    assert await cancelled(engine, run_id) < STOPS_WITHIN_S
    await until(lambda: is_gone(pid), timeout=STOPS_WITHIN_S)


@covers("api.submit.idempotent")
@pytest.mark.asyncio(loop_scope="module")
async def test_a_request_sent_again_with_its_key_is_one_run_with_one_effect(engine: Stack) -> None:
    first, *others = await asyncio.gather(*(engine.start("write one line", key="the-only-one") for _ in range(5)))
    assert set(others) == {first}
    ended = await engine.gateway.wait(first)
    assert await engine.start("write one line", key="the-only-one") == first
    assert (engine.workspace(ended) / "lines.txt").read_text() == "once\n"
    with pytest.raises(Refused, match="another request"):
        await engine.start("write another line", key="the-only-one")
    assert [run.run_guid for run in await engine.gateway.runs() if run.message == "write one line"] == [first]


def prepared(folder: Path) -> tuple[Path, Path]:
    """A data folder with the test's template, and a script."""
    write_template(folder / "data")
    return folder / "data", write_script(folder, CONVERSATIONS)


async def one_line(engine: Up) -> str:
    async with engine.gateway() as gateway:
        submission = await gateway.submit("test", "write one line", project="one line", wait=True)
    assert submission.status is Status.COMPLETED, submission
    return submission.run_guid


def assert_nothing_is_left(engine: Up, pids: set[int], taken: set[int]) -> None:
    assert sorted(pid for pid in pids if not is_gone(pid)) == []
    assert sorted(port for port in taken if not ports.is_free(port)) == []
    assert state.find(engine.data_dir) is None
    with lock.held(engine.data_dir):
        pass


@covers("stack.stop", "stack.ports")
async def test_ctrl_c_leaves_nothing_and_the_next_start_finds_everything(tmp_path: Path) -> None:
    data_dir, script = prepared(tmp_path)
    with contextlib.ExitStack() as taken:
        # Whether these three are ours or somebody else's: they are taken.
        for port in (4222, 5432, 5257):
            with contextlib.suppress(OSError):
                taken.enter_context(socket.create_server(("127.0.0.1", port)))
        async with up(data_dir, "--script", script) as first:
            for port, name in ((4222, "nats"), (5432, "postgres"), (5257, "gateway")):
                assert f"port {port} is taken: {name} uses " in first.said
            run_id = await one_line(first)
            async with first.gateway() as gateway:
                before = await gateway.status(run_id)
                log = await gateway.log(run_id)
            pids = first.everything()
            used = {process.port for process in first.state.processes if process.port}
            assert await first.interrupt() == 0
            assert first.said.rstrip().endswith("stopped")
            assert len(pids) > len(used)
            assert_nothing_is_left(first, pids, used)
    async with up(data_dir, "--script", script) as second:
        async with second.gateway() as gateway:
            assert await gateway.status(run_id) == before
            assert await gateway.log(run_id) == log
        assert await one_line(second) != run_id
        assert await second.interrupt() == 0


@covers("demo.scripted")
def test_the_scripted_demo_does_its_task_and_says_that_no_real_model_did(tmp_path: Path) -> None:
    data_dir = tmp_path / "demo"
    done = subprocess.run(
        command("demo", "--scripted", "--data-dir", data_dir), capture_output=True, text=True, env=environment(), cwd=tmp_path, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "scripted" in done.stdout
    (saved,) = data_dir.glob("workspaces/*/primes.txt")
    assert [int(line) for line in saved.read_text().split()] == PRIMES
    assert str(saved.parent) in done.stdout.replace("\n", "")
    assert state.find(data_dir) is None
    with lock.held(data_dir):
        pass
