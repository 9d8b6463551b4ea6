"""What a model's reply holds, before and after it is read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from shared.events.content import Repair

Source = Literal["native", "salvaged"]
Dialect = Literal["native", "json", "tool_call", "function", "harmony", "python", "react", "mistral"]
"""How a call is written: by the server's own field, or in the content in one of these ways."""


@dataclass(frozen=True, slots=True)
class NativeCall:
    """A tool call as the server reported it. `arguments` is text, perhaps not JSON; `server_id` is not unique."""

    name: str
    arguments: str
    server_id: str = ""


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """A tool call that can be dispatched, or, with `error`, words for the model about why it can't."""

    name: str  # of an offered tool; with an unknown name, what the model wrote, without control markers
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    source: Source = "native"
    repairs: tuple[Repair, ...] = ()
    error: str | None = None
    dialect: Dialect = "native"


@dataclass(frozen=True, slots=True)
class Reading:
    """A reply, read. `problem` tells the model what it began and did not finish; `calls` stand besides it."""

    visible: str = ""
    reasoning: str = ""
    calls: tuple[ParsedCall, ...] = ()
    problem: str | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is neither an answer nor a call nor something to mend: a failed turn, not an answer."""
        return not self.visible and not self.calls and self.problem is None
