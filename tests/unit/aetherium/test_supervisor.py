from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from aetherium.launcher.errors import CannotStart
from aetherium.launcher.process import ProcessSpec, ProcessStatus, State
from aetherium.launcher.supervisor import Supervisor, layers
from tests.requirements import covers
from tests.support.waiting import until
from tests.unit.aetherium.children import STAYS, STUBBORN, file_exists, is_gone, python


@asynccontextmanager
async def supervised(
    tmp_path: Path, *specs: ProcessSpec, on_change: Callable[[ProcessStatus], None] = lambda _: None, stop_timeout_s: float = 10
) -> AsyncGenerator[Supervisor]:
    supervisor = Supervisor(specs, tmp_path / "logs", on_change, stop_timeout_s)
    supervisor.start()
    try:
        yield supervisor
    finally:
        await supervisor.stop()


def status_of(supervisor: Supervisor, name: str) -> ProcessStatus:
    return next(status for status in supervisor.statuses if status.name == name)


async def all_ready(supervisor: Supervisor) -> None:
    async with asyncio.timeout(10):
        assert await supervisor.settled()


def pid_of(supervisor: Supervisor, name: str) -> int:
    pid = status_of(supervisor, name).pid
    assert pid is not None
    return pid


def test_layers_hold_what_may_start_together() -> None:
    assert layers({"log": (), "database": (), "reader": ("log", "database"), "edge": ("reader",)}) == [
        ["log", "database"],
        ["reader"],
        ["edge"],
    ]


@pytest.mark.parametrize("after", [{"a": ("b",), "b": ("a",)}, {"a": ("nobody",)}])
def test_an_order_that_cannot_be_kept_is_refused(after: dict[str, Sequence[str]]) -> None:
    with pytest.raises(ValueError, match=r"nobody|wait for each other"):
        layers(after)


