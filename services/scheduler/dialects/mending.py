"""JSON that a model got slightly wrong. Each step is tried in turn, the gentlest first.

Only a text whose objects are closed comes here: what was cut off is not completed by guessing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, cast

import json_repair

_DECODER = json.JSONDecoder(strict=False)  # raw newlines within strings are common, and clear
_LIMIT = 100_000  # characters that the last resort is given; its cost may grow faster than its input
_LEAVES = 1000  # more values than any call has are not checked, and so not believed
_ESCAPE = re.compile(r'\\(?:u[0-9a-fA-F]{4}|["\\/bfnrt])|\\')
_QUOTING = re.compile(r"\\[nrtbf]|[\\\"'\s]")
_OUTSIDE_STRINGS = re.compile(r'("(?:[^"\\]|\\.)*")|\{\{|\}\}', re.DOTALL)


def decode(text: str, start: int = 0) -> tuple[Any, int]:
    """The JSON value at `start` and where it ends.

    Raises:
        ValueError: it is no JSON; a `json.JSONDecodeError` tells the position.
    """
    try:
        return _DECODER.raw_decode(text, start)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def loads(text: str) -> Any:
    """The one JSON value that `text` is. Raises ValueError."""
    value, end = decode(text, len(text) - len(text.lstrip()))
    if text[end:].strip():
        raise ValueError("text after the JSON value")
    return value


def mend(text: str) -> tuple[dict[str, Any], str] | None:
    """The object that `text` most plainly means, and what was mended; None if nothing helps."""
    for what, step in _STEPS:
        try:
            value = step(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            return cast("dict[str, Any]", value), what
    return None


def _outer_pair(text: str) -> Any:
    if not (text.startswith("{{") and text.endswith("}}")):
        raise ValueError("no doubled braces")
    return loads(text[1:-1])


def _undouble(text: str) -> Any:
    return loads(_undoubled(text))


def _undoubled(text: str) -> str:
    return _OUTSIDE_STRINGS.sub(lambda match: match.group(1) or match.group()[0], text)


def _double_escapes(text: str) -> str:
    """`\\.` of a regular expression is no escape of JSON: it means a backslash and a dot."""
    return _ESCAPE.sub(lambda match: match.group() if len(match.group()) > 1 else "\\\\", text)


def _escapes(text: str) -> Any:
    try:
        return loads(_double_escapes(text))
    except ValueError:
        return loads(_undoubled(_double_escapes(text)))


def _last_resort(text: str) -> Any:
    if len(text) > _LIMIT:
        raise ValueError("too long to repair")
    value: Any = json_repair.loads(text, skip_json_loads=True)
    if not _is_written(value, text):
        raise ValueError("the repair made something up")
    return value


def _is_written(value: Any, text: str) -> bool:
    """Whether every string of a repaired value stands in the text: a missing value is not filled in."""
    source, has_empty = _bare(text), '""' in text or "''" in text
    waiting: list[Any] = [value]
    for _ in range(_LEAVES):
        if not waiting:
            return True
        one = waiting.pop()
        if isinstance(one, dict):
            body = cast("dict[str, Any]", one)
            waiting += [*body, *body.values()]
        elif isinstance(one, list):
            waiting += cast("list[Any]", one)
        elif isinstance(one, str) and (_bare(one) not in source or not (one or has_empty)):
            return False
    return False


def _bare(text: str) -> str:
    """`text` without what quoting and escaping change."""
    return _QUOTING.sub("", text)


_STEPS: tuple[tuple[str, Callable[[str], Any]], ...] = (
    ("json", loads),
    ("doubled_braces", _outer_pair),
    ("doubled_braces", _undouble),
    ("escapes", _escapes),
    ("json_repair", _last_resort),
)
