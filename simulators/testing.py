"""The scripted server inside a test, on a free port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from simulators.openai_server import Recorded, ScriptedServer, Server, bind
from simulators.script import Script, parse_script


@dataclass(frozen=True, slots=True)
class Simulator:
    """A running scripted server: its base URL (without /v1) and what it was asked."""

    url: str
    app: ScriptedServer

    @property
    def requests(self) -> list[Recorded]:
        return self.app.requests

    async def until_outcome(self, index: int, outcome: str, timeout_s: float = 5.0) -> None:
        """Wait until the server saw request `index` end as `outcome`."""
        async with asyncio.timeout(timeout_s):
            await self.app.until(lambda seen: len(seen) > index and seen[index].outcome == outcome)


@asynccontextmanager
async def running(script: Script | str | Sequence[Any] | Mapping[str, Any]) -> AsyncGenerator[Simulator]:
    """Serve `script` (a Script, YAML text, a list of turns, or a mapping) until the block ends."""
    app = ScriptedServer(_script_of(script))
    async with serving(app) as url:
        yield Simulator(url, app)


@asynccontextmanager
async def serving(app: ScriptedServer) -> AsyncGenerator[str]:
    """Serve an application on a free port until the block ends; its base URL."""
    sock, server = bind(0), Server(app)
    await server.open(sock)
    try:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        async with asyncio.timeout(5):
            await server.shut()
        sock.close()


def _script_of(script: Script | str | Sequence[Any] | Mapping[str, Any]) -> Script:
    if isinstance(script, Script):
        return script
    return parse_script(script) if isinstance(script, str) else Script.model_validate(script)
