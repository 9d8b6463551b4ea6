"""`<data>/run/engine.json`: what runs where, written by the engine and read by every CLI verb."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import psutil
from pydantic import BaseModel, ConfigDict, ValidationError

from aetherium.launcher.process import ProcessStatus

_FILE = Path("run") / "engine.json"


class Model(BaseModel):
    """What answers model calls: `source` is configured, detected, local, scripted or none."""

    model_config = ConfigDict(frozen=True)

    source: str
    text: str
    url: str | None = None

    @property
    def is_scripted(self) -> bool:
        return self.source == "scripted"


class EngineState(BaseModel):
    """A running engine. `urls` may hold the database's password, so the file is for its owner only."""

    model_config = ConfigDict(frozen=True)

    pid: int
    started_at: float  # of the process, as the kernel counts it: tells it from a later one with the same pid
    data_dir: Path
    urls: dict[str, str]
    model: Model
    processes: tuple[ProcessStatus, ...] = ()

    @property
    def is_ready(self) -> bool:
        return all(process.state == "ready" for process in self.processes)


def of_this_process(data_dir: Path, urls: dict[str, str], model: Model, processes: Sequence[ProcessStatus] = ()) -> EngineState:
    pid = os.getpid()
    born = psutil.Process(pid).create_time()
    return EngineState(pid=pid, started_at=born, data_dir=data_dir, urls=urls, model=model, processes=tuple(processes))


def write(state: EngineState) -> None:
    """Replace the file in one step."""
    path = state.data_dir / _FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(state.model_dump_json(indent=2))
    temporary.replace(path)


def remove(data_dir: Path) -> None:
    (data_dir / _FILE).unlink(missing_ok=True)


def find(data_dir: Path) -> EngineState | None:
    """The engine that runs on this data folder; None when none does, whatever a killed one left behind."""
    try:
        state = EngineState.model_validate_json((data_dir.absolute() / _FILE).read_bytes())
        alive = abs(psutil.Process(state.pid).create_time() - state.started_at) < 1.0
    except (FileNotFoundError, ValidationError, psutil.NoSuchProcess):
        return None
    return state if alive else None
