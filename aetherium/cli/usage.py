"""`aetherium usage`: where the cards' time went, by run and agent."""

from __future__ import annotations

from typing import Annotated

import typer

from aetherium.cli.log import nats_url
from aetherium.cli.options import DataDir, Json
from aetherium.cli.service import run_module

RunId = Annotated[str, typer.Option("--run", help="Only this run: its id, or the beginning of it.")]


def register(app: typer.Typer) -> None:
    app.command("usage")(usage)


def usage(run: RunId = "", data_dir: DataDir = None, as_json: Json = False) -> None:
    """Show the seconds that each run and agent had of each card: answering, swapping models, held and unused."""
    raise typer.Exit(run_module("services.scheduler.usage_report", "--nats", nats_url(data_dir), "--run", run, as_json=as_json))
