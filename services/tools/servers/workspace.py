"""The `workspace` server: reading, writing and searching the files of a project.

Every path goes through `Workspace`; every change is reported with what stood there before. The texts are for
small models: short, with the next action in them.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Protocol, cast

import regex
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from services.tools.paths import Entry, Missing, ToolRefusal, Workspace, shown
from services.tools.servers.base import LONG_TEXT, OUTPUT_LIMIT, Ports, Tier, changes, declare, this_call, to_its_end
from services.tools.servers.edits import Edited, NoEdit, replace_once
from services.tools.servers.textfile import TextFile, decode
from shared.text import clean

READ_BYTES = 8 * 2**20  # the largest file that is read as text or edited
SEARCHED_BYTES = 2 * 2**20  # larger files are left out of a search
SEARCH_S = 5.0
_HITS = 100
_LISTED = 10_000  # entries looked at before a listing stops
_LINE = 200  # characters shown of a line that matches

FilePath = Annotated[str, Field(description="File path relative to the workspace.", examples=["notes.txt"])]
Folder = Annotated[str, Field(description="Folder or file to look in, relative to the workspace; '.' is everything.")]

# Reading a file and writing it back is one step: two edits of one file at the same time must not lose one.
_changing = threading.Lock()


def build(_ports: Ports | None = None) -> MCPServer:
    """The server with its five tools."""
    server = MCPServer("workspace", log_level="WARNING")
    declare(server, tier=Tier.STANDARD, read_only=True)(read_file)
    declare(server, tier=Tier.STANDARD, idempotent=True, destructive=True)(write_file)
    declare(server, tier=Tier.STANDARD, destructive=True)(edit_file)
    declare(server, tier=Tier.STANDARD, read_only=True)(list_files)
    declare(server, tier=Tier.STANDARD, read_only=True)(search_files)
    return server


# ---- the tools; their docstrings are what a model reads


async def read_file(
    path: FilePath,
    start_line: Annotated[int, Field(description="First line to read, from 1.", ge=1)] = 1,
    end_line: Annotated[int | None, Field(description="Last line to read; left out, reads to the end.", ge=1)] = None,
) -> str:
    """Read a text file of the workspace."""
    return await to_its_end(_read, _here(), path, start_line, end_line)


async def write_file(
    path: FilePath,
    content: Annotated[str, Field(description="The whole content of the file.", examples=["first line\n"], json_schema_extra=LONG_TEXT)],
) -> str:
    """Create a text file, or replace one completely. To change a part of a file, use edit_file."""
    return await to_its_end(_write, _here(), path, content)


async def edit_file(
    path: FilePath,
    old: Annotated[str, Field(description="The text to replace, copied from the file; it must occur once.", examples=["x = 1"])],
    new: Annotated[str, Field(description="The text that takes its place.", examples=["x = 2"])],
) -> str:
    """Replace one piece of text in a file. Read the file first."""
    return await to_its_end(_edit, _here(), path, old, new)


async def list_files(path: Folder = ".") -> str:
    """List all files below a folder of the workspace."""
    return await to_its_end(_list, _here(), path)


async def search_files(
    pattern: Annotated[str, Field(description="Regular expression.", max_length=1000, min_length=1, examples=["def main"])],
    path: Folder = ".",
) -> str:
    """Find the lines that match a regular expression in the files of the workspace. Answers with file:line: text."""
    return await to_its_end(_search, _here(), pattern, path)


# ---- how they work


def _here() -> Workspace:
    return Workspace(this_call().workspace)


def _text_of(workspace: Workspace, path: str) -> TextFile:
    data = _bytes_of(workspace, path)
    file = decode(data)
    if file is None:
        raise ToolError(f"{path!r} is a binary file of {len(data):,} bytes, not text. Use run_shell to look into it.")
    return file


def _bytes_of(workspace: Workspace, path: str) -> bytes:
    try:
        data = workspace.read_bytes(path, READ_BYTES + 1)
    except Missing:
        raise ToolError(_no_such_file(workspace, path)) from None
    if len(data) > READ_BYTES:
        raise ToolError(f"{path!r} is larger than {READ_BYTES // 2**20} MiB. Use run_shell with head, tail or sed on it.")
    return data


def _no_such_file(workspace: Workspace, path: str) -> str:
    wanted = path.rpartition("/")[2].lower()
    names: list[str] = []
    with suppress(ToolRefusal):
        names = [entry.path for entry, _ in zip(workspace.walk(), range(_LISTED), strict=False) if entry.kind == "file"]
    same = [name for name in names if name.rpartition("/")[2].lower() == wanted]
    if same:
        return f"There is no {path!r}. Did you mean {same[0]!r}?"
    if not names:
        return f"There is no {path!r}: the workspace is empty. Use write_file to create it."
    return f"There is no {path!r}. The files are: {', '.join(names[:20])}{' …' if len(names) > 20 else ''}"


def _read(workspace: Workspace, path: str, start_line: int, end_line: int | None) -> str:
    if end_line is not None and end_line < start_line:
        raise ToolError(f"end_line {end_line} is before start_line {start_line}. Give end_line a number from {start_line} on.")
    text = _text_of(workspace, path).text.replace("\r\n", "\n")
    lines = text.split("\n")
    total = len(lines) - (lines[-1] == "")
    if total == 0:
        return f"[{path} is empty]"
    if start_line > total:
        raise ToolError(f"{path!r} has {total} lines, so there is no line {start_line}. Give start_line a number from 1 to {total}.")
    last = min(total, end_line or total)
    wanted = "\n".join(lines[start_line - 1 : last]) + ("\n" if last < len(lines) else "")
    return wanted if len(wanted) <= OUTPUT_LIMIT else _first_lines(path, wanted, start_line, total)


def _first_lines(path: str, text: str, start_line: int, total: int) -> str:
    """As many whole lines as fit, and how to get the rest."""
    kept = text.rfind("\n", 0, OUTPUT_LIMIT) + 1
    if kept == 0:
        length = text.find("\n")
        length = len(text) if length < 0 else length
        return f"{text[:OUTPUT_LIMIT]}\n[cut: line {start_line} has {length:,} characters. Use run_shell to see the rest of it.]"
    after = start_line + text.count("\n", 0, kept)
    return f"{text[:kept]}[cut: lines {start_line} to {after - 1} of {total}. Call read_file with start_line {after} for more.]"


def _write(workspace: Workspace, path: str, content: str) -> str:
    data = clean(content).encode()
    name = "/".join(workspace.parts(path))
    with _changing:
        before, before_sha256 = _before_image(workspace, path)
        if before == data:
            return f"{name} already holds exactly this content, so nothing was changed. Go on with the next step."
        workspace.write(path, data)
        changes().record_hashes(name, before_sha256, hashlib.sha256(data).hexdigest(), before)
    lines = content.count("\n") + (not content.endswith("\n") and content != "")
    return f"{'Replaced' if before_sha256 else 'Created'} {name}: {lines} lines, {len(content):,} characters."


def _before_image(workspace: Workspace, path: str) -> tuple[bytes | None, str | None]:
    """What stands at `path` and its hash; of a very large file the hash alone."""
    try:
        data = workspace.read_bytes(path, READ_BYTES + 1)
        if len(data) > READ_BYTES:
            return None, workspace.sha256(path)
    except Missing:
        return None, None
    return data, hashlib.sha256(data).hexdigest()


def _edit(workspace: Workspace, path: str, old: str, new: str) -> str:
    name = "/".join(workspace.parts(path))
    with _changing:
        file = _text_of(workspace, path)
        try:
            edited = replace_once(file.text, clean(old), clean(new), file.line_end)
            data = file.encoded(edited.text)
        except NoEdit as error:
            raise ToolError(f"{name}: {error}") from None
        except UnicodeEncodeError as error:
            raise ToolError(f"{name} is stored as {file.encoding}, which has no {error.object[error.start]!r}. Leave it out.") from None
        workspace.write(path, data)
        changes().record(name, file.encoded(file.text), data)
    return _what_it_reads_now(name, edited, new)


def _what_it_reads_now(name: str, edited: Edited, new: str) -> str:
    lines = edited.text.replace("\r\n", "\n").split("\n")
    first, last = max(0, edited.line - 2), min(len(lines), edited.line + new.count("\n") + 1)
    excerpt = "\n".join(line[:_LINE] for line in lines[first : min(last, first + 30)])
    how = " (white space was ignored to find it)" if edited.tolerant else ""
    return f"Edited {name} at line {edited.line}{how}. It reads there now:\n{excerpt}"


def _list(workspace: Workspace, path: str) -> str:
    if workspace.stat(path).kind == "file":
        raise ToolError(f"{path!r} is a file, not a folder. Call read_file to see what is in it.")
    found: list[str] = []
    size = left_out = seen = 0
    for entry in workspace.walk(path):
        seen += 1
        if seen > _LISTED:
            break
        line = _listed(entry)
        if line is None:
            continue
        size += len(line) + 1
        if size > OUTPUT_LIMIT:
            left_out += 1
        else:
            found.append(line)
    if not found:
        return "(the workspace has no files yet)" if workspace.parts(path) == () else f"(there are no files in {path!r})"
    more = f" and at least {left_out}" if seen > _LISTED else f" {left_out}"
    return "\n".join(found) + (f"\n[cut:{more} more files. Call list_files with the path of one folder.]" if left_out else "")


def _listed(entry: Entry) -> str | None:
    match entry.kind:
        case "file":
            return shown(entry.path) + (" (empty)" if entry.size == 0 else "")
        case "link":
            return f"{shown(entry.path)} (a link, not followed)"
        case _:
            return None


# ---- searching


class _Pattern(Protocol):
    def search(self, string: str, *, timeout: float) -> object | None: ...


@dataclass(slots=True)
class _Found:
    hits: list[str]
    size: int = 0
    files: int = 0
    stopped: str = ""


def _compiled(pattern: str) -> _Pattern:
    # Not `re`: its matcher cannot be given a time bound, and a bad pattern would hold the whole process.
    compile_pattern = cast(Callable[[str], _Pattern], cast(Any, regex).compile)
    error_type = cast(type[Exception], cast(Any, regex).error)
    try:
        return compile_pattern(pattern)
    except (error_type, OverflowError, RecursionError) as error:
        escaped = cast(str, cast(Any, regex).escape(pattern, special_only=True))
        raise ToolError(f"{pattern!r} is not a regular expression: {error}. To find it as plain text, search for {escaped!r}.") from None


def _search(workspace: Workspace, pattern: str, path: str) -> str:
    wanted, found = _compiled(pattern), _Found([])
    deadline = time.monotonic() + SEARCH_S
    for entry in _searched(workspace, path):
        with suppress(ToolRefusal):  # gone, or swapped for something else, since it was listed
            file = decode(workspace.read_bytes(entry.path, SEARCHED_BYTES))
            if file is not None:
                found.files += 1
                _search_lines(wanted, entry, file.text, found, deadline)
                if entry.size > SEARCHED_BYTES and not found.stopped:
                    found.stopped = f"only the first {SEARCHED_BYTES // 2**20} MiB of {shown(entry.path)} were searched"
        if found.stopped:
            break
    if not found.hits:
        where = f"in {found.files} files; it is looked for in their lines, not in their names"
        return f"No line matches {pattern!r} {where}.{found.stopped and f' [{found.stopped}]'}"
    return "\n".join(found.hits) + (f"\n[{found.stopped}]" if found.stopped else "")


def _searched(workspace: Workspace, path: str) -> Iterator[Entry]:
    try:
        start = workspace.stat(path)
    except Missing:
        raise ToolError(f"There is no {path!r}. Search in '.' to look through the whole workspace.") from None
    if start.kind == "file":
        yield start
        return
    yield from (entry for entry in workspace.walk(path) if entry.kind == "file" and entry.size <= SEARCHED_BYTES)


def _search_lines(wanted: _Pattern, entry: Entry, text: str, found: _Found, deadline: float) -> None:
    for number, line in enumerate(text.splitlines(), 1):
        left = deadline - time.monotonic()
        try:
            if left <= 0:
                raise TimeoutError
            if wanted.search(line, timeout=left) is None:
                continue
        except TimeoutError:
            found.stopped = f"stopped after {SEARCH_S:g} s at {shown(entry.path)}. Search in one folder, or for a simpler pattern."
            return
        hit = f"{shown(entry.path)}:{number}: {line.strip()[:_LINE]}"
        found.size += len(hit) + 1
        if len(found.hits) >= _HITS or found.size > OUTPUT_LIMIT:
            found.stopped = f"cut: more lines match after {len(found.hits)}. Search in one folder, or for a longer pattern."
            return
        found.hits.append(hit)
