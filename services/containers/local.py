"""The `local` runtime: commands as plain processes of this machine, for when there is no Docker.

It bounds what a command costs and leaves nothing running, but it isolates nothing: a command can read and write
whatever the engine's user can. So it says so, and refuses to start when strangers can reach the API.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import sys
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import structlog

from services.containers.command import Command
from services.containers.runtime import ContainerFault, ContainerState, Ended, ExecResult, Project, UnsafeRuntime

FENCE = """[pytest]
# Workspaces are no part of the project that they lie in: pytest looks for its settings here, and no further up.
"""

log: Any = structlog.get_logger()

WARNING = (
    "The local runtime does not isolate commands: they run as the engine's own user and can reach every file and "
    "network that this user can. Use Docker for anything that you would not run by hand."
)
_REMEMBERED = 256


@dataclass(slots=True)
class _Running:
    """A command under way and how many callers wait for it; the last one to leave ends it."""

    project_id: int
    stop: asyncio.Future[Ended]
    task: asyncio.Task[ExecResult]
    waiting: int = 0

    async def end(self, why: Ended) -> None:
        if not self.stop.done():
            self.stop.set_result(why)
        await asyncio.wait({self.task})
        if not self.task.cancelled():
            self.task.exception()  # seen: whoever waits for it gets it


class LocalRuntime:
    """`ContainerRuntime` without containers. `home` holds the `python` and `python3` that commands find."""

    def __init__(self, home: Path, api_host: str = "127.0.0.1") -> None:
        """Refuse an API that is not on loopback.

        Raises:
            UnsafeRuntime: `api_host` can be reached from other machines.
        """
        if not is_loopback(api_host):
            raise UnsafeRuntime(
                f"The local runtime runs commands without isolation, so the API must not be on {api_host!r}. "
                "Bind it to 127.0.0.1, or use the Docker runtime.",
                field="api_host",
            )
        self._bin = home.resolve() / "bin"
        _link_python(self._bin)
        self._workspaces: dict[int, Path] = {}
        self._running: dict[str, _Running] = {}
        self._results: OrderedDict[str, ExecResult] = OrderedDict()
        log.warning("local_runtime", warning=WARNING)

    @property
    def name(self) -> str:
        return "local"

    async def ensure(self, project: Project) -> ContainerState:
        try:
            await asyncio.to_thread(project.workspace.mkdir, parents=True, exist_ok=True)
        except OSError as error:
            raise ContainerFault(f"The workspace of project {project.project_id} cannot be made: {error.strerror}.") from error
        self._workspaces[project.project_id] = project.workspace
        return await self.describe(project.project_id)

    async def exec(self, project_id: int, exec_id: str, command: str, timeout_s: float, workspace: Path) -> ExecResult:
        if (known := self._results.get(exec_id)) is not None:
            return known
        return await self._join(self._running.get(exec_id) or self._start(project_id, exec_id, command, timeout_s, workspace))

    async def result(self, exec_id: str) -> ExecResult | None:
        running = self._running.get(exec_id)
        return await self._join(running) if running is not None else self._results.get(exec_id)

    async def _join(self, running: _Running) -> ExecResult:
        running.waiting += 1
        try:
            return await asyncio.shield(running.task)
        except asyncio.CancelledError:
            if running.waiting == 1:
                await running.end(Ended.KILLED)
            raise
        finally:
            running.waiting -= 1

    def _start(self, project_id: int, exec_id: str, command: str, timeout_s: float, workspace: Path) -> _Running:
        stop: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._run(exec_id, command, timeout_s, workspace, stop), name=f"exec-{exec_id}")
        self._running[exec_id] = running = _Running(project_id, stop, task)
        return running

    async def _run(self, exec_id: str, command: str, timeout_s: float, workspace: Path, stop: asyncio.Future[Ended]) -> ExecResult:
        try:
            await asyncio.to_thread(_fence, workspace.parent)
            result = await Command(command, workspace, environment(workspace, self._bin)).result(timeout_s, stop)
            self._remember(exec_id, result)
        finally:
            del self._running[exec_id]
        log.info("exec_ended", exec_id=exec_id, ended=str(result.ended), exit_code=result.exit_code, seconds=result.duration_s)
        return result

    def _remember(self, exec_id: str, result: ExecResult) -> None:
        self._results[exec_id] = result
        while len(self._results) > _REMEMBERED:
            self._results.popitem(last=False)

    async def kill(self, exec_id: str) -> bool:
        running = self._running.get(exec_id)
        if running is None:
            return False
        await running.end(Ended.KILLED)
        return True

    async def stop(self, project_id: int) -> None:
        await self._end([running for running in self._running.values() if running.project_id == project_id])
        self._workspaces.pop(project_id, None)

    async def describe(self, project_id: int) -> ContainerState:
        running = tuple(exec_id for exec_id, each in self._running.items() if each.project_id == project_id)
        state = "running" if running or project_id in self._workspaces else "absent"
        return ContainerState(project_id, self.name, state, running, WARNING)

    async def close(self) -> None:
        await self._end(list(self._running.values()))

    async def _end(self, running: list[_Running]) -> None:
        await asyncio.gather(*(each.end(Ended.CONTAINER_GONE) for each in running))


def environment(workspace: Path, shims: Path) -> dict[str, str]:
    """All that a command knows: nothing of the engine's own environment, where tokens and addresses are."""
    folders = [str(shims), str(Path(sys.executable).resolve().parent), "/usr/local/bin", "/usr/bin", "/bin"]
    return {
        "PATH": ":".join(dict.fromkeys(folders)),
        "HOME": str(workspace),
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",  # what was printed before the time bound is seen, in the order it was written
    }


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a listener on `host`; a name other than localhost is not trusted."""
    with suppress(ValueError):
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    return host == "localhost"


def _fence(workspaces: Path) -> None:
    """Keep the settings of a project that the workspaces lie in from commands that look for some in the folders above."""
    file = workspaces / "pytest.ini"
    if workspaces.is_dir() and not file.exists():
        file.write_text(FENCE)


def _link_python(folder: Path) -> None:
    """`python` and `python3` both start the engine's interpreter; many systems have only one of the names."""
    interpreter = Path(sys.executable).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("python", "python3"):
        fresh = folder / f".{name}-{uuid4().hex}"
        fresh.symlink_to(interpreter)
        os.replace(fresh, folder / name)
