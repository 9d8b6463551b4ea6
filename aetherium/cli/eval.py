"""`aetherium eval`: have the engine do tasks whose results are checked, and report how well a model works in it."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from aetherium.cli import FAILED
from aetherium.cli.gateway import INTERRUPTED
from aetherium.cli.options import DataDir, Json, settings_with
from evals import engine, harness, mechanisms, report, task
from evals.harness import Plan
from evals.progress import Progress
from evals.report import Report
from shared.config import Settings
from shared.errors import Fault

RESULTS = Path(report.__file__).parent / "results"
OFF = ", ".join(mechanisms.NAMES)

Tasks = Annotated[list[str] | None, typer.Argument(help="The tasks. Default: all of the folder.")]
Folder = Annotated[Path, typer.Option("--dir", help="The folder of the tasks.", exists=True, file_okay=False)]
ModelId = Annotated[str | None, typer.Option("--model", help="The model, in place of the template's.")]
Slot = Annotated[str | None, typer.Option("--slot", help="The slot that answers first.")]
Repeat = Annotated[int, typer.Option("--repeat", help="Attempts at each task, each with a seed of its own.", min=1, max=100)]
Template = Annotated[str, typer.Option("--template", help="The team that does the tasks.")]
Out = Annotated[Path, typer.Option("--out", help="Where the report goes.", file_okay=False)]
Budget = Annotated[float, typer.Option("--budget-s", help="Seconds that a task may take.", min=1.0)]
Temperature = Annotated[float, typer.Option("--temperature", min=0.0, max=2.0)]
Without = Annotated[list[str] | None, typer.Option("--without", help=f"Switch a mechanism off: {OFF}. May be repeated.")]
Ablate = Annotated[
    list[str] | None,
    typer.Option("--ablate", help="Measure what a mechanism is worth by one more pass without it; 'all' for each."),
]
First = Annotated[
    Path | None,
    typer.Option(
        "--first", help="An earlier report (JSON): its runs are the first pass, and only --ablate is measured.", exists=True, dir_okay=False
    ),
]
Target = Annotated[float | None, typer.Option("--target", help="Exit code 0 only if so many tasks are passed.", min=0.0)]
Url = Annotated[str | None, typer.Option("--url", help="The engine's gateway. Default: the running engine's, else an engine of our own.")]
Script = Annotated[Path | None, typer.Option("--script", help="A scripted model's file, to try the harness.", exists=True, dir_okay=False)]


def register(app: typer.Typer) -> None:
    app.command("eval")(evaluate)


def evaluate(
    tasks: Tasks = None,
    folder: Folder = task.FOLDER,
    model: ModelId = None,
    slot: Slot = None,
    repeat: Repeat = 1,
    template: Template = "file-worker",
    out: Out = RESULTS,
    budget_s: Budget = 150.0,
    temperature: Temperature = 0.0,
    without: Without = None,
    ablate: Ablate = None,
    first: First = None,
    target: Target = None,
    url: Url = None,
    script: Script = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Run evaluation tasks through the whole engine, check each workspace, and write a report with every run's id."""
    plan = Plan(
        tasks=harness.chosen(task.load_all(folder), tasks or ()),
        template=template,
        model=model,
        slot=slot,
        repeat=repeat,
        temperature=temperature,
        budget_s=budget_s,
        without=mechanisms.named(without or ()),
        ablate=mechanisms.named(ablate or ()),
        first=Report.model_validate_json(first.read_bytes()) if first else None,
    )
    plan.check()
    progress = Progress(Console(stderr=as_json, highlight=False))
    made, stopped_by = asyncio.run(_evaluate(plan, settings_with(data_dir), url, script, progress))
    if made is not None and made.main.results:
        is_whole = not tasks and folder == task.FOLDER and not plan.without and made.complete and script is None
        table = report.write(made, out, latest=is_whole)
        typer.echo(made.model_dump_json(indent=2) if as_json else report.markdown(made))
        progress.say(f"written to {table} and {table.with_suffix('.json').name}")
    if isinstance(stopped_by, Fault):
        raise stopped_by
    if stopped_by is not None:
        raise typer.Exit(INTERRUPTED)
    if made is not None and target is not None and not made.meets(target):
        progress.say(f"fewer than {target:g} tasks were passed")
        raise typer.Exit(FAILED)


async def _evaluate(
    plan: Plan, settings: Settings, url: str | None, script: Path | None, progress: Progress
) -> tuple[Report | None, BaseException | None]:
    """The report, and what stopped the evaluation before its end; what was measured until then is in the report."""
    this = asyncio.current_task()
    assert this is not None
    for each in (signal.SIGTERM, signal.SIGINT):  # a shell starts what runs in the background with SIGINT ignored, and Python keeps that
        asyncio.get_running_loop().add_signal_handler(each, this.cancel)
    evaluation = None
    try:
        async with engine.target(settings, url, progress, scripted=script or False) as measured:
            evaluation = await harness.begin(plan, measured, progress)
            await evaluation.make()
    except (Fault, asyncio.CancelledError) as stopped:
        return evaluation and evaluation.report(), stopped
    return evaluation.report(), None
