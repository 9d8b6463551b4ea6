"""The loop of an agent whose model is asked action by action (feature O28; the same end as `loop.react`)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from services.orchestrator import actions, guidance
from services.orchestrator.actions import Action, Tool
from services.orchestrator.agent import Agent
from services.orchestrator.durable.context import Run
from services.orchestrator.durable.faults import EmptyResponse, TurnsExhausted
from services.orchestrator.guidance import Progress
from shared.events.content import ToolCall
from shared.events.envelope import Fact
from shared.events.llm import LlmCompleted
from shared.events.tool import ToolCompleted
from shared.ids import place_id
from shared.transcript import message_of

SHOWN = 500  # characters of a file that a call changed
LOOKED_AT = 700  # characters of a file in the look before the end
MAX_SHOWN = 3
MAX_UNREADABLE = 3
STOP = ("\n```",)


@dataclass
class Guide:
    """A guided agent at work."""

    agent: Agent
    tools: tuple[Tool, ...]
    progress: Progress
    last: Action | None = None
    barred: str | None = None
    looked: bool = False
    unreadable: int = 0
    shown: set[str] = field(default_factory=set[str])

    def see(self, fact: Fact) -> None:
        self.agent.view = self.agent.view.after(fact)
        self.progress = replace(self.progress, view=self.agent.view)


def begin(agent: Agent, request: str) -> Guide:
    tools = actions.tools_of(agent.offer.tools)
    has_shell = any(tool.command for tool in tools)
    return Guide(agent, tools, Progress(request, agent.owes, agent.view, has_shell))


async def react(run: Run, guide: Guide, *, turns: int) -> str:
    """Turns until the agent finishes where it may; gives its reply.

    Raises:
        TurnsExhausted: `turns` were not enough.
        EmptyResponse: the model does not write actions, in spite of the schema.
    """
    agent = guide.agent
    for _ in range(turns):
        agent.turn += 1
        here = run.at(f"turn-{agent.turn}")
        action = await _choose(here, guide)
        if action is None:
            continue
        if action.reply is not None:
            if guide.looked or not agent.view.changed:
                return action.reply
            guide.looked = True
            await agent.talk.say(here, "look", "user", await _look(here, guide))
        elif action == guide.last:
            guide.barred = action.tool
            await agent.talk.say(here, "repeated", "user", "You just did exactly that; the result would be the same. Do something else.")
        else:
            await _act(here, guide, action)
    still = f" Still missing: {', '.join(guide.progress.missing)}." if guide.progress.missing else ""
    raise TurnsExhausted(f"{agent.node.name} used all its {turns} turns without a final answer.{still}", turns=turns)


async def one_action(run: Run, guide: Guide) -> None:
    """A single guided turn inside a native conversation."""
    action = await _choose(run, guide)
    if action is not None and action.reply is None:
        await _act(run, guide, action)


async def _choose(run: Run, guide: Guide) -> Action | None:
    """The model's next action, sampled under the schema of what may be done now."""
    progress = guide.progress
    schema = actions.action_schema(
        guide.tools, may_finish=progress.may_finish, barred=guide.barred, narrow=guidance.paths_for(guide.tools, progress)
    )
    answer = await guide.agent.talk.ask(run, "llm", guide.agent.turn, response_format=schema, tools=False)
    assert isinstance(answer.event, LlmCompleted)
    action = actions.read_action(answer.event.content)
    if action is not None:
        guide.unreadable = 0
        return action
    guide.unreadable += 1
    if guide.unreadable > MAX_UNREADABLE:
        raise EmptyResponse(f"{guide.agent.node.name} gave {guide.unreadable} answers in a row that are no whole JSON object.")
    await guide.agent.talk.say(run, "unreadable", "user", "That was not one whole JSON object. Answer with a shorter one.")
    return None


async def _act(run: Run, guide: Guide, action: Action) -> None:
    agent, tool = guide.agent, next((tool for tool in guide.tools if tool.name == action.tool), None)
    arguments = dict(action.arguments)
    if tool is not None and tool.long_text:
        arguments[tool.long_text] = await _ask_for_text(run, guide, tool, action)
    call = ToolCall(call_id=place_id("call", run.run_id, run.path, "1"), name=action.tool, arguments=arguments, source="guided")
    fact = await run.tool(f"tool/{call.call_id}", agent.node.id, call)
    before = agent.view
    guide.see(fact)
    agent.talk.take(fact, form="text")
    worked = isinstance(fact.event, ToolCompleted) and not fact.event.is_error
    wrote = str(action.arguments.get("path", "")) if tool is not None and tool.long_text and worked else None
    command = str(action.arguments[tool.command]) if tool is not None and tool.command and worked else None
    ran = bool(command) or (guide.progress.ran and not (wrote and guidance.is_code(wrote)))
    guide.progress = replace(guide.progress, failed=not worked, ran=ran)
    guide.last, guide.barred = action, None
    made = () if wrote else tuple(sorted(agent.view.changed - before.changed))
    shown = [await _shown(run, guide, name, SHOWN) for name in made[:MAX_SHOWN]]
    await agent.talk.say(run, "next", "user", "\n".join([*shown, guidance.next_step(guide.progress, wrote, command)]))


async def _ask_for_text(run: Run, guide: Guide, tool: Tool, action: Action) -> str:
    """The long text of an action, outside of JSON: quotes and newlines are where small models break it."""
    path = action.arguments.get("path", tool.long_text)
    ask = f"Now give the whole {tool.long_text} of {path} in one fenced code block, nothing else."
    if isinstance(path, str) and path in guide.agent.view.files and path not in guide.shown:
        ask += f" It holds now:\n{await _shown(run, guide, path, SHOWN * 3)}"
    await guide.agent.talk.say(run, "text", "user", ask)
    answer = await guide.agent.talk.ask(run, "llm-text", guide.agent.turn, tools=False, stop=STOP)
    assert isinstance(answer.event, LlmCompleted)
    if isinstance(path, str):
        guide.shown.add(path)
    return actions.fenced_text(answer.event.content)


async def _look(run: Run, guide: Guide) -> str:
    """What it made, next to the request, once before the first finish counts."""
    parts = [f"Before you finish, check your work against the request: {guide.progress.request}"]
    parts += [await _shown(run, guide, name, LOOKED_AT) for name in guide.agent.view.written[:MAX_SHOWN]]
    return "\n\n".join([*parts, "If anything is missing or wrong, correct it now; if all is right, finish."])


async def _shown(run: Run, guide: Guide, path: str, limit: int) -> str:
    """What a file holds, read by an ordinary tool call of the engine's own."""
    call = ToolCall(
        call_id=place_id("call", run.run_id, run.path, "show", path), name="read_file", arguments={"path": path}, source="engine"
    )
    if "read_file" not in guide.agent.offer.names:
        return f"{path} was changed."
    fact = await run.tool(f"show/{path}", guide.agent.node.id, call)
    guide.shown.add(path)
    text = str(message_of(fact)["content"])
    return f"{path} now holds:\n```\n{text[:limit]}\n```"
