"""What the supervisor is told about a process, and what it tells about one."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from pydantic import BaseModel, ConfigDict

from aetherium.launcher.child import Account


class State(StrEnum):
    WAITING = "waiting"  # for those it comes after
    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"  # it ended by itself and is about to be started again
    FAILED = "failed"  # it cannot be started; `problem` says what to do
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One process and how it is treated.

    `prepare` runs before every start and may take long; a `Fault` from it ends the process for good.
    `ready` gets the pid and is polled until it says True. `unwell` is asked from then on, every `look_s`: a
    reason means that the process runs, will not mend by itself, and is started again.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    ready: Callable[[int], Awaitable[bool]]
    after: tuple[str, ...] = ()
    port: int | None = None
    prepare: Callable[[], Awaitable[None]] | None = None
    unwell: Callable[[], Awaitable[str | None]] | None = None
    look_s: float = 2.0
    stop_signal: signal.Signals = signal.SIGTERM
    hard_stop_signal: signal.Signals = signal.SIGKILL  # when there is no time; PostgreSQL wants SIGQUIT
    death_signal: signal.Signals = signal.SIGKILL  # from the kernel when the supervisor dies
    account: Account | None = None


class ProcessStatus(BaseModel):
    """How a process is now. `restarts` counts its own ends since the engine started."""

    model_config = ConfigDict(frozen=True)

    name: str
    state: State = State.WAITING
    pid: int | None = None
    port: int | None = None
    restarts: int = 0
    ready_after_s: float | None = None  # of the last start
    last_exit: int | None = None  # negative: the signal that ended it
    problem: str | None = None


@dataclass(slots=True)
class Backoff:
    """How long to wait before the next start of a process that ended by itself.

    The first restart is immediate. So is every restart of a process that was ready and was killed from
    outside (SIGKILL: an operator, the kernel short of memory): its code is not at fault. Otherwise the wait
    doubles up to `longest_s`, until the process has been ready for `healthy_s`.
    """

    first_s: float = 0.2
    longest_s: float = 10.0
    healthy_s: float = 30.0
    _failures: int = field(default=0, init=False)

    def after(self, *, exit_code: int, ready_for_s: float | None) -> float:
        """`ready_for_s`: how long it had been ready, None if it never was."""
        if ready_for_s is not None and (exit_code == -signal.SIGKILL or ready_for_s >= self.healthy_s):
            self._failures = 0
            return 0.0
        self._failures += 1
        if self._failures == 1:
            return 0.0
        return min(self.longest_s, self.first_s * 2 ** (self._failures - 2))
