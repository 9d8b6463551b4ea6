"""The engine that is measured: the one at an address, the one that runs here, or one of our own for as long as it takes."""

from __future__ import annotations

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


class CannotEvaluate(Fault):
    """The evaluation cannot be made here; the message says what to do."""

    code: ClassVar[str] = "eval.cannot"


@dataclass(frozen=True, slots=True)
class Target:
    """The engine that is measured."""

    client: GatewayClient
    model: Model


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
            yield Target(client, found)
        return
    async with stack.running(settings, scripted=scripted) as engine:
        _want_a_model(engine.plan.model)
        await _ready(engine, progress)
        async with GatewayClient(engine.plan.urls["gateway"], token) as client:
            yield Target(client, engine.plan.model)


def _want_a_model(model: Model) -> None:
    if model.source == "none":
        raise CannotEvaluate(model.text)


async def _ready(engine: Engine, progress: Progress) -> None:
    progress.begin("starting the engine", "its processes come up")
    async with progress.beating():
        is_ready = await engine.ready()
    if not is_ready:
        failed = "; ".join(f"{each.name}: {each.problem}" for each in engine.supervisor.statuses if each.state is State.FAILED)
        raise CannotEvaluate(f"the engine did not start ({failed}): see {engine.plan.settings.data_dir / 'logs'}")
    progress.say(f"the engine is ready, model: {engine.plan.model.text}")
