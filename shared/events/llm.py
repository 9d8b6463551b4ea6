"""Facts of model calls, one aggregate per run. Written by the scheduler."""

from __future__ import annotations

from typing import ClassVar

from pydantic import NonNegativeInt

from shared.errors import Verdict
from shared.events.content import BlobRef, ToolCall, Usage
from shared.events.envelope import Event


class LlmQueued(Event):
    """The call waits; `position` 1 is next. Written only when a call could not be sent at once."""

    TYPE: ClassVar[str] = "llm.queued"

    call_id: str
    position: NonNegativeInt
    reason: str = ""


class LlmDispatched(Event):
    """The call was sent to a backend."""

    TYPE: ClassVar[str] = "llm.dispatched"

    call_id: str
    slot: str
    model: str
    attempt: int = 1


class LlmRetried(Event):
    """The attempt failed in a way that asking once more may mend (KS 6.3)."""

    TYPE: ClassVar[str] = "llm.retried"

    call_id: str
    code: str
    reason: str


class LlmCompleted(Event):
    """A whole answer: this fact is the assistant's turn.

    `content` is what a reader may see: without reasoning, control tokens and the calls themselves.
    `raw` is what the model wrote, kept where `content` or `tool_calls` were read out of it.
    """

    TYPE: ClassVar[str] = "llm.completed"

    call_id: str
    content: str = ""
    content_blob: BlobRef | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    raw: str | None = None
    finish_reason: str = "stop"
    model: str = ""
    slot: str = ""
    usage: Usage = Usage()
    prompt_sha256: str = ""  # of the request body's messages and tools, as sent
    queued_ms: float = 0.0
    first_token_ms: float | None = None
    duration_ms: float = 0.0


class LlmFailed(Event):
    """The call ended without an answer. `fragment` is what had come, never to be acted on."""

    TYPE: ClassVar[str] = "llm.failed"

    call_id: str
    code: str
    message: str
    verdict: Verdict = Verdict.FINAL
    fragment: str = ""
    duration_ms: float = 0.0
