"""Options and steps that several verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aetherium.launcher import state
from aetherium.launcher.state import EngineState
from shared import config
from shared.config import Settings
from shared.errors import NotFound

DataDir = Annotated[Path | None, typer.Option("--data-dir", help="Where the engine keeps everything. Default: .aetherium here.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def settings_with(data_dir: Path | None) -> Settings:
    """The settings, with the folder that the command line names."""
    settings = config.load()
    return settings if data_dir is None else settings.model_copy(update={"data_dir": data_dir})


def running_engine(data_dir: Path | None) -> EngineState:
    """The engine that runs on the data folder.

    Raises:
        NotFound: none does.
    """
    folder = settings_with(data_dir).data_dir
    found = state.find(folder)
    if found is None:
        raise NotFound(f"no engine runs on {str(folder.absolute())!r}: run 'aetherium up'", data_dir=str(folder))
    return found
