"""Composition root of the orchestrator: `python -m services.orchestrator.app`."""

from __future__ import annotations

from services.orchestrator.dispatch import Orchestrator, work
from services.orchestrator.engine import fingerprint
from services.orchestrator.topologies import TOPOLOGIES
from shared import process, rpc, subjects
from shared.clock import SystemClock
from shared.events import run
from shared.inbox import NatsInbox
from shared.process import Process
from shared.template import Node


async def main(own: Process) -> None:
    async def catalogue(node: Node) -> run.ToolsOffered:
        ask = {"servers": list(node.mcp_servers), "tools": list(node.tools)}
        answer = await rpc.call(own.bus, "tools", "offer", ask, timeout_s=30.0)
        return run.ToolsOffered(
            key="", agent=node.id, tools=tuple(answer["tools"]), read_only=tuple(answer["read_only"]), catalogue=answer["digest"]
        )

    orchestrator = Orchestrator(own.log, own.blobs, SystemClock(), own.owner, fingerprint(), TOPOLOGIES, catalogue)
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
