"""Composition root of the scheduler: `python -m services.scheduler.app`."""

from __future__ import annotations

import asyncio
import time

import structlog

from services.scheduler import capabilities, managed, slot_checks
from services.scheduler.backends.choose import choose
from services.scheduler.backends.faults import BackendFault
from services.scheduler.calls import Calls, Slot
from services.scheduler.counter import Counter
from services.scheduler.live import Live
from services.scheduler.office import Office
from services.scheduler.slots import catalogue
from shared import process, rpc, subjects
from shared.clock import SystemClock
from shared.eventlog import NatsEventLog
from shared.events import run, tool
from shared.inbox import NatsInbox
from shared.process import Process

logger = structlog.get_logger()


async def main(own: Process) -> None:
    inference = own.settings.inference
    key = inference.api_key.get_secret_value() if inference.api_key else None
    backend = await choose(inference.url, inference.kind, key)
    slot = Slot("primary", backend, inference.concurrency, inference.idle_timeout_s, inference.model)

    async def slots(_: dict[str, object]) -> dict[str, object]:
        health = await backend.healthy()
        row = {"name": slot.name, "backend": backend.name, "state": health.state, "reason": health.reason, "waiting": slot.waiting}
        return {"slots": [row], "at": time.time()}

    async def profile(ask: dict[str, object]) -> dict[str, object]:
        name = str(ask.get("model") or slot.model or "")
        if not name:
            try:
                name = next((model.id for model in await backend.models()), "")
            except BackendFault as fault:
                logger.warning("models_unknown", reason=fault.message)
        known = capabilities.profile(name, inference.turns)
        return {"model": known.model, "guided": known.guided, "source": known.source}

    for problem in slot_checks.problems(own.settings.scheduler):
        logger.warning("slot_setting", problem=str(problem))
    servers = await managed.servers(own.settings.scheduler)
    office = Office(own.log, catalogue(own.settings.scheduler), servers, SystemClock(), own.settings.scheduler.lease_sweep_s)
    calls = Calls(own.log, slot, Live(own.bus))
    inbox = NatsInbox(own.bus, own.log, "scheduler", (subjects.every(run.LlmRequested.TYPE),), poisoned=calls.give_up)
    await rpc.serve(own.bus, "scheduler", {"slots": slots, "profile": profile, **Counter(office).verbs})
    after = await own.log.last_seq()
    server = await process.serve_health(own)
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(office.run())
            tasks.create_task(calls.watch_ends(after=after))
            tasks.create_task(read_ahead(own.log, after=after))
            tasks.create_task(inbox.run(calls.handle))
    finally:
        await backend.close()
        if server is not None:
            server.close()


async def read_ahead(log: NatsEventLog, *, after: int) -> None:
    """Keep what the next prompts are made of: each such fact is part of one, and reading it then would delay the call; never ends."""
    async for fact in log.follow(*map(subjects.every, (run.MessageAdded.TYPE, tool.ToolCompleted.TYPE)), after=after):
        log.keep(fact)


if __name__ == "__main__":
    process.run("scheduler", main)
