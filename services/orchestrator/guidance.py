"""What a guided agent may do next, and the sentence that tells it. Pure.

It may finish only when what the request asks for is there; a file that a command has to make may not be
written by hand; a call that was just made is not offered again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from services.orchestrator import owed
from services.orchestrator.actions import Tool
from services.orchestrator.workspace_view import WorkspaceView

_CHANGES = re.compile(
    r"\b(fix|rename|append|change|set|write|create|make|add|remove|delete|update|convert|save|edit|refactor|replace"
    r"|move|copy|insert|generate|put|store|sort|split|merge|implement|redirect|build)\b",
    re.IGNORECASE,
)
_RUNS = re.compile(r"\b(run|execute|running|executing|shell|command|bash|terminal)\b", re.IGNORECASE)
_RUNNERS = {".py": "python3", ".sh": "sh", ".js": "node", ".rb": "ruby", ".pl": "perl", ".php": "php"}
_CODE = frozenset({*_RUNNERS, ".ts", ".go", ".rs", ".c", ".cpp", ".java", ".lua", ".sql", ".html", ".css"})


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a guided agent has come with its request."""

    request: str
    owes: tuple[str, ...] = ()
    view: WorkspaceView = field(default_factory=WorkspaceView)
    has_shell: bool = False
    ran: bool = False  # a command succeeded since code was last written
    failed: bool = False  # the last call did not work

    @property
    def missing(self) -> tuple[str, ...]:
        return owed.missing(self.owes, self.view.filled)

    @property
    def owes_a_run(self) -> bool:
        return self.has_shell and not self.ran and _RUNS.search(self.request) is not None

    @property
    def may_finish(self) -> bool:
        if self.missing or self.failed or self.owes_a_run:
            return False
        return bool(self.view.changed) or _CHANGES.search(self.request) is None


def is_code(path: str) -> bool:
    return PurePosixPath(path).suffix.lower() in _CODE


def paths_for(tools: Sequence[Tool], progress: Progress) -> dict[str, list[str]]:
    """The only files that each tool may name: what reads or edits, files that are there."""
    here = sorted(progress.view.files)[:60]
    narrow = {tool.name: here for tool in tools if tool.name in ("read_file", "edit_file")}
    if progress.owes_a_run:
        # Data that a command should produce is not to be made up by hand.
        code = [name for name in dict.fromkeys([*progress.owes, *here]) if is_code(name)]
        narrow |= {tool.name: code for tool in tools if tool.long_text and code}
    return narrow


def next_step(progress: Progress, wrote: str | None, command: str | None) -> str:
    """What to do now, after a call; `wrote` is the file just written, `command` the command just run."""
    if progress.failed:
        return "That did not work. Try another way."
    data = [name for name in progress.missing if not is_code(name)]
    if wrote and progress.owes_a_run and not any(is_code(name) for name in progress.missing):
        return _run_it(wrote, data)
    if not progress.missing:
        if progress.view.changed:
            return "If every part of the request is done, finish; else do the next part."
        return "Nothing is changed yet. Do the next part of the request."
    text = f"Still missing: {', '.join(progress.missing)}."
    if command and ">" not in command and len(progress.missing) == 1:
        text += f" To save what the command prints, run: {command} > {progress.missing[0]}"
    return text


def _run_it(path: str, data: Sequence[str]) -> str:
    runner = _RUNNERS.get(PurePosixPath(path).suffix.lower())
    if runner is None:
        return "Now run it."
    into = f" > {data[0]}" if len(data) == 1 else ""
    return f"Now run it, such as: {runner} {path}{into}"
