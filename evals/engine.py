"""The engine that is measured: the one at an address, the one that runs here, or one of our own for as long as it takes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from aetherium.client import GatewayClient, address
from aetherium.launcher import stack, state
from aetherium.launcher.process import State
from aetherium.launcher.stack import Engine
from aetherium.launcher.state import Model
from evals.progress import Progress
from shared.config import Settings
from shared.errors import Fault

MAX_RESTARTS = 8  # of a process that was never ready


class CannotEvaluate(Fault):
    """The evaluation cannot be made here; the message says what to do."""

    code: ClassVar[str] = "eval.cannot"


@dataclass(frozen=True, slots=True)
class Target:
    """The engine that is measured."""

    client: GatewayClient
    model: Model
    nats: str | None = None  # where its log is, if that is known


@asynccontextmanager
async def target(settings: Settings, url: str | None, progress: Progress, *, scripted: Path | bool = False) -> AsyncGenerator[Target]:
    """The engine at `url`, or the one that runs on the data folder, or one of our own until the block ends.

    Raises:
        CannotEvaluate: there is no model, or our own engine does not start.
    """
    token = settings.gateway.token.get_secret_value() if settings.gateway.token else None
    running = None if url else state.find(settings.data_dir)
    if url or running:
        found = running.model if running else Model(source="given by address", text="", url=settings.inference.url)
        _want_a_model(found)
        progress.say(f"measuring the engine at {address(settings, url)}")
        async with GatewayClient(address(settings, url), token) as client:
            yield Target(client, found, running.urls.get("nats") if running else None)
        return
    async with stack.running(settings, scripted=scripted) as engine:
        _want_a_model(engine.plan.model)
        await _ready(engine, progress)
        try:
            async with GatewayClient(engine.plan.urls["gateway"], token) as client:
                yield Target(client, engine.plan.model, engine.plan.urls.get("nats"))
        finally:
            progress.say("stopping the engine")


def _want_a_model(model: Model) -> None:
    if model.source == "none":
        raise CannotEvaluate(model.text)


async def _ready(engine: Engine, progress: Progress) -> None:
    """Wait for every process, as long as none keeps ending.

    Raises:
        CannotEvaluate: one cannot be started, or ended too often before it was ready.
    """
    progress.begin("starting the engine", "")
    ready = asyncio.ensure_future(engine.ready())
    try:
        async with progress.beating():
            while not ready.done():
                await asyncio.wait([ready], timeout=1.0)
                _look_at(engine, progress)
    finally:
        ready.cancel()
        await asyncio.gather(ready, return_exceptions=True)
    progress.say(f"the engine is ready, model: {engine.plan.model.text}")


def _look_at(engine: Engine, progress: Progress) -> None:
    late = [each for each in engine.supervisor.statuses if each.state is not State.READY]
    progress.waiting(f"waits for {', '.join(each.name for each in late)}")
    broken = next((each for each in late if each.state is State.FAILED or each.restarts >= MAX_RESTARTS), None)
    if broken is not None:
        why = broken.problem or f"it ended {broken.restarts} times"
        raise CannotEvaluate(f"{broken.name} does not start ({why}): see {engine.supervisor.log_of(broken.name)}")
