"""What the tests of the tool servers share: a call in a workspace, and a runtime that answers from a script."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mcp.server import MCPServer

from services.tools.servers import Ports, build_servers
from services.tools.servers.base import CallContext, ExecOutcome, Runtime, ToolSpec, catalogue
from services.tools.servers.invoke import ToolReply, invoke
from services.tools.servers.shell import ExecResult


@dataclass
class ScriptedRuntime:
    """A runtime whose commands do what the test says."""

    act: Callable[[Path], ExecResult] = lambda _: ExecResult(0, "")
    asked: list[tuple[int, str, str, float, Path]] = field(default_factory=list[tuple[int, str, str, float, Path]])

    async def exec(self, project_id: int, exec_id: str, command: str, timeout_s: float, workspace: Path) -> ExecOutcome:
        self.asked.append((project_id, exec_id, command, timeout_s, workspace))
        return self.act(workspace)


@dataclass
class Desk:
    """The tools as the router sees them, on one workspace."""

    root: Path
    servers: Sequence[MCPServer]
    specs: dict[str, ToolSpec]
    calls: int = 0

    async def call(self, tool: str, /, **arguments: Any) -> ToolReply:
        self.calls += 1
        context = CallContext("run-1", f"call_{self.calls}", "coder", 7, self.root)
        return await invoke(self.servers, self.specs[tool], arguments, context)

    async def text(self, tool: str, /, **arguments: Any) -> str:
        reply = await self.call(tool, **arguments)
        assert not reply.is_error, reply.content
        return reply.content

    async def error(self, tool: str, /, **arguments: Any) -> str:
        reply = await self.call(tool, **arguments)
        assert reply.is_error, reply.content
        assert reply.changes == ()
        return reply.content


async def desk(root: Path, runtime: Runtime | None = None) -> Desk:
    root.mkdir(exist_ok=True)
    servers = build_servers(Ports(runtime or ScriptedRuntime()))
    return Desk(root, servers, {spec.name: spec for spec in await catalogue(servers)})
