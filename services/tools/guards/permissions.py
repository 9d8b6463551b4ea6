"""Layers 1 and 2 of the permission model (CC "three-layer permission model"). Pure.

The connection layer: the tool's server is in the agent's `mcp_servers`. The capability layer: the tool is in the
agent's `tools`. The same filter makes the schemas that a model is offered, so it rarely asks for more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from services.tools.servers.base import ToolSpec


@dataclass(frozen=True, slots=True)
class Denial:
    """Which layer refused, and the sentence for the model."""

    layer: str
    message: str


def offered(specs: Iterable[ToolSpec], servers: Collection[str], tools: Collection[str]) -> list[ToolSpec]:
    """The tools that an agent is shown, in the order of its own list."""
    by_name = {spec.name: spec for spec in specs if spec.server in servers}
    return [by_name[name] for name in tools if name in by_name]


def denial(spec: ToolSpec | None, name: str, specs: Iterable[ToolSpec], servers: Collection[str], tools: Collection[str]) -> Denial | None:
    """Why an agent may not call a tool, if so."""
    allowed = ", ".join(each.name for each in offered(specs, servers, tools)) or "none"
    if spec is None:
        return Denial("catalogue", f"There is no tool {name!r}. Your tools: {allowed}.")
    if spec.server not in servers:
        return Denial("connection", f"You may not use {name!r}: its server {spec.server!r} is not open to you. Your tools: {allowed}.")
    if name not in tools:
        return Denial("capability", f"You may not use {name!r}. Your tools: {allowed}.")
    return None
