"""Which files a command changed: the workspace before and after, without reading what did not change.

A file is taken as unchanged while its size, times and inode are the same. Hashes, and the content of small text
files, are remembered across commands, so a command pays for the files that the one before it changed.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass, field

from services.tools.paths import Entry, ToolRefusal, Workspace, shown
from services.tools.servers.base import UNKNOWN_SHA256, Changes
from services.tools.servers.textfile import is_text

FILES = 2_000  # files looked at; what is beyond is not followed
HASHED_BYTES = 2**20  # a larger file is only hashed once it has changed
KEPT_BYTES = 64 * 2**10  # before-images of larger files are not kept
CACHE_BYTES = 32 * 2**20

Mark = tuple[int, int, int, int]
Key = tuple[str, str, Mark]


@dataclass(frozen=True, slots=True)
class Image:
    """What a file held: its hash, and its bytes when it is a small text."""

    sha256: str
    data: bytes | None = None


@dataclass(slots=True)
class Images:
    """The images seen lately, least used out first, bounded by the bytes that they hold."""

    _held: OrderedDict[Key, Image] = field(default_factory=OrderedDict[Key, Image])
    _size: int = 0

    def of(self, workspace: Workspace, path: str, mark: Mark) -> Image | None:
        """The image of a file that still has this mark; None when it cannot be read any more."""
        key = (str(workspace.root), path, mark)
        if key not in self._held:
            try:
                image = _read(workspace, path, mark[0])
            except ToolRefusal:
                return None
            self._held[key] = image
            self._size += _weight(image)
            while self._size > CACHE_BYTES:
                self._size -= _weight(self._held.popitem(last=False)[1])
        self._held.move_to_end(key)
        return self._held[key]


def _weight(image: Image) -> int:
    return 300 + len(image.data or b"")


def _read(workspace: Workspace, path: str, size: int) -> Image:
    if size > KEPT_BYTES:
        return Image(workspace.sha256(path))
    data = workspace.read_bytes(path)
    return Image(hashlib.sha256(data).hexdigest(), data if len(data) <= KEPT_BYTES and is_text(data) else None)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The files of a workspace at a moment, with images of those that are small enough to read in advance."""

    marks: dict[str, Mark]
    images: dict[str, Image]
    whole: bool  # False: there are more files than are followed


def take(workspace: Workspace, images: Images) -> Snapshot:
    marks, whole = _marks(workspace)
    known = {path: image for path, mark in marks.items() if mark[0] <= HASHED_BYTES and (image := images.of(workspace, path, mark))}
    return Snapshot(marks, known, whole)


def record_since(before: Snapshot, workspace: Workspace, images: Images, changes: Changes) -> None:
    """Report every file that was made, changed or removed since `before`.

    Beyond the bound on files nothing is said of a file that only one side has: it may just not have been looked at.
    """
    marks, whole = _marks(workspace)
    for path in sorted(before.marks.keys() | marks.keys()):
        old, new = before.marks.get(path), marks.get(path)
        if old == new or (not (whole and before.whole) and None in (old, new)):
            continue
        image = before.images.get(path)
        old_hash = None if old is None else image.sha256 if image else UNKNOWN_SHA256
        now = images.of(workspace, path, new) if new is not None else None
        new_hash = None if new is None else now.sha256 if now else UNKNOWN_SHA256
        changes.record_hashes(shown(path), old_hash, new_hash, image.data if image else None)


def _marks(workspace: Workspace) -> tuple[dict[str, Mark], bool]:
    marks: dict[str, Mark] = {}
    for entry in workspace.walk():
        if entry.kind == "file":
            if len(marks) >= FILES:
                return marks, False
            marks[entry.path] = _mark(entry)
    return marks, True


def _mark(entry: Entry) -> Mark:
    return entry.size, entry.mtime_ns, entry.ctime_ns, entry.inode
