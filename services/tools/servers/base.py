"""What every tool server shares: the call being answered, the changes it makes, and how its tools are declared.

A server is an `MCPServer`. Its handlers learn whose call they answer from `this_call()` and report every file
that they change to `changes()`; both are context variables, which reach a handler on a direct call, through an
in-process `Client` and in the threads of synchronous tools.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeVar, cast

from mcp.server import MCPServer
from mcp.types import Tool, ToolAnnotations

OUTPUT_LIMIT = 8_000  # characters of a result that a model is shown
ENDING_S = 30.0  # what a call gets on top of the time it asked for, to end what it started
UNKNOWN_SHA256 = "unknown"  # the file was there, and what it held was too large to read before it changed

_TIER = "aetherium/tier"
_BOUND = "aetherium/timeout-s"
_EXAMPLES: dict[str, Any] = {"integer": 1, "number": 1.0, "boolean": True, "array": [], "object": {}}
_NOISE = frozenset({"title", "default", "examples"})

# Formats that say how an argument is asked for: a text too long for JSON, a command line.
LONG_TEXT: dict[str, Any] = {"format": "long-text"}
COMMAND: dict[str, Any] = {"format": "command-line"}

P = ParamSpec("P")
R = TypeVar("R")


class Tier(StrEnum):
    """How much a tool may do: restricted ones wait for a person."""

    STANDARD = "standard"
    ELEVATED = "elevated"
    RESTRICTED = "restricted"


@dataclass(frozen=True, slots=True)
class CallContext:
    """Whose call is answered. `call_id` is the engine's own and names the call for good."""

    run_id: str
    call_id: str
    agent: str
    project_id: int
    workspace: Path


@dataclass(frozen=True, slots=True)
class Change:
    """A file that a call changed. A hash of None = no such file on that side; `before` is the old content when it is known."""

    path: str
    before_sha256: str | None
    after_sha256: str | None
    before: bytes | None = None


@dataclass(slots=True)
class Changes:
    """The files that one call changed, each once: the first state before, the last one after."""

    _by_path: dict[str, Change] = field(default_factory=dict[str, Change])

    def record(self, path: str, before: bytes | None, after: bytes | None) -> None:
        """A change whose both sides are at hand; None = the file did not exist."""
        self.record_hashes(path, _sha256_of(before), _sha256_of(after), before)

    def record_hashes(self, path: str, before_sha256: str | None, after_sha256: str | None, before: bytes | None = None) -> None:
        """A change of a file that is too large to hold, or that something else made."""
        known = self._by_path.get(path)
        change = replace(known, after_sha256=after_sha256) if known else Change(path, before_sha256, after_sha256, before)
        self._by_path[path] = change

    def all(self) -> tuple[Change, ...]:
        """What is really different now, in the order it happened."""
        return tuple(change for change in self._by_path.values() if change.before_sha256 != change.after_sha256)


def _sha256_of(data: bytes | None) -> str | None:
    return None if data is None else hashlib.sha256(data).hexdigest()


current_call: ContextVar[CallContext] = ContextVar("current_call")
current_changes: ContextVar[Changes] = ContextVar("current_changes")


def this_call() -> CallContext:
    """The call that the running handler answers."""
    return current_call.get()


def changes() -> Changes:
    """The recorder of the running call."""
    return current_changes.get()


