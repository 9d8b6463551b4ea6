"""Confinement of paths to a workspace: what a model names is opened below the root, or refused in words.

Every component is opened relative to the folder before it, without following links, so there is no moment
between a check and a use: a link swapped in meanwhile makes the open itself fail. The text of a path is
judged before the disk is touched, so a refusal reads the same whether the place outside exists or not.
Links are refused wherever they point. This module knows nothing about tools; `servers/` builds on it.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import stat as modes
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from shared.errors import Fault, Verdict

TEMP_PREFIX = ".aetherium-tmp-"
SKIPPED_FOLDERS = frozenset({"__pycache__", ".git", ".pytest_cache", "node_modules"})

_NAME_BYTES = 255  # what Linux file systems allow for one name
_PATH_BYTES = 4096
_DEPTH = 64  # a walk keeps one folder open per level
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK, opening a pipe that was swapped in would wait for a writer.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class ToolRefusal(Fault):
    """A tool call that the model can mend; the message is a sentence for the model."""

    code = "tool.refused"


class Missing(ToolRefusal):
    """Nothing has that name in the workspace."""

    code = "tool.no_such_file"


class WorkspaceGone(Fault):
    """The workspace's own folder is not there."""

    code = "tool.workspace_gone"
    verdict = Verdict.RETRY


@dataclass(frozen=True, slots=True)
class Entry:
    """A thing in the workspace. `path` is relative to the root; `kind` is file, folder, link or other."""

    path: str
    kind: str
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int


def parts_of(path: str, *roots: Path) -> tuple[str, ...]:
    """The components of `path` below the root, by any of the root's names; empty for the root itself.

    >>> parts_of("./src/../a.txt", Path("/data/ws"))
    ('a.txt',)

    Raises:
        ToolRefusal: the path leaves the root, or no file can have that name.
    """
    _check_text(path)
    parts: list[str] = []
    for part in _below_root(path, roots):
        if part == "..":
            if not parts:
                raise _outside(path)
            parts.pop()
        elif part not in ("", "."):
            if len(part.encode()) > _NAME_BYTES:
                raise ToolRefusal(f"The name {_short(part)!r} is too long. Use a name of at most 100 characters.")
            parts.append(part)
    return tuple(parts)


def _check_text(path: str) -> None:
    if not path.strip():
        raise ToolRefusal("The path is empty. Give a path relative to the workspace, such as 'notes.txt'.")
    if any(ord(character) < 32 or ord(character) == 127 for character in path):
        raise ToolRefusal(f"{_short(path)!r} holds a control character. Use a plain path, such as 'notes.txt'.")
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        raise ToolRefusal("The path holds half of a character. Use plain letters, such as 'notes.txt'.") from None
    if size > _PATH_BYTES:
        raise ToolRefusal(f"The path {_short(path)!r} is too long. Use a short path, such as 'notes.txt'.")


def _below_root(path: str, roots: tuple[Path, ...]) -> list[str]:
    """The components after the root's own, compared whole: `/data/ws7` is not inside `/data/ws`."""
    parts = path.split("/")
    if parts[0] == "~":
        raise _outside(path)
    if parts[0]:
        return parts
    named = [part for part in parts if part not in ("", ".")]
    for prefix in (*(list(root.parts[1:]) for root in roots), ["workspace"]):
        if named[: len(prefix)] == prefix:
            return named[len(prefix) :]
    raise _outside(path)


def _outside(path: str) -> ToolRefusal:
    return ToolRefusal(f"{_short(path)!r} is outside the workspace. Use a path relative to the workspace, such as 'notes.txt'.")


def _short(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:100]}…"


def shown(name: str) -> str:
    """A name from the disk as text that can be stored: bytes that are no UTF-8 and control characters replaced."""
    text = os.fsencode(name).decode("utf-8", "replace")
    return "".join("\ufffd" if ord(character) < 32 or ord(character) == 127 else character for character in text)


