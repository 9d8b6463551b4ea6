"""The tool servers. Adding one is one line in `SERVERS`."""

from __future__ import annotations

from collections.abc import Callable

from mcp.server import MCPServer

from services.tools.servers import shell, workspace
from services.tools.servers.base import Ports

SERVERS: list[Callable[[Ports], MCPServer]] = [
    workspace.build,
    shell.build,
]


def build_servers(ports: Ports) -> list[MCPServer]:
    """Every server, in the order in which a model is shown its tools."""
    return [build(ports) for build in SERVERS]


__all__ = ["SERVERS", "Ports", "build_servers"]
