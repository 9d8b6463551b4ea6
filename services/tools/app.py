"""Composition root of the tools service: `python -m services.tools.app`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from services.tools.containers_client import RemoteRuntime
from services.tools.guards import permissions
from services.tools.router import Router
from services.tools.servers import Ports, build_servers
from services.tools.servers.base import ToolSpec, catalogue
from shared import process, rpc, subjects
from shared.events import run
from shared.ids import digest
from shared.inbox import NatsInbox
from shared.process import Process


def verbs(specs: Sequence[ToolSpec]) -> dict[str, rpc.Verb]:
    """The queries that others ask: the whole catalogue, and what one agent is offered of it."""
    whole = digest([spec.openai() for spec in specs])

    async def tell_catalogue(_: dict[str, Any]) -> dict[str, Any]:
        rows = [
            {**spec.openai()["function"], "server": spec.server, "tier": str(spec.tier), "readOnly": spec.read_only,
             "idempotent": spec.idempotent, "destructive": spec.destructive}
            for spec in specs
        ]  # fmt: skip
        return {"digest": whole, "tools": rows}

    async def offer(ask: dict[str, Any]) -> dict[str, Any]:
        shown = permissions.offered(specs, set(ask.get("servers", [])), ask.get("tools", []))
        return {"digest": whole, "tools": [spec.openai() for spec in shown], "read_only": [spec.name for spec in shown if spec.read_only]}

    return {"catalogue": tell_catalogue, "offer": offer}


async def main(own: Process) -> None:
    servers = build_servers(Ports(runtime=RemoteRuntime(own.bus)))
    specs = await catalogue(servers)

    async def abandon(call_id: str) -> None:
        await rpc.tell(own.bus, "containers", "kill", {"exec_id": call_id})

    router = Router(own.log, own.blobs, servers, specs, own.owner, Path(own.settings.workspaces), abandon)
    inbox = NatsInbox(own.bus, own.log, "tools", (subjects.every(run.ToolRequested.TYPE),), poisoned=router.give_up)
    await rpc.serve(own.bus, "tools", verbs(specs))
    after = await own.log.last_seq()
    health = await process.serve_health(own)
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(router.watch_ends(after=after))
            tasks.create_task(inbox.run(router.handle))
    finally:
        if health is not None:
            health.close()


if __name__ == "__main__":
    process.run("tools", main)
