"""One call of one tool: arguments in, a bounded answer and the changed files out.

The server is called directly, in the same process: about 0.05 ms, and the same code as through a client.
Who may call what is decided before; whether a call may run again is the router's ledger.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import structlog
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError, UnexpectedToolError
from mcp.types import CallToolResult, TextContent

from services.tools.paths import ToolRefusal
from services.tools.servers.arguments import BadArguments, fitted
from services.tools.servers.base import ENDING_S, OUTPUT_LIMIT, CallContext, Change, Changes, ToolSpec, current_call, current_changes
from shared.errors import Fault
from shared.text import clean, clean_json, cut

log: Any = structlog.get_logger()

_SLACK = 1_000  # what a tool may say about its own cut on top of the limit


@dataclass(frozen=True, slots=True)
class ToolReply:
    """What a tool answered.

    `is_error` marks an answer that tells the model what to mend. `failure` is the code of a fault when the tool
    could not do its work at all (its time bound passed, it crashed, a dependency is away); the text says so.
    """

    content: str
    structured: dict[str, Any] | None = None
    is_error: bool = False
    changes: tuple[Change, ...] = ()
    failure: str | None = None


async def invoke(
    servers: Iterable[MCPServer],
    spec: ToolSpec,
    arguments: Mapping[str, Any],
    context: CallContext,
    timeout_s: float | None = None,
) -> ToolReply:
    """Run the tool; everything that goes wrong is an answer, only cancellation is raised.

    `timeout_s` None takes the tool's own bound. Files changed before a failure are reported with it.
    """
    server = next(server for server in servers if server.name == spec.server)
    try:
        fit = fitted(spec, arguments)
    except BadArguments as error:
        return ToolReply(error.message, is_error=True)
    changes = Changes()
    bound = timeout_s or bound_of(spec, fit)
    tokens = current_call.set(context), current_changes.set(changes)
    try:
        reply = await _answer(server, spec, fit, bound)
    finally:
        current_call.reset(tokens[0])
        current_changes.reset(tokens[1])
    return ToolReply(reply.content, reply.structured, reply.is_error, changes.all(), reply.failure)


def bound_of(spec: ToolSpec, arguments: Mapping[str, Any]) -> float:
    """The tool's own time bound in seconds, longer when the call itself asks for a long time."""
    asked = arguments.get("timeout_s")
    return max(spec.timeout_s, float(asked) + ENDING_S) if isinstance(asked, int | float) else spec.timeout_s


async def _answer(server: MCPServer, spec: ToolSpec, arguments: dict[str, Any], timeout_s: float) -> ToolReply:
    try:
        async with asyncio.timeout(timeout_s):
            result = await server.call_tool(spec.name, arguments)
    except TimeoutError:
        text = f"{spec.name} did not end within {timeout_s:g} s. Look at what it did before you call it again."
        return ToolReply(text, is_error=True, failure="tool.timed_out")
    except ToolError as error:
        return _refused(spec, error)
    assert isinstance(result, CallToolResult), f"{spec.name} asked for input"
    text = "\n".join(part.text if isinstance(part, TextContent) else f"[{part.type}]" for part in result.content)
    structured = cast(dict[str, Any] | None, clean_json(result.structured_content))
    return ToolReply(_bounded(text), structured, bool(result.is_error))


def _refused(spec: ToolSpec, error: ToolError) -> ToolReply:
    """The tool's own words, without the prefix that the SDK puts before them."""
    cause = error.__cause__
    if isinstance(cause, ToolRefusal):
        return ToolReply(_bounded(cause.message), is_error=True)
    if isinstance(cause, Fault):
        return ToolReply(_bounded(cause.message), is_error=True, failure=cause.code)
    if isinstance(error, UnexpectedToolError):
        log.error("tool_crashed", tool=spec.name, exc_info=cause)
        text = f"{spec.name} failed inside the engine, which is not your mistake. Try another way to reach the goal."
        return ToolReply(text, is_error=True, failure="tool.crashed")
    return ToolReply(_bounded(str(cause or error)), is_error=True)


def _bounded(text: str) -> str:
    text = clean(text)
    return text if len(text) <= OUTPUT_LIMIT + _SLACK else cut(text, OUTPUT_LIMIT)
