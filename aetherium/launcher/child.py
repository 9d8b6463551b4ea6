"""One child process: its own session and log, tied to this process's life, its group gone when it is gone.

The kernel ties the child to the *thread* that starts it, so children are started from the main thread.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import pwd
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from aetherium.launcher.errors import CannotStart

_PR_SET_PDEATHSIG = 1
_PR_SET_KEEPCAPS = 8
_PR_SET_SECUREBITS = 28
_SECBIT_NO_SETUID_FIXUP = 1 << 2
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_RAISE = 2
_CAP_DAC_OVERRIDE = 1
_CAP_VERSION_3 = 0x20080522

# Loaded before any fork: between fork and exec nothing may be imported or looked up.
_libc = ctypes.CDLL(None, use_errno=True)
_no_args = (ctypes.c_ulong(0),) * 2


@dataclass(frozen=True, slots=True)
class Account:
    """A user that a child runs as."""

    uid: int
    gid: int


def unprivileged() -> Account | None:
    """The account for programs that refuse to run as root; None when this process is not root.

    Raises:
        CannotStart: this machine knows no other account than root.
    """
    if os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam("nobody")
    except KeyError:
        entry = next((entry for entry in pwd.getpwall() if entry.pw_uid != 0), None)
    if entry is None:
        raise CannotStart("PostgreSQL does not run as root and there is no other account here: add one, such as 'useradd nobody'")
    return Account(entry.pw_uid, entry.pw_gid)


def before_exec(death_signal: signal.Signals, account: Account | None) -> Callable[[], None] | None:
    """What the child does between fork and exec; None where the system has no such thing."""
    if sys.platform != "linux":
        return None
    parent = os.getpid()

    def prepare() -> None:
        if account is not None:
            _become(account)
        # After the change of user, which would clear it.
        _libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(death_signal), *_no_args, ctypes.c_ulong(0))
        if os.getppid() != parent:  # the parent died before the call above
            os.kill(os.getpid(), signal.SIGKILL)

    return prepare


def _become(account: Account) -> None:
    """Change the user but keep the right to pass root's folders.

    The data folder may lie below a folder that only root may enter (`/root`, a test's temporary folder).
    Opening those to everybody, as wheels with PostgreSQL do, would change what is not ours.
    """
    # Without this, access(2) forgets the right again for any user but root, and initdb asks it for its own programs.
    _libc.prctl(_PR_SET_SECUREBITS, ctypes.c_ulong(_SECBIT_NO_SETUID_FIXUP), *_no_args, ctypes.c_ulong(0))
    os.setgroups([])
    os.setresgid(account.gid, account.gid, account.gid)
    _libc.prctl(_PR_SET_KEEPCAPS, ctypes.c_ulong(1), *_no_args, ctypes.c_ulong(0))
    os.setresuid(account.uid, account.uid, account.uid)
    header = (ctypes.c_uint32 * 2)(_CAP_VERSION_3, 0)
    # effective, permitted, inheritable of capabilities 0-31, then of the rest
    wanted = 1 << _CAP_DAC_OVERRIDE
    _libc.capset(header, (ctypes.c_uint32 * 6)(wanted, wanted, wanted, 0, 0, 0))
    _libc.prctl(_PR_CAP_AMBIENT, ctypes.c_ulong(_PR_CAP_AMBIENT_RAISE), ctypes.c_ulong(_CAP_DAC_OVERRIDE), *_no_args)


class Child:
    """A running child. `exited` must be awaited once, so that it does not stay a zombie."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self._popen = popen
        self.pid = popen.pid

    @classmethod
    def start(
        cls,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        log: Path,
        death_signal: signal.Signals = signal.SIGKILL,
        account: Account | None = None,
        stdin: IO[bytes] | int = subprocess.DEVNULL,
    ) -> Child:
        """Start `argv` in a session of its own, with both outputs appended to `log`.

        `death_signal` is what the kernel sends it when this process dies.

        Raises:
            CannotStart: the program is missing or may not be run.
        """
        try:
            with log.open("ab") as output:
                popen = subprocess.Popen(
                    argv,
                    env=dict(env),
                    stdin=stdin,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C in the terminal goes to the supervisor alone
                    preexec_fn=before_exec(death_signal, account),
                )
        except (OSError, subprocess.SubprocessError) as error:
            raise CannotStart(f"{argv[0]!r} cannot be started: {error}") from error
        return cls(popen)

    async def exited(self) -> int:
        """Wait for its end and end what is left of its group; the exit code (negative: the signal)."""
        await self._until_exit()
        self.kill_group()  # before the child is reaped: until then its group's number cannot be another's
        return self._popen.wait()

    async def _until_exit(self) -> None:
        try:
            descriptor = os.pidfd_open(self.pid)
        except (AttributeError, OSError):  # no pidfd here, or already reaped
            while self._popen.poll() is None:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            return
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        loop.add_reader(descriptor, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)

    def send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            self._popen.send_signal(number)

    def kill_group(self) -> None:
        """SIGKILL to the child and everything it started that did not leave its group."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


async def run_to_end(argv: Sequence[str], *, env: Mapping[str, str], log: Path, account: Account | None, stdin: bytes = b"") -> int:
    """Run a short command; its exit code. Cancelling kills it."""
    reader, writer = os.pipe()
    os.write(writer, stdin)  # far below the pipe's buffer
    os.close(writer)
    with os.fdopen(reader, "rb") as source:
        child = Child.start(argv, env=env, log=log, account=account, stdin=source)
    try:
        return await child.exited()
    except asyncio.CancelledError:
        child.kill_group()
        await child.exited()
        raise
