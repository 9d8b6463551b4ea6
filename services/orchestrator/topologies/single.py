"""Topology `single`: one agent, one task (KS 6.1). An agent that owes files is held to them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from services.orchestrator import agent as agents
from services.orchestrator import guided, loop, owed, prompts
from services.orchestrator.durable.context import Run
from services.orchestrator.durable.execution import Outcome
from services.orchestrator.durable.faults import OwedOutputMissing
from shared.errors import Fault
from shared.template import Node

REPAIR_TURNS = 2  # as a sequential stage has (KS 6.1, SequentialRepairTurns)
TURNS_A_REPAIR = 4

React = Callable[[Run, int], Awaitable[str]]
"""Turns of an agent, up to a number, until it replies."""


async def single(run: Run) -> Outcome:
    """One agent runs the ReAct loop alone; a node that still owes files after its repairs fails the run."""
    (node,) = run.template.nodes[:1]
    here = run.at(node.id)
    await here.step_started(node.id, run.submission.message[:200])
    offer = await here.offer_tools("tools", node)
    by_action = await _is_guided(here, node)
    system = prompts.guided_system(node, offer, run.template.features) if by_action else prompts.system(node)
    agent = await agents.begin(here, node, offer, system, run.submission.message)
    react = _guided(guided.begin(agent, run.submission.message, run.template.features)) if by_action else _native(agent)
    try:
        reply = await react(here, run.template.circuit_breaker.max_turns_per_agent)
        reply = await _hold_to_owed_outputs(here, agent, reply, react)
    except Fault as fault:
        await here.step_failed(fault.code, fault.message)
        raise
    await here.step_completed(agent.view.written)
    return Outcome(reply, agent.view.written)


async def _is_guided(run: Run, node: Node) -> bool:
    wanted = run.template.features.constrained_turns
    return wanted == "always" if wanted != "auto" else (await run.profile("model", node)).guided


def _native(agent: agents.Agent) -> React:
    async def react(run: Run, turns: int) -> str:
        return await loop.react(run, agent, turns=turns)

    return react


def _guided(guide: guided.Guide) -> React:
    async def react(run: Run, turns: int) -> str:
        if guide.agent.turn == 0:
            await guided.show_named(run, guide)
        return await guided.react(run, guide, turns=turns)

    return react


async def _hold_to_owed_outputs(run: Run, agent: agents.Agent, reply: str, react: React) -> str:
    """`[SINGLE-GATE]`: two repair turns, each with the gate's own sentence, then the run fails."""
    for repair in range(1, REPAIR_TURNS + 1):
        missing = agent.missing()
        if not missing:
            return reply
        problem = f"These files are owed and not in the workspace: {owed.and_list(missing)}. Create them now."
        here = run.at(f"repair-{repair}")
        await here.note("gate", "SINGLE-GATE", problem)
        await agent.talk.say(here, "problem", "user", problem)
        reply = await react(here, TURNS_A_REPAIR)
    missing = agent.missing()
    if missing:
        raise OwedOutputMissing(f"{agent.node.name} ended without {owed.and_list(missing)}.", files=list(missing))
    return reply
