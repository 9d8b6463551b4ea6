"""The ReAct loop of one agent (KS 6.1): ask, run the calls in order, append, until a turn has no calls.

Small models say that they are done and are not, stop after one failed result, or repeat a call. What
holds them to the work is here, bounded and journaled: each is a message that names the next action.
"""

from __future__ import annotations

from collections.abc import Sequence

from services.orchestrator import actions, guided, loopguard, owed
from services.orchestrator.agent import Agent
from services.orchestrator.durable.context import Run
from services.orchestrator.durable.faults import EmptyResponse, LoopDetected, TurnsExhausted
from services.orchestrator.loopguard import Advice
from shared.events.content import ToolCall
from shared.events.envelope import Fact
from shared.events.llm import LlmCompleted
from shared.transcript import message_of

MAX_SEND_BACKS = 4  # how often an answer without calls is sent back in a row
MAX_EMPTY = 2


async def react(run: Run, agent: Agent, *, turns: int) -> str:
    """Turns until the agent's reply is accepted; gives the reply.

    Raises:
        TurnsExhausted: `turns` were not enough.
        EmptyResponse, LoopDetected: the model is stuck.
    """
    for _ in range(turns):
        agent.turn += 1
        here = run.at(f"turn-{agent.turn}")
        answer = await agent.talk.ask(here, "llm", agent.turn)
        said = answer.event
        assert isinstance(said, LlmCompleted)
        if said.tool_calls:
            agent.empty = 0
            await _act(here, agent, said.tool_calls)
        elif not said.content.strip():
            await _nothing_said(here, agent, said)
        elif (problem := _not_done(agent)) and agent.sent_back < MAX_SEND_BACKS:
            agent.sent_back += 1
            await _send_back(here, agent, problem)
        else:
            return said.content
    still = f" Still missing: {owed.and_list(agent.missing())}." if agent.missing() else ""
    raise TurnsExhausted(f"{agent.node.name} used all its {turns} turns without a final answer.{still}", turns=turns)


def _not_done(agent: Agent) -> str | None:
    """Why a reply cannot be the end, as the next thing to do."""
    missing = agent.missing()
    if missing:
        return (
            f"You are not done: {owed.and_list(missing)} {'is' if len(missing) == 1 else 'are'} missing or empty in the workspace. "
            f"Call a tool now to create {'it' if len(missing) == 1 else 'them'}."
        )
    return None


async def _send_back(run: Run, agent: Agent, problem: str) -> None:
    """Say what is missing; the first time the next action is asked for under the schema of what may be done.

    A model that announces what it will do, or writes calls that nobody can read, so makes one that can.
    """
    if not (run.template.features.reask and agent.sent_back == 1 and agent.offer.tools):
        await agent.talk.say(run, "sent-back", "user", problem)
        return
    guide = guided.begin(agent, agent.task, run.template.features)
    await agent.talk.say(run, "sent-back", "user", f"{problem}\n{actions.introduction(guide.tools)}")
    await guided.one_action(run.at("reask"), guide)


async def _nothing_said(run: Run, agent: Agent, said: LlmCompleted) -> None:
    """An answer needs visible text: without it the turn failed, and is asked again a few times."""
    agent.empty += 1
    if agent.empty > MAX_EMPTY:
        why = "it used its tokens on reasoning; raise max_tokens" if said.reasoning else "it wrote nothing"
        raise EmptyResponse(f"{agent.node.name} gave {agent.empty} empty answers in a row: {why}.")
    tools = owed.and_list(agent.offer.names) if agent.offer.names else ""
    await agent.talk.say(run, "empty", "user", f"Your answer was empty. Call a tool ({tools}) or write your final answer.")


async def _act(run: Run, agent: Agent, calls: Sequence[ToolCall]) -> None:
    """Run the calls of one turn: neighbours that only read beside each other, all others in order."""
    wrong = [call.error for call in calls if call.error]
    for group in _groups([call for call in calls if not call.error], agent.offer.read_only):
        if len(group) == 1:
            await _one(run, agent, group[0])
            continue
        facts = await run.together(*(run.tool(f"tool/{call.call_id}", agent.node.id, call) for call in group))
        for call, fact in zip(group, facts, strict=True):
            _take(agent, call, fact)
    if wrong:
        await agent.talk.say(run, "wrong-calls", "user", " ".join(dict.fromkeys(wrong)))


async def _one(run: Run, agent: Agent, call: ToolCall) -> None:
    """One call, unless it only repeats what was answered already (KS 6.8)."""
    threshold = run.template.circuit_breaker.infinite_loop_threshold
    match loopguard.advise(agent.repeats, loopguard.key_of(call.name, call.arguments), threshold=threshold):
        case Advice.RUN:
            _take(agent, call, await run.tool(f"tool/{call.call_id}", agent.node.id, call))
        case Advice.TELL:
            agent.repeats = loopguard.told(agent.repeats)
            text = (
                f"{call.name} was called with the same arguments {threshold} times and returned the same:\n{agent.repeats.result[:500]}\n"
            )
            text += "It was not run again. Do something else, or write your final answer."
            await agent.talk.answer(run, f"repeated/{call.call_id}", call.call_id, text)
        case Advice.END:
            raise LoopDetected(f"{agent.node.name} repeats {call.name} with the same arguments and gets the same result each time.")


def _take(agent: Agent, call: ToolCall, fact: Fact) -> None:
    agent.talk.take(fact)
    agent.view = agent.view.after(fact)
    agent.repeats = loopguard.ran(agent.repeats, loopguard.key_of(call.name, call.arguments), str(message_of(fact)["content"]))


def _groups(calls: Sequence[ToolCall], read_only: frozenset[str]) -> list[list[ToolCall]]:
    """Calls that may run at the same time: neighbours that only read, and differ."""
    groups: list[list[ToolCall]] = []
    for call in calls:
        beside = groups and call.name in read_only and groups[-1][-1].name in read_only and call not in groups[-1]
        if beside:
            groups[-1].append(call)
        else:
            groups.append([call])
    return groups
