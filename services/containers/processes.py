"""Finding and ending every process that a command started, as far as Linux lets an ordinary process do that.

A command leads a session of its own, and its environment carries a random mark. What belongs to it is what is in
that session, what carries the mark (a child that called setsid still does), and the children of all these.
A process that clears its environment, leaves the session and outlives its parent is not found: only a container
can end that one.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass

MARK = "EXEC_MARK"
_PATIENCE_S = 3.0
_UNCERTAIN_S = 0.1  # far longer than an exec takes


@dataclass(frozen=True, slots=True)
class Process:
    """A process; its number and the moment of its start together are never given away again."""

    pid: int
    parent: int
    session: int
    state: str
    started: int  # clock ticks since the machine's start


@dataclass(frozen=True, slots=True)
class Leader:
    """The shell that a command started with. It must not be reaped before `kill_all` is done: as long as its
    number is taken, that number cannot come to mean another session."""

    pid: int
    mark: str
    started: int

    @classmethod
    def of(cls, pid: int, mark: str) -> Leader:
        process = _process(pid)
        assert process is not None, "a process stays in /proc until it is reaped"
        return cls(pid, mark, process.started)


@dataclass(frozen=True, slots=True)
class _Sight:
    """One look at the machine's processes: a command's live ones, and whether one could not be told yet."""

    members: list[Process]
    uncertain: bool


def members(leader: Leader) -> list[Process]:
    """The live processes of a command, its own shell among them while it runs."""
    return _look(leader).members


def kill_all(leader: Leader, patience_s: float = _PATIENCE_S) -> list[Process]:
    """Kill a command's processes until none is left; what would not die within the patience is returned.

    It takes two looks in a row without a find, because one look can miss a process: it may have been started by
    one that ended during the look, or be in the middle of an exec, when it shows no environment.
    """
    began = time.monotonic()
    clean, pause = 0, 0.001
    while True:
        with suppress(ProcessLookupError, PermissionError):
            # The kernel lets no fork slip through this, where looking could lose a chain of short-lived ones.
            os.killpg(leader.pid, signal.SIGKILL)
        sight = _look(leader)
        for process in sight.members:
            _kill(process)
        spent = time.monotonic() - began
        clean = 0 if sight.members or (sight.uncertain and spent < _UNCERTAIN_S) else clean + 1
        if clean == 2 or spent > patience_s:
            return sight.members
        time.sleep(pause)  # runs in a thread: the kernel needs a moment to end them
        pause = min(pause * 2, 0.05)


def _look(leader: Leader) -> _Sight:
    processes = [
        process
        for name in os.listdir("/proc")
        if name.isdecimal() and (process := _process(int(name))) and process.started >= leader.started and process.state not in "ZX"
    ]
    found = {leader.pid}
    uncertain = False
    for each in processes:
        environment = b"" if each.session == leader.pid else _environment(each.pid)
        if each.session == leader.pid or f"{MARK}={leader.mark}".encode() in environment.split(b"\0"):
            found.add(each.pid)
        uncertain = uncertain or (environment == b"" and each.session not in (0, leader.pid))
    while more := {each.pid for each in processes if each.parent in found} - found:
        found |= more
    return _Sight([each for each in processes if each.pid in found and each.pid != os.getpid()], uncertain)


def _kill(process: Process) -> None:
    """Kill the process that was found, not one that got its number since."""
    with suppress(OSError):
        handle = os.pidfd_open(process.pid)
        try:
            now = _process(process.pid)
            if now is not None and now.started == process.started:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)


def _process(pid: int) -> Process | None:
    try:
        # The command's name stands in brackets and may hold anything, brackets too.
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return Process(pid, int(fields[1]), int(fields[3]), fields[0].decode(), int(fields[19]))


def _environment(pid: int) -> bytes:
    """What a process was started with; empty in the middle of an exec, and always for the kernel's own."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read()
    except OSError:
        return b"ended, or somebody else's"
