"""How verbs reach a running engine through its gateway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from aetherium.cli.options import settings_with
from aetherium.client import GatewayClient, address
from aetherium.prefix import the_one

INTERRUPTED = 130
T = TypeVar("T")

RunId = Annotated[str, typer.Argument(metavar="RUN", help="The run's id, or as much of it as is unique.")]


def finish(work: Coroutine[Any, Any, T]) -> T:
    """Run a verb's work; Ctrl-C ends it with 130 and no traceback."""
    try:
        return asyncio.run(work)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


@asynccontextmanager
async def gateway(data_dir: Path | None) -> AsyncGenerator[GatewayClient, None]:
    settings = settings_with(data_dir)
    token = settings.gateway.token
    async with GatewayClient(address(settings), token.get_secret_value() if token else None) as client:
        yield client


async def resolve(client: GatewayClient, prefix: str) -> str:
    """The id of the one run that begins with `prefix`."""
    return the_one([run.run_guid for run in await client.runs(limit=20, prefix=prefix)], prefix)
