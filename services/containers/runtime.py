"""What a container runtime does for a project, whatever it is made of."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from shared.errors import Fault, Verdict


class ContainerFault(Fault):
    """The project's container cannot do this now."""

    code = "container.unavailable"
    verdict = Verdict.RETRY


class UnsafeRuntime(Fault):
    """The runtime would give strangers the machine; the start stops here."""

    code = "container.unsafe_runtime"


@dataclass(frozen=True, slots=True)
class Project:
    """Whose container: the workspace is the only folder that it shares with the host."""

    project_id: int
    workspace: Path
    tier: str = "Standard"


class Ended(StrEnum):
    """Why a command is over."""

    EXITED = "exited"
    TIMED_OUT = "timed_out"
    KILLED = "killed"  # somebody asked for it
    CONTAINER_GONE = "container_gone"  # its container was stopped under it


@dataclass(frozen=True, slots=True)
class ExecResult:
    """How a command ended.

    `exit_code` is as a shell gives it (128 + n for signal n), None when the command was stopped. `output` is
    stdout and stderr in the order written; `cut` counts the bytes left out of its middle.
    """

    exit_code: int | None
    output: str
    ended: Ended = Ended.EXITED
    cut: int = 0
    duration_s: float = 0.0

    @property
    def timed_out(self) -> bool:
        return self.ended is Ended.TIMED_OUT


@dataclass(frozen=True, slots=True)
class ContainerState:
    """A project's container as people see it; `warning` says what it does not protect from."""

    project_id: int
    runtime: str
    state: str  # absent, running, stopped
    running: tuple[str, ...] = ()  # ids of the commands that run now
    warning: str = ""


class ContainerRuntime(Protocol):
    """Docker, or the `local` stand-in. Every method is safe to repeat."""

    @property
    def name(self) -> str: ...

    async def ensure(self, project: Project) -> ContainerState:
        """The project's container, started when it is not running."""
        ...

    async def exec(self, project_id: int, exec_id: str, command: str, timeout_s: float, workspace: Path) -> ExecResult:
        """Run `command` with the workspace as its folder, to its end or its time bound.

        Nothing that it started is left when this returns or is cancelled. An `exec_id` runs once: a repeat
        joins the running command or gets its recorded result.
        """
        ...

    async def result(self, exec_id: str) -> ExecResult | None:
        """How a command that was started earlier ends or ended; None when nobody here knows it. Starts nothing."""
        ...

    async def kill(self, exec_id: str) -> bool:
        """End a command; False when it does not run."""
        ...

    async def stop(self, project_id: int) -> None:
        """Stop the container and everything in it."""
        ...

    async def describe(self, project_id: int) -> ContainerState: ...

    async def close(self) -> None:
        """End every command; part of a tidy stop of the engine."""
        ...
