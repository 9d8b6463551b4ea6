"""The one fold: what a run is, from its facts. Pure; used by recorder, gateway, CLI, orchestrator and tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from shared.events import llm, run, signal, tool
from shared.events.content import Usage
from shared.events.envelope import Event, Fact


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


@dataclass(frozen=True)
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


Changes = Mapping[str, Any]
"""Fields of `RunState` with their new values."""

Rule = Callable[[RunState, Any, Fact], Changes]
"""What an event of one type changes: the state before it, the event, and the fact that holds it."""

_RULES: dict[type[Event], Rule] = {}


def evolve(state: RunState, fact: Fact) -> RunState:
    """Apply one fact. No rules of behaviour here: whatever was recorded did happen."""
    after = copy(state)
    _apply(after, fact)
    return after


def fold(run_id: str, facts: Iterable[Fact]) -> RunState:
    """The state of a run from all its facts, in order."""
    state = RunState(run_id)
    for fact in facts:
        _apply(state, fact)  # in place: nobody has seen it yet, and a copy for each fact is most of a long run's time
    return state


def _apply(state: RunState, fact: Fact) -> None:
    fields = state.__dict__
    rule = _RULES.get(type(fact.event))
    if rule is not None:
        fields.update(rule(state, fact.event, fact))
    if fact.seq > state.seq:
        fields["seq"] = fact.seq


def _on(*events: type[Event]) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        _RULES.update(dict.fromkeys(events, rule))
        return rule

    return register


@_on(run.RunSubmitted)
def _submitted(_: RunState, event: run.RunSubmitted, fact: Fact) -> Changes:
    return {
        "project_id": event.project_id,
        "template_id": event.template_id,
        "message": event.message,
        "source_agent": event.source_agent,
        "submitted_at": fact.time,
    }


@_on(run.RunStarted)
def _started(_: RunState, event: run.RunStarted, fact: Fact) -> Changes:
    return {"status": Status.RUNNING, "owner": event.owner, "started_at": fact.time}


@_on(run.RunResumed)
def _resumed(state: RunState, event: run.RunResumed, _: Fact) -> Changes:
    return {"status": Status.RUNNING, "owner": event.owner, "resumes": state.resumes + 1}


@_on(run.RunParked)
def _parked(_: RunState, event: run.RunParked, __: Fact) -> Changes:
    return {"status": Status.PARKED, "reason": event.reason}


@_on(run.LlmRequested)
def _model_asked(state: RunState, event: run.LlmRequested, _: Fact) -> Changes:
    return {"model_calls": state.model_calls + 1, "turns": max(state.turns, event.turn)}


@_on(llm.LlmCompleted)
def _model_answered(state: RunState, event: llm.LlmCompleted, _: Fact) -> Changes:
    return {"model_calls_done": state.model_calls_done + 1, "usage": add_usage(state.usage, event.usage)}


@_on(llm.LlmFailed)
def _model_failed(state: RunState, _: llm.LlmFailed, __: Fact) -> Changes:
    return {"model_calls_done": state.model_calls_done + 1}


@_on(run.ToolRequested)
def _tool_asked(state: RunState, _: run.ToolRequested, __: Fact) -> Changes:
    return {"tool_calls": state.tool_calls + 1}


@_on(tool.ToolCompleted, tool.ToolDenied, tool.ToolFailed, tool.ToolInterrupted)
def _tool_ended(state: RunState, _: Event, __: Fact) -> Changes:
    return {"tool_calls_done": state.tool_calls_done + 1}


@_on(signal.CancelRequested)
def _cancel_asked(_: RunState, __: signal.CancelRequested, ___: Fact) -> Changes:
    return {"cancel_requested": True}


@_on(run.StepStarted)
def _step_started(state: RunState, event: run.StepStarted, fact: Fact) -> Changes:
    return _with_step(state, Step(event.key, event.agent, event.title, "running", fact.time))


@_on(run.StepCompleted)
def _step_completed(state: RunState, event: run.StepCompleted, fact: Fact) -> Changes:
    return _with_step(state, replace(_known(state, event.key, fact), status="completed", ended_at=fact.time, files=event.files))


@_on(run.StepFailed)
def _step_failed(state: RunState, event: run.StepFailed, fact: Fact) -> Changes:
    return _with_step(state, replace(_known(state, event.key, fact), status="failed", ended_at=fact.time, reason=event.reason))


def _with_step(state: RunState, step: Step) -> Changes:
    return {"steps": MappingProxyType({**state.steps, step.key: step})}


def _known(state: RunState, key: str, fact: Fact) -> Step:
    """The step at `key`; one whose start has left the log is known from its end alone."""
    return state.steps.get(key) or Step(key, "", "", "running", fact.time)


@_on(run.RunCompleted)
def _completed(_: RunState, event: run.RunCompleted, fact: Fact) -> Changes:
    return {"status": Status.COMPLETED, "ended_at": fact.time, "reply": event.reply, "files": event.files}


@_on(run.RunFailed)
def _failed(_: RunState, event: run.RunFailed, fact: Fact) -> Changes:
    return {"status": Status.FAILED, "ended_at": fact.time, "reason": event.reason, "code": event.code, "files": event.files}


@_on(run.RunCancelled)
def _cancelled(_: RunState, event: run.RunCancelled, fact: Fact) -> Changes:
    return {"status": Status.CANCELLED, "ended_at": fact.time, "reason": event.reason}


def add_usage(left: Usage, right: Usage) -> Usage:
    return Usage(
        prompt_tokens=left.prompt_tokens + right.prompt_tokens,
        completion_tokens=left.completion_tokens + right.completion_tokens,
        cached_tokens=left.cached_tokens + right.cached_tokens,
    )
