"""What a request says of a file's content, as far as the file's form shows whether it holds. Pure.

A person who writes "sorted", "only the number" or "with the keys name and age" has said how the result will be judged.
These are readings of a sentence, not facts: whoever asks here gives up on one that the model was told of in vain.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any, cast

from services.orchestrator import owed

_SENTENCE = re.compile(r"(?<=[.!?;])\s+")
_WORDS = r"([\w-]+(?:\s*,\s*[\w-]+)*(?:\s*,?\s+and\s+[\w-]+)?)"
_NUMBER = re.compile(
    r"\b(?:only|just)\s+(?:the|that|this|its)\s+number\b|\bnumber,?\s+and\s+nothing\s+else\b|\bnumber\s+(?:only|alone)\b", re.IGNORECASE
)
_PATH = re.compile(r"\b(?:write|put|save|store)\s+(?:only\s+|just\s+)?(?:its|the|their)\s+(?:relative\s+)?paths?\b", re.IGNORECASE)
_SORTED = re.compile(r"\bsort(?:ed)?\b(?!(?:[^.;]|\.(?=\S))*\b(?:by|reversed?|descending|backwards|\w+est|order\s+of)\b)", re.IGNORECASE)
_ONCE = re.compile(r"\b(?:each|every)\b[^.;]*\bonly\s+once\b|\b(?:no|without)\s+duplicates\b|\bunique\b|\bdistinct\b", re.IGNORECASE)
_PER_LINE = re.compile(r"\bone\s+(?:[\w-]+\s+)?(?:per|a|on\s+each)\s+line\b|\beach\s+on\s+(?:its|a)\s+(?:own\s+)?line\b", re.IGNORECASE)
# Kinds of things that programs can tell from other text: how they are called, and a pattern that `grep -oE` takes too.
_KINDS: tuple[tuple[str, re.Pattern[str], str], ...] = (
    ("e-mail address", re.compile(r"\be-?mail(?:\s+address(?:es)?|s)\b", re.IGNORECASE), r"[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,}"),
    ("URL", re.compile(r"\b(?:urls?|web\s+addresses|links)\b", re.IGNORECASE), r'https?://[^ "<>]+'),
    ("IP address", re.compile(r"\bip(?:v4)?\s+addresses\b", re.IGNORECASE), r"([0-9]{1,3}\.){3}[0-9]{1,3}"),
    ("date", re.compile(r"\bdates\b", re.IGNORECASE), r"[0-9]{4}-[0-9]{2}-[0-9]{2}"),
)
_HEADINGS = re.compile(r"[\"“'`](#{1,6} [^\"”'`\n]+)[\"”'`]")
_EXACTLY = re.compile(r"\b(?:exactly|only)\s+(?:these|the)\b[^.;]*\bheadings?\b", re.IGNORECASE)
_HEADING = re.compile(r"#{1,6} ")
_UNDER_EACH = re.compile(r"\b(?:text|something|sentences?)\b[^.;]*\b(?:under|below|in)\s+(?:each|every)\b", re.IGNORECASE)
_BULLETS = re.compile(r"\bbullet(?:ed)?[ -](?:list|points?)\b|\bbullets\b", re.IGNORECASE)
_KEYS = re.compile(rf"\bkeys\s+{_WORDS}")
_NUMERIC = re.compile(r"\b([\w-]+)\s+(?:must|should|has\s+to|shall)\s+be\s+(?:a\s+)?numbers?\b", re.IGNORECASE)
_HEADER = re.compile(r"\bheader(?:\s+(?:line|row))?:?\s+[\"'`]?([\w-]+(?:,\s?[\w-]+)+)")


def broken(request: str, path: str, text: str, files: Collection[str] = ()) -> str | None:
    """The first thing that a request says of a file and that its text does not keep, as a sentence; `files` are the workspace's.

    >>> broken("Write only the number of rows to n.txt.", "n.txt", "There are 4 rows.")
    'n.txt must hold only a number.'
    """
    said = " ".join(_about(request, path))
    for check in _CHECKS:
        if found := check(said, path, text, files):
            return f"{path} {found}"
    return None


def _about(request: str, path: str) -> Iterator[str]:
    """The sentences of a file: those that name it, and those after them that name none."""
    is_about = False
    for sentence in _SENTENCE.split(request):
        if named := owed.named_files(sentence):
            is_about = any(name == path or PurePosixPath(path).name == name for name in named)
        if is_about:
            yield sentence


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _is_plain(path: str) -> bool:
    return PurePosixPath(path).suffix.lower() in ("", ".txt", ".lst", ".list")


def _number(said: str, path: str, text: str, files: Collection[str]) -> str | None:
    if not _is_plain(path) or not _NUMBER.search(said) or re.fullmatch(r"[-+]?\d[\d,.]*", text.strip()):
        return None
    return "must hold only a number."


def _path(said: str, path: str, text: str, files: Collection[str]) -> str | None:
    if not _is_plain(path) or not files or not _PATH.search(said):
        return None
    lines = [line.removeprefix("./") for line in _lines(text)]
    if lines and all(line in files for line in lines):
        return None
    others = sorted(name for name in files if name != path)
    example = f", such as {others[0]}" if others else ""
    return f"must hold just a path of the workspace{example}, and not what the file holds."


def _kind(said: str, path: str, text: str, files: Collection[str]) -> str | None:
    """Every line is one of the things that are wanted, as far as such things were found at all."""
    if not _is_plain(path) or not _PER_LINE.search(said):
        return None
    for name, called, pattern in _KINDS:
        # Dates and the like are written in many ways: only where the pattern is met somewhere does it hold for every line.
        if not called.search(said) or not re.search(pattern, text):
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if line.strip() and not re.fullmatch(pattern, line.strip()):
                order = " | sort -u" if _ONCE.search(said) else " | sort" if _SORTED.search(said) else ""
                sources = [each for each in owed.named_files(said) if each in files and each != path]
                run = f"grep -oE '{pattern}' {sources[0]}{order} > {path}" if sources else f"grep -oE '{pattern}' on the text"
                return f"must hold one {name} a line and nothing else; line {number} is not just that. Run: {run}"
    return None


def _order(said: str, path: str, text: str, files: Collection[str]) -> str | None:
    if not _is_plain(path):
        return None
    lines = _lines(text)
    twice = _ONCE.search(said) is not None and len(set(lines)) < len(lines)
    if twice or (_SORTED.search(said) and not _is_sorted(lines)):
        return f"{'holds a line twice' if twice else 'is not sorted'}. Run: sort {'-u ' if twice else ''}-o {path} {path}"
    return None


def _is_sorted(lines: list[str]) -> bool:
    """In any order that a person may mean: by code, by letter, by number."""
    ways: list[Callable[[str], Any]] = [str, str.casefold, lambda line: re.sub(r"[^\w]", "", line).casefold()]
    if all(re.fullmatch(r"-?\d+(\.\d+)?", line) for line in lines):
        ways.append(float)
    return any(lines in (sorted(lines, key=way), sorted(lines, key=way, reverse=True)) for way in ways)


def _headings(said: str, path: str, text: str, files: Collection[str]) -> str | None:
    if PurePosixPath(path).suffix.lower() not in (".md", ".markdown"):
        return None
    wanted, lines = [heading.strip() for heading in _HEADINGS.findall(said)], _lines(text)
    there = [line for line in lines if _HEADING.match(line)]
    if lacking := [heading for heading in wanted if heading not in there]:
        return f"lacks the heading {lacking[0]!r}."
    if _EXACTLY.search(said) and there != wanted:
        return f"must have just the headings {', '.join(wanted)}."
    if _UNDER_EACH.search(said):
        bare = next((line for line, after in pairwise([*lines, "# "]) if _HEADING.match(line) and _HEADING.match(after)), None)
        if bare is not None:
            return f"has no text under the heading {bare!r}."
    if _BULLETS.search(said) and not any(re.match(r"[-*+] ", line) for line in lines):
        return "must have a bullet list: lines that begin with '- '."
    return None


def _keys(said: str, path: str, text: str, files: Collection[str]) -> str | None:
    if PurePosixPath(path).suffix.lower() != ".json":
        return None
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return None  # that it is no JSON is told by `lint`
    rows = [
        cast(dict[str, Any], row) for row in (cast(list[Any], content) if isinstance(content, list) else [content]) if isinstance(row, dict)
    ]
    if (keys := _KEYS.search(said)) and rows:
        wanted = re.split(r"\s*,\s*(?:and\s+)?|\s+and\s+", keys.group(1))
        if any(name not in row for row in rows for name in wanted):
            return f"must have the keys {owed.and_list(wanted)} in each object."
    for name in _NUMERIC.findall(said):
        if any(isinstance(row.get(name), str) for row in rows):
            return f"must have {name} as a number, without quotes."
    return None


def _header(said: str, path: str, text: str, files: Collection[str]) -> str | None:
    found = _HEADER.search(said)
    if found is None or PurePosixPath(path).suffix.lower() != ".csv":
        return None
    wanted = [name.strip() for name in found.group(1).split(",")]
    first = [name.strip().strip('"') for line in _lines(text)[:1] for name in line.split(",")]
    return None if first == wanted else f"must begin with the line {','.join(wanted)}."


_CHECKS = (_number, _path, _kind, _order, _headings, _keys, _header)
