"""`aetherium cards`: what is on each card, and who holds it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from aetherium.cli.gateway import finish
from aetherium.cli.options import DataDir, Json
from aetherium.cli.queue import asked, show


def register(app: typer.Typer) -> None:
    app.command("cards")(cards)


def cards(data_dir: DataDir = None, as_json: Json = False) -> None:
    """Show each card: its size, what is loaded there, and who holds it."""
    found = finish(asked("cards", data_dir))
    show(found, [line for card in found["cards"] for line in _lines(card)], "no cards: set scheduler.slots in aetherium.yaml", as_json)


def _lines(card: dict[str, Any]) -> Iterator[str]:
    size = f"{card['sizeMib']} MiB" if card["sizeMib"] else "size unknown"
    used = f", {card['usedMib']} MiB used" if card["usedMib"] is not None else ""
    yield f"{card['card']}  {size}{used}"
    for hold in card["holds"]:
        yield f"  held by {hold['holder']}" if hold["held"] else f"  {hold['holder']} waits to hold it"
    for slot in card["slots"]:
        yield f"  {slot['slot']}  {slot['state']}{': ' + slot['reason'] if slot['reason'] else ''}"
        for model in slot["models"]:
            size = f", {model['mib']} MiB" if model["mib"] else ""
            yield f"    {model['model']}  {model['state']}{size}"