async def to_its_end(work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Blocking work in a thread, awaited even when the caller is cancelled.

    A thread cannot be stopped; a file written after the call was answered would be in no record.
    """
    running = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        if not running.cancelled():
            running.exception()  # seen, so that asyncio does not complain about it
        raise


class ExecOutcome(Protocol):
    """How a command ended. `exit_code` is None when it was stopped; `cut` counts bytes missing from `output`."""

    @property
    def exit_code(self) -> int | None: ...
    @property
    def output(self) -> str: ...
    @property
    def timed_out(self) -> bool: ...
    @property
    def cut(self) -> int: ...


class Runtime(Protocol):
    """Where commands run: the project's container, behind whatever reaches it."""

    async def exec(self, project_id: int, exec_id: str, command: str, timeout_s: float, workspace: Path) -> ExecOutcome:
        """Run a command to its end or its time bound; one `exec_id` runs once."""
        ...


@dataclass(frozen=True, slots=True)
class Ports:
    """What servers need from outside, handed to each when it is built."""

    runtime: Runtime


Handler = TypeVar("Handler", bound=Callable[..., Any])


def declare(
    server: MCPServer,
    *,
    tier: Tier,
    read_only: bool = False,
    idempotent: bool = False,
    destructive: bool = False,
    timeout_s: float = 60.0,
) -> Callable[[Handler], Handler]:
    """Register a tool with everything that `catalogue` asks for; the docstring is what the model reads."""
    return server.tool(
        annotations=ToolAnnotations(
            read_only_hint=read_only, idempotent_hint=idempotent or read_only, destructive_hint=destructive, open_world_hint=False
        ),
        meta={_TIER: str(tier), _BOUND: timeout_s},
        structured_output=False,
    )


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the router and a model know it. `parameters` is a compact JSON schema that refuses unknown names."""

    name: str
    server: str
    tier: Tier
    description: str
    parameters: dict[str, Any]
    read_only: bool
    idempotent: bool
    destructive: bool
    timeout_s: float
    example: dict[str, Any]  # arguments of a right call

    def openai(self) -> dict[str, Any]:
        """The function schema of a chat-completions request."""
        return {"type": "function", "function": {"name": self.name, "description": self.description, "parameters": self.parameters}}


class CatalogueError(Exception):
    """A tool is declared in a way that the engine cannot offer; the start stops here."""


async def catalogue(servers: Sequence[MCPServer]) -> list[ToolSpec]:
    """Every tool of every server, in the order of registration.

    Raises:
        CatalogueError: a tool lacks its description, a parameter's description, its tier or its
            annotations, or two tools share a name.
    """
    specs: dict[str, ToolSpec] = {}
    for server in servers:
        for tool in await server.list_tools():
            if tool.name in specs:
                raise CatalogueError(f"two tools are called {tool.name!r}: in {specs[tool.name].server!r} and {server.name!r}")
            specs[tool.name] = _spec(server.name, tool)
    return list(specs.values())


def _spec(server: str, tool: Tool) -> ToolSpec:
    meta: Mapping[str, Any] = tool.meta or {}
    hints = tool.annotations
    if not (tool.description or "").strip():
        raise CatalogueError(f"tool {tool.name!r} of {server!r} has no description")
    if meta.get(_TIER) not in set(Tier):
        raise CatalogueError(f"tool {tool.name!r} of {server!r} has no tier of {', '.join(Tier)}")
    if hints is None or None in (hints.read_only_hint, hints.idempotent_hint, hints.destructive_hint):
        raise CatalogueError(f"tool {tool.name!r} of {server!r} has no complete annotations")
    properties = cast(dict[str, dict[str, Any]], tool.input_schema.get("properties", {}))
    if nameless := [name for name, schema in properties.items() if not schema.get("description")]:
        raise CatalogueError(f"parameter {nameless[0]!r} of tool {tool.name!r} of {server!r} has no description")
    required = cast(list[str], tool.input_schema.get("required", []))
    return ToolSpec(
        name=tool.name,
        server=server,
        tier=Tier(meta[_TIER]),
        description=inspect.cleandoc(tool.description or ""),
        parameters=compact_schema(tool.input_schema),
        read_only=bool(hints.read_only_hint),
        idempotent=bool(hints.idempotent_hint),
        destructive=bool(hints.destructive_hint),
        timeout_s=float(meta.get(_BOUND, 60.0)),
        example={name: _example(properties[name]) for name in required},
    )


def _example(schema: Mapping[str, Any]) -> Any:
    given = cast(list[Any], schema.get("examples") or [])
    return given[0] if given else _EXAMPLES.get(str(schema.get("type")), "…")


def compact_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """An argument schema without what a model gains nothing from; an optional value is left out, never null."""
    properties = cast(dict[str, dict[str, Any]], schema.get("properties", {}))
    compact: dict[str, Any] = {"type": "object", "properties": {name: _compact(part) for name, part in properties.items()}}
    if schema.get("required"):
        compact["required"] = schema["required"]
    if schema.get("$defs"):
        compact["$defs"] = schema["$defs"]
    return {**compact, "additionalProperties": False}


def _compact(part: dict[str, Any]) -> dict[str, Any]:
    choices = [choice for choice in cast(list[dict[str, Any]], part.get("anyOf", [])) if choice.get("type") != "null"]
    merged = {**part, **choices[0]} if len(choices) == 1 else part
    return {key: value for key, value in merged.items() if key not in _NOISE and not (key == "anyOf" and len(choices) == 1)}
