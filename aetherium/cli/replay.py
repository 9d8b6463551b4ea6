"""`aetherium replay`: a run again from its log alone: read it, see it at any fact, or have its code verified."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import orjson
import typer

from aetherium import export
from aetherium.cli.gateway import finish
from aetherium.cli.log import event_log, nats_url
from aetherium.cli.options import DataDir, Json
from aetherium.cli.service import run_module
from shared import subjects
from shared.errors import BadInput, NotFound
from shared.events.envelope import Fact
from shared.runlog import line_of
from shared.runstate import RunState, fold

RunIdOrNone = Annotated[str | None, typer.Argument(metavar="RUN", help="The run's id, or as much of it as is unique.")]
Verify = Annotated[bool, typer.Option("--verify", help="Execute the run's code again against the log; exit code 1 where it differs.")]
Without = Annotated[
    list[str] | None, typer.Option("--without", help="With --verify: with a feature switched off, to see whether it changed anything.")
]
At = Annotated[int | None, typer.Option("--at", help="Show the run as it was at this sequence.", min=1)]
File = Annotated[Path | None, typer.Option("--file", help="Read an exported run instead of the engine's log.", exists=True, dir_okay=False)]


def register(app: typer.Typer) -> None:
    app.command("replay")(replay)


def replay(
    run_id: RunIdOrNone = None,
    verify: Verify = False,
    without: Without = None,
    at: At = None,
    file: File = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Read a run again from its log: all of it, as it was at one fact, or to verify that its code would do the same."""
    if (run_id is None) == (file is None):
        raise BadInput("give RUN, or --file with an exported run", field="RUN")
    if without and not verify:
        raise BadInput("say --verify too: it is what runs the code again", field="without")
    if verify:
        raise typer.Exit(_verify(run_id, file, data_dir, without or (), as_json))
    facts = export.facts(file.read_bytes().splitlines(), str(file)) if file else finish(_read(run_id or "", data_dir))
    if at is None:
        typer.echo(_listed(facts, as_json))
        return
    state = state_at(facts, at)
    typer.echo(orjson.dumps(plain(state), option=orjson.OPT_INDENT_2).decode() if as_json else as_text(state, facts))


async def _read(prefix: str, data_dir: Path | None) -> list[Fact]:
    async with event_log(data_dir) as log:
        return await log.read(subjects.of_run(await export.find(log, prefix)))


def _verify(run_id: str | None, file: Path | None, data_dir: Path | None, without: Sequence[str], as_json: bool) -> int:
    what = ["--file", str(file)] if file else ["--run", finish(_whole_id(run_id or "", data_dir)), "--nats", nats_url(data_dir)]
    off = [part for name in without for part in ("--without", name.replace("-", "_"))]
    return run_module("services.orchestrator.verify", *what, *off, as_json=as_json)


async def _whole_id(prefix: str, data_dir: Path | None) -> str:
    async with event_log(data_dir) as log:
        return await export.find(log, prefix)


def state_at(facts: list[Fact], seq: int) -> RunState:
    """The run as its facts up to `seq` tell it.

    Raises:
        NotFound: it had not been submitted then.
    """
    told = [fact for fact in facts if fact.seq <= seq]
    if not told:
        first = f"its first fact is {facts[0].seq}" if facts else "it has no facts"
        raise NotFound(f"the run did not exist at {seq}: {first}")
    return fold(told[0].scope, told)


def plain(state: RunState) -> dict[str, object]:
    """A state as JSON values."""
    fields = {name: getattr(state, name) for name in RunState.__dataclass_fields__}
    steps = [asdict(step) for step in state.steps.values()]
    return {**fields, "usage": state.usage.model_dump(), "steps": steps}


def as_text(state: RunState, facts: list[Fact]) -> str:
    position = sum(fact.seq <= state.seq for fact in facts)
    lines = [f"run {state.run_id} at {state.seq} (fact {position} of {len(facts)})"]
    for name in RunState.__dataclass_fields__:
        value = getattr(state, name)
        if value and name not in ("run_id", "seq", "steps", "usage"):
            lines.append(f"  {name:<17}{', '.join(state.files) if name == 'files' else value}")
    lines.append(f"  {'tokens':<17}{state.usage.prompt_tokens} read, {state.usage.completion_tokens} written")
    for step in state.steps.values():
        lines.append(f"  {'step':<17}{step.key} ({step.agent}) {step.status}{f': {step.reason}' if step.reason else ''}")
    return "\n".join(lines)


def _listed(facts: list[Fact], as_json: bool) -> str:
    if as_json:
        rows = [{"seq": fact.seq, "type": fact.type, "time": fact.time, "text": line_of(fact)} for fact in facts]
        return orjson.dumps(rows, option=orjson.OPT_UTC_Z).decode()
    return "\n".join(
        f"{fact.seq:>8}  {fact.time.astimezone():%H:%M:%S.%f}  {fact.type:<22}  {line_of(fact) or ''}".rstrip() for fact in facts
    )
