"""`aetherium runs`: the newest runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from pydantic import TypeAdapter

from aetherium.cli.gateway import finish, gateway
from aetherium.cli.options import DataDir, Json
from aetherium.client import Run
from shared.runlog import short
from shared.runstate import Status


def register(app: typer.Typer) -> None:
    app.command("runs")(runs)


def runs(
    limit: Annotated[int, typer.Option("--limit", help="How many.", min=1, max=1000)] = 20,
    project: Annotated[int | None, typer.Option("--project", help="Those of one project.")] = None,
    status: Annotated[Status | None, typer.Option("--status", help="Those with one status.")] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """List the newest runs, the newest first."""
    found = finish(_runs(limit, project, status, data_dir))
    if as_json:
        typer.echo(TypeAdapter(list[Run]).dump_json(found, by_alias=True).decode())
    else:
        typer.echo("\n".join(line(each) for each in found) or "no runs: start one with 'aetherium run quick-script \"…\"'")


async def _runs(limit: int, project: int | None, status: Status | None, data_dir: Path | None) -> list[Run]:
    async with gateway(data_dir) as client:
        return await client.runs(limit=limit, project_id=project, status=status)


def line(run: Run) -> str:
    when = run.submitted_at.astimezone().strftime("%Y-%m-%d %H:%M:%S") if run.submitted_at else ""
    return f"{run.run_guid}  {when:<19}  {run.status:<9}  project {run.project_id:<4}  {short(run.message, 60)}"
