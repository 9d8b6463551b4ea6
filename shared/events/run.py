"""Facts of a run: its journal. Written by the orchestrator that owns the run; `submitted` by the gateway."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import AwareDatetime, Field, NonNegativeInt, PositiveFloat, PositiveInt

from shared.errors import Verdict
from shared.events.content import BlobRef, Budgets, MessageRef, Pins, Sampling, SeedFile, Usage
from shared.events.envelope import Event


class RunSubmitted(Event):
    """Somebody asked a team to do something. The run keeps what is pinned here to its end."""

    TYPE: ClassVar[str] = "run.submitted"

    project_id: PositiveInt
    template_id: str
    template: BlobRef  # the resolved template, as canonical JSON
    message: str
    pins: Pins
    budgets: Budgets = Budgets()
    model: str | None = None  # override of every node's model
    sampling: Sampling = Sampling()  # override of every node's sampling
    source_agent: str = "ui"
    request_digest: str = ""  # of the request body, to tell a retry from another request
    files: tuple[SeedFile, ...] = ()  # laid into the workspace before the run's first tool call


class RunStarted(Event):
    """An orchestrator took the run for the first time."""

    TYPE: ClassVar[str] = "run.started"

    owner: str
    engine: str


class RunResumed(Event):
    """An orchestrator took the run over, having read every fact before this one."""

    TYPE: ClassVar[str] = "run.resumed"

    owner: str
    engine: str
    reason: str = ""


class MessageAdded(Event):
    """A message of a conversation that no other fact holds: system, user, summary, injected context."""

    TYPE: ClassVar[str] = "run.message_added"

    key: str
    agent: str
    role: str
    content: str = ""
    tool_call_id: str | None = None  # role `tool`: the call that was not run, and is answered by this


class ToolsOffered(Event):
    """The tool schemas that an agent's calls are made with, in the OpenAI form."""

    TYPE: ClassVar[str] = "run.tools_offered"

    key: str
    agent: str
    tools: tuple[dict[str, Any], ...] = ()
    read_only: tuple[str, ...] = ()  # those that may run beside each other
    catalogue: str = ""


class ModelProfiled(Event):
    """What the scheduler knows of the model that an agent's calls will reach (feature O28)."""

    TYPE: ClassVar[str] = "run.model_profiled"

    key: str
    agent: str
    model: str = ""
    guided: bool = False  # asked action by action under a JSON schema
    source: str = "default"


class LlmRequested(Event):
    """A model call that must be answered by a fact of `llm.<run>`.

    The prompt is that of the call at sequence `extends`, if any, followed by the messages of `adds`;
    `prefix_digest` covers all of it.
    """

    TYPE: ClassVar[str] = "run.llm_requested"

    key: str
    call_id: str
    agent: str
    turn: NonNegativeInt = 0
    extends: int | None = None
    adds: tuple[MessageRef, ...] = ()
    tools_seq: int | None = None
    model: str | None = None
    slot: str | None = None
    sampling: Sampling = Sampling()
    response_format: dict[str, Any] | None = None
    stop: tuple[str, ...] = ()
    prefix_digest: str = ""
    priority: str = "normal"
    timeout_s: PositiveFloat = 600.0


class ToolRequested(Event):
    """A tool call that must be answered by a fact of `tool.<run>`."""

    TYPE: ClassVar[str] = "run.tool_requested"

    key: str
    call_id: str
    agent: str
    tool: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    arguments_blob: BlobRef | None = None


class StepStarted(Event):
    """A unit of work of one agent began."""

    TYPE: ClassVar[str] = "run.step_started"

    key: str
    agent: str
    title: str = ""


class StepCompleted(Event):
    TYPE: ClassVar[str] = "run.step_completed"

    key: str
    files: tuple[str, ...] = ()


class StepFailed(Event):
    TYPE: ClassVar[str] = "run.step_failed"

    key: str
    code: str
    reason: str


class Noted(Event):
    """Something that a reader of the run should know; `tag` as the seeds log it, such as `SINGLE-GATE`."""

    TYPE: ClassVar[str] = "run.noted"

    key: str
    tag: str
    text: str


class TimerSet(Event):
    TYPE: ClassVar[str] = "run.timer_set"

    key: str
    fires_at: AwareDatetime


class TimerFired(Event):
    TYPE: ClassVar[str] = "run.timer_fired"

    key: str


class BudgetRefused(Event):
    """A call was not made because it could have exceeded a hard budget (feature O29)."""

    TYPE: ClassVar[str] = "run.budget_refused"

    key: str
    budget: str
    limit: float
    used: float


class VersionChosen(Event):
    """Which version of a changed code path this run follows, to its end (feature O30)."""

    TYPE: ClassVar[str] = "run.version_chosen"

    key: str
    version: PositiveInt


class Interrupted(Event):
    """The run's code was stopped from outside at this point: `cancel` or `deadline`."""

    TYPE: ClassVar[str] = "run.interrupted"

    cause: str
    reason: str = ""


class RunParked(Event):
    """The engine's own code failed. The run goes on when the code is mended; nothing was lost."""

    TYPE: ClassVar[str] = "run.parked"

    reason: str
    error: str = ""


class RunCompleted(Event):
    """The work is done; `seen` covers what was answered after the last model call was asked."""

    TYPE: ClassVar[str] = "run.completed"

    reply: str = ""
    reply_blob: BlobRef | None = None
    files: tuple[str, ...] = ()
    usage: Usage = Usage()
    seen: tuple[MessageRef, ...] = ()


class RunFailed(Event):
    """The run ended without its work done, for the reason stated."""

    TYPE: ClassVar[str] = "run.failed"

    code: str
    reason: str
    verdict: Verdict = Verdict.FINAL
    files: tuple[str, ...] = ()
    usage: Usage = Usage()
    seen: tuple[MessageRef, ...] = ()


class RunCancelled(Event):
    """The run stopped because somebody asked for it."""

    TYPE: ClassVar[str] = "run.cancelled"

    reason: str = ""
    usage: Usage = Usage()
    seen: tuple[MessageRef, ...] = ()


TERMINAL = (RunCompleted, RunFailed, RunCancelled)
