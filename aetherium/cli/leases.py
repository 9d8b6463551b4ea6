"""`aetherium leases`: who may use what now; `leases verify` checks the log of all of them."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from aetherium.cli.gateway import finish
from aetherium.cli.log import nats_url
from aetherium.cli.options import DataDir, Json
from aetherium.cli.queue import asked, show
from aetherium.cli.service import run_module
from shared.errors import BadInput

What = Annotated[str, typer.Argument(metavar="[verify]", help="verify: check them all in the log; exit code 1 where a rule is broken.")]


def register(app: typer.Typer) -> None:
    app.command("leases")(leases)


def leases(what: What = "", data_dir: DataDir = None, as_json: Json = False) -> None:
    """Show who holds a lease, or verify every lease that there ever was."""
    if what == "verify":
        raise typer.Exit(run_module("services.scheduler.leases_verify", "--nats", nats_url(data_dir), as_json=as_json))
    if what:
        raise BadInput(f"{what!r} is nothing that can be done with leases: use 'verify' or nothing", field="verify")
    found = finish(asked("leases", data_dir))
    show(found, [_line(each) for each in found["leases"]], "no leases", as_json)


def _line(lease: dict[str, Any]) -> str:
    models = ", ".join(lease["models"]) or "what is loaded"
    until = f", until {lease['expiresAt']}" if lease.get("expiresAt") else ""
    why = f": {lease['reason']}" if lease.get("reason") else ""
    return f"{lease['leaseId']}  {lease['slot']}  {lease['state']}  {lease['holder']} ({lease['priority']}), {models}{until}{why}"
