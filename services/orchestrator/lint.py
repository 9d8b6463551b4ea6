"""What is wrong with a file by its kind alone, in one sentence. Pure.

Only places are told, never a parser's own words: those change between releases, and a run that is resumed
under the next one must say the same.
"""

from __future__ import annotations

import ast
import csv
import json
from collections.abc import Callable, Collection
from itertools import pairwise
from pathlib import PurePosixPath


def fault_in(path: str, text: str) -> str | None:
    """The fault of a file, if it has one.

    >>> fault_in("a.json", '{"a": 1')
    'a.json is not valid JSON: line 1, column 8.'
    """
    check = _CHECKS.get(PurePosixPath(path).suffix.lower())
    found = check(text) if check else None
    return f"{path} {found}" if found else None


def missing_import(path: str, text: str, files: Collection[str]) -> str | None:
    """A Python file's relative import of a module that the workspace does not hold, if it has one.

    >>> missing_import("shop/__init__.py", "from .cart import Cart", {"shop/__init__.py"})
    'shop/__init__.py imports .cart, which is not in the workspace: define what it needs in shop/__init__.py itself.'
    """
    if PurePosixPath(path).suffix != ".py":
        return None
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None  # that is told by `fault_in`
    folders = PurePosixPath(path).parents
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or not node.module or not 0 < node.level <= len(folders):
            continue
        place = str(folders[node.level - 1].joinpath(*node.module.split(".")))
        if f"{place}.py" not in files and not any(name.startswith(f"{place}/") for name in files):
            module = f"{'.' * node.level}{node.module}"
            return f"{path} imports {module}, which is not in the workspace: define what it needs in {path} itself."
    return None


def _json(text: str) -> str | None:
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return f"is not valid JSON: line {error.lineno}, column {error.colno}."
    except RecursionError:
        return None
    return None


def _python(text: str) -> str | None:
    try:
        ast.parse(text)
    except SyntaxError as error:
        return f"is not valid Python: line {error.lineno or 1}."
    except (ValueError, RecursionError, MemoryError):
        return None
    return None


def _csv(text: str) -> str | None:
    try:
        rows = [(number, row) for number, row in enumerate(csv.reader(text.splitlines()), 1) if row]
    except csv.Error:
        return None  # a value longer than the reader takes, or a NUL
    for number, row in rows[1:]:
        if len(row) != len(rows[0][1]):
            return (
                f"line {number} has {len(row)} values, the first line {len(rows[0][1])}: a value that holds a comma goes in double quotes."
            )
    return None


def _markdown(text: str) -> str | None:
    lines = [line.strip() for line in _outside_fences(text) if line.strip()]
    for line, after in pairwise([*lines, "#"]):
        level, next_level = _heading_level(line), _heading_level(after)
        if level and next_level and next_level <= level:
            return f"has no text under the heading {line!r}."
    return None


def _outside_fences(text: str) -> list[str]:
    kept: list[str] = []
    fenced = False
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            fenced = not fenced
            kept.append("(code)")
        elif not fenced:
            kept.append(line)
    return kept


def _heading_level(line: str) -> int:
    marks = len(line) - len(line.lstrip("#"))
    return marks if 0 < marks <= 6 else 0


_CHECKS: dict[str, Callable[[str], str | None]] = {".json": _json, ".py": _python, ".md": _markdown, ".csv": _csv}
