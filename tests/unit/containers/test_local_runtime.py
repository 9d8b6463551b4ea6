"""Commands as plain processes: whole output in bounded memory, a clean environment, and nothing left running."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from uuid import uuid4

import pytest

from services.containers.local import LocalRuntime, environment, is_loopback
from services.containers.output import HeadAndTail
from services.containers.runtime import ContainerFault, ContainerRuntime, Ended, ExecResult, Project, UnsafeRuntime
from tests.requirements import covers
from tests.support.waiting import until


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "ws"
    folder.mkdir()
    return folder


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[LocalRuntime]:
    runtime = LocalRuntime(tmp_path / "home")
    yield runtime
    await runtime.close()


Run = Callable[..., "asyncio.Task[ExecResult]"]


@pytest.fixture
def run(runtime: LocalRuntime, workspace: Path) -> Run:
    def start(command: str, timeout_s: float = 20.0, exec_id: str | None = None) -> asyncio.Task[ExecResult]:
        return asyncio.ensure_future(runtime.exec(1, exec_id or uuid4().hex, command, timeout_s, workspace))

    return start


def alive(marker: str) -> list[int]:
    """Processes whose command line holds the marker."""
    found: list[int] = []
    for name in os.listdir("/proc"):
        if name.isdecimal() and int(name) != os.getpid():
            try:
                line = Path("/proc", name, "cmdline").read_bytes()
            except OSError:
                continue
            if marker.encode() in line:
                found.append(int(name))
    return found


def marker() -> str:
    """A number of seconds to sleep that no other process sleeps for."""
    return f"600.{uuid4().int % 10**12:012}"


# ---- what a command sees and answers


async def test_output_and_exit_code_come_back_with_both_streams_in_order(run: Run) -> None:
    result = await run("echo one; echo two >&2; echo three; exit 7")
    assert (result.output, result.exit_code, result.ended) == ("one\ntwo\nthree\n", 7, Ended.EXITED)


async def test_a_command_runs_in_the_workspace_and_reads_nothing_from_a_keyboard(run: Run, workspace: Path) -> None:
    result = await run("pwd; cat; echo done > made.txt")
    assert result.output == f"{workspace}\n"
    assert (workspace / "made.txt").read_text() == "done\n"


async def test_python_and_python3_are_both_there_and_work(run: Run) -> None:
    result = await run("python -c 'import json, sys; print(sys.version_info[0])' && python3 -c 'import ssl, venv; print(3)'")
    assert (result.output, result.exit_code) == ("3\n3\n", 0)


@covers("shell.environment")
async def test_a_command_sees_nothing_of_the_engines_environment(run: Run, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AETHERIUM_SECRET", "x")
    monkeypatch.setenv("MY_API_TOKEN", "x")
    lines = (await run("env")).output.splitlines()
    names = {line.partition("=")[0] for line in lines}
    assert names - {"PWD", "OLDPWD", "SHLVL", "_"} == {*environment(workspace, workspace), "EXEC_MARK"}
    assert f"HOME={workspace}" in lines


@covers("shell.environment")
async def test_pytest_in_a_workspace_does_not_take_the_settings_of_a_project_around_it(runtime: LocalRuntime, tmp_path: Path) -> None:
    workspace = tmp_path / "project" / "workspaces" / "1"
    workspace.mkdir(parents=True)
    (tmp_path / "project" / "pyproject.toml").write_text("[tool.pytest.ini_options]\naddopts = '--no-such-option'\n")
    (workspace / "test_one.py").write_text("def test_one():\n    assert True\n")
    result = await runtime.exec(1, uuid4().hex, f"{sys.executable} -m pytest -q -p no:cacheprovider", 60.0, workspace)
    assert (result.exit_code, "1 passed" in result.output) == (0, True), result.output


async def test_a_command_inherits_no_open_file_of_the_engine(run: Run, tmp_path: Path) -> None:
    with (tmp_path / "open.txt").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        result = await run("ls -l /proc/self/fd")
    assert "open.txt" not in result.output


async def test_a_program_ended_by_a_signal_has_the_code_that_a_shell_gives_it(run: Run) -> None:
    assert (await run("kill -9 $$")).exit_code == 137


async def test_bytes_that_are_no_text_come_back_as_replacement_characters(run: Run) -> None:
    assert (await run(r"printf 'a\377b'")).output == "a\ufffdb"


async def test_a_command_that_cannot_start_is_a_fault_and_may_be_tried_again(
    runtime: LocalRuntime, workspace: Path, tmp_path: Path
) -> None:
    with pytest.raises(ContainerFault, match="could not be started: No such file"):
        await runtime.exec(1, "a", "true", 5, tmp_path / "none")
    with pytest.raises(ContainerFault, match="Nothing ran"):
        await runtime.exec(1, "a", "true \x00", 5, workspace)
    assert (await runtime.exec(1, "a", "echo now", 5, workspace)).output == "now\n"


# ---- nothing is left running


@covers("shell.bounded")
async def test_at_the_time_bound_the_whole_tree_is_killed_and_what_came_is_kept(run: Run, workspace: Path) -> None:
    name = marker()
    result = await run(f"echo began; (sleep {name} & sleep {name}; touch done) | cat", timeout_s=0.4)
    assert (result.output, result.exit_code, result.ended) == ("began\n", None, Ended.TIMED_OUT)
    assert result.timed_out
    assert alive(name) == []
    assert not (workspace / "done").exists()


async def test_a_quiet_command_inside_its_bound_is_left_alone(run: Run) -> None:
    assert (await run("sleep 0.5; exit 4", timeout_s=20)).exit_code == 4


async def test_a_background_child_that_keeps_the_pipe_open_does_not_hold_the_answer_back(run: Run) -> None:
    name = marker()
    async with asyncio.timeout(5):
        result = await run(f"sleep {name} & echo started", timeout_s=60)
    assert (result.output, result.exit_code) == ("started\n", 0)
    assert alive(name) == []


@pytest.mark.skipif(shutil.which("setsid") is None, reason="no setsid here")
@pytest.mark.parametrize("escape", ["setsid sleep {0} &", "(setsid setsid sleep {0} &) ;", "(setsid sleep {0} >/dev/null 2>&1 &) ;"])
async def test_a_child_that_leaves_the_session_is_found_and_killed(run: Run, escape: str) -> None:
    name = marker()
    async with asyncio.timeout(8):
        result = await run(f"{escape.format(name)} echo over", timeout_s=60)
    assert result.output.endswith("over\n")
    assert alive(name) == []


async def test_a_process_that_ignores_signals_and_forks_on_is_killed(run: Run, workspace: Path) -> None:
    name = marker()
    (workspace / "fork.py").write_text(
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "end = time.time() + 30\n"
        "while time.time() < end:\n"
        "    if os.fork(): time.sleep(0.01); os._exit(0)\n"
    )
    result = await run(f"python fork.py {name} & sleep 600", timeout_s=0.6)
    assert result.timed_out
    assert alive(name) == []


async def test_the_engines_own_processes_are_not_touched(run: Run) -> None:
    name = marker()
    bystander = await asyncio.create_subprocess_exec("sleep", name)
    assert (await run("sleep 600 &", timeout_s=5)).exit_code == 0
    assert (await run("sleep 600", timeout_s=0.1)).timed_out
    assert bystander.returncode is None
    assert alive(name) == [bystander.pid]
    bystander.kill()
    await bystander.wait()


async def test_a_cancelled_caller_ends_the_command_before_it_goes(run: Run, runtime: LocalRuntime) -> None:
    name = marker()
    task = run(f"sleep {name} & sleep {name}", timeout_s=60, exec_id="a")
    await until(lambda: len(alive(name)) >= 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert alive(name) == []
    assert (await run("echo again", exec_id="a")).ended is Ended.KILLED


async def test_a_killed_command_answers_that_it_was_stopped(run: Run, runtime: LocalRuntime) -> None:
    name = marker()
    task = run(f"echo half; sleep {name}", timeout_s=60, exec_id="a")
    await until(lambda: alive(name))
    assert await runtime.kill("a")
    result = await task
    assert (result.output, result.exit_code, result.ended) == ("half\n", None, Ended.KILLED)
    assert not await runtime.kill("a")
    assert alive(name) == []


async def test_stopping_a_project_ends_its_commands_and_no_others(runtime: LocalRuntime, workspace: Path) -> None:
    name = marker()
    mine = asyncio.create_task(runtime.exec(1, "a", f"sleep {name}", 60, workspace))
    other = asyncio.create_task(runtime.exec(2, "b", f"sleep {name}", 60, workspace))
    await until(lambda: len(alive(name)) >= 2)
    assert (await runtime.describe(1)).running == ("a",)
    await runtime.stop(1)
    assert (await mine).ended is Ended.CONTAINER_GONE
    assert not other.done()
    await runtime.close()
    assert (await other).ended is Ended.CONTAINER_GONE
    assert (await runtime.describe(2)).state == "absent"


async def test_no_descriptor_is_left_after_many_commands(run: Run) -> None:
    await run("true")
    before = len(os.listdir("/proc/self/fd"))
    await asyncio.gather(*(run("sleep 600 & true") for _ in range(10)), *(run("sleep 600", timeout_s=0.05) for _ in range(5)))
    assert len(os.listdir("/proc/self/fd")) == before


# ---- once


@covers("shell.once")
async def test_a_command_runs_once_however_often_it_is_asked_for(run: Run, workspace: Path) -> None:
    first, second = await asyncio.gather(*(run("echo x >> count; sleep 0.1; cat count", exec_id="a") for _ in range(2)))
    third = await run("another text, the same id", exec_id="a")
    assert first == second == third
    assert (workspace / "count").read_text() == "x\n"


async def test_a_command_goes_on_while_somebody_still_waits_for_it(run: Run, workspace: Path) -> None:
    command = "touch began; until [ -e go ]; do sleep 0.01; done; echo over"
    leaving, staying = run(command, exec_id="a"), run(command, exec_id="a")
    await until((workspace / "began").exists)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    (workspace / "go").touch()
    async with asyncio.timeout(5):
        assert (await staying).output == "over\n"


# ---- bounded


@covers("shell.bounded")
async def test_a_flood_of_output_is_cut_in_bounded_memory_and_still_has_its_exit_code(run: Run) -> None:
    size = 50 * 2**20
    tracemalloc.start()
    result = await run(f"echo FIRST; head -c {size} /dev/zero | tr '\\0' 'x'; echo; echo LAST; exit 3", timeout_s=60)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert result.exit_code == 3
    assert result.output.startswith("FIRST\nx")
    assert result.output.endswith("x\nLAST\n")
    assert size - 100_000 < result.cut < size
    assert f"[{result.cut:,} bytes cut]" in result.output
    assert len(result.output) < 70_000
    assert peak < 4 * 2**20


async def test_a_command_that_floods_for_ever_is_ended_at_its_bound(run: Run) -> None:
    began = time.monotonic()
    result = await run("yes", timeout_s=0.3)
    assert (result.ended, result.cut > 0) == (Ended.TIMED_OUT, True)
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("chunk", [1, 3, 7, 100])
@pytest.mark.parametrize("total", [0, 9, 10, 11, 30, 31, 500])
def test_head_and_tail_keep_exactly_their_bounds(chunk: int, total: int) -> None:
    data = bytes(97 + number % 26 for number in range(total))
    kept = HeadAndTail(head=10, tail=20)
    for start in range(0, total, chunk):
        kept.add(data[start : start + chunk])
    assert kept.cut == max(0, total - 30)
    expected = data.decode() if total <= 30 else f"{data[:10].decode()}\n[{total - 30} bytes cut]\n{data[-20:].decode()}"
    assert kept.text() == expected


# ---- as a runtime


async def test_ensure_makes_the_workspace_and_says_that_nothing_is_isolated(tmp_path: Path) -> None:
    runtime: ContainerRuntime = LocalRuntime(tmp_path / "home")
    project = Project(4, tmp_path / "new/ws")
    for _ in range(2):
        state = await runtime.ensure(project)
        assert (state.runtime, state.state) == ("local", "running")
        assert "does not isolate" in state.warning
    assert project.workspace.is_dir()
    await runtime.stop(4)
    assert (await runtime.describe(4)).state == "absent"


@covers("shell.loopback_only")
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "engine.example", ""])
def test_an_api_that_strangers_can_reach_stops_the_start(tmp_path: Path, host: str) -> None:
    with pytest.raises(UnsafeRuntime, match="Bind it to 127"):
        LocalRuntime(tmp_path, api_host=host)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost"])
def test_loopback_addresses_are_known(host: str) -> None:
    assert is_loopback(host)
