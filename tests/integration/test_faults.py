"""Everything around a run goes wrong, through the running services: it ends with a stated reason, or waits and goes on."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
import pytest_asyncio

from shared.config import InferenceSettings
from shared.runstate import Status, fold
from tests.e2e.engine import Stack, opened, settings_in, write_script
from tests.requirements import covers
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

IDLE_S = 1.0
AWAY_S = 3.0

APPEND: dict[str, Any] = {"name": "run_shell", "arguments": {"command": "sleep 0.2; echo line-${turn} >> lines.txt"}}
WORK = [*({"content": "A line.", "tool_calls": [APPEND], "first_token_delay_s": 0.1} for _ in range(6)), {"content": "Six lines."}]
MODEL_FAULTS = {
    # what the model does: a word of the reason that the run ends with
    "garbage": "llm.protocol_error",
    "half_stream": "llm.stream_broken",
    "http_500": "llm.backend_broken",
    "error_in_stream": "llm",
    "proxy_error_in_stream": "llm.proxy_error",
    "drop_mid_stream": "llm.connection_dropped",
    "drop_before_answer": "llm.connection_dropped",
    "parser_rejects": "llm.output_unparseable",
    "context_exceeded": "llm.context_exceeded",
    "never": "llm.timeout",
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    folder = tmp_path_factory.mktemp("faults")
    faults: dict[str, Any] = {
        f"the model does {fault}": [{"content": "An answer that will not come whole.", "fault": fault}] for fault in MODEL_FAULTS
    }
    script = write_script(
        folder,
        {
            **faults,
            "one bad moment": [{"content": "It is done.", "fault": "drop_mid_stream", "first_n": 1}],
            "says nothing": [{"content": ""}],
            "is made of noise": [{"content": '\x00\ufffd \ud83d\ude00 {"name": "no_such_tool", "arguments": {"x": [1, 2}}'}],
            "six lines": WORK,
        },
    )
    inference = InferenceSettings(detect=False, local_model=False, concurrency=4, idle_timeout_s=IDLE_S)
    async with opened(settings_in(folder, inference=inference), script=script) as stack:
        yield stack


@covers("llm.garbage", "llm.server_fails")
@pytest.mark.parametrize("fault", MODEL_FAULTS)
async def test_a_run_whose_model_fails_ends_with_what_went_wrong(engine: Stack, fault: str) -> None:
    ended = await engine.run(f"the model does {fault}", within_s=15)
    assert ended.status is Status.FAILED
    assert ended.code == "run.model_call_failed"
    failed = [fact.event for fact in await engine.facts(ended.run_guid) if fact.type == "llm.failed"]
    assert [getattr(event, "code", "").startswith(MODEL_FAULTS[fault]) for event in failed] == [True], failed
    assert ended.model_calls == 1
    assert ended.reason


@covers("llm.retry_once")
async def test_one_bad_moment_of_the_model_costs_one_retry_and_no_run(engine: Stack) -> None:
    ended = await engine.run("one bad moment")
    assert (ended.status, ended.response) == (Status.COMPLETED, "It is done.")
    assert [fact.type for fact in await engine.facts(ended.run_guid) if fact.type.startswith("llm.")] == [
        "llm.dispatched",
        "llm.retried",
        "llm.dispatched",
        "llm.completed",
    ]


@covers("llm.garbage", "run.empty_turn")
async def test_a_model_that_says_nothing_or_only_noise_ends_the_run_inside_its_budgets(engine: Stack) -> None:
    silent, noisy = await asyncio.gather(
        engine.run("says nothing", budgets={"modelCalls": 5}), engine.run("is made of noise", budgets={"modelCalls": 5})
    )
    assert (silent.status, silent.code) == (Status.FAILED, "run.empty_response")
    assert silent.model_calls <= 5
    assert noisy.status in (Status.COMPLETED, Status.FAILED)
    assert noisy.status is Status.COMPLETED or noisy.reason
    assert noisy.model_calls <= 5


@covers("run.deadline")
async def test_a_model_that_never_answers_is_cut_by_the_runs_wall_time_as_well(engine: Stack) -> None:
    began = time.monotonic()
    ended = await engine.run("the model does never", budgets={"wallS": 0.5})
    assert (ended.status, ended.code) == (Status.FAILED, "run.deadline_passed")
    assert time.monotonic() - began < 10
    asked = [request for request in await engine.requests() if "the model does never" in str(request["body"]["messages"])]

    async def left() -> bool:
        return bool((await engine.requests())[asked[-1]["index"]]["outcome"] == "client_left")

    await until(left)


async def whole(engine: Stack, run_id: str, *, within_s: float = 45.0) -> None:
    """The run of six lines ends as it would have without any fault."""
    async with asyncio.timeout(within_s):
        ended = await engine.gateway.wait(run_id)
    assert (ended.status, ended.response) == (Status.COMPLETED, "Six lines."), ended.reason
    lines = (engine.workspace(ended) / "lines.txt").read_text().splitlines()
    assert lines == [f"line-{turn}" for turn in range(6)]


@covers("stack.nats_away")
async def test_a_nats_that_stands_still_is_waited_for(engine: Stack) -> None:
    run_id = await engine.start("six lines")
    await engine.until_fact(run_id, "tool.completed")
    before = await engine.facts(run_id)
    os.kill(engine.pid("nats"), signal.SIGSTOP)
    try:
        await asyncio.sleep(AWAY_S)
    finally:
        os.kill(engine.pid("nats"), signal.SIGCONT)
    await whole(engine, run_id)
    assert (await engine.facts(run_id))[: len(before)] == before


@covers("stack.nats_away")
async def test_a_nats_that_is_killed_in_the_middle_of_a_command_loses_neither_command_nor_fact(engine: Stack) -> None:
    run_id = await engine.start("six lines")
    await engine.until_fact(run_id, "tool.started")
    before = await engine.facts(run_id)
    os.kill(engine.pid("nats"), signal.SIGKILL)
    await whole(engine, run_id)
    assert (await engine.facts(run_id))[: len(before)] == before


@covers("stack.postgres_away")
@pytest.mark.parametrize("how", ["stands still", "is killed"])
async def test_runs_go_on_without_postgresql_and_its_rows_catch_up(engine: Stack, how: str) -> None:
    run_id = await engine.start("six lines")
    await engine.until_fact(run_id, "tool.completed")
    database = psutil.Process(engine.pid("postgres"))
    everything = [database, *database.children(recursive=True)]
    if how == "is killed":
        database.kill()
        await whole(engine, run_id)
    else:
        for process in everything:
            process.suspend()
        try:
            await asyncio.gather(whole(engine, run_id), asyncio.sleep(AWAY_S))
        finally:
            for process in everything:
                process.resume()
    await until(lambda: row_is_right(engine, run_id), timeout=60)


async def row_is_right(engine: Stack, run_id: str) -> bool:
    """Whether the run's row says what its facts say."""
    state = fold(run_id, await engine.facts(run_id))
    try:
        async with await psycopg.AsyncConnection.connect(engine.engine.plan.urls["postgres"], connect_timeout=2) as connection:
            rows = await connection.execute("SELECT status, tool_calls_done, seq FROM read_models.runs WHERE run_id = %s", (run_id,))
            return await rows.fetchone() == (state.status, state.tool_calls_done, state.seq)
    except psycopg.OperationalError:
        return False


