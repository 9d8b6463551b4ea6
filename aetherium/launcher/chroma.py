"""The embedded Chroma server (`chroma run`), with its reports to the outside turned off."""

from __future__ import annotations

import sys
from pathlib import Path

from aetherium.launcher import probe
from aetherium.launcher.errors import CannotStart
from aetherium.launcher.process import ProcessSpec

QUIET = {"ANONYMIZED_TELEMETRY": "False", "CHROMA_OTEL_COLLECTION_ENDPOINT": "", "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}


def program() -> tuple[str, ...]:
    """The command that stands in front of `run`.

    Raises:
        CannotStart: chromadb is not installed.
    """
    script = Path(sys.executable).parent / "chroma"
    if not script.is_file():
        raise CannotStart("the 'chroma' command is missing: pip install chromadb, or set AETHERIUM_CHROMA__ENABLED=false")
    return (str(script),)


def spec(data_dir: Path, *, port: int, env: dict[str, str]) -> ProcessSpec:
    home = data_dir / "chroma"
    home.mkdir(parents=True, exist_ok=True)
    return ProcessSpec(
        name="chroma",
        argv=(*program(), "run", "--path", str(home), "--host", "127.0.0.1", "--port", str(port)),
        env={**env, **QUIET},
        ready=probe.http_ok(f"http://127.0.0.1:{port}/api/v2/heartbeat"),
        port=port,
    )
