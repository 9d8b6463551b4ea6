"""`aetherium demo`: the engine does a real task, shown as it happens, and the result is checked."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from aetherium.cli import FAILED, watch
from aetherium.cli.options import DataDir, Json, settings_with
from aetherium.cli.up import Screen as Startup
from aetherium.client import GatewayClient, Run
from aetherium.launcher import stack
from aetherium.launcher.process import State
from aetherium.launcher.stack import Engine
from shared.config import Settings
from shared.errors import Fault
from shared.runstate import Status

TEMPLATE = "quick-script"
MESSAGE = "Write primes.py that prints the prime numbers below 100, one per line. Run it, and save its output to primes.txt."
PRIMES = [number for number in range(2, 100) if all(number % divisor for divisor in range(2, number))]
STOPPED = 130

Scripted = Annotated[bool, typer.Option("--scripted", help="Put a scripted model in the model's place: seconds instead of minutes.")]


class NotDone(Fault):
    """The demo's task was not done; the message says in one line why."""

    code = "demo.not_done"


@dataclass(frozen=True, slots=True)
class Done:
    """A demo that went well."""

    run: Run
    gateway: str
    nats: str
    model: str


def register(app: typer.Typer) -> None:
    app.command("demo")(demo)


def demo(scripted: Scripted = False, data_dir: DataDir = None, as_json: Json = False) -> None:
    """Start the engine, have an agent write and run a small program, check its result, and stop."""
    console = Console(highlight=False, quiet=as_json)
    try:
        done = asyncio.run(_demo(settings_with(data_dir), scripted, console, quiet=as_json))
    except (KeyboardInterrupt, asyncio.CancelledError):
        typer.echo("stopped", err=True)
        raise typer.Exit(STOPPED) from None
    except NotDone as failure:
        if as_json:
            raise
        typer.echo(f"demo failed: {failure.message}", err=True)
        raise typer.Exit(FAILED) from failure
    if as_json:
        typer.echo(done.run.model_dump_json(by_alias=True))


async def _demo(settings: Settings, scripted: bool, console: Console, *, quiet: bool) -> Done:
    _stop_on_termination()
    startup = Startup(quiet=quiet)
    screen = watch.Screen(console)
    async with stack.running(settings, scripted=scripted, on_change=startup.show) as engine:
        startup.opening(engine)
        await _ready(engine, screen)
        if not engine.plan.model.is_scripted:  # said at the start already
            console.print(f"  model: {engine.plan.model.text}")
        done = await _do(engine, screen)
        check(done.run)
        screen.line("primes.txt holds the 25 primes below 100", "bold green")
        for line in whereabouts(done, engine):
            console.print(line, soft_wrap=True)
        console.print("stopping the engine")
    return done


def _stop_on_termination() -> None:
    """SIGTERM ends the demo as Ctrl-C does: with everything stopped."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)


async def _ready(engine: Engine, screen: watch.Screen) -> None:
    """Wait for every process, and say every few seconds for which."""
    ready = asyncio.ensure_future(engine.ready())
    try:
        while not ready.done():
            await asyncio.wait([ready], timeout=1.0)
            waiting = [status.name for status in engine.supervisor.statuses if status.state is not State.READY]
            screen.waits_for = f"starting {', '.join(waiting)}"
            if not ready.done():
                screen.beat()
    finally:
        ready.cancel()
        with suppress(asyncio.CancelledError):
            await ready
    failed = [f"{status.name}: {status.problem}" for status in engine.supervisor.statuses if status.state is State.FAILED]
    if failed:
        raise NotDone(f"the engine did not start ({'; '.join(failed)}): see {engine.plan.settings.data_dir / 'logs'}")


async def _do(engine: Engine, screen: watch.Screen) -> Done:
    plan = engine.plan
    token = plan.settings.gateway.token
    async with GatewayClient(plan.urls["gateway"], token.get_secret_value() if token else None) as client:
        screen.line(f"asking the team {TEMPLATE!r}: {MESSAGE}", "bold")
        submission = await client.submit(TEMPLATE, MESSAGE, project="demo", source_agent="demo")
        run = await watch.follow(client, submission.run_guid, screen)
        return Done(run, plan.urls["gateway"], plan.urls["nats"], plan.model.text)


def check(run: Run) -> None:
    """Hold the run to its task, by what is in the workspace and not by what the model says.

    Raises:
        NotDone: the run did not complete, or primes.txt is not what was asked for.
    """
    if run.status is not Status.COMPLETED:
        raise NotDone(f"the run {run.status}: {' '.join(run.reason.split()) or 'no reason given'} (aetherium show {run.run_guid[:8]})")
    problem = problem_with(run.workspace / "primes.txt")
    if problem:
        raise NotDone(f"{problem} (workspace {run.workspace})")


def problem_with(file: Path) -> str | None:
    """What is wrong with the file of primes; None = nothing."""
    try:
        lines = file.read_text().split()
    except FileNotFoundError:
        return "the run completed, but there is no primes.txt"
    except (OSError, UnicodeDecodeError) as error:
        return f"primes.txt cannot be read: {error}"
    if lines == [str(prime) for prime in PRIMES]:
        return None
    return f"primes.txt does not hold the 25 primes below 100, but {len(lines)} words: {' '.join(lines)[:60]!r}"


def whereabouts(done: Done, engine: Engine) -> list[str]:
    run = done.run
    scripted = "  (the model is scripted: it played the answers of a file, no model was run)" if engine.plan.model.is_scripted else ""
    return [
        "",
        f"  model         {done.model}{scripted}",
        f"  workspace     {run.workspace}",
        f"  run           {run.run_guid}: {run.turns} turns, {run.model_calls} model calls, {run.tool_calls} tool calls",
        f"  API           {done.gateway}/api/runs/{run.run_guid}",
        f"  event stream  {done.gateway}/api/runs/{run.run_guid}/events",
        f"                {done.nats}  subject aetherium.evt.*.{run.run_guid}.>",
        "  keep it       'aetherium up' starts the same engine and stays",
        "",
    ]