@covers("llm.none")
async def test_without_any_model_a_run_fails_in_seconds_and_says_what_to_do(tmp_path: Path) -> None:
    async with opened(settings_in(tmp_path)) as engine:
        ended = await engine.run("Do something.", within_s=10)
    assert ended.status is Status.FAILED
    for advice in ("LM Studio", "llama-server", "Ollama", "AETHERIUM_INFERENCE__URL", "make model"):
        assert advice in ended.reason


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, small enough to be filled."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=160m", "tmpfs", str(place)], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"a small disk needs the right to mount one: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(disk: Path) -> Path:
    """Take all that is left of a disk."""
    ballast = disk / "ballast"
    with ballast.open("wb") as file:
        while free := shutil.disk_usage(disk).free:
            file.write(b"\0" * min(free, 1 << 20))
            file.flush()
    return ballast


@covers("stack.full_disk")
async def test_a_full_disk_makes_the_engine_wait_and_with_room_it_goes_on(small_disk: Path) -> None:
    script = write_script(small_disk, {"six lines": WORK})
    async with opened(settings_in(small_disk), script=script) as engine:
        before_id = await engine.start("six lines")
        await whole(engine, before_id)
        before = await engine.facts(before_id)
        run_id = await engine.start("six lines again")
        await engine.until_fact(run_id, "tool.completed")
        ballast = fill(small_disk)
        await asyncio.sleep(AWAY_S)
        assert fold(run_id, await engine.facts(run_id)).ended_at is None
        acknowledged = await engine.facts(run_id)
        ballast.unlink()
        async with asyncio.timeout(60):
            ended = await engine.gateway.wait(run_id)
        assert ended.status is Status.COMPLETED, ended.reason
        assert (await engine.facts(run_id))[: len(acknowledged)] == acknowledged
        assert await engine.facts(before_id) == before
        lines = (engine.workspace(ended) / "lines.txt").read_text().splitlines()
        assert len(lines) == len(set(lines))
        assert [status.problem for status in engine.engine.supervisor.statuses if status.problem] == []
