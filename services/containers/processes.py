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
from pathlib import Path

MARK = "EXEC_MARK"
_PATIENCE_S = 3.0


@dataclass(frozen=True, slots=True)
class Process:
    """A process; its number and the moment of its start together are never given away again."""

    pid: int
    parent: int
    session: int
    state: str
    started: int  # clock ticks since the machine's start


def members(session: int, mark: str) -> list[Process]:
    """The live processes of a command, its own shell among them while it runs."""
    processes = [process for name in os.listdir("/proc") if name.isdecimal() and (process := _process(int(name)))]
    found = {each.pid for each in processes if each.session == session or _is_marked(each.pid, mark)}
    grown = True
    while grown:
        more = {each.pid for each in processes if each.parent in found} - found
        found |= more
        grown = bool(more)
    return [each for each in processes if each.pid in found and each.state not in "ZX" and each.pid != os.getpid()]


def kill_all(session: int, mark: str, patience_s: float = _PATIENCE_S) -> list[Process]:
    """Kill a command's processes until none is left; what would not die within the patience is returned.

    Repeated, because a process may start another one between being found and being killed. Call it before the
    session's leader is reaped: as long as that number is taken, it cannot come to mean another session.
    """
    deadline = time.monotonic() + patience_s
    pause = 0.001
    while left := members(session, mark):
        for process in left:
            _kill(process)
        if time.monotonic() > deadline:
            return left
        time.sleep(pause)  # runs in a thread: the kernel needs a moment to end them
        pause = min(pause * 2, 0.05)
    return []


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
        fields = Path("/proc", str(pid), "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return Process(pid, int(fields[1]), int(fields[3]), fields[0], int(fields[19]))


def _is_marked(pid: int, mark: str) -> bool:
    with suppress(OSError):
        return f"{MARK}={mark}".encode() in Path("/proc", str(pid), "environ").read_bytes().split(b"\0")
    return False
