"""Keeps a set of processes running: ordered start, readiness, restart, and an end that leaves nothing behind.

One task per process. A process starts when all those named in its `after` have been ready once; what is
independent starts at the same time. A later restart of one does not restart its dependents: services
reconnect by themselves.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from aetherium.launcher.child import Child
from aetherium.launcher.errors import CannotStart
from aetherium.launcher.process import Backoff, ProcessSpec, ProcessStatus, State
from shared.errors import Fault
from shared.process import CANNOT_START

_log = logging.getLogger(__name__)
_POLL_S = 0.05
OnChange = Callable[[ProcessStatus], None]


def layers(after: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Names in the order they may start; those of one list do not depend on each other.

    Raises:
        ValueError: a name that nobody has, or a circle.
    """
    unknown = {name for names in after.values() for name in names} - set(after)
    if unknown:
        raise ValueError(f"nothing is called {sorted(unknown)!r}")
    placed: list[list[str]] = []
    done: set[str] = set()
    while len(done) < len(after):
        layer = [name for name, needs in after.items() if name not in done and done.issuperset(needs)]
        if not layer:
            raise ValueError(f"{sorted(set(after) - done)!r} wait for each other")
        placed.append(layer)
        done.update(layer)
    return placed


def rotate_log(path: Path) -> None:
    """Keep what the previous engine wrote as `<name>.log.1`."""
    with suppress(FileNotFoundError):
        path.replace(path.with_name(f"{path.name}.1"))


class _Process:
    """One supervised process: its status, its child while it has one, and its task."""

    def __init__(self, spec: ProcessSpec, log: Path, on_change: OnChange, stop_timeout_s: float) -> None:
        self.spec = spec
        self.log = log
        self.status = ProcessStatus(name=spec.name, port=spec.port)
        self.child: Child | None = None
        self.task: asyncio.Task[None] | None = None
        self._up: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.settled = asyncio.Event()  # ready, or failed for good
        self._on_change = on_change
        self._stop_timeout_s = stop_timeout_s
        self._backoff = Backoff()

    def _set(self, state: State, **changes: object) -> None:
        self.status = self.status.model_copy(update={"state": state, **changes})
        if state in (State.READY, State.FAILED):
            self.settled.set()
            if not self._up.done():
                self._up.set_result(state is State.READY)
        else:
            self.settled.clear()
        self._on_change(self.status)

    async def came_up(self) -> bool:
        """Wait until it was ready once (True) or failed for good before that (False)."""
        return await asyncio.shield(self._up)

    async def run(self, needs: Sequence[_Process]) -> None:
        try:
            for process in needs:
                if not await process.came_up():
                    raise CannotStart(f"{self.spec.name} needs {process.spec.name}, which cannot be started")
            while True:
                await self._one_life()
        except Fault as fault:
            self._set(State.FAILED, pid=None, problem=fault.message)
        except asyncio.CancelledError:
            self._set(State.STOPPED, pid=None)
            raise
        except Exception as error:
            _log.exception("supervision of %s ended", self.spec.name)
            self._set(State.FAILED, pid=None, problem=f"a bug in the supervisor: {error!r}")

    async def _one_life(self) -> None:
        """From start to the end of the wait before the next start."""
        began = time.monotonic()
        self._set(State.STARTING, pid=None, ready_after_s=None)
        if self.spec.prepare is not None:
            await self.spec.prepare()
        self.child = child = Child.start(
            self.spec.argv, env=self.spec.env, log=self.log, death_signal=self.spec.death_signal, account=self.spec.account
        )
        ended = asyncio.create_task(child.exited())
        self._set(State.STARTING, pid=child.pid)
        try:
            ready_at = await self._until_ready(child, ended)
            if ready_at is not None:
                self._set(State.READY, ready_after_s=round(ready_at - began, 3))
                await self._until_unwell(child, ended)
            exit_code = await asyncio.shield(ended)
        except BaseException:
            await self._end(child, ended)
            raise
        finally:
            self.child = None
        if exit_code == -signal.SIGILL:  # it would end the same way every time
            raise CannotStart(f"{self.spec.name} is built for a processor with instructions that this one lacks ({self.spec.argv[0]})")
        if exit_code == CANNOT_START and ready_at is None:
            raise CannotStart(f"{self.spec.name} cannot start with these settings; {self.log} says why")
        ready_for_s = None if ready_at is None else time.monotonic() - ready_at
        delay_s = self._backoff.after(exit_code=exit_code, ready_for_s=ready_for_s)
        self._set(State.RESTARTING, pid=None, restarts=self.status.restarts + 1, last_exit=exit_code)
        await asyncio.sleep(delay_s)

    async def _until_ready(self, child: Child, ended: asyncio.Task[int]) -> float | None:
        """The time at which it was ready; None if it ended before."""
        while not ended.done():
            if await self.spec.ready(child.pid) and not ended.done():
                return time.monotonic()
            await asyncio.wait([ended], timeout=_POLL_S)
        return None

    async def _until_unwell(self, child: Child, ended: asyncio.Task[int]) -> None:
        """Watch it until it ends; one that says it is unwell is ended, to be started again."""
        while self.spec.unwell is not None and not ended.done():
            await asyncio.wait([ended], timeout=self.spec.look_s)
            reason = None if ended.done() else await self.spec.unwell()
            if reason is not None:
                _log.warning("%s is started again: %s", self.spec.name, reason)
                await self._end(child, ended)

    async def _end(self, child: Child, ended: asyncio.Task[int]) -> None:
        """Ask, wait, then make it end."""
        child.send(self.spec.stop_signal)
        done, _ = await asyncio.wait([ended], timeout=self._stop_timeout_s)
        if not done:
            self.end_now()
            done, _ = await asyncio.wait([ended], timeout=self._stop_timeout_s)
        if not done:
            child.kill_group()
        await ended

    def end_now(self) -> None:
        if self.child is not None:
            self.child.send(self.spec.hard_stop_signal)

    async def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait([self.task])


