"""Small real processes for the supervisor's tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil

from aetherium.launcher.process import ProcessSpec

STAYS = "import time; time.sleep(600)"
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"


async def at_once(_pid: int) -> bool:
    return True


def file_exists(path: Path) -> Callable[[int], Awaitable[bool]]:
    async def ready(_pid: int) -> bool:
        return path.exists()

    return ready


def python(name: str, code: str, *arguments: object, **options: Any) -> ProcessSpec:
    argv = (sys.executable, "-S", "-E", "-c", code, *(str(argument) for argument in arguments))
    return ProcessSpec(**{"name": name, "argv": argv, "env": dict(os.environ), "ready": at_once, **options})


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
