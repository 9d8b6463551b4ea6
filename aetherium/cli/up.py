"""`aetherium up`: start the engine, say where things are, stay until Ctrl-C."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path
from typing import Annotated

import typer

from aetherium.cli.options import DataDir, Json, settings_with
from aetherium.launcher import stack
from aetherium.launcher.process import ProcessStatus, State
from aetherium.launcher.stack import Engine, Parts
from shared.config import Settings

_CRASHES_WORTH_TELLING = 3
_PATIENCE_S = 15.0
Scripted = Annotated[bool, typer.Option("--scripted", help="Put a scripted model in the model's place, for tests and a quick look.")]
Script = Annotated[
    Path | None, typer.Option("--script", help="The scripted model's file. Implies --scripted.", exists=True, dir_okay=False)
]


def register(app: typer.Typer) -> None:
    app.command("up")(up)


def up(data_dir: DataDir = None, scripted: Scripted = False, script: Script = None, as_json: Json = False) -> None:
    """Start the engine and stay. Ctrl-C stops all of it, a second one at once."""
    settings = settings_with(data_dir)
    asyncio.run(stay(settings, scripted=script or scripted, as_json=as_json))


async def stay(settings: Settings, *, scripted: Path | bool, as_json: bool, parts: Parts = stack.PARTS) -> None:
    """Run an engine until it is asked to stop. With `as_json` its state is printed on one line once it is settled."""
    screen = Screen(quiet=as_json)
    stop = Stop()
    async with stack.running(settings, scripted=scripted, on_change=screen.show, parts=parts) as engine:
        stop.engine = engine
        screen.opening(engine)
        ready = asyncio.create_task(engine.ready())
        stopped: asyncio.Task[bool] = asyncio.create_task(stop.asked.wait())
        while not await _first_of(ready, stopped):
            screen.waiting(engine)
        if ready.done():
            if as_json:
                typer.echo(engine.state.model_dump_json())
            else:
                screen.whereabouts(engine, is_ready=ready.result())
            await stopped
        ready.cancel()
        screen.say("stopping (Ctrl-C again: at once)")
    screen.say("stopped")


async def _first_of(*tasks: asyncio.Task[bool]) -> bool:
    """Whether one of them ended within the time after which a person wants to hear something."""
    done, _ = await asyncio.wait(tasks, timeout=_PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
    return bool(done)


class Stop:
    """Ctrl-C, SIGTERM and a closed terminal: the first asks to stop, the next ends everything at once."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.engine: Engine | None = None
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, self._signalled)

    def _signalled(self) -> None:
        if self.asked.is_set() and self.engine is not None:
            self.engine.supervisor.end_now()
        self.asked.set()


class Screen:
    """One line per thing that happened; nothing when a program reads the output."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._began = time.monotonic()
        self._engine: Engine | None = None

    def say(self, text: str) -> None:
        if not self._quiet:
            typer.echo(text)

    def _elapsed(self) -> str:
        return f"{time.monotonic() - self._began:6.1f} s"

    def opening(self, engine: Engine) -> None:
        self._engine = engine
        self.say(f"starting {len(engine.plan.specs)} processes, data in {engine.plan.settings.data_dir}")
        for sentence in engine.plan.moved:
            self.say(f"  {sentence}")
        if engine.plan.model.source in ("scripted", "none"):
            self.say(f"  model: {engine.plan.model.text}")

    def show(self, status: ProcessStatus) -> None:
        elapsed = self._elapsed()
        match status.state:
            case State.READY:
                self.say(f"{elapsed}  {status.name} is ready" + (f" again (restart {status.restarts})" if status.restarts else ""))
            case State.FAILED:
                self.say(f"{elapsed}  {status.name} cannot be started: {status.problem}")
            case State.RESTARTING if status.ready_after_s is not None:
                self.say(f"{elapsed}  {status.name} ended ({how_it_ended(status.last_exit)}), starting it again")
            case State.RESTARTING if status.restarts == _CRASHES_WORTH_TELLING:
                self.say(f"{elapsed}  {status.name} keeps ending ({how_it_ended(status.last_exit)}): {self._last_words(status.name)}")
            case _:
                pass

    def waiting(self, engine: Engine) -> None:
        late = ", ".join(f"{status.name} ({status.state})" for status in engine.supervisor.statuses if status.state is not State.READY)
        self.say(f"{self._elapsed()}  still waiting for {late}; logs in {engine.plan.settings.data_dir / 'logs'}")

    def _last_words(self, name: str) -> str:
        if self._engine is None:
            return ""
        log = self._engine.supervisor.log_of(name)
        lines = log.read_text(errors="replace").strip().splitlines()[-1:]
        return " ".join([*lines, f"(log: {log})"])

    def whereabouts(self, engine: Engine, *, is_ready: bool) -> None:
        plan = engine.plan
        started = f"ready in {time.monotonic() - self._began:.1f} s" if is_ready else "started, but not all of it: see above"
        self.say(f"\naetherium is {started}")
        if "gateway" in plan.urls:
            self.say(f"  API           {plan.urls['gateway']}")
        self.say(f"  event stream  {plan.urls['nats']}  subject aetherium.evt.>")
        self.say(f"  workspaces    {plan.settings.workspaces}")
        self.say(f"  logs          {plan.settings.data_dir / 'logs'}")
        self.say(f"  model         {plan.model.text}")
        self.say("Ctrl-C stops it\n")


def how_it_ended(code: int | None) -> str:
    """An exit code in words."""
    if code is None:
        return "unknown"
    return f"exit {code}" if code >= 0 else signal.Signals(-code).name
