"""`aetherium events`: follow facts as they are stored, or write a run's to a file."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated

import orjson
import typer

from aetherium.cli.gateway import RunId, finish, gateway, resolve
from aetherium.cli.options import DataDir, Json
from aetherium.client import Delta, Reset
from shared.events.envelope import Fact
from shared.runlog import line_of

Run = Annotated[str | None, typer.Option("--run", help="Those of one run, to its end.")]
Types = Annotated[str | None, typer.Option("--types", help="Globs, such as 'run.*,tool.completed'.")]
From = Annotated[int | None, typer.Option("--from", help="Begin at this sequence. Default: a run's start, or the log's end.", min=1)]
Out = Annotated[Path, typer.Option("--out", help="The file to write.", dir_okay=False)]


def register(app: typer.Typer) -> None:
    verbs = typer.Typer(name="events", help="Follow the log, or export a run.", no_args_is_help=True)
    verbs.command("tail")(tail)
    verbs.command("export")(export_run)
    app.add_typer(verbs)


def tail(run: Run = None, types: Types = None, begin: From = None, data_dir: DataDir = None, as_json: Json = False) -> None:
    """Print facts as they are stored, one a line."""
    finish(_tail(run, types, begin, data_dir, as_json))


async def _tail(prefix: str | None, types: str | None, begin: int | None, data_dir: Path | None, as_json: bool) -> None:
    async with gateway(data_dir) as client:
        if prefix is not None:
            facts = client.events(await resolve(client, prefix))
        else:
            facts = client.events(types=types, after=begin - 1 if begin else None, from_end=begin is None)
        async with aclosing(facts) as stream:
            async for fact in _wanted(stream, types if prefix is not None else None, begin or 0):
                typer.echo(as_object(fact) if as_json else as_line(fact))


async def _wanted(stream: AsyncGenerator[Fact | Delta | Reset, None], types: str | None, begin: int) -> AsyncGenerator[Fact, None]:
    """A run's stream always comes whole, so it is filtered here."""
    globs = [glob.strip() for glob in types.split(",")] if types else ["*"]
    async for item in stream:
        if isinstance(item, Fact) and item.seq >= begin and any(fnmatchcase(item.type, glob) for glob in globs):
            yield item


def as_line(fact: Fact) -> str:
    return f"{fact.seq:>8}  {fact.time.astimezone():%H:%M:%S.%f}  {fact.scope[:8]:<8}  {fact.type:<22}  {line_of(fact) or ''}".rstrip()


def as_object(fact: Fact) -> str:
    fields = {"seq": fact.seq, "id": fact.id, "type": fact.type, "time": fact.time, "source": fact.source, "scope": fact.scope}
    return orjson.dumps({**fields, "data": orjson.Fragment(fact.event.model_dump_json())}, option=orjson.OPT_UTC_Z).decode()


def export_run(run_id: RunId, out: Out, data_dir: DataDir = None, as_json: Json = False) -> None:
    """Write a run's facts to a file, as JSON lines: seq, subject, headers, body."""
    found, count = finish(_export(run_id, out, data_dir))
    said = f"wrote {count} lines of run {found} to {out}: verify with 'aetherium replay --verify --file {out}'"
    typer.echo(orjson.dumps({"runGuid": found, "lines": count, "file": str(out)}).decode() if as_json else said)


async def _export(prefix: str, out: Path, data_dir: Path | None) -> tuple[str, int]:
    from aetherium import export  # `tail` needs neither
    from aetherium.cli.log import event_log

    async with event_log(data_dir) as log:
        run_id = await export.find(log, prefix)
        count = 0
        with out.open("wb") as file:
            async with aclosing(export.lines(log.bus, run_id)) as rows:
                async for row in rows:
                    file.write(row)
                    count += 1
        return run_id, count