@covers("stack.start")
async def test_a_process_starts_only_when_those_before_it_are_ready(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    seen: list[tuple[str, State]] = []
    first = python("first", STAYS, ready=file_exists(gate))
    second = python("second", STAYS, after=("first",))
    async with supervised(tmp_path, second, first, on_change=lambda status: seen.append((status.name, status.state))) as supervisor:
        await until(lambda: status_of(supervisor, "first").pid)
        assert status_of(supervisor, "second").state is State.WAITING
        gate.touch()
        await all_ready(supervisor)
    assert seen.index(("first", State.READY)) < seen.index(("second", State.STARTING))


async def test_dependents_are_stopped_before_what_they_depend_on(tmp_path: Path) -> None:
    stopped: list[str] = []

    def note(status: ProcessStatus) -> None:
        if status.state is State.STOPPED:
            stopped.append(status.name)

    specs = [python("log", STAYS), python("service", STAYS, after=("log",)), python("edge", STAYS, after=("service",))]
    async with supervised(tmp_path, *specs, on_change=note) as supervisor:
        await all_ready(supervisor)
    assert stopped == ["edge", "service", "log"]


@covers("stack.start")
async def test_a_killed_process_is_started_again(tmp_path: Path) -> None:
    async with supervised(tmp_path, python("worker", STAYS)) as supervisor:
        await all_ready(supervisor)
        before = pid_of(supervisor, "worker")
        os.kill(before, signal.SIGKILL)
        await until(lambda: status_of(supervisor, "worker").restarts == 1)
        await all_ready(supervisor)
        assert pid_of(supervisor, "worker") != before
        assert status_of(supervisor, "worker").last_exit == -signal.SIGKILL


async def test_what_a_killed_process_started_is_gone_before_it_starts_again(tmp_path: Path) -> None:
    code = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""
    async with supervised(tmp_path, python("parent", code)) as supervisor:
        log = supervisor.log_of("parent")
        await until(lambda: log.exists() and log.read_text().strip())
        grandchild = int(log.read_text())
        os.kill(pid_of(supervisor, "parent"), signal.SIGKILL)
        await until(lambda: is_gone(grandchild))


async def test_a_process_that_ends_before_it_is_ready_is_tried_again(tmp_path: Path) -> None:
    tries = tmp_path / "tries"
    code = """
import sys, time
from pathlib import Path
tries = Path(sys.argv[1])
tries.write_text((tries.read_text() if tries.exists() else "") + "x")
time.sleep(600 if len(tries.read_text()) > 2 else 0)
"""
    third_life = python("flaky", code, tries, ready=lambda _: _is_third(tries))
    async with supervised(tmp_path, third_life) as supervisor:
        await all_ready(supervisor)
        assert status_of(supervisor, "flaky").restarts == 2


async def _is_third(tries: Path) -> bool:
    return tries.exists() and len(tries.read_text()) > 2


async def test_a_process_that_ignores_the_request_to_stop_is_killed(tmp_path: Path) -> None:
    async with supervised(tmp_path, python("deaf", STUBBORN), stop_timeout_s=0.1) as supervisor:
        log = supervisor.log_of("deaf")
        await until(lambda: log.exists() and "deaf" in log.read_text())
        pid = pid_of(supervisor, "deaf")
    assert is_gone(pid)


async def test_a_second_request_ends_a_slow_stop_at_once(tmp_path: Path) -> None:
    async with supervised(tmp_path, python("deaf", STUBBORN), stop_timeout_s=600) as supervisor:
        log = supervisor.log_of("deaf")
        await until(lambda: log.exists() and "deaf" in log.read_text())
        stopping = asyncio.create_task(supervisor.stop())
        await asyncio.sleep(0)
        supervisor.end_now()
        async with asyncio.timeout(10):
            await stopping


async def test_what_cannot_be_started_fails_with_its_dependents_and_says_why(tmp_path: Path) -> None:
    async def refuse() -> None:
        raise CannotStart("the disk is full")

    broken = python("broken", STAYS, prepare=refuse)
    async with supervised(tmp_path, broken, python("needy", STAYS, after=("broken",)), python("other", STAYS)) as supervisor:
        async with asyncio.timeout(10):
            assert not await supervisor.settled()
        assert status_of(supervisor, "broken").problem == "the disk is full"
        assert status_of(supervisor, "needy").problem == "needy needs broken, which cannot be started"
        assert status_of(supervisor, "other").state is State.READY


async def test_a_missing_program_is_named(tmp_path: Path) -> None:
    async with supervised(tmp_path, ProcessSpec("gone", ("/no/such/program",), {}, file_exists(tmp_path))) as supervisor:
        async with asyncio.timeout(10):
            assert not await supervisor.settled()
        assert "/no/such/program" in str(status_of(supervisor, "gone").problem)


async def test_a_program_for_another_processor_is_not_started_again_and_again(tmp_path: Path) -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
    async with supervised(tmp_path, python("foreign", code, ready=file_exists(tmp_path / "never"))) as supervisor:
        async with asyncio.timeout(10):
            assert not await supervisor.settled()
        assert "processor" in str(status_of(supervisor, "foreign").problem)


async def test_a_stop_during_the_start_leaves_nothing(tmp_path: Path) -> None:
    async with supervised(tmp_path, python("slow", STAYS, ready=file_exists(tmp_path / "never"))) as supervisor:
        await until(lambda: status_of(supervisor, "slow").pid)
        pid = pid_of(supervisor, "slow")
    assert is_gone(pid)
    assert status_of(supervisor, "slow").state is State.STOPPED


async def test_the_previous_log_is_kept_and_both_outputs_are_in_the_new_one(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "talker.log").write_text("from before")
    async with supervised(
        tmp_path, python("talker", "import sys, time; print('out', flush=True); print('err', file=sys.stderr, flush=True); time.sleep(600)")
    ):
        await until(lambda: (logs / "talker.log").exists() and (logs / "talker.log").read_text() == "out\nerr\n")
    assert (logs / "talker.log.1").read_text() == "from before"


_ENGINE = """
import asyncio, os, sys
from pathlib import Path
from aetherium.launcher.supervisor import Supervisor
from tests.unit.aetherium.children import STAYS, STUBBORN, python

async def main():
    supervisor = Supervisor([python("a", STAYS), python("b", STUBBORN, after=("a",))], Path(sys.argv[1]))
    supervisor.start()
    await supervisor.settled()
    print(*(status.pid for status in supervisor.statuses), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def test_no_child_outlives_a_killed_supervisor(tmp_path: Path) -> None:
    engine = subprocess.Popen([sys.executable, "-c", _ENGINE, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert engine.stdout is not None
    with engine, engine.stdout:
        pids = [int(pid) for pid in engine.stdout.readline().split()]
        assert len(pids) == 2
        assert not any(is_gone(pid) for pid in pids)
        engine.kill()
        engine.wait()
    asyncio.run(until(lambda: all(is_gone(pid) for pid in pids)))
