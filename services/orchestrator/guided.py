"""The loop of an agent whose model is asked action by action (feature O28; the same end as `loop.react`)."""

from __future__ import annotations

import difflib
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

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
from shared.template import Features
from shared.transcript import message_of

SHOWN = 500  # characters of a file that a call changed
NAMED_SHOWN = 1500  # characters of a file that the request names
LOOKED_AT = 700  # characters of a file in the look before the end
MAX_SHOWN = 4
MAX_UNREADABLE = 3
MAX_TOLD = 2
STOP = ("\n```",)


@dataclass
class Guide:
    """A guided agent at work."""

    agent: Agent
    tools: tuple[Tool, ...]
    progress: Progress
    features: Features
    done: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]])  # actions, with the workspace's age
    barred: set[str] = field(default_factory=set[str])
    kept_whole: set[str] = field(default_factory=set[str])  # files that a rewriting would have emptied: a second one may
    changes: int = 0
    looked: bool = False
    unreadable: int = 0
    told: Counter[str] = field(default_factory=Counter[str])  # faults of what it made, by how often it was told

    def tool(self, name: str) -> Tool | None:
        return next((tool for tool in self.tools if tool.name == name), None)

    def excuse(self) -> None:
        """Count the fault that is told now. A promise that it was told of twice is insisted on no more: it may be a wrong reading."""
        for fault in self.progress.faults[:1]:
            self.told[fault] += 1
            if self.told[fault] > MAX_TOLD:
                self.progress = replace(self.progress, excused=self.progress.excused | {fault})

    def see(self, fact: Fact) -> None:
        """Take in what a call did to the workspace."""
        self.agent.view = self.agent.view.after(fact)
        self.changes += len(getattr(fact.event, "changes", ()))
        self.progress = replace(self.progress, view=self.agent.view)


def begin(agent: Agent, request: str, features: Features) -> Guide:
    tools = actions.tools_of(agent.offer.tools, text_apart=features.text_apart)
    has_shell = any(tool.command for tool in tools)
    progress = guidance.started(request, agent.owes, agent.view, has_shell=has_shell, form_checked=features.form_checked)
    return Guide(agent, tools, progress, features)


