"""Composition root of the orchestrator: `python -m services.orchestrator.app`."""

from __future__ import annotations

from dataclasses import dataclass

from services.orchestrator.dispatch import Orchestrator, work
from services.orchestrator.engine import fingerprint
from services.orchestrator.topologies import TOPOLOGIES
from shared import process, rpc, subjects
from shared.bus import Bus
from shared.clock import SystemClock
from shared.events import run
from shared.inbox import NatsInbox
from shared.process import Process
from shared.template import Node


@dataclass(frozen=True)
class Services:
    """What runs are told by the tools service and the scheduler."""

    bus: Bus

    async def tools(self, node: Node) -> run.ToolsOffered:
        answer = await rpc.call_patiently(self.bus, "tools", "offer", {"servers": node.mcp_servers, "tools": node.tools})
        return run.ToolsOffered(
            key="", agent=node.id, tools=tuple(answer["tools"]), read_only=tuple(answer["read_only"]), catalogue=answer["digest"]
        )

    async def model(self, node: Node, model: str | None) -> run.ModelProfiled:
        answer = await rpc.call_patiently(self.bus, "scheduler", "profile", {"model": model})
        return run.ModelProfiled(key="", agent=node.id, model=answer["model"], guided=answer["guided"], source=answer["source"])


async def main(own: Process) -> None:
    orchestrator = Orchestrator(own.log, own.blobs, SystemClock(), own.owner, fingerprint(), TOPOLOGIES, Services(own.bus))
    inbox = NatsInbox(
        own.bus, own.log, "orchestrator", (subjects.every(run.RunSubmitted.TYPE),), ack_wait_s=own.settings.orchestrator.ack_wait_s
    )
    after = await own.log.last_seq()
    server = await process.serve_health(own)
    try:
        await work(orchestrator, inbox, after=after)
    finally:
        if server is not None:
            server.close()


if __name__ == "__main__":
    process.run("orchestrator", main)
