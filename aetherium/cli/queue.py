"""`aetherium queue`, `cards` and `leases`: who holds the cards, who waits, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import typer

from aetherium.cli.gateway import finish, gateway
from aetherium.cli.options import DataDir, Json


def register(app: typer.Typer) -> None:
    app.command("queue")(queue)


def queue(data_dir: DataDir = None, as_json: Json = False) -> None:
    """Show who waits for a card, for whom and why, in the order in which they are served."""
    found = finish(asked("queue", data_dir))
    show(found, [_waiting(row) for row in found["queue"]], "nobody waits", as_json)


async def asked(what: str, data_dir: Path | None) -> dict[str, Any]:
    async with gateway(data_dir) as client:
        return await client.inference(what)


def show(found: dict[str, Any], lines: list[str], nothing: str, as_json: bool) -> None:
    typer.echo(orjson.dumps(found, option=orjson.OPT_INDENT_2).decode() if as_json else "\n".join(lines) or nothing)


def _waiting(row: dict[str, Any]) -> str:
    return f"{row['card']:<12} {row['position']:>2}. {row['holder']} ({row['priority']}) for {row['slot']}: {row['reason']}"