async def show_named(run: Run, guide: Guide) -> None:
    """Show the files that the request names, before the first turn: they are what it is about."""
    named = guide.progress.named[:MAX_SHOWN] if guide.features.named_shown else ()
    shown = [await _shown(run, guide, name, NAMED_SHOWN) for name in named]
    if guide.progress.owes_tests and any("test" in name for name in guide.agent.view.files):
        shown.append("Start with the tests: python3 -m pytest -q")
    if shown:
        guide.progress = replace(guide.progress, inspected=True)
        await guide.agent.talk.say(run, "named", "user", "\n\n".join(shown))


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
            if guide.looked or not agent.view.changed or not guide.features.looked_over:
                return action.reply
            guide.looked = True
            await agent.talk.say(here, "look", "user", await _look(here, guide))
        elif guide.features.repeats_barred and (action.key, guide.changes) in guide.done:
            guide.barred.add(action.tool)
            await agent.talk.say(here, "repeated", "user", "You just did exactly that; the result is the same. Do something else.")
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
    progress, features = guide.progress, guide.features
    schema = actions.action_schema(
        guide.tools,
        may_finish=progress.may_finish or not features.gated_finish,
        barred=guide.barred | (guidance.useless(guide.tools, progress) if features.narrowed_paths else set()),
        narrow=guidance.paths_for(guide.tools, progress) if features.narrowed_paths else None,
        path_only=frozenset({"edit_file"}) if _edits_by_rewriting(guide) else frozenset(),
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


def _edits_by_rewriting(guide: Guide) -> bool:
    """A small model copies better than it quotes: as long as all files at hand are small, edits give them anew."""
    at_hand = guidance.paths_for(guide.tools, guide.progress).get("edit_file", [])
    return (
        guide.features.edits_rewrite
        and guide.tool("write_file") is not None
        and all(guidance.is_small(guide.progress.texts[name]) for name in at_hand)
    )


async def _act(run: Run, guide: Guide, action: Action) -> None:
    tool = guide.tool(action.tool)
    arguments = dict(action.arguments)
    path = str(arguments.get("path", ""))
    if tool is not None and ((tool.name == "edit_file" and "old" not in arguments) or _replaces(guide, tool, path)):
        await _rewrite(run, guide, path)
        return
    guide.done.add((action.key, guide.changes))
    if tool is not None and tool.asked_apart:
        arguments[tool.asked_apart] = await _new_text(run, guide, tool.asked_apart, path)
    await _call(run, guide, action.tool, arguments)


def _replaces(guide: Guide, tool: Tool, path: str) -> bool:
    """Whether a small file that it did not make would be written anew: what is not shown beside the question is lost."""
    old = guide.progress.texts.get(path) if guide.features.edits_rewrite else None
    is_its_own = path in guide.agent.view.changed or path in guide.kept_whole
    return tool.long_text is not None and old is not None and guidance.is_small(old) and not is_its_own


async def _call(run: Run, guide: Guide, name: str, arguments: dict[str, object], remark: str = "") -> None:
    """Run one tool and say what it did, what the changed files hold now, and what to do next."""
    agent, tool = guide.agent, guide.tool(name)
    call = ToolCall(call_id=place_id("call", run.run_id, run.path, "1"), name=name, arguments=arguments, source="guided")
    fact = await run.tool(f"tool/{call.call_id}", agent.node.id, call)
    before = guide.changes
    guide.see(fact)
    agent.talk.take(fact, form="text")
    worked = isinstance(fact.event, ToolCompleted) and not fact.event.is_error
    path = str(arguments.get("path", ""))
    wrote = path if tool is not None and tool.name in ("write_file", "edit_file") and worked else None
    command = str(arguments[tool.command]) if tool is not None and tool.command else None
    if wrote and tool is not None and tool.long_text:
        guide.progress = guide.progress.knows(wrote, str(arguments[tool.long_text]))
    if worked and name == "read_file":
        guide.progress = guide.progress.knows(path, str(message_of(fact)["content"]))
    _progress(guide, worked=worked, wrote=wrote, command=command, name=name)
    guide.barred.clear()
    guide.excuse()
    shown = [remark] if remark else []
    if guide.features.changes_shown and not wrote and guide.changes > before:
        shown += [await _shown(run, guide, name, SHOWN) for name in _changed_by(fact, guide)[:MAX_SHOWN]]
    shown.append(guidance.next_step(guide.progress, wrote, command) if guide.features.next_step_named else "Go on with the request.")
    await agent.talk.say(run, "next", "user", "\n".join(shown))


def _progress(guide: Guide, *, worked: bool, wrote: str | None, command: str | None, name: str) -> None:
    progress = guide.progress
    stale = wrote is not None and guidance.is_code(wrote)
    ran, tested = progress.ran and not stale, progress.tested and not stale
    if command and worked:
        ran, tested = True, tested or guidance.runs_tests(command)
    inspected = progress.inspected or (worked and name in ("read_file", "search_files", "run_shell"))
    guide.progress = replace(progress, failed=not worked, ran=ran, tested=tested, inspected=inspected)


def _changed_by(fact: Fact, guide: Guide) -> list[str]:
    changed = [change.path for change in getattr(fact.event, "changes", ())]
    return [path for path in changed if path in guide.agent.view.files]


async def _new_text(run: Run, guide: Guide, what: str, path: str) -> str:
    """The long text of an action, outside of JSON: quotes and newlines are where small models break it."""
    ask = f"Now give the whole {what} of {path} in one fenced code block, nothing else."
    if PurePosixPath(path).suffix in ("", ".txt"):  # where a bare answer goes; prose and data have a form of their own
        ask += " Where a path is asked for, give only the path; where a number, only the number."
    if path in guide.agent.view.filled and path not in guide.progress.texts:
        ask += f" It holds now:\n{await _shown(run, guide, path, NAMED_SHOWN)}"
    return await _text_for(run, guide, f"{ask} It must hold just what the request asks for it: {guide.progress.request}")


async def _rewrite(run: Run, guide: Guide, path: str) -> None:
    """Edit a small file by giving it anew; what was changed is told back as a difference."""
    if path in guide.agent.view.files and path not in guide.progress.texts:
        await _shown(run, guide, path, NAMED_SHOWN)
    old = guide.progress.texts.get(path, "")
    faults = " ".join(fault for fault in guide.progress.faults if fault.startswith(path))
    ask = (
        f"Now give the whole new content of {path} in one fenced code block: change only what the request needs, keep every other line "
        f"as it is. {faults} The request: {guide.progress.request}\n{path} holds now:\n```\n{old}\n```"
    )
    new = await _text_for(run, guide, ask)
    its_own = path in guide.agent.view.changed and path not in guide.progress.named
    if new.strip() == old.strip() or (len(new) < len(old) / 2 and not its_own):
        guide.barred.add("edit_file")
        guide.kept_whole.add(path)
        guide.progress = replace(guide.progress, failed=True)
        why = "is still the same: nothing was changed" if new.strip() == old.strip() else "would lose most of its content; it is unchanged"
        await guide.agent.talk.say(run, "unchanged", "user", f"{path} {why}. {guidance.next_step(guide.progress, None, None)}")
        return
    await _call(run, guide, "write_file", {"path": path, "content": new}, f"What changed:\n{_difference(old, new)}")


def _difference(old: str, new: str) -> str:
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=0)
    return "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))[:600]


