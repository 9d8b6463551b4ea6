"""Small files of the kernel, read so that no driver's mood can raise: an answer, or a note of why there is none.

Reading is bounded, and what vanishes between a listing and its reading is simply not there.
"""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

LIMIT = 64 * 1024
GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ESRCH, errno.ENODEV, errno.ENXIO, errno.ELOOP})
"""The file, process or device is not there: nothing to say about it."""

_WHOLE = re.compile(r"(-?[0-9]{1,20})|0x([0-9a-fA-F]{1,16})")


@dataclass
class Files:
    """Reads below folders that it is given, and keeps `problems`: what was there and could not be read."""

    problems: list[str] = field(default_factory=list[str])
    denied: bool = False  # something was not for this user

    def text(self, path: Path) -> str | None:
        """The content without white space around it; None when there is none, or none that can be had."""
        try:
            with open(path, "rb", buffering=0) as file:
                return file.read(LIMIT).decode("utf-8", "replace").strip()
        except OSError as error:
            self._note(path, error)
            return None

    def number(self, path: Path) -> int | None:
        """A whole number, decimal or `0x…`."""
        text = self.text(path)
        if text is None:
            return None
        found = whole(text)
        if found is None:
            self.problems.append(f"{path.name} holds no number: {text[:40]!r}")
        return found

    def names(self, folder: Path) -> list[str]:
        """What is in a folder, sorted."""
        try:
            return sorted(os.listdir(folder))
        except OSError as error:
            self._note(folder, error)
            return []

    def link(self, path: Path) -> str | None:
        """Where a link points, as it is written."""
        try:
            return os.readlink(path)
        except OSError as error:
            self._note(path, error)
            return None

    def _note(self, path: Path, error: OSError) -> None:
        if error.errno in (errno.EACCES, errno.EPERM):
            self.denied = True
        if error.errno not in GONE:
            self.problems.append(f"{path.name} could not be read: {error.strerror or error}")


def whole(text: str) -> int | None:
    """The number that the whole text is.

    >>> whole("42"), whole("0x3fa000000"), whole("n/a")
    (42, 17079205888, None)
    """
    found = _WHOLE.fullmatch(text)
    if found is None:
        return None
    return int(found[1]) if found[1] is not None else int(found[2], 16)