class Supervisor:
    """The processes of one engine.

    `on_change` is called with each new status, inside the event loop; it must be quick.
    """

    def __init__(
        self, specs: Sequence[ProcessSpec], logs: Path, on_change: OnChange = lambda _: None, stop_timeout_s: float = 10.0
    ) -> None:
        self._layers = layers({spec.name: spec.after for spec in specs})
        self._processes = {
            spec.name: _Process(spec, logs / f"{spec.name}.log", on_change, stop_timeout_s) for spec in specs
        }  # in the order given, which is the order of `statuses`

    @property
    def statuses(self) -> tuple[ProcessStatus, ...]:
        return tuple(process.status for process in self._processes.values())

    def log_of(self, name: str) -> Path:
        return self._processes[name].log

    def start(self) -> None:
        """Begin; `settled` tells when everything is ready."""
        for process in self._processes.values():
            process.log.parent.mkdir(parents=True, exist_ok=True)
            rotate_log(process.log)
            needs = [self._processes[name] for name in process.spec.after]
            process.task = asyncio.create_task(process.run(needs), name=f"supervise-{process.spec.name}")

    async def settled(self) -> bool:
        """Wait until each process is ready or failed for good; whether all are ready."""
        while not all(process.settled.is_set() for process in self._processes.values()):
            for process in self._processes.values():
                await process.settled.wait()
        return all(status.state is State.READY for status in self.statuses)

    async def stop(self) -> None:
        """End every process, dependents first."""
        for layer in reversed(self._layers):
            await asyncio.gather(*(self._processes[name].stop() for name in layer))

    def end_now(self) -> None:
        """Shorten a `stop` that is under way: every process still there is ended without waiting."""
        for process in self._processes.values():
            process.end_now()
