"""`python -m bench.worker URL`: answers model and tool calls as the services do, with real inboxes and deciders, at once."""

from __future__ import annotations

import asyncio
import sys

import uvloop

from bench.workload import model_answer, tool_answer
from services.scheduler.calls import has_ended
from services.tools import ledger
from shared import subjects
from shared.aggregate import Deciders
from shared.bus import connect
from shared.eventlog import NatsEventLog
from shared.events import run
from shared.inbox import Delivery, NatsInbox
from shared.process import rarely_collect


async def main(url: str) -> None:
    bus = await connect(url, "bench-worker")
    log = NatsEventLog(bus, "aetherium/bench-worker")
    models, tools = Deciders(log, "llm"), Deciders(log, "tool")

    async def answer_model(delivery: Delivery) -> bool:
        fact = delivery.fact
        assert isinstance(fact.event, run.LlmRequested)
        answer = model_answer(fact.scope, fact.event)
        await models.of(fact.scope).decide(answer.call_id, lambda facts: () if has_ended(facts, answer) else (answer,), cause=fact)
        return True

    async def answer_tool(delivery: Delivery) -> bool:
        fact = delivery.fact
        assert isinstance(fact.event, run.ToolRequested)
        request, decider = fact.event, tools.of(fact.scope)
        claim = ledger.Claim(request.call_id, request.tool, "workspace", "standard", "tools-0", repeatable=False, recovered=False)
        await decider.decide(request.call_id, lambda facts: ledger.next_step(facts, claim)[1], cause=fact)
        answer = tool_answer(request)
        await decider.decide(request.call_id, lambda facts: () if ledger.has_ended(facts, request.call_id) else (answer,), cause=fact)
        return True

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(NatsInbox(bus, log, "bench-llm", (subjects.every(run.LlmRequested.TYPE),)).run(answer_model))
        tasks.create_task(NatsInbox(bus, log, "bench-tool", (subjects.every(run.ToolRequested.TYPE),)).run(answer_tool))
        print("ready", flush=True)


if __name__ == "__main__":
    rarely_collect()
    uvloop.run(main(sys.argv[1]))
