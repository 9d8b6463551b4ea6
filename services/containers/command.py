"""One command as a plain process group: started, read in bounded memory, and ended with all that it started."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import structlog

from services.containers.output import HeadAndTail
from services.containers.processes import MARK, Leader, kill_all
from services.containers.runtime import ContainerFault, Ended, ExecResult

log: Any = structlog.get_logger()

_CHUNK = 65_536
_DRAIN_S = (0.1, 0.3, 0.6)  # how long the pipe may stay open once nothing that is known writes to it


class Command:
    """A started command. Its exit is watched through a pidfd, so that its number stays taken until all is killed."""

    def __init__(self, command: str, workspace: Path, environment: Mapping[str, str]) -> None:
        mark = uuid4().hex
        self._output = HeadAndTail()
        loop = asyncio.get_running_loop()
        self._exited: asyncio.Future[None] = loop.create_future()
        self._end_of_output: asyncio.Future[None] = loop.create_future()
        self._pipe, self._process = _start(command, workspace, {**environment, MARK: mark})
        self._leader = Leader.of(self._process.pid, mark)
        self._pidfd = os.pidfd_open(self._process.pid)
        loop.add_reader(self._pipe, self._read)
        loop.add_reader(self._pidfd, self._on_exit)

    async def result(self, timeout_s: float, stop: asyncio.Future[Ended]) -> ExecResult:
        """Wait for the end, the time bound or `stop`; in each case nothing of the command is left after."""
        began = asyncio.get_running_loop().time()
        try:
            done, _ = await asyncio.wait({self._exited, stop}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            ended = Ended.EXITED if self._exited in done else stop.result() if stop in done else Ended.TIMED_OUT
            await self._end_all()
        except BaseException:  # the whole engine is stopping: nobody is left to do this later
            kill_all(self._leader)
            raise
        finally:
            self._close()
        code = _exit_code(self._process) if ended is Ended.EXITED else None
        seconds = asyncio.get_running_loop().time() - began
        return ExecResult(code, self._output.text(), ended, self._output.cut, round(seconds, 3))

    async def _end_all(self) -> None:
        """Kill what is left and read what it wrote. A pipe that stays open tells of a process not found yet."""
        for wait_s in _DRAIN_S:
            left = await asyncio.to_thread(kill_all, self._leader)
            done, _ = await asyncio.wait({self._end_of_output}, timeout=wait_s)
            if done and not left:
                return
        log.warning("processes_left", session=self._leader.pid)

    def _read(self) -> None:
        try:
            chunk = os.read(self._pipe, _CHUNK)
        except BlockingIOError:
            return
        if chunk:
            self._output.add(chunk)
        else:
            asyncio.get_running_loop().remove_reader(self._pipe)
            self._end_of_output.set_result(None)

    def _on_exit(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        self._exited.set_result(None)

    def _close(self) -> None:
        loop = asyncio.get_running_loop()
        for descriptor in (self._pipe, self._pidfd):
            loop.remove_reader(descriptor)
            os.close(descriptor)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=0.1)  # it is dead by now; this only takes its number back


def _start(command: str, workspace: Path, environment: Mapping[str, str]) -> tuple[int, subprocess.Popen[bytes]]:
    """The reading end of the pipe that stdout and stderr share, and the process.

    An own pipe, because asyncio's subprocess is only over when its pipes are closed: a child in the background
    that keeps one open would hold the answer back.
    """
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    try:
        process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            cwd=workspace,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=writing,
            stderr=writing,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        os.close(reading)
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
        raise ContainerFault(f"The command could not be started: {reason}. Nothing ran.") from error
    finally:
        os.close(writing)
    return reading, process


def _exit_code(process: subprocess.Popen[bytes]) -> int | None:
    """The code as a shell gives it: 128 + n for signal n."""
    code = process.returncode
    return code if code is None or code >= 0 else 128 - code
