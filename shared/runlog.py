"""How a run reads to a person: one line per fact that matters. Pure; used by the gateway's build log and the CLI."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from shared.events import llm, run, signal, tool
from shared.events.envelope import Fact

WIDTH = 100


def line_of(fact: Fact) -> str | None:
    """The line of a fact; None for those that say nothing to a reader.

    Texts are one line, cut at `WIDTH`.
    """
    return _of_the_run(fact) or _of_its_work(fact)


def _of_the_run(fact: Fact) -> str | None:
    match fact.event:
        case run.RunSubmitted() as event:
            return f"submitted: {short(event.message)}"
        case run.RunStarted(owner=owner):
            return f"started by {owner}"
        case run.RunResumed(owner=owner, reason=reason):
            return f"resumed by {owner}" + (f": {short(reason)}" if reason else "")
        case run.RunParked(reason=reason):
            return f"parked: {short(reason)}"
        case run.RunCompleted():
            return "completed"
        case run.RunFailed(reason=reason, code=code):
            return f"failed ({code}): {short(reason)}"
        case run.RunCancelled(reason=reason):
            return "cancelled" + (f": {short(reason)}" if reason else "")
        case run.BudgetRefused() as event:
            return f"budget {event.budget} refused a call: {event.used:g} of {event.limit:g} used"
        case signal.CancelRequested(reason=reason):
            return "cancel requested" + (f": {short(reason)}" if reason else "")
        case _:
            return None


def _of_its_work(fact: Fact) -> str | None:
    match fact.event:
        case run.StepStarted(key=key, title=title):
            return f"step {key} started" + (f": {short(title)}" if title else "")
        case run.StepCompleted(key=key, files=files):
            return f"step {key} completed" + (f", wrote {', '.join(files)}" if files else "")
        case run.StepFailed(key=key, reason=reason):
            return f"step {key} failed: {short(reason)}"
        case run.Noted(tag=tag, text=text):
            return f"[{tag}] {short(text)}"
        case run.LlmRequested(agent=agent, turn=turn):
            return f"{agent} asks the model" + (f" (turn {turn})" if turn else "")
        case run.ToolRequested(agent=agent, tool=name, arguments=arguments):
            return f"{agent} calls {call(name, arguments)}"
        case _:
            return _of_its_answers(fact)


def _of_its_answers(fact: Fact) -> str | None:
    match fact.event:
        case llm.LlmQueued(position=position, reason=reason):
            return f"the model call waits, number {position}" + (f": {short(reason)}" if reason else "")
        case llm.LlmRetried(reason=reason):
            return f"the model call is made again: {short(reason)}"
        case llm.LlmCompleted() as event:
            what = f"calls {', '.join(each.name for each in event.tool_calls)}" if event.tool_calls else f"says: {short(event.content)}"
            return f"the model {what} ({event.usage.completion_tokens} tokens, {event.duration_ms / 1000:.1f} s)"
        case llm.LlmFailed(code=code, message=message):
            return f"the model call failed ({code}): {short(message)}"
        case tool.FilesLaid(files=files):
            return f"the workspace got {short(', '.join(files) or 'no new files')}"
        case tool.ToolDenied(tool=name, message=message):
            return f"{name} was denied: {short(message)}"
        case tool.ToolCompleted() as event:
            return f"{event.tool} {'refused' if event.is_error else 'answered'}: {short(event.content)} ({event.duration_ms / 1000:.1f} s)"
        case tool.ToolFailed(tool=name, message=message) | tool.ToolInterrupted(tool=name, message=message):
            return f"{name} failed: {short(message)}"
        case _:
            return None


def call(name: str, arguments: Mapping[str, Any], width: int = WIDTH) -> str:
    """A tool call with its arguments, each cut so that all of them show.

    >>> call("run_shell", {"command": "ls -l"})
    'run_shell(command="ls -l")'
    """
    each = max(20, width // max(1, len(arguments)))
    shown = (f"{key}={short(orjson.dumps(value, default=str).decode(), each)}" for key, value in arguments.items())
    return f"{name}({', '.join(shown)})"


def short(text: str, width: int = WIDTH) -> str:
    """`text` as one line of at most `width` characters.

    >>> short("one\\n  two", 20)
    'one two'
    """
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"
