"""One engine per data folder: an flock that the kernel lets go whatever way its holder ends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from aetherium.launcher.errors import AlreadyRunning

FILE = "engine.lock"


@contextmanager
def held(data_dir: Path) -> Generator[None]:
    """Hold the data folder.

    Raises:
        AlreadyRunning: another process holds it.
    """
    path = data_dir / FILE
    # The file is never removed: two starts could then hold two files of one name.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.read(descriptor, 32).decode().strip()
            raise AlreadyRunning(
                f"an engine (pid {holder or 'unknown'}) already uses {str(data_dir)!r}: stop it, or give another --data-dir", pid=holder
            ) from error
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)
