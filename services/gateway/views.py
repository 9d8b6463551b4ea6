"""What callers see: runs and their answers, camelCase. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from shared.events.content import Usage
from shared.events.envelope import Fact
from shared.runlog import line_of
from shared.runstate import RunState, Status


class View(BaseModel):
    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True)

    def as_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json", by_alias=True)


class StepView(View):
    key: str
    agent: str
    title: str
    status: str
    started_at: datetime
    ended_at: datetime | None
    reason: str
    files: tuple[str, ...]


class UsageView(View):
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


class RunView(View):
    """A run as its facts up to `seq` tell it."""

    run_guid: str
    project_id: int
    template_id: str
    status: Status
    message: str
    source_agent: str
    owner: str
    resumes: int
    submitted_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    turns: int
    model_calls: int
    model_calls_done: int
    tool_calls: int
    tool_calls_done: int
    usage: UsageView
    steps: tuple[StepView, ...]
    response: str
    reason: str
    code: str
    files: tuple[str, ...]
    cancel_requested: bool
    seq: int
    workspace: str


def run_view(state: RunState, workspaces: Path) -> RunView:
    same = {name: getattr(state, name) for name in RunView.model_fields if hasattr(state, name)}
    own = {
        "run_guid": state.run_id,
        "usage": usage_view(state.usage),
        "steps": tuple(StepView.model_validate(step, from_attributes=True) for step in state.steps.values()),
        "response": state.reply,
        "workspace": str(workspaces / str(state.project_id)),
    }
    return RunView.model_validate({**same, **own})


def usage_view(usage: Usage) -> UsageView:
    return UsageView(prompt_tokens=usage.prompt_tokens, completion_tokens=usage.completion_tokens, cached_tokens=usage.cached_tokens)


def answer(state: RunState, response: str, *, is_new_project: bool) -> dict[str, Any]:
    """What the synchronous endpoints return."""
    body: dict[str, Any] = {
        "success": state.status is Status.COMPLETED,
        "projectId": state.project_id,
        "runGuid": state.run_id,
        "status": str(state.status),
        "message": _sentence(state, is_new_project=is_new_project),
        "response": response,
    }
    return body | ({"reason": state.reason} if state.reason else {})


def _sentence(state: RunState, *, is_new_project: bool) -> str:
    match state.status:
        case Status.COMPLETED:
            return "Project created and build completed." if is_new_project else "Build completed."
        case Status.FAILED:
            return f"The build failed: {state.reason}"
        case Status.CANCELLED:
            return "The build was cancelled."
        case Status.PARKED:
            return f"The engine itself failed; the run goes on when it is mended: {state.reason}"
        case Status.QUEUED | Status.RUNNING:
            return "Accepted."


def log_lines(facts: Sequence[Fact]) -> list[dict[str, Any]]:
    """The build log of a run."""
    lines = ((fact, line_of(fact)) for fact in facts)
    return [{"seq": fact.seq, "time": fact.time, "type": fact.type, "runGuid": fact.scope, "text": text} for fact, text in lines if text]


def log_text(lines: Sequence[dict[str, Any]]) -> str:
    return "".join(f"{line['time']:%Y-%m-%dT%H:%M:%S.%f}Z  {line['text']}\n" for line in lines)
