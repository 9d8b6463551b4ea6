from __future__ import annotations

import asyncio
from contextlib import suppress

from bench import engine
from bench.workload import TEMPLATE, UNBOUNDED, Plan, Workload, facts_of_turn, model_answer, tool_answer, tool_claim
from services.orchestrator.dispatch import Orchestrator, work
from services.orchestrator.durable.verify import verify
from shared import subjects
from shared.aggregate import Deciders
from shared.clock import SystemClock
from shared.events import run
from shared.events.content import Pins
from shared.events.envelope import Fact
from shared.inbox import Delivery
from shared.testing.memory import MemoryBlobs, MemoryInbox, MemoryLog

RUN = "11111111-1111-4111-8111-111111111111"


async def finished(plan: Plan, workload: Workload) -> list[Fact]:
    """The facts of a measured run on the log in memory, answered as the bench's other process does."""
    log, blobs = MemoryLog(), MemoryBlobs()
    template = await blobs.put(TEMPLATE.as_bytes())
    submitted = run.RunSubmitted(
        project_id=1, template_id="bench", template=template, message=plan.as_message(), pins=Pins(template=""), budgets=UNBOUNDED
    )
    await log.append(subjects.Aggregate("run", RUN), [submitted], after=0)
    models, tools = Deciders(log, "llm").of(RUN), Deciders(log, "tool").of(RUN)

    async def answer(delivery: Delivery) -> bool:
        request = delivery.fact.event
        if isinstance(request, run.LlmRequested):
            said = model_answer(RUN, request)
            await models.decide(request.call_id, lambda _: [said])
        elif isinstance(request, run.ToolRequested):
            called = request
            await tools.decide(called.call_id, lambda _: [tool_claim(called)])
            await tools.decide(called.call_id, lambda _: [tool_answer(called)])
        return True

    orchestrator = Orchestrator(log, blobs, SystemClock(), "o", "bench", {"single": workload}, engine.NoSources())
    requests = MemoryInbox(log, "answers", (subjects.every("run.llm_requested"), subjects.every("run.tool_requested")))
    tasks = [
        asyncio.ensure_future(work(orchestrator, MemoryInbox(log, "o", (subjects.every("run.submitted"),)), after=0)),
        asyncio.ensure_future(requests.run(answer)),
    ]
    async with asyncio.timeout(5):
        async for fact in log.follow(*(subjects.every(event.TYPE) for event in (*run.TERMINAL, run.RunParked)), after=0):
            assert isinstance(fact.event, run.RunCompleted), fact.event
            break
    for task in tasks:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    return log.facts


async def test_a_measured_run_takes_two_facts_an_effect_and_replays() -> None:
    workload = Workload()
    facts = await finished(Plan(turns=20), workload)
    assert len(workload.taken_ms) == 20
    assert [fact.type for fact in facts[3:-1]] == ["run.llm_requested", "llm.completed"] * 20
    assert (await verify(RUN, facts, TEMPLATE, Workload())).diverged_at is None


async def test_a_turn_with_a_tool_is_the_five_facts_that_the_long_run_is_written_with() -> None:
    facts = await finished(Plan(turns=3, tools=True), workload := Workload())
    assert len(workload.taken_ms) == 6
    written = facts_of_turn(RUN, 2, after=1)
    ran = facts[3 + 5 : 3 + 10]
    assert [fact.type for fact in ran] == [event.TYPE for _, event in written]
    assert [fact.aggregate.domain for fact in ran] == [domain for domain, _ in written]
    assert [fact.event for fact in ran[1:]] == [event for _, event in written[1:]]
