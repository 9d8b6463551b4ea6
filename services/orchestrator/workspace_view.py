"""The workspace as a run knows it: what was there at the start, and what its tools changed since. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from shared.events.envelope import Fact
from shared.events.tool import ToolCompleted, ToolFailed

EMPTY_SHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
MAX_LISTED = 60


@dataclass(frozen=True, slots=True)
class WorkspaceView:
    """Names of files; `empty` are those that a tool left without content."""

    files: frozenset[str] = frozenset()
    empty: frozenset[str] = frozenset()
    changed: frozenset[str] = frozenset()

    @property
    def filled(self) -> frozenset[str]:
        return self.files - self.empty

    def after(self, fact: Fact) -> WorkspaceView:
        """The view once a tool call has ended."""
        if not isinstance(fact.event, ToolCompleted | ToolFailed):
            return self
        files, empty, changed = set(self.files), set(self.empty), set(self.changed)
        for change in fact.event.changes:
            changed.add(change.path)
            files.discard(change.path)
            empty.discard(change.path)
            if change.after_sha256 is not None:
                files.add(change.path)
            if change.after_sha256 == EMPTY_SHA256:
                empty.add(change.path)
        return WorkspaceView(frozenset(files), frozenset(empty), frozenset(changed))

    @property
    def written(self) -> tuple[str, ...]:
        """The files that the run changed and that are still there."""
        return tuple(sorted(self.changed & self.files))


def of_listing(text: str) -> WorkspaceView:
    """The view from the answer of `list_files`: one name a line, perhaps with a remark; other lines are in brackets."""
    files: set[str] = set()
    empty: set[str] = set()
    for line in text.splitlines():
        name, _, remark = line.partition(" (")
        if not name or name.startswith(("(", "[")) or remark.startswith("a link"):
            continue
        files.add(name)
        if remark == "empty)":
            empty.add(name)
    return WorkspaceView(frozenset(files), frozenset(empty))


def as_text(view: WorkspaceView) -> str:
    """The listing as a model reads it."""
    if not view.files:
        return "The workspace is empty."
    names = sorted(view.files)
    shown = "\n".join(names[:MAX_LISTED])
    return f"Files in the workspace:\n{shown}" + (f"\n(and {len(names) - MAX_LISTED} more)" if len(names) > MAX_LISTED else "")