class Workspace:
    """The only way to the files of one project. It holds nothing open between calls."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._named = root.absolute()  # as a command may be told of it

    def parts(self, path: str) -> tuple[str, ...]:
        """The components of a path below this root."""
        return parts_of(path, self.root, self._named)

    # ---- reading

    @contextmanager
    def open_read(self, path: str) -> Generator[io.BufferedReader, None, None]:
        """A regular file, open for reading."""
        with self._parent(path) as (folder, name):
            descriptor = self._open_file(folder, name, path)
        with os.fdopen(descriptor, "rb") as file:
            yield file

    def read_bytes(self, path: str, limit: int | None = None) -> bytes:
        """The whole file, or its first `limit` bytes."""
        with self.open_read(path) as file:
            return file.read() if limit is None else file.read(limit)

    def sha256(self, path: str) -> str:
        with self.open_read(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def stat(self, path: str) -> Entry:
        """What stands at `path`; a link is described as a link.

        Raises:
            Missing: nothing has that name.
        """
        parts = self.parts(path)
        if not parts:
            with self._root() as root:
                return _entry("", os.fstat(root))
        with self._parent(path) as (folder, name):
            return _entry("/".join(parts), self._lstat(folder, name, path))

    def walk(self, path: str = ".", skip: frozenset[str] = SKIPPED_FOLDERS) -> Iterator[Entry]:
        """Everything below a folder, depth first and sorted by name; links are named, never entered."""
        parts = self.parts(path)
        with self._folder(parts, path) as folder:
            yield from self._walk(folder, parts, skip)

    def _walk(self, folder: int, parts: tuple[str, ...], skip: frozenset[str]) -> Iterator[Entry]:
        with os.scandir(folder) as found:
            names = sorted(entry.name for entry in found)
        for name in names:
            if name in skip or name.startswith(TEMP_PREFIX):
                continue
            with suppress(OSError):  # gone, or swapped for something else, since it was listed
                entry = _entry("/".join((*parts, name)), os.stat(name, dir_fd=folder, follow_symlinks=False))
                if entry.kind != "folder" or len(parts) >= _DEPTH:
                    yield entry
                    continue
                below = os.open(name, _FOLDER, dir_fd=folder)
                try:
                    yield entry
                    yield from self._walk(below, (*parts, name), skip)
                finally:
                    os.close(below)

    # ---- changing

    def write(self, path: str, data: bytes) -> None:
        """Put a whole file in place at once, with its parents; a reader sees the old or the new one, never half.

        The permissions of a file that is replaced are kept.
        """
        if path.endswith("/"):
            raise ToolRefusal(f"{_short(path)!r} names a folder. Give the path of a file, such as 'notes.txt'.")
        with self._parent(path, create=True) as (folder, name):
            mode = self._replaceable(folder, name, path)
            temporary = TEMP_PREFIX + uuid4().hex
            try:
                with os.fdopen(os.open(temporary, _NEW, 0o666, dir_fd=folder), "wb") as file:
                    file.write(data)
                    if mode is not None:
                        os.fchmod(file.fileno(), mode)
                os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            except OSError as error:
                with suppress(OSError):
                    os.unlink(temporary, dir_fd=folder)
                raise _refused(error, path, "written") from error

    def make_folder(self, path: str) -> None:
        """Create a folder with its parents; one that exists is left as it is."""
        with self._folder(self.parts(path), path, create=True):
            pass

    def unlink(self, path: str) -> None:
        """Remove a regular file."""
        with self._parent(path) as (folder, name):
            self._regular(self._lstat(folder, name, path), path)
            try:
                os.unlink(name, dir_fd=folder)
            except OSError as error:
                raise _refused(error, path, "removed") from error

    def rename(self, path: str, target: str) -> None:
        """Move a file or folder to a name that is free, creating the target's parents."""
        with self._parent(path) as (folder, name), self._parent(target, create=True) as (into, new_name):
            if _entry(path, self._lstat(folder, name, path)).kind not in ("file", "folder"):
                raise _not_regular(path)
            with suppress(Missing):
                self._lstat(into, new_name, target)
                raise ToolRefusal(f"{_short(target)!r} exists already. Choose a name that is free.")
            try:
                os.rename(name, new_name, src_dir_fd=folder, dst_dir_fd=into)
            except OSError as error:
                raise _refused(error, path, "moved") from error

    # ---- the steps of a path

    @contextmanager
    def _root(self) -> Generator[int, None, None]:
        try:
            root = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise WorkspaceGone("The workspace folder cannot be opened. Try again later.") from error
        try:
            yield root
        finally:
            os.close(root)

    @contextmanager
    def _folder(self, parts: tuple[str, ...], path: str, *, create: bool = False) -> Generator[int, None, None]:
        """The folder of these components, each opened inside the one before it."""
        with ExitStack() as held:
            folder = held.enter_context(self._root())
            for name in parts:
                folder = _step(folder, name, path, create=create)
                held.callback(os.close, folder)
            yield folder

    @contextmanager
    def _parent(self, path: str, *, create: bool = False) -> Generator[tuple[int, str], None, None]:
        parts = self.parts(path)
        if not parts:
            raise ToolRefusal("That is the workspace folder itself. Give the path of a file in it, such as 'notes.txt'.")
        with self._folder(parts[:-1], path, create=create) as folder:
            yield folder, parts[-1]

    def _lstat(self, folder: int, name: str, path: str) -> os.stat_result:
        try:
            return os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError as error:
            raise _missing(path) from error
        except OSError as error:
            raise _refused(error, path, "read") from error

    def _open_file(self, folder: int, name: str, path: str) -> int:
        self._regular(self._lstat(folder, name, path), path)  # a device is not even opened
        try:
            descriptor = os.open(name, _FILE, dir_fd=folder)
        except FileNotFoundError as error:
            raise _missing(path) from error
        except OSError as error:
            raise (_link(path) if error.errno == errno.ELOOP else _refused(error, path, "read")) from error
        try:
            self._regular(os.fstat(descriptor), path)
        except ToolRefusal:
            os.close(descriptor)
            raise
        return descriptor

    def _regular(self, status: os.stat_result, path: str) -> None:
        if modes.S_ISLNK(status.st_mode):
            raise _link(path)
        if modes.S_ISDIR(status.st_mode):
            raise ToolRefusal(f"{_short(path)!r} is a folder, not a file. Call list_files to see the files in it.")
        if not modes.S_ISREG(status.st_mode):
            raise _not_regular(path)

    def _replaceable(self, folder: int, name: str, path: str) -> int | None:
        """The permissions of the file to be replaced; None when the name is free."""
        try:
            status = self._lstat(folder, name, path)
        except Missing:
            return None
        self._regular(status, path)
        return modes.S_IMODE(status.st_mode) & 0o777


