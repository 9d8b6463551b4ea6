"""What a person sees of a reply once the calls are taken out: without the brackets, fences and labels
that held nothing but calls."""

from __future__ import annotations

import re

from services.scheduler.dialects.harmony import without_markers

CALL = "\x00"  # stands where a call stood; replies are cleaned of NUL before they are read

_ARRAY = re.compile(r"\[\s*+\x00(?:[\s,;]*+\x00)*+[\s,]*+\]")
_SEVERAL = re.compile(r"\x00(?:[\s,;]*\x00)+")
_FENCE = re.compile(r"```[\w+.-]*+\s*+\x00\s*+(?:```|\Z)")
_LABEL = re.compile(r"^[ \t]*(?:action(?: input)?|tool calls?|function calls?)[ \t]*:\s*+\x00", re.IGNORECASE | re.MULTILINE)


def visible_text(pieces: list[str]) -> str:
    """The text of `pieces`, some of which are `CALL`."""
    text = "".join(pieces)
    if CALL in text:
        for pattern in (_ARRAY, _SEVERAL, _FENCE, _SEVERAL, _LABEL):
            text = pattern.sub(CALL, text)
        text = _joined(text.split(CALL))
    return without_markers(text).strip()


def _joined(parts: list[str]) -> str:
    """Texts around a call, apart from each other as they were: on lines of their own, or within one."""
    joined: list[str] = [parts[0]]
    for part in parts[1:]:
        before = joined.pop()
        left, right = before.rstrip(), part.lstrip()
        if left and right:
            apart = "\n" in before[len(left) :] or "\n" in part[: len(part) - len(right)]
            joined += [left, "\n" if apart else " "]
        else:
            joined.append(left)
        joined.append(right)
    return "".join(joined)
