"""`aetherium show`: one run, its steps, turns, calls, usage, and how it ended."""

from __future__ import annotations

from pathlib import Path

import typer

from aetherium.cli.gateway import RunId, finish, gateway, resolve
from aetherium.cli.options import DataDir, Json
from aetherium.client import LogLine, Run


def register(app: typer.Typer) -> None:
    app.command("show")(show)


def show(run_id: RunId, data_dir: DataDir = None, as_json: Json = False) -> None:
    """Show a run."""
    run, log = finish(_read(run_id, data_dir))
    typer.echo(run.model_dump_json(by_alias=True, indent=2) if as_json else as_text(run, log))


async def _read(prefix: str, data_dir: Path | None) -> tuple[Run, list[LogLine]]:
    async with gateway(data_dir) as client:
        run_id = await resolve(client, prefix)
        return await client.status(run_id), await client.log(run_id)


def as_text(run: Run, log: list[LogLine]) -> str:
    took = f", {(run.ended_at - run.submitted_at).total_seconds():.1f} s" if run.ended_at and run.submitted_at else ""
    why = f": {run.reason}" if run.reason else ""
    lines = [
        f"run {run.run_guid}",
        f"  status     {run.status}{why}{took}",
        f"  message    {run.message}",
        f"  project    {run.project_id}, template {run.template_id}, workspace {run.workspace}",
        f"  work       {run.turns} turns, {run.model_calls} model calls, {run.tool_calls} tool calls, taken over {run.resumes} times",
        f"  tokens     {run.usage.prompt_tokens} read ({run.usage.cached_tokens} cached), {run.usage.completion_tokens} written",
    ]
    for step in run.steps:
        lines.append(
            f"  step       {step.key} ({step.agent}) {step.status} {step.title}{f': {step.reason}' if step.reason else ''}".rstrip()
        )
    if run.files:
        lines.append(f"  files      {', '.join(run.files)}")
    lines += ["", *(log_line(each) for each in log)]
    if run.response:
        lines += ["", run.response]
    return "\n".join(lines)


def log_line(line: LogLine) -> str:
    return f"{line.seq:>8}  {line.time.astimezone():%H:%M:%S}  {line.text}"
