"""The one fold: what a run is, from its facts. Pure; used by recorder, gateway, CLI, orchestrator and tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from functools import reduce
from types import MappingProxyType

from shared.events import llm, run, signal, tool
from shared.events.content import Usage
from shared.events.envelope import Fact


class Status(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    PARKED = "parked"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        return self in (Status.COMPLETED, Status.FAILED, Status.CANCELLED)


@dataclass(frozen=True, slots=True)
class Step:
    key: str
    agent: str
    title: str
    status: str
    started_at: datetime
    ended_at: datetime | None = None
    reason: str = ""
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunState:
    """A run as its facts up to `seq` tell it."""

    run_id: str
    status: Status = Status.QUEUED
    project_id: int = 0
    template_id: str = ""
    message: str = ""
    source_agent: str = ""
    owner: str = ""
    resumes: int = 0
    submitted_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    turns: int = 0
    model_calls: int = 0
    model_calls_done: int = 0
    tool_calls: int = 0
    tool_calls_done: int = 0
    usage: Usage = field(default_factory=Usage)
    steps: Mapping[str, Step] = field(default_factory=lambda: MappingProxyType(dict[str, Step]()))
    reply: str = ""
    reason: str = ""
    code: str = ""
    files: tuple[str, ...] = ()
    cancel_requested: bool = False
    seq: int = 0


def evolve(state: RunState, fact: Fact) -> RunState:
    """Apply one fact. No rules here: whatever was recorded did happen."""
    changed = _evolve(state, fact)
    return replace(changed, seq=max(state.seq, fact.seq))


def _evolve(state: RunState, fact: Fact) -> RunState:
    match fact.event:
        case run.RunSubmitted() as event:
            return replace(
                state,
                project_id=event.project_id,
                template_id=event.template_id,
                message=event.message,
                source_agent=event.source_agent,
                submitted_at=fact.time,
            )
        case run.RunStarted(owner=owner):
            return replace(state, status=Status.RUNNING, owner=owner, started_at=fact.time)
        case run.RunResumed(owner=owner):
            return replace(state, status=Status.RUNNING, owner=owner, resumes=state.resumes + 1)
        case run.RunParked(reason=reason):
            return replace(state, status=Status.PARKED, reason=reason)
        case run.LlmRequested(turn=turn):
            return replace(state, model_calls=state.model_calls + 1, turns=max(state.turns, turn))
        case run.ToolRequested():
            return replace(state, tool_calls=state.tool_calls + 1)
        case run.StepStarted() | run.StepCompleted() | run.StepFailed():
            return _step(state, fact)
        case run.RunCompleted() | run.RunFailed() | run.RunCancelled():
            return _end(state, fact)
        case llm.LlmCompleted(usage=usage):
            return replace(state, usage=add_usage(state.usage, usage), model_calls_done=state.model_calls_done + 1)
        case llm.LlmFailed():
            return replace(state, model_calls_done=state.model_calls_done + 1)
        case tool.ToolCompleted() | tool.ToolDenied() | tool.ToolFailed() | tool.ToolInterrupted():
            return replace(state, tool_calls_done=state.tool_calls_done + 1)
        case signal.CancelRequested():
            return replace(state, cancel_requested=True)
        case _:
            return state


def _step(state: RunState, fact: Fact) -> RunState:
    match fact.event:
        case run.StepStarted() as event:
            step = Step(event.key, event.agent, event.title, "running", fact.time)
        case run.StepCompleted() as event:
            step = replace(_known(state, event.key, fact), status="completed", ended_at=fact.time, files=event.files)
        case run.StepFailed() as event:
            step = replace(_known(state, event.key, fact), status="failed", ended_at=fact.time, reason=event.reason)
        case _:
            return state
    return replace(state, steps=MappingProxyType({**state.steps, step.key: step}))


def _known(state: RunState, key: str, fact: Fact) -> Step:
    """The step at `key`; one whose start has left the log is known from its end alone."""
    return state.steps.get(key) or Step(key, "", "", "running", fact.time)


def _end(state: RunState, fact: Fact) -> RunState:
    ended = replace(state, ended_at=fact.time)
    match fact.event:
        case run.RunCompleted() as event:
            return replace(ended, status=Status.COMPLETED, reply=event.reply, files=event.files)
        case run.RunFailed() as event:
            return replace(ended, status=Status.FAILED, reason=event.reason, code=event.code, files=event.files)
        case run.RunCancelled() as event:
            return replace(ended, status=Status.CANCELLED, reason=event.reason)
        case _:
            return state


def fold(run_id: str, facts: Iterable[Fact]) -> RunState:
    """The state of a run from all its facts, in order."""
    return reduce(evolve, facts, RunState(run_id))


def add_usage(left: Usage, right: Usage) -> Usage:
    return Usage(
        prompt_tokens=left.prompt_tokens + right.prompt_tokens,
        completion_tokens=left.completion_tokens + right.completion_tokens,
        cached_tokens=left.cached_tokens + right.cached_tokens,
    )
