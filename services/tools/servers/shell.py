"""The `shell` server: commands in the project's container, and the files that they changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult, TextContent
from pydantic import Field

from services.tools.paths import Workspace
from services.tools.servers.base import (
    COMMAND,
    ENDING_S,
    OUTPUT_LIMIT,
    Change,
    ExecOutcome,
    Ports,
    Tier,
    changes,
    declare,
    this_call,
    to_its_end,
)
from services.tools.servers.snapshot import Images, Snapshot, record_since, take
from shared.text import clean

DEFAULT_S = 60
_HEAD = 3_000  # of the output's limit; errors stand at the end, so the tail gets more
_NAMED = 10  # changed files named in the answer


@dataclass(frozen=True, slots=True)
class ExecResult:
    """How a command ended, for adapters of `Runtime` to answer with."""

    exit_code: int | None
    output: str
    timed_out: bool = False
    cut: int = 0


def build(ports: Ports) -> MCPServer:
    """The server with `run_shell`, running its commands through `ports.runtime`."""
    server = MCPServer("shell", log_level="WARNING")
    images = Images()

    @declare(server, tier=Tier.ELEVATED, destructive=True, timeout_s=DEFAULT_S + ENDING_S)
    async def run_shell(  # pyright: ignore[reportUnusedFunction]
        command: Annotated[
            str,
            Field(description="The command line.", min_length=1, max_length=50_000, examples=["python main.py"], json_schema_extra=COMMAND),
        ],
        timeout_s: Annotated[int, Field(description="Seconds after which it is stopped.", ge=1, le=600)] = DEFAULT_S,
    ) -> CallToolResult:
        """Run a shell command in the workspace folder. Answers with its output and exit code. It gets no keyboard input."""
        call, line = this_call(), clean(command)
        if not line.strip():
            raise ToolError("The command is empty. Give a command line, such as 'python main.py'.")
        workspace = Workspace(call.workspace)
        before = await to_its_end(take, workspace, images)
        try:
            outcome = await ports.runtime.exec(call.project_id, call.call_id, line, float(timeout_s), call.workspace)
        finally:  # a command that was stopped has changed files too
            await _record(before, workspace, images)
        return _result(outcome, timeout_s, changes().all())

    return server


async def _record(before: Snapshot, workspace: Workspace, images: Images) -> None:
    await to_its_end(record_since, before, workspace, images, changes())


def _result(outcome: ExecOutcome, timeout_s: int, changed: tuple[Change, ...]) -> CallToolResult:
    text = _bounded(clean(outcome.output).rstrip("\n"), outcome.cut) or "(no output)"
    lines = [text, _ending(outcome, timeout_s), *_named(changed)]
    return CallToolResult(
        content=[TextContent(type="text", text="\n".join(lines))],
        structured_content={"exit_code": outcome.exit_code, "timed_out": outcome.timed_out},
        is_error=outcome.exit_code != 0,
    )


def _bounded(output: str, cut: int) -> str:
    if len(output) <= OUTPUT_LIMIT:
        return output
    tail = OUTPUT_LIMIT - _HEAD
    left_out = len(output) - OUTPUT_LIMIT + cut
    return f"{output[:_HEAD]}\n[cut: {left_out:,} characters. Write the output to a file to see all of it.]\n{output[-tail:]}"


def _ending(outcome: ExecOutcome, timeout_s: int) -> str:
    if outcome.timed_out:
        return (
            f"[stopped after {timeout_s} s: the command did not end. Make it end by itself (no server, no waiting for input), "
            "or give a larger timeout_s.]"
        )
    if outcome.exit_code is None:
        return "[stopped from outside before it ended. Look at what it did before you run it again.]"
    return f"[exit code {outcome.exit_code}]"


def _named(changed: tuple[Change, ...]) -> list[str]:
    if not changed:
        return []
    names = [change.path if change.after_sha256 else f"{change.path} (removed)" for change in changed]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return [f"[files changed: {', '.join(names[:_NAMED])}{more}]"]
