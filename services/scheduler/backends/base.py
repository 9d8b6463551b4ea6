"""What the scheduler needs from an inference server. Adapters in this folder provide it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from services.scheduler.dialects.calls import NativeCall
from shared.events.content import Usage

Json = dict[str, Any]
OnDelta = Callable[["Delta"], None]
State = Literal["ready", "loading", "down"]


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One model call. None leaves a choice to the server; `timeout_s` None waits without end.

    `idle_timeout_s` bounds each silence of the server, the reading of the prompt included.
    """

    messages: Sequence[Mapping[str, Any]]
    model: str | None = None
    tools: Sequence[Mapping[str, Any]] = ()
    temperature: float | None = None
    seed: int | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    response_format: Mapping[str, Any] | None = None
    stop: Sequence[str] = ()
    timeout_s: float | None = None
    idle_timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of an answer as it is written."""

    text: str = ""
    reasoning: str = ""


@dataclass(frozen=True, slots=True)
class ChatReply:
    """A whole answer, unread: `tool_calls` are what the server reported, `content` may hold more of them."""

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[NativeCall, ...] = ()
    finish_reason: str = "stop"
    model: str = ""
    usage: Usage = field(default_factory=Usage)
    first_token_ms: float | None = None
    duration_ms: float = 0.0

    @property
    def is_cut(self) -> bool:
        """Whether the token limit ended it, so that its last call may be half a call."""
        return self.finish_reason == "length"


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model that the server lists. `context` is tokens per request, not per server (None = not told)."""

    id: str
    context: int | None = None
    parallel: int | None = None


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the server can answer, and if not, why and what to do."""

    state: State
    reason: str = ""


class Backend(Protocol):
    """An inference server."""

    @property
    def name(self) -> str: ...

    async def chat(self, request: ChatRequest, on_delta: OnDelta | None = None) -> ChatReply:
        """Answer one request, telling each piece as it comes. Cancelling closes the connection.

        Raises:
            BackendFault: the answer did not come whole; see `faults`.
        """
        ...

    async def models(self) -> list[ModelInfo]: ...

    async def healthy(self) -> Health: ...

    async def close(self) -> None: ...
