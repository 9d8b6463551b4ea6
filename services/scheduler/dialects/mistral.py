"""Calls behind Mistral's control token: `[TOOL_CALLS]name[ARGS]{…}`, one after the other; in older templates a JSON list.

Some servers leave `[ARGS]` out, or keep the `[CALL_ID]` in front of it. The older `[TOOL_CALLS][{…}]` is plain JSON once
the token is gone, and is read as that.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

OPEN = r"(?<![`'\"])\[TOOL_CALLS\]"
_HEAD = re.compile(
    r"(?P<token>\[TOOL_CALLS\])?\s{0,40}(?P<name>[A-Za-z_][\w.:-]{0,127})\s{0,40}"
    r"(?P<id>\[CALL_ID\]\s{0,8}[\w-]{0,64}\s{0,8})?(?P<args>\[ARGS\])?\s{0,40}",
    re.IGNORECASE,
)
_JSON = re.compile(r"\s{0,200}[\[{]")
_END = re.compile(r"\s{0,200}\Z")


@dataclass(frozen=True, slots=True)
class Head:
    """A call's name, and where its arguments begin, or would have begun."""

    name: str
    arguments: int
    is_labelled: bool  # `[ARGS]` or `[CALL_ID]` stands behind the name


def head_at(text: str, start: int, *, first: bool) -> Head | None:
    """The head at `start`: that of the `first` call, behind its token, or one that follows a call at once."""
    head = _HEAD.match(text, start)
    if head is None or not (first or head["args"] or head["token"]):
        return None
    return Head(head["name"], head.end(), bool(head["args"] or head["id"]))


def is_list(text: str, start: int) -> bool:
    """Whether JSON follows the token at once, as in older templates."""
    return _JSON.match(text, start) is not None


def is_call(text: str, head: Head) -> bool:
    """Whether arguments follow, or the text ends before them: otherwise the token is mere prose."""
    return head.is_labelled or text.startswith("{", head.arguments) or _END.match(text, head.arguments) is not None