async def _text_for(run: Run, guide: Guide, ask: str) -> str:
    """One fenced block from the model; asked for once more without the stop when none came, or an action in its place."""
    talk, turn = guide.agent.talk, guide.agent.turn
    await talk.say(run, "text", "user", ask)
    answer = await talk.ask(run, "llm-text", turn, tools=False, stop=STOP)
    assert isinstance(answer.event, LlmCompleted)
    text = actions.fenced_text(answer.event.content)
    slip = actions.read_action(text)
    if text and (slip is None or (slip.reply is None and guide.tool(slip.tool) is None)):
        return text
    problem = "That was a tool call." if text else "That block was empty."
    await talk.say(run, "text-again", "user", f"{problem} Give the whole content in one fenced code block.")
    answer = await talk.ask(run, "llm-text-again", turn, tools=False)
    assert isinstance(answer.event, LlmCompleted)
    return actions.fenced_text(answer.event.content)


async def _look(run: Run, guide: Guide) -> str:
    """What it made, next to the request, once before the first finish counts."""
    parts = [f"Before you finish, check your work against the request: {guide.progress.request}"]
    parts += [await _shown(run, guide, name, LOOKED_AT) for name in guide.agent.view.written[:MAX_SHOWN]]
    return "\n\n".join([*parts, "If anything is missing or wrong, correct it now; if all is right, finish."])


async def _shown(run: Run, guide: Guide, path: str, limit: int) -> str:
    """What a file holds, read by an ordinary tool call of the engine's own."""
    if "read_file" not in guide.agent.offer.names:
        return f"{path} was changed."
    call = ToolCall(
        call_id=place_id("call", run.run_id, run.path, "show", path), name="read_file", arguments={"path": path}, source="engine"
    )
    fact = await run.tool(f"show/{path}", guide.agent.node.id, call)
    text = str(message_of(fact)["content"])
    if isinstance(fact.event, ToolCompleted) and not fact.event.is_error:
        guide.progress = guide.progress.knows(path, text)
    cut = f"\n[cut: {len(text) - limit} more characters]" if len(text) > limit else ""
    return f"{path} now holds:\n```\n{text[:limit]}{cut}\n```"
