"""`aetherium status`: what runs, where, and whether each process says that it is ready."""

from __future__ import annotations

from contextlib import suppress
from urllib.parse import urlsplit

import typer
from pydantic import BaseModel

from aetherium.cli import FAILED
from aetherium.cli.options import DataDir, Json, running_engine
from aetherium.launcher.process import State
from aetherium.launcher.state import EngineState


class _Process(BaseModel):
    name: str
    state: State
    pid: int | None
    port: int | None
    restarts: int
    memory_mib: int | None
    problem: str | None


class _Report(BaseModel):
    pid: int
    ready: bool
    data_dir: str
    model: str
    urls: dict[str, str]
    processes: list[_Process]


def register(app: typer.Typer) -> None:
    app.command("status")(status)


def status(data_dir: DataDir = None, as_json: Json = False) -> None:
    """Show the running engine. Exit code 1 when none runs or a process is not ready."""
    report = _report(running_engine(data_dir))
    typer.echo(report.model_dump_json(indent=2) if as_json else _as_text(report))
    raise typer.Exit(0 if report.ready else FAILED)


def _report(engine: EngineState) -> _Report:
    processes = [
        _Process(**process.model_dump(include=set(_Process.model_fields)), memory_mib=_memory_mib(process.pid))
        for process in engine.processes
    ]
    return _Report(
        pid=engine.pid,
        ready=engine.is_ready,
        data_dir=str(engine.data_dir),
        model=engine.model.text,
        urls={name: without_password(url) for name, url in engine.urls.items()},
        processes=processes,
    )


def without_password(url: str) -> str:
    """The URL as it may be shown.

    >>> without_password("postgresql://me:secret@127.0.0.1:5432/db")
    'postgresql://me@127.0.0.1:5432/db'
    """
    parts = urlsplit(url)
    if parts.password is None:
        return url
    return parts._replace(netloc=f"{parts.username}@{parts.netloc.rpartition('@')[2]}").geturl()


def _memory_mib(pid: int | None) -> int | None:
    """Resident memory of a process and its children; None when it is gone."""
    import psutil  # only this verb needs it

    resident: list[int] = []
    with suppress(psutil.NoSuchProcess):
        own = psutil.Process(pid) if pid is not None else None
        for process in [own, *own.children(recursive=True)] if own else []:
            with suppress(psutil.NoSuchProcess):  # a worker that ended in the meantime
                resident.append(process.memory_info().rss)
    return sum(resident) >> 20 if resident else None


def _as_text(report: _Report) -> str:
    lines = [f"engine (pid {report.pid}) is {'ready' if report.ready else 'not ready'}, data in {report.data_dir}"]
    for process in report.processes:
        memory = f"{process.memory_mib} MiB" if process.memory_mib is not None else ""
        line = f"  {process.name:<14}{process.state:<12}pid {process.pid or '-':<9}port {process.port or '-':<7}{memory:<9}"
        line += f"restarts {process.restarts}" if process.restarts else ""
        lines.append(line.rstrip() + (f"  {process.problem}" if process.problem else ""))
    lines += [f"  {name:<14}{url}" for name, url in report.urls.items()]
    lines.append(f"  {'model':<14}{report.model}")
    return "\n".join(lines)
