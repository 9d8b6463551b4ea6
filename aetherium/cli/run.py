"""`aetherium run`: have a team do something, and watch it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from aetherium.cli import FAILED, watch
from aetherium.cli.gateway import finish, gateway
from aetherium.cli.options import DataDir, Json
from aetherium.client import Run, Submission
from shared.runstate import Status

Template = Annotated[str, typer.Argument(help="A template's id, such as quick-script.")]
Message = Annotated[str, typer.Argument(help="What the team is to do.")]
Project = Annotated[str | None, typer.Option("--project", help="The project's name. Default: the template's id.")]
ModelId = Annotated[str | None, typer.Option("--model", help="The model for every agent, in place of the template's.")]
Watch = Annotated[bool, typer.Option("--watch/--no-watch", help="Show the run to its end, or return at once.")]


def register(app: typer.Typer) -> None:
    app.command("run")(run)


def run(
    template: Template,
    message: Message,
    project: Project = None,
    model: ModelId = None,
    watching: Watch = True,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Start a run and show it live. Exit code 0 only if it completed. Ctrl-C stops the showing, not the run."""
    overrides = {"modelId": model} if model else {}
    ended = finish(_run(template, message, project or template, overrides, watching, data_dir, as_json))
    if isinstance(ended, Submission):
        typer.echo(ended.model_dump_json(by_alias=True) if as_json else ended.run_guid)
        return
    if as_json:
        typer.echo(ended.model_dump_json(by_alias=True))
    else:
        typer.echo(outcome(ended))
    raise typer.Exit(0 if ended.status is Status.COMPLETED else FAILED)


async def _run(
    template: str, message: str, project: str, overrides: dict[str, str], watching: bool, data_dir: Path | None, as_json: bool
) -> Run | Submission:
    async with gateway(data_dir) as client:
        submission = await client.submit(template, message, project=project, overrides=overrides)
        if not watching:
            return submission
        if as_json:
            return await client.wait(submission.run_guid)
        typer.echo(f"run {submission.run_guid} (Ctrl-C stops the showing, not the run: aetherium cancel {submission.run_guid[:8]})")
        return await watch.follow(client, submission.run_guid, watch.Screen(Console(highlight=False)))


def outcome(run: Run) -> str:
    """How a run ended, and where its work is."""
    said = f"\n{run.response}\n" if run.response else ""
    why = f": {run.reason}" if run.reason else ""
    return f"{said}\n{run.status}{why}\nworkspace {run.workspace}"
