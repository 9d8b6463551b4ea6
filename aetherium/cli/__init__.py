"""The `aetherium` command. Each verb is a module of this package; only the one that was typed is imported."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Sequence

import typer

from shared.errors import Fault

# Verb → its module's `register(app: typer.Typer) -> None`. In the order of the help.
VERBS: tuple[str, ...] = (
    "up",
    "status",
    "demo",
    "run",
    "runs",
    "show",
    "cancel",
    "events",
    "replay",
    "queue",
    "cards",
    "leases",
    "usage",
    "doctor",
    "eval",
)

FAILED = 1  # what the verb was asked for did not come true


def build(arguments: Sequence[str] = ()) -> typer.Typer:
    """The command line for these arguments: one verb, or all of them when none is named."""
    app = typer.Typer(
        name="aetherium",
        help="A local multi-agent engine whose runs survive any crash.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    # With a single command Typer would drop the verb from the line; a callback keeps it.
    app.callback()(_engine)
    typed = next((argument for argument in arguments if not argument.startswith("-")), None)
    for verb in (typed,) if typed in VERBS else VERBS:
        importlib.import_module(f"{__name__}.{verb}").register(app)
    return app


def _engine() -> None:
    """A local multi-agent engine whose runs survive any crash."""


def main() -> None:
    """Run the verb; a fault is one line on stderr (with --json an object on stdout) and exit code 1."""
    arguments = sys.argv[1:]
    try:
        build(arguments)(arguments)
    except Fault as fault:
        if "--json" in arguments:
            print(json.dumps({"error": fault.as_dict()}))
        else:
            print(f"aetherium: {fault.message}", file=sys.stderr)
        sys.exit(FAILED)
