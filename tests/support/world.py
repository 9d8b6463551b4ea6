"""A whole engine in one event loop on the in-memory log: orchestrator, scheduler and tools, no process.

What survives a crash is the log, the blobs and the disk; everything else is made anew by `World.live`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from mcp.server import MCPServer
from pydantic import Field

from services.orchestrator.dispatch import Orchestrator, work
from services.orchestrator.topologies import TOPOLOGIES
from services.scheduler.backends.base import ChatReply, ChatRequest, Health, ModelInfo, OnDelta
from services.scheduler.calls import Calls
from services.scheduler.dialects.calls import NativeCall
from services.scheduler.turns import OneSlot, Slot
from services.tools.app import verbs
from services.tools.router import Router
from services.tools.servers import workspace
from services.tools.servers.base import Ports, Tier, ToolSpec, catalogue, declare
from shared import subjects
from shared.clock import SystemClock
from shared.events import run
from shared.events.content import Budgets, Pins, Usage
from shared.events.envelope import Fact
from shared.template import Node, Template
from shared.testing.memory import MemoryBlobs, MemoryInbox, MemoryLog

RUN = "11111111-1111-4111-8111-111111111111"


class NoRuntime:
    async def exec(self, project_id: int, exec_id: str, command: str, timeout_s: float, workspace: Path) -> Any:
        raise AssertionError("this test runs no command")


@dataclass(frozen=True)
class Turn:
    """What the scripted model answers when the conversation holds that many assistant messages."""

    content: str = ""
    calls: Sequence[tuple[str, str]] = ()
    reasoning: str = ""
    finish_reason: str = "stop"


@dataclass
class ScriptedBackend:
    """Stateless: the answer depends on the request alone, so a resumed run gets the same."""

    turns: Sequence[Turn]
    calls: list[ChatRequest] = field(default_factory=list[ChatRequest])
    name: str = "scripted"

    async def chat(self, request: ChatRequest, on_delta: OnDelta | None = None) -> ChatReply:
        self.calls.append(request)
        await asyncio.sleep(0)
        at = sum(1 for message in request.messages if message["role"] == "assistant")
        turn = self.turns[min(at, len(self.turns) - 1)]
        native = tuple(NativeCall(name, arguments, "same-id") for name, arguments in turn.calls)
        return ChatReply(turn.content, turn.reasoning, native, turn.finish_reason, "scripted", Usage(prompt_tokens=10, completion_tokens=5))

    async def models(self) -> list[ModelInfo]:
        return []

    async def healthy(self) -> Health:
        return Health("ready")

    async def close(self) -> None:
        return None


def probe_server(effects: Path) -> MCPServer:
    """Tools whose effects can be counted: `append_line` must never happen twice."""
    server = MCPServer("probe")

    async def append_line(line: Annotated[str, Field(description="The line.")]) -> str:
        """Append a line to the file of effects."""
        with effects.open("a") as out:
            out.write(f"{line}\n")
        await asyncio.sleep(0)
        return f"appended {line}"

    async def peek(what: Annotated[str, Field(description="Anything.")]) -> str:
        """Look at something."""
        await asyncio.sleep(0)
        return f"saw {what}"

    declare(server, tier=Tier.STANDARD, destructive=True)(append_line)
    declare(server, tier=Tier.STANDARD, read_only=True)(peek)
    return server


def node(**over: Any) -> Node:
    base: dict[str, Any] = {
        "id": "coder",
        "name": "Coder",
        "system_prompt": "You are a coder.",
        "mcp_servers": ("workspace", "probe"),
        "tools": ("read_file", "write_file", "list_files", "append_line", "peek"),
        "max_tokens": 100,
    }
    return Node(**{**base, **over})


def template(**over: Any) -> Template:
    base: dict[str, Any] = {"id": "test", "name": "Test", "nodes": (node(),)}
    return Template(**{**base, **over})


@dataclass
class World:
    """What outlives a crash, and how to live from it."""

    folder: Path
    turns: Sequence[Turn]
    template: Template = field(default_factory=template)
    message: str = "Do the work."
    guided: bool = False
    budgets: Budgets = field(default_factory=Budgets)
    log: MemoryLog = field(default_factory=MemoryLog)
    blobs: MemoryBlobs = field(default_factory=MemoryBlobs)
    backends: list[ScriptedBackend] = field(default_factory=list[ScriptedBackend])

    @property
    def effects(self) -> Counter[str]:
        file = self.folder / "effects.txt"
        return Counter(file.read_text().splitlines()) if file.exists() else Counter()

    async def submit(self) -> None:
        content = self.template.as_bytes()
        ref = await self.blobs.put(content)
        event = run.RunSubmitted(
            project_id=1,
            template_id=self.template.id,
            template=ref,
            message=self.message,
            pins=Pins(template=ref.sha256),
            budgets=self.budgets,
        )
        await self.log.append(subjects.Aggregate("run", RUN), [event], after=0)

    async def live(self, *, engine: str = "test", until: type | None = None) -> None:
        """Run every service until the run has ended, a fact of type `until` is stored, or the log crashes."""
        servers = [workspace.build(Ports(runtime=NoRuntime())), probe_server(self.folder / "effects.txt")]
        specs = await catalogue(servers)
        backend = ScriptedBackend(self.turns)
        self.backends.append(backend)
        calls = Calls(self.log, OneSlot(Slot("primary", backend, 4, 60.0)), lambda *_: None)

        async def abandon(call_id: str) -> None:
            return None

        router = Router(self.log, self.blobs, servers, specs, "tools-0", self.folder / "ws", abandon)
        orchestrator = Orchestrator(self.log, self.blobs, SystemClock(), "orchestrator-0", engine, TOPOLOGIES, Sources(specs, self.guided))
        after = await self.log.last_seq()
        tasks = [
            asyncio.ensure_future(each)
            for each in (
                work(orchestrator, MemoryInbox(self.log, "orchestrator", (subjects.every("run.submitted"),)), after=after),
                MemoryInbox(self.log, "scheduler", (subjects.every("run.llm_requested"),)).run(calls.handle),
                MemoryInbox(self.log, "tools", (subjects.every("run.tool_requested"),)).run(router.handle),
                calls.watch_ends(after=after),
                router.watch_ends(after=after),
            )
        ]
        try:
            async with asyncio.timeout(20):
                await self._over(until, tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _over(self, until: type | None, tasks: Sequence[asyncio.Future[Any]]) -> None:
        wanted = (until,) if until else run.TERMINAL
        while not self.log.dead and not any(isinstance(fact.event, wanted) for fact in self.log.facts):
            for task in tasks:
                if task.done() and not task.cancelled() and (error := task.exception()) is not None and not self.log.dead:
                    raise error
            await asyncio.sleep(0)

    def reopen(self, *, crash_at: int | None = None) -> None:
        self.log = self.log.reopened(crash_at=crash_at)

    @property
    def terminal(self) -> Fact:
        (fact,) = [fact for fact in self.log.facts if isinstance(fact.event, run.TERMINAL)]
        return fact


@dataclass(frozen=True)
class Sources:
    """What runs are told by other services, asked of the real functions behind them."""

    specs: Sequence[ToolSpec]
    guided: bool = False

    async def tools(self, node: Node) -> run.ToolsOffered:
        answer = await verbs(self.specs)["offer"]({"servers": list(node.mcp_servers), "tools": list(node.tools)})
        return run.ToolsOffered(
            key="", agent=node.id, tools=tuple(answer["tools"]), read_only=tuple(answer["read_only"]), catalogue=answer["digest"]
        )

    async def model(self, node: Node, model: str | None) -> run.ModelProfiled:
        return run.ModelProfiled(key="", agent=node.id, model=model or "scripted", guided=self.guided)
