"""Facts of tool calls, one aggregate per run. Written by the tools service.

A call is claimed by `started` before it touches anything and ends in exactly one of completed,
denied, failed or interrupted (ARCHITECTURE §5). Before a run's first call, the files that it begins with are laid.
"""

from __future__ import annotations

from typing import Any, ClassVar

from shared.events.content import BlobRef, FileChange
from shared.events.envelope import Event


class FilesLaid(Event):
    """The files that the run was submitted with are in its workspace; no tool call of the run ran before this.

    `files` were written now; those of a name that was taken were left as they were.
    """

    TYPE: ClassVar[str] = "tool.files_laid"

    files: tuple[str, ...] = ()


class ToolStarted(Event):
    """The claim: from here on the tool may have had its effect."""

    TYPE: ClassVar[str] = "tool.started"

    call_id: str
    tool: str
    server: str
    owner: str
    tier: str = "standard"


class ToolDenied(Event):
    """A layer refused the call before it ran; `message` is told to the model."""

    TYPE: ClassVar[str] = "tool.denied"

    call_id: str
    tool: str
    layer: str
    message: str


class ToolCompleted(Event):
    """The tool ran and answered. `is_error` marks an answer that tells the model what to mend."""

    TYPE: ClassVar[str] = "tool.completed"

    call_id: str
    tool: str
    content: str = ""
    content_blob: BlobRef | None = None
    structured: dict[str, Any] | None = None
    is_error: bool = False
    changes: tuple[FileChange, ...] = ()
    duration_ms: float = 0.0


class ToolFailed(Event):
    """The tool could not be run (a dependency is away, its time bound passed)."""

    TYPE: ClassVar[str] = "tool.failed"

    call_id: str
    tool: str
    code: str
    message: str
    changes: tuple[FileChange, ...] = ()
    duration_ms: float = 0.0


class ToolInterrupted(Event):
    """The process died inside the call, and the tool may not be run twice."""

    TYPE: ClassVar[str] = "tool.interrupted"

    call_id: str
    tool: str
    message: str