def _step(folder: int, name: str, path: str, *, create: bool) -> int:
    """Open one folder inside another, creating it if wanted."""
    try:
        try:
            return os.open(name, _FOLDER, dir_fd=folder)
        except FileNotFoundError:
            if not create:
                raise
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=folder)
        return os.open(name, _FOLDER, dir_fd=folder)
    except FileNotFoundError as error:
        raise _missing(path) from error
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise _refused(error, path, "opened") from error
        with suppress(OSError):
            if modes.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                raise _link(path) from error
        raise ToolRefusal(f"{_short(path)!r} leads through {name!r}, which is a file, not a folder.") from error


def _entry(path: str, status: os.stat_result) -> Entry:
    mode = status.st_mode
    kind = "file" if modes.S_ISREG(mode) else "folder" if modes.S_ISDIR(mode) else "link" if modes.S_ISLNK(mode) else "other"
    return Entry(path or ".", kind, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


def _missing(path: str) -> Missing:
    return Missing(f"There is no {_short(path)!r} in the workspace. Call list_files to see the files there are.")


def _link(path: str) -> ToolRefusal:
    return ToolRefusal(f"{_short(path)!r} goes through a symbolic link, and links are not followed. Use the path of a real file.")


def _not_regular(path: str) -> ToolRefusal:
    return ToolRefusal(f"{_short(path)!r} is not a regular file, so tools do not open it. Use the path of a plain file.")


def _refused(error: OSError, path: str, what: str) -> ToolRefusal:
    """A refusal by the system (no rights, a full disk), without the machine's own paths in it."""
    reason = os.strerror(error.errno) if error.errno else "input/output error"
    return ToolRefusal(f"{_short(path)!r} could not be {what}: {reason}. Nothing was changed.")
