"""One agent at work: its conversation, and what it knows of the workspace. Shared by both kinds of turns."""

from __future__ import annotations

from dataclasses import dataclass, field

from services.orchestrator import owed, workspace_view
from services.orchestrator.conversation import Conversation
from services.orchestrator.durable.context import Offer, Run
from services.orchestrator.loopguard import Repeats
from services.orchestrator.workspace_view import WorkspaceView
from shared.events.content import ToolCall
from shared.events.tool import ToolCompleted
from shared.ids import place_id
from shared.template import Node
from shared.transcript import message_of


@dataclass
class Agent:
    """What a loop keeps between turns; rebuilt by every replay, so nothing of it is stored."""

    node: Node
    offer: Offer
    talk: Conversation
    task: str = ""
    view: WorkspaceView = field(default_factory=WorkspaceView)
    owes: tuple[str, ...] = ()
    repeats: Repeats = field(default_factory=Repeats)
    turn: int = 0
    sent_back: int = 0
    empty: int = 0

    def missing(self) -> tuple[str, ...]:
        return owed.missing(self.owes, self.view.filled)


async def begin(run: Run, node: Node, offer: Offer, system: str, task: str) -> Agent:
    """Open an agent's conversation: system prompt, then the task with the files that are there."""
    agent = Agent(node, offer, Conversation(node, offer), task)
    agent.view = await _look(run, node, offer)
    features = run.template.features
    if features.hold_to_request:
        agent.owes = owed.owed_by(task, node.required_output, agent.view.files)
    await agent.talk.say(run, "system", "system", system)
    listing = f"\n\n{workspace_view.as_text(agent.view)}" if features.files_listed and "list_files" in offer.names else ""
    await agent.talk.say(run, "task", "user", f"{task}{listing}")
    return agent


async def _look(run: Run, node: Node, offer: Offer) -> WorkspaceView:
    """What the workspace holds at the start, by an ordinary tool call of the engine's own."""
    if "list_files" not in offer.names:
        return WorkspaceView()
    call = ToolCall(call_id=place_id("call", run.run_id, run.path, "look"), name="list_files", arguments={}, source="engine")
    fact = await run.tool("look", node.id, call)
    ok = isinstance(fact.event, ToolCompleted) and not fact.event.is_error
    return workspace_view.of_listing(str(message_of(fact)["content"])) if ok else WorkspaceView()
