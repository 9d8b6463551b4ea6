"""Calls of ReAct prompts, in two lines: the tool's name, then what it is given.

    Action: read_file
    Action Input: {"path": "a"}
    Observation: …

What stands behind `Observation:` is the model's own guess at the result: nothing of it is shown or acted on.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from services.scheduler.dialects import python_calls
from services.scheduler.dialects.scan import Finder

OPEN = r"(?<![^\n>])[ \t]{0,40}(?:\*\*)?Action(?:[ \t]?\d{1,3})?[ \t]{0,8}:(?:\*\*)?[ \t]{0,40}"
_NAME = re.compile(r"[`'\"]?([^\n{}<]{1,128}?)[`'\"]?[ \t]{0,40}(?=\n|\Z)")
_INPUT = re.compile(r"\s{0,200}(?:\*\*)?Action[ \t]{1,8}Input(?:[ \t]?\d{1,3})?[ \t]{0,8}:(?:\*\*)?[ \t]{0,40}", re.IGNORECASE)
_CUT_INPUT = re.compile(r"\s{0,200}[\w* \t:]{0,40}\Z")
_FENCE = re.compile(r"\s{0,40}```[\w+.-]{0,40}\s{0,40}(?=\{)")
_OBJECT = re.compile(r"\s{0,200}(?=\{)")
_FENCE_END = re.compile(r"\s{0,40}```")
_NEXT = re.compile(r"\n[ \t]{0,40}(?:\*\*)?(?:Observation|Thought|Action|Final Answer)[^\n:]{0,20}:", re.IGNORECASE)
_OBSERVATION = re.compile(r"\s{0,200}(?:\*\*)?Observation(?:[ \t]?\d{1,3})?[ \t]{0,8}:", re.IGNORECASE)
_FENCED = re.compile(r"```[\w+.-]{0,40}\n(.*)\n[ \t]*```", re.DOTALL)
_NOTHING = frozenset({"", "none", "null", "n/a", "{}", "()"})


@dataclass(frozen=True, slots=True)
class Head:
    """The first line of a call; `given` is where its input begins, None if there is none."""

    name: str
    end: int  # of the name's line
    given: int | None


@dataclass(frozen=True, slots=True)
class Given:
    """An input: whether it is an object, from where to where it goes, and where the text goes on."""

    is_object: bool
    start: int
    end: int
    after: int


def head_at(text: str, name: int) -> Head | None:
    """The head whose name begins at `name`, behind the label; None if no name stands there."""
    found = _NAME.match(text, name)
    if found is None:
        return None
    given = _INPUT.match(text, found.end())
    return Head(found[1].strip(), found.end(), given.end() if given else None)


def is_cut(text: str, head: Head) -> bool:
    """Whether the text ends where the input should have begun."""
    return head.given is None and _CUT_INPUT.match(text, head.end) is not None


def object_at(text: str, given: int) -> int | None:
    """Where the object that is given begins, perhaps in a fence."""
    found = _FENCE.match(text, given) or _OBJECT.match(text, given)
    return found.end() if found else None


def plain_text(find: Finder, given: int) -> Given:
    """An input that is no object: the text up to the next label."""
    following = find.search(_NEXT, given)
    end = following.start() if following else len(find.text)
    return Given(False, given, end, end)


def is_unfinished(written: str) -> bool:
    """Whether an input that ends the reply has not begun yet, or only with the fence around it."""
    text = written.strip()
    if not text.strip("`") or (text.startswith("```") and _FENCED.fullmatch(text) is None):
        return True
    return text.startswith("`") and not text.endswith("`")


def behind(text: str, end: int) -> int:
    """Where the text goes on behind an input: behind its fence, and at the end of all if a made-up result follows."""
    fence = _FENCE_END.match(text, end)
    after = fence.end() if fence else end
    return len(text) if _OBSERVATION.match(text, after) else after


def arguments_of(written: str, parameter: str | None) -> dict[str, Any] | None:
    """The arguments that a plain input means, for a tool whose one parameter is `parameter`; None if it is not clear.

    >>> arguments_of('"a.txt"', "path")
    {'path': 'a.txt'}
    """
    text = written.strip()
    if text.lower() in _NOTHING:
        return {}
    if (named := python_calls.keywords(text)) is not None:
        return named
    if parameter is None:
        return None
    fenced = _FENCED.fullmatch(text)
    return {parameter: fenced[1] if fenced else _unquoted(text)}


def _unquoted(text: str) -> str:
    if len(text) > 1 and text[0] == text[-1] == '"':
        try:
            value: Any = json.loads(text)
        except ValueError:
            return text
        return value if isinstance(value, str) else text
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'`" else text
