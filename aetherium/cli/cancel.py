"""`aetherium cancel`: ask a run to stop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from aetherium.cli.gateway import RunId, finish, gateway, resolve
from aetherium.cli.options import DataDir, Json


def register(app: typer.Typer) -> None:
    app.command("cancel")(cancel)


def cancel(
    run_id: RunId,
    reason: Annotated[str, typer.Option("--reason", help="Recorded with the run.")] = "",
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Ask a run to stop. It ends within moments; 'show' says how."""
    found = finish(_cancel(run_id, reason, data_dir))
    typer.echo(json.dumps({"runGuid": found, "status": "cancel_requested"}) if as_json else f"asked run {found} to stop")


async def _cancel(prefix: str, reason: str, data_dir: Path | None) -> str:
    async with gateway(data_dir) as client:
        run_id = await resolve(client, prefix)
        await client.cancel(run_id, reason)
        return run_id
