"""Ports for the embedded servers: the usual one where it is free, else another."""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path

from aetherium.launcher.errors import CannotStart

# Below the range from which Linux takes the local ports of outgoing connections: a server that is
# restarted must find its port free, although a client may have connected in the meantime.
_RANGE = range(10_240, 32_768)


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a server could listen there now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: TIME_WAIT is no obstacle
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def claims_folder() -> Path:
    """Where the engines of one user tell each other which ports they hold."""
    folder = Path(tempfile.gettempdir()) / f"aetherium-ports-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


class Ports:
    """Gives each port once, so that servers which are not up yet do not get the same.

    Two engines that start at the same time would both find the usual ports free, and then one would talk to
    the other's servers. So a port is claimed by a lock, which is let go by `release` or with this process.
    """

    def __init__(self) -> None:
        self._given: set[int] = set()
        self._claims: list[int] = []

    def __del__(self) -> None:
        self.release()

    def release(self) -> None:
        """Let others have these ports."""
        for descriptor in self._claims:
            os.close(descriptor)
        self._claims.clear()

    def pick(self, preferred: int = 0, host: str = "127.0.0.1") -> int:
        """`preferred` if it is free, else any free port.

        Raises:
            CannotStart: no port is free, or `host` is not an address of this machine.
        """
        candidates = [preferred] if preferred else []
        candidates += random.sample(_RANGE, 500)
        for port in candidates:
            if port not in self._given and is_free(port, host) and self._claim(port):
                self._given.add(port)
                return port
        raise CannotStart(f"no free port on {host!r}: check that it is an address of this machine", field="host")

    def _claim(self, port: int) -> bool:
        try:
            descriptor = os.open(claims_folder() / str(port), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:  # nowhere to say it: then only what listens already counts
            return True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return False
        self._claims.append(descriptor)
        return True
